"""The approvals' JSON API on a real server: shapes, scopes, strictness, and one answer for what one may not know."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import Request, Response
from starlette.applications import Starlette

from approvals.approvers import Person
from approvals.review.api import Headers, Planned, TurnedAway, answer, approvals_api
from tests.support.approvals import ALICE, BOB, CAROL, MALLORY, TERMS, Bench, bench, effect, grant_of, person

PEOPLE = {one.subject: one for one in (ALICE, BOB, CAROL, MALLORY)}
PEOPLE["nobody"] = person("nobody", scopes=frozenset())


class Unauthenticated(Exception):  # noqa: N818 - like the house's Refused
    """The house's own refusal."""


async def authenticate(headers: Headers) -> Person:
    """The house's part: here the token is the name."""
    given = [value for name, value in headers if name.lower() == b"authorization"]
    name = given[0].decode().removeprefix("Bearer ") if len(given) == 1 else ""
    if name not in PEOPLE:
        raise Unauthenticated
    return PEOPLE[name]


async def plan(
    who: Person,
    server: str,
    method: str,
    name: str,
    arguments: Mapping[str, Any],
    *,
    vary: Mapping[str, Any] | None = None,
) -> Planned:
    """The house's part: here the policy holds everything for Bob or Carol, and hides `/pin`."""
    made = effect(arguments, subject=who.subject, server=server, method=method, name=name)
    return (
        made if vary is None else grant_of(made, vary),
        TERMS,
        ("rule",),
        ("/pin",),
    )


def unauthenticated(_: Request, __: Exception) -> Response:
    """How the house renders it."""
    return answer(401, {"error": "token_invalid"}, {"www-authenticate": "Bearer"})


class Api:
    """A client of the API that is served from this desk."""

    def __init__(self, it: Bench, client: httpx.AsyncClient) -> None:
        self.it = it
        self.client = client

    async def __call__(self, method: str, path: str, who: str = "bob", **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {who}"} | more.pop("headers", {})
        reply = await self.client.request(method, path, headers=headers, **more)
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["content-type"] == "application/json"
        assert reply.headers["x-content-type-options"] == "nosniff"
        return reply

    async def ticket(self, **arguments: Any) -> str:
        """Alice's pending ticket."""
        held = await self.it.held(effect(arguments or {"amount": 1, "pin": "canary"}), mask=("/pin",))
        return held.ticket.id


@asynccontextmanager
async def served(app: Starlette) -> AsyncIterator[str]:
    """On loopback, on a free port."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False, lifespan="off"))
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """The API before a fresh store."""
    async with bench(tmp_path / "approvals.db") as it:
        app = approvals_api(it.desk, authenticate, plan, refuse={Unauthenticated: unauthenticated}, body_bytes=10_000)
        async with served(app) as url, httpx.AsyncClient(base_url=url, verify=False) as client:
            yield Api(it, client)


async def test_a_ticket_has_the_documented_shape(api: Api) -> None:
    """Every member that design.md names, with its type; what the policy masks is masked."""
    ticket_id = await api.ticket()
    reply = await api("GET", f"/approvals/{ticket_id}")
    assert reply.status_code == 200
    ticket = reply.json()
    assert {
        "id", "state", "server", "resource", "environment", "method", "name", "arguments", "requester",
        "justification", "reasons", "approvers", "min_approvers", "decisions", "uses", "uses_left", "runs", "digest",
        "tool_digest", "page", "createdAt", "expiresAt",
    } <= set(ticket)  # fmt: skip
    assert ticket["requester"] == {"issuer": ALICE.issuer, "subject": "alice", "client": "agent"}
    assert ticket["arguments"] == {"amount": 1, "pin": "[masked]"}
    assert ticket["page"] == f"https://mcp.example/review/{ticket_id}"
    assert ticket["createdAt"] == "2027-01-15T08:00:00.000Z"
    assert ticket["expiresAt"] == "2027-01-15T09:00:00.000Z"
    assert "canary" not in reply.text


async def test_the_story_over_http(api: Api) -> None:
    """Asked ahead, listed, approved with what was seen, used, revoked too late."""
    body = {
        "server": "bank",
        "method": "tools/call",
        "name": "pay",
        "arguments": {"amount": 7},
        "justification": "rent",
    }
    asked = await api("POST", "/approvals", "alice", json=body)
    assert asked.status_code == 201
    assert (await api("POST", "/approvals", "alice", json=body)).status_code == 200
    ticket_id = asked.json()["id"]
    listed = (await api("GET", "/approvals", params={"state": "pending"})).json()
    assert [ticket["id"] for ticket in listed["tickets"]] == [ticket_id]
    assert listed["next"] is None
    seen = listed["tickets"][0]["digest"]
    done = await api("POST", f"/approvals/{ticket_id}/approve", json={"comment": "ok", "seen": seen})
    assert (done.status_code, done.json()["state"]) == (200, "approved")
    assert done.json()["decisions"][0] | {"at": ""} == {"by": BOB.by, "verb": "approve", "comment": "ok", "at": ""}
    stale = await api("POST", f"/approvals/{ticket_id}/revoke", json={"seen": seen})
    assert (stale.status_code, stale.json()["error"], stale.json()["why"]) == (409, "moved_on", "stale")
    use = await api.it.claimed(effect({"amount": 7}), mask=("/pin",))
    await api.it.desk.sent(use)
    assert (await api("POST", f"/approvals/{ticket_id}/revoke", json={})).status_code == 200
    assert (await api("POST", f"/approvals/{ticket_id}/revoke", json={})).status_code == 409


async def test_pages_follow_the_cursor(api: Api) -> None:
    """`next` leads through all of them, once each."""
    ids = [await api.ticket(amount=number) for number in range(5)]
    seen, cursor = [], None
    while True:
        query = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = (await api("GET", "/approvals", params=query)).json()
        seen += [ticket["id"] for ticket in page["tickets"]]
        if (cursor := page["next"]) is None:
            break
    assert sorted(seen) == sorted(ids)


@pytest.mark.parametrize(("method", "path"), [("GET", "/approvals"), ("POST", "/approvals"), ("GET", "/approvals/x"),
                                              ("POST", "/approvals/x/approve")])  # fmt: skip
async def test_without_a_token_there_is_no_answer(api: Api, method: str, path: str) -> None:
    """The house's refusal comes before anything is read, a bad body included."""
    reply = await api(method, path, "stranger", content=b"{" if method == "POST" else None)
    assert reply.status_code == 401
    twice = [("authorization", "Bearer bob"), ("authorization", "Bearer alice")]
    reply = await api.client.request(method, path, headers=twice)
    assert reply.status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/approvals", "approvals:read"),
        ("GET", "/approvals/{id}", "approvals:read"),
        ("POST", "/approvals", "approvals:request"),
        ("POST", "/approvals/{id}/approve", "approvals:decide"),
        ("POST", "/approvals/{id}/deny", "approvals:decide"),
        ("POST", "/approvals/{id}/revoke", "approvals:decide"),
        ("POST", "/approvals/{id}/resolve", "approvals:decide"),
        ("POST", "/approvals/{id}/withdraw", "approvals:request"),
    ],
)
async def test_a_missing_scope_is_named(api: Api, method: str, path: str, scope: str) -> None:
    """403 with the challenge, before the body is looked at."""
    path = path.format(id=await api.ticket())
    reply = await api(method, path, "nobody", content=b"{" if method == "POST" else None)
    assert (reply.status_code, reply.json()["error"], reply.json()["scope"]) == (403, "insufficient_scope", scope)
    assert reply.headers["www-authenticate"] == f'Bearer error="insufficient_scope", scope="{scope}"'


