"""Lists and calls of every kind are one decision, for everybody apart: AZ-05, CCH-02."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.contract.sse import whatwg
from tests.rows.conftest import furnish, opened, served, settings_of
from tests.rows.stage import House, Server, Stage
from tests.support.http_raw import Answer
from tests.support.stack import ISSUER, Stack, body
from tests.support.upstream import SSE_HEAD, Exchange, chunk, http, result_of

TENANTS = [f"tenant-{number:02}" for number in range(20)]
TOOLS = [f"tool-{letter}" for letter in "hgfedcba"]
PROMPTS = [f"prompt-{letter}" for letter in "zyxwv"]
RESOURCES = [f"file:///srv/data/{name}" for name in ("z", "y", "deep/x", "deep/w", "deep/deeper/v")]
TEMPLATES = ["file:///srv/data/deep/{name}", "file:///srv/data/{name}", "file:///srv/data/deep/deeper/{name}"]
SECRET_TOOL = {"name": "broken", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}}
CACHED = {"ttlMs": 60_000, "cacheScope": "public"}


class Offering(Server):
    """Lists more than anybody may have: also what can't be used, and what lies out of reach."""

    def result(self, exchange: Exchange) -> bytes:
        """The good answer to a request."""
        message = json.loads(exchange.seen.body)
        match message["method"]:
            case "prompts/list":
                broken = {"name": "broken", "arguments": [{}]}
                return result_of(exchange.id, prompts=[*({"name": name} for name in PROMPTS), broken], **CACHED)
            case "resources/list":
                uris = ["file:///etc/passwd", *RESOURCES, "file:///srv/data/../x"]
                return result_of(exchange.id, resources=[{"uri": uri, "name": uri} for uri in uris], **CACHED)
            case "resources/templates/list":
                found = [{"uriTemplate": each, "name": each} for each in (*TEMPLATES, "file:///{+path}")]
                return result_of(exchange.id, resourceTemplates=found, **CACHED)
            case "resources/read":
                content = {"uri": message["params"]["uri"], "text": "read"}
                return result_of(exchange.id, contents=[content], **CACHED)
            case _:
                return super().result(exchange)


def some_of(dice: random.Random) -> dict[str, Any]:
    """An entry for some tenants: a half of them, none, or all of them."""
    chosen = dice.choice([dice.sample(TENANTS, 10), dice.sample(TENANTS, 10), [], None])
    return {"effect": "read"} if chosen is None else {"effect": "read", "tenants": chosen}


def rules(dice: random.Random) -> dict[str, Any]:
    """Who may have what, at random; `absent` ones are allowed, and no server has them."""
    return {
        "methods": {"server/discover": {}, "completion/complete": {}},
        "tools": {name: some_of(dice) for name in [*TOOLS, "absent", "broken"]},
        "prompts": {name: some_of(dice) for name in [*PROMPTS, "absent", "broken"]},
        "resources": {
            key: some_of(dice)
            for key in (
                "file:///srv/data/",
                "file:///srv/data/deep/",
                "file:///srv/data/deep/deeper/",
                *RESOURCES[:3],
            )
        }
        | {"file:///etc/": {}},
    }