async def test_foreign_absent_and_forged_look_alike(api: Api) -> None:
    """APR-11: the same status, headers and bytes, for reading and for every verb."""
    ticket_id = await api.ticket()
    assert (await api("GET", f"/approvals/{ticket_id}", "alice")).status_code == 200
    ids = [
        ticket_id,
        "A" * 24,
        ticket_id[:-1],
        ticket_id + "A",
        ticket_id[::-1],
        ticket_id.swapcase(),
        "%00",
        "x" * 500,
    ]
    replies = [await api("GET", f"/approvals/{one}", "mallory") for one in ids]
    replies += [await api("GET", f"/approvals/{one}", "bob") for one in ids[1:]]
    for verb in ("approve", "deny", "revoke", "withdraw", "resolve"):
        replies += [await api("POST", f"/approvals/{one}/{verb}", "mallory", json={"comment": "x"}) for one in ids]
    assert {(reply.status_code, reply.content) for reply in replies} == {(404, replies[0].content)}
    assert {tuple(sorted(set(reply.headers) - {"date"})) for reply in replies} == {
        tuple(sorted(set(replies[0].headers) - {"date"}))
    }
    assert api.it.journal.verbs == ["request"]


@pytest.mark.parametrize(
    ("content", "status", "name"),
    [
        (b"", 400, "body_not_json"),
        (b"{", 400, "body_not_json"),
        (b"{} {}", 400, "body_not_json"),
        (b'{"comment": NaN}', 400, "body_not_json"),
        (b'{"comment": "\\ud800"}', 400, "body_not_json"),
        (b'{"comment": "\xff"}', 400, "body_not_json"),
        (b"[]", 400, "body_not_an_object"),
        (b'"approve"', 400, "body_not_an_object"),
        (b'{"seen": "a", "seen": "b"}', 400, "body_ambiguous"),
        (b'{"seen": 18446744073709551616}', 400, "body_ambiguous"),
        (b'{"seen": [-9223372036854775809]}', 400, "body_ambiguous"),
        (b'{"seen": 1e-400}', 400, "body_ambiguous"),
        (b'{"seen": 1e400}', 400, "body_not_json"),
        (b'{"verdict": "yes"}', 400, "member_unknown"),
        (b'{"comment": 7}', 400, "comment_invalid"),
        (b'{"comment": null}', 400, "comment_invalid"),
        (b'{"seen": ["x"]}', 400, "seen_invalid"),
        (b'{"comment": "%s"}' % (b"x" * 4001), 400, "comment_too_long"),
        (b'{"comment": %s}' % (b"[" * 200 + b"]" * 200), 400, "body_too_deep"),
        (b'{"comment": "%s"}' % (b"x" * 70_000), 413, "body_too_large"),
    ],
)
async def test_a_body_is_taken_strictly(api: Api, content: bytes, status: int, name: str) -> None:
    """What is not exactly the documented body changes nothing, and the right one then does."""
    ticket_id = await api.ticket()
    headers = {"content-type": "application/json"}
    reply = await api("POST", f"/approvals/{ticket_id}/approve", content=content, headers=headers)
    assert (reply.status_code, reply.json()["error"]) == (status, name)
    assert (await api("GET", f"/approvals/{ticket_id}")).json()["state"] == "pending"
    reply = await api("POST", f"/approvals/{ticket_id}/approve", content=b"{}", headers=headers)
    assert reply.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"content-type": "text/plain"}, {"content-type": "application/json; charset=utf-16"}, {"content-type": ""},
     {"content-type": "application/x-www-form-urlencoded"},
     {"content-type": "application/json", "content-encoding": "gzip"}],
)  # fmt: skip
async def test_only_json_is_a_body(api: Api, headers: dict[str, str]) -> None:
    """No simple cross-site request can act, and nothing is decompressed."""
    reply = await api("POST", f"/approvals/{await api.ticket()}/approve", content=b"{}", headers=headers)
    assert (reply.status_code, reply.json()["error"]) == (415, "content_unsupported")
    kinds = ("application/json", "Application/JSON; charset=UTF-8", 'application/json;charset="utf-8"')
    for number, kind in enumerate(kinds):
        path = f"/approvals/{await api.ticket(amount=number)}/approve"
        assert (await api("POST", path, content=b"{}", headers={"content-type": kind})).status_code == 200


@pytest.mark.parametrize(
    "changes",
    [{"server": 7}, {"server": None}, {"method": "tools/list"}, {"method": "Tools/call"}, {"name": ["x"]},
     {"arguments": []},
     {"arguments": "x"}, {"justification": 1}, {"justification": "x" * 4001}, {"name": "x" * 9000}, {"uses": 100},
     {"approvers": ["user:alice"]}, {"arguments": {"x": "y" * 20_000}}],
)  # fmt: skip
async def test_a_request_ahead_is_taken_strictly(api: Api, changes: dict[str, Any]) -> None:
    """Whoever asks names a call, and nothing about its approval."""
    body = {"server": "bank", "method": "tools/call", "name": "pay", "arguments": {"a": 1}}
    reply = await api("POST", "/approvals", "alice", json={**body, **changes})
    assert reply.status_code in (400, 413)
    assert (await api("POST", "/approvals", "alice", json=body)).status_code == 201


@pytest.mark.parametrize(
    "query",
    ["state=open", "state=pending&state=used", "sate=pending", "limit=0x10", "limit=-1", "limit=²", "limit=",
     "cursor=x", "cursor=", "cursor=%00"],
)  # fmt: skip
async def test_a_query_is_taken_strictly(api: Api, query: str) -> None:
    """A filter that is not understood is refused: it would show more than was asked for."""
    reply = await api("GET", f"/approvals?{query}")
    assert reply.status_code == 400
    assert (await api("GET", "/approvals?state=pending&limit=10")).status_code == 200


async def test_a_cursor_shows_nothing_more(api: Api) -> None:
    """A cursor made by hand pages only through what one may see."""
    await api.ticket()
    forged = base64.urlsafe_b64encode(b"\x42" + b"\0" * 7 + b"A" * 24).decode().rstrip("=")
    for who, count in (("bob", 1), ("mallory", 0)):
        reply = await api("GET", "/approvals", who, params={"cursor": forged})
        assert (reply.status_code, len(reply.json()["tickets"])) == (200, count)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/docs", 404), ("GET", "/openapi.json", 404), ("GET", "/approvals/", 404),
     ("DELETE", "/approvals/x", 405),
     ("POST", "/approvals/x", 405), ("POST", "/approvals/x/execute", 404), ("POST", "/approvals/x/__class__", 404),
     ("PUT", "/approvals", 405), ("OPTIONS", "/approvals", 405)],
)  # fmt: skip
async def test_nothing_else_is_served(api: Api, method: str, path: str, status: int) -> None:
    """No documentation page, no redirect, no other method; the answers are JSON as well."""
    reply = await api(method, path)
    assert reply.status_code == status
    assert "error" in reply.json()