@pytest.fixture(scope="module")
def house(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A gateway whose policy asks for the tenant."""
    listed = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
    behind: dict[str, list[Server]] = {"plain": [Offering([*listed, SECRET_TOOL])]}
    stack = Stack(tmp_path_factory.mktemp("offers"), {}, data=rules(random.Random(20)))
    issuer = {"issuer": ISSUER, "jwks_file": "jwks.json", "algorithms": ["ES256"], "tenant_claim": "tid"}
    reach = {"resources": {"allow": ["file:///srv/data/"]}}
    with opened(stage, behind["plain"]):
        furnish(stack, settings_of(behind, plain=reach), identity={"issuers": [issuer]})
        house = House(stage, stack, behind)
        with served(stage, stack), house.http:
            yield house


class Principal:
    """Somebody of a tenant."""

    def __init__(self, house: House, tenant: str, scope: str = "mcp:use") -> None:
        endpoint = house.stack.endpoint("plain")
        claims: dict[str, Any] = {"sub": f"user-of-{tenant}", "scope": scope, "client_id": "tests", "tid": tenant}
        self.house = house
        self.token = house.plant(house.stack.issuer.mint(endpoint, **claims))

    def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Answer:
        """A good request."""
        return self.house.ask(self.house.good(body(method, params, 7), token=self.token))

    def listed(self, kind: str) -> list[str]:
        """What a list shows, in its order; it is nobody else's."""
        method, member, key = LISTS[kind]
        result = self.ask(method).json()["result"]
        assert result["cacheScope"] == "private"
        return [item[key] for item in result[member]]

    def may(self, kind: str, name: str) -> bool:
        """Whether a call is let through; if not, it is told what all are told."""
        method, member = CALLS[kind]
        answer = self.ask(method, {member: name.replace("{name}", "some-name")})
        assert answer.status in (200, 403), answer
        if answer.status == 403:
            assert told(answer) == DENIED
        elif method == "resources/read":
            assert answer.json()["result"]["cacheScope"] == "private"
        return answer.status == 200


LISTS = {
    "tool": ("tools/list", "tools", "name"),
    "prompt": ("prompts/list", "prompts", "name"),
    "resource": ("resources/list", "resources", "uri"),
    "template": ("resources/templates/list", "resourceTemplates", "uriTemplate"),
}
CALLS = {
    "tool": ("tools/call", "name"),
    "prompt": ("prompts/get", "name"),
    "resource": ("resources/read", "uri"),
    "template": ("resources/read", "uri"),
}
OFFERED = {
    "tool": [*TOOLS, "broken"],
    "prompt": [*PROMPTS, "broken"],
    "resource": ["file:///etc/passwd", *RESOURCES, "file:///srv/data/../x"],
    "template": [*TEMPLATES, "file:///etc/{name}"],
}
DENIED = {"code": 40302, "message": "The policy does not allow this operation.", "data": {}}


def told(answer: Answer) -> Any:
    """A refusal without what differs in every reply."""
    error = answer.json()["error"]
    assert error["data"].pop("decisionId")
    return error


@pytest.mark.parametrize("kind", list(LISTS))
def test_listed_is_what_can_be_called(house: House, kind: str) -> None:
    """AZ-05: for each of 20 principals the list is what a call of each thing passes, in the server's order; what is
    hidden, unusable, out of reach or absent is one reply."""
    seen = []
    for tenant in TENANTS:
        caller = Principal(house, tenant)
        listed = caller.listed(kind)
        assert listed == [name for name in OFFERED[kind] if caller.may(kind, name)]
        assert listed == caller.listed(kind)
        assert not caller.may(kind, "absent" if kind in ("tool", "prompt") else "file:///srv/absent")
        seen.append(tuple(listed))
    assert len(set(seen)) > 2, "the principals are not all alike"
    assert any(seen)


@pytest.mark.parametrize("kind", ["prompt", "template"])
def test_completed_is_what_is_listed(house: House, kind: str) -> None:
    """AZ-05: a completion is of something that the caller is shown; of anything else it is one reply."""
    told_of: list[bool] = []
    for tenant in TENANTS[:8]:
        caller = Principal(house, tenant)
        for name in [*OFFERED[kind], "absent"]:
            ref = {"type": "ref/prompt", "name": name} if kind == "prompt" else {"type": "ref/resource", "uri": name}
            answer = caller.ask("completion/complete", {"ref": ref, "argument": {"name": "a", "value": "v"}})
            if answer.status == 403:
                assert told(answer) == DENIED
            assert (answer.status == 200) == (name in caller.listed(kind))
            told_of.append(answer.status == 200)
    assert set(told_of) == {True, False}


@pytest.mark.parametrize("kind", list(LISTS))
def test_a_list_on_a_stream_shows_what_any_list_shows(house: House, kind: str) -> None:
    """AZ-05, G8: an event stream is no way round policy, reach or contracts, whatever is listed."""
    server, (method, member, key) = house.behind["plain"][0], LISTS[kind]

    async def stream(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + chunk(b"data: " + server.result(exchange) + b"\n\n") + chunk(b""))

    for tenant in TENANTS[:6]:
        caller = Principal(house, tenant)
        listed = caller.listed(kind)
        with server.playing(stream):
            answer = caller.ask(method)
        assert answer.values("content-type") == ["text/event-stream"]
        ((_, text, _),) = whatwg(answer.body)
        result = json.loads(text)["result"]
        assert ([item[key] for item in result[member]], result["cacheScope"]) == (listed, "private")
        assert not [name for name in OFFERED[kind] if name not in listed and f'"{name}"' in text]


def test_the_same_bytes_twice(house: House) -> None:
    """What a list says does not depend on when, or after whom, it is asked."""
    one, other = Principal(house, TENANTS[0]), Principal(house, TENANTS[1])
    for method, _, _ in LISTS.values():
        first = one.ask(method).body
        other.ask(method)
        assert one.ask(method).body == first


def test_no_answer_is_anybody_elses(house: House) -> None:
    """CCH-02: equal requests of callers with other scopes or tenants are judged apart, every time, and each that is
    allowed is one request to the server; also one that brings answers to a question."""
    name = next(name for name in TOOLS if 0 < sum(Principal(house, one).may("tool", name) for one in TENANTS[:6]) < 6)
    callers = [Principal(house, tenant) for tenant in TENANTS[:6]]
    verdicts = [caller.may("tool", name) for caller in callers]
    params: dict[str, Any] = {"name": name, "arguments": {"same": 1}}
    for _ in range(3):
        before = len(house.forwarded())
        answers = [caller.ask("tools/call", params) for caller in callers]
        assert [answer.status == 200 for answer in answers] == verdicts
        assert len(house.forwarded()) == before + sum(verdicts)
    one, other = [caller for caller, allowed in zip(callers, verdicts, strict=True) if allowed][:2]

    async def ask_back(exchange: Exchange) -> None:
        given = json.loads(exchange.seen.body)["params"]
        asks = {"resultType": "input_required", "requestState": "round"}
        kind = {} if "inputResponses" in given else asks
        await exchange.send(http(200, result_of(exchange.id, text=str(given.get("inputResponses")), **kind)))

    with house.behind["plain"][0].playing(ask_back):
        state = one.ask("tools/call", params).json()["result"]["requestState"]
        for answer in ("yes", "no", "yes"):
            back = {**params, "requestState": state, "inputResponses": {"q": {"action": answer}}}
            before = len(house.forwarded())
            assert answer in one.ask("tools/call", back).json()["result"]["text"]
            assert other.ask("tools/call", back).json()["error"]["code"] == -32602
            assert len(house.forwarded()) == before + 1


def test_a_new_revision_of_the_policy_is_what_counts(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> None:
    """CCH-02: the same token and the same request under another bundle: nothing of the old verdict is left."""
    behind: dict[str, list[Server]] = {"plain": [Offering([{"name": "one", "inputSchema": {"type": "object"}}])]}
    stack = Stack(tmp_path_factory.mktemp("revisions"), {})
    revisions = []
    with opened(stage, behind["plain"]):
        for allowed in (True, False):
            stack.data = {"tools": {"one": {"effect": "read"}} if allowed else {"other": {"effect": "read"}}}
            furnish(stack, settings_of(behind))
            (stack.folder / "bundle/.manifest").write_text(json.dumps({"revision": f"r-{allowed}", "roots": ["mcp"]}))
            house = House(stage, stack, behind)
            with served(stage, stack), house.http:
                answers = [house.call("plain", body("tools/call", {"name": "one", "arguments": {}}, 7)) for _ in "ab"]
                assert [answer.status for answer in answers] == [200 if allowed else 403] * 2
                listed = house.call("plain", body("tools/list", {}, 7)).json()["result"]["tools"]
                assert [item["name"] for item in listed] == (["one"] if allowed else [])
                record = house.await_records(
                    answers[1].values("ostiary-decision")[0], *(["decision", "outcome"] if allowed else ["refusal"])
                )[0]
                revisions.append(record["policy_revision"])
    assert revisions == ["r-True", "r-False"]