@pytest.mark.parametrize(
    ("who", "verb", "status", "name"),
    [("alice", "approve", 403, "own_request"), ("alice", "deny", 403, "own_request"),
     ("bob", "withdraw", 403, "not_your_request"),
     ("bob", "resolve", 409, "moved_on"), ("bob", "revoke", 409, "moved_on")],
)  # fmt: skip
async def test_a_no_has_its_name(api: Api, who: str, verb: str, status: int, name: str) -> None:
    """Who may know the ticket is told why not."""
    reply = await api("POST", f"/approvals/{await api.ticket()}/{verb}", who, json={"comment": "x"})
    assert (reply.status_code, reply.json()["error"]) == (status, name)


async def test_a_note_that_is_missing_is_asked_for_in_a_sentence(api: Api) -> None:
    """Setting an unknown use aside needs a comment; the answer says which and what for."""
    reply = await api("POST", f"/approvals/{await api.ticket()}/resolve", json={})
    assert (reply.status_code, reply.json()["error"]) == (400, "comment_required")
    assert "what you found out" in reply.json()["message"]


async def test_nobody_is_turned_away_without_a_word_to_the_house(tmp_path: Path) -> None:
    """AUD-01: every refusal that this API makes by itself is told with who, what, which ticket, why."""
    told: list[TurnedAway] = []

    def tell(turned: TurnedAway) -> Mapping[str, str]:
        told.append(turned)
        return {"ostiary-decision": str(len(told))}

    async with bench(tmp_path / "approvals.db") as it:
        app = approvals_api(it.desk, authenticate, plan, refuse={Unauthenticated: unauthenticated}, tell=tell)
        async with served(app) as url, httpx.AsyncClient(base_url=url, verify=False) as client:
            api = Api(it, client)
            ticket = await api.ticket()
            replies = [
                await api("POST", f"/approvals/{ticket}/approve", "alice", json={}),
                await api("POST", f"/approvals/{ticket}/approve", "mallory", json={}),
                await api("POST", f"/approvals/{ticket}/approve", "nobody", json={}),
                await api("GET", "/approvals/guessed", "mallory"),
                await api("POST", f"/approvals/{ticket}/approve", json={"verdict": "yes"}),
                await api("POST", f"/approvals/{ticket}/revoke", json={}),
                await api("GET", "/approvals?state=any"),
                await api("DELETE", f"/approvals/{ticket}"),
            ]
            await api("GET", "/approvals", "stranger")
            assert (await api("POST", f"/approvals/{ticket}/approve", json={})).status_code == 200
    assert [(one.person and one.person.subject, one.verb, one.ticket_id, one.status, one.name) for one in told] == [
        ("alice", "approve", ticket, 403, "own_request"),
        ("mallory", "approve", ticket, 404, "not_found: not_theirs: approver_nowhere"),
        ("nobody", "approve", ticket, 403, "insufficient_scope"),
        ("mallory", "show", "guessed", 404, "not_found: malformed"),
        ("bob", "approve", ticket, 400, "member_unknown"),
        ("bob", "revoke", ticket, 409, "moved_on: pending"),
        ("bob", "show", "", 400, "state_invalid"),
        (None, "show", ticket, 405, "method_not_allowed"),
    ]
    assert [reply.headers["ostiary-decision"] for reply in replies] == [str(n) for n in range(1, 9)]


async def test_a_lost_store_is_503(api: Api, tmp_path: Path) -> None:
    """With when to try again, and without a word about the database."""
    ticket_id = await api.ticket()
    await asyncio.to_thread((tmp_path / "approvals.db").unlink)
    reply = await api("POST", f"/approvals/{ticket_id}/approve", json={})
    assert (reply.status_code, reply.json()["error"]) == (503, "approvals_unavailable")
    assert reply.headers["retry-after"] == "5"
    assert "db" not in reply.text


async def test_many_decide_at_once_and_one_counts(api: Api) -> None:
    """Twenty people at the same moment: one transition, and everybody else is told that it moved on."""
    ticket_id = await api.ticket()
    verbs = ["approve", "deny"] * 10
    replies = await asyncio.gather(
        *(
            api("POST", f"/approvals/{ticket_id}/{verb}", "bob" if number % 4 < 2 else "carol", json={})
            for number, verb in enumerate(verbs)
        )
    )
    assert sorted(reply.status_code for reply in replies) == [200] + [409] * 19
    assert len(api.it.journal.verbs) == 2
