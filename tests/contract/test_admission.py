"""G3, G6, G7: what the policy is asked, and that only a call that passed every room is admitted, as it was judged."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from approvals.ticket import Claimed, Held
from gateway.contract.admission import RoomSkipped, admit, policy_input
from gateway.contract.envelope import parse_envelope
from gateway.contract.fingerprint import describe_effect
from gateway.contract.headers import match_headers
from gateway.contract.legacy import Heard, Session, Spoken
from gateway.contract.passage import Identity, OpenedState, OpenedTasks, Passage, Task, Tool
from gateway.contract.refusals import Refusal, Refused
from policies.question import Candidates
from policies.verdict import Effect, Verdict
from tests.contract.asking import META, SERVER, TASKS_META, VERSION, Lines, ask, lines_of, message, received

ALICE = Identity(
    issuer="https://idp.example.com",
    subject="alice",
    client_id="client-1",
    tenant="tenant-1",
    scopes=frozenset({"b", "a"}),
    claims={"sub": "alice", "groups": ["x"]},
)
TOOL = Tool("read_file", "ab" * 32, {"readOnlyHint": True}, {"description": "canary"})
USE = Claimed("ticket-1", "use-1")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"


def walked(
    request: dict[str, Any] | None = None,
    *,
    body: bytes | None = None,
    lines: Lines | None = None,
    use: Claimed | None = None,
) -> Passage:
    """A passage that went through every room, with a use of an approval or without."""
    request = request or message()
    head = received(lines or lines_of(request))
    envelope = parse_envelope(body or orjson.dumps(request))
    return Passage(
        "d" * 32,
        0.0,
        0.0,
        server=SERVER,
        received=head,
        identity=ALICE,
        envelope=envelope,
        call=match_headers(head, envelope),
        tool=TOOL,
        verdict=Verdict(Effect.APPROVE if use else Effect.ALLOW),
        settled=use,
    )


def test_the_policys_question() -> None:
    """The input document is exactly that of the design: verified facts and the judged body, nothing else."""
    assert orjson.loads(bytes(policy_input("call", SERVER, ALICE, ask(message()), TOOL))) == {
        "phase": "call",
        "server": {"name": "readonly", "resource": SERVER.resource, "environment": "production"},
        "subject": {
            "issuer": "https://idp.example.com",
            "id": "alice",
            "client_id": "client-1",
            "tenant": "tenant-1",
            "scopes": ["a", "b"],
            "claims": {"sub": "alice", "groups": ["x"]},
        },
        "request": {
            "method": "tools/call",
            "kind": "tool",
            "name": "read_file",
            "arguments": {"path": "/etc/motd"},
            "input_responses": None,
            "tasks": [],
            "leg": 0,
            "approved": False,
        },
        "tool": {"annotations": {"readOnlyHint": True}, "digest": "ab" * 32, "pinned": False},
    }


def test_the_policys_question_about_a_list() -> None:
    """In the list phase the candidates are there, and no tool."""
    candidates = [{"id": "read_file", "name": "read_file"}]
    question = orjson.loads(
        bytes(policy_input("list", SERVER, ALICE, ask(message("tools/list")), None, Candidates(candidates)))
    )
    assert (question["phase"], question["candidates"], question["tool"]) == ("list", candidates, None)


def test_what_a_caller_says_of_itself_does_not_reach_the_policy() -> None:
    """RPC-09, G6: token, clientInfo, forged `_meta` keys, trace and unverified headers change not one byte."""
    forged = {
        **META,
        "io.modelcontextprotocol/clientInfo": {"name": "admin-console", "version": "1"},
        "io.modelcontextprotocol/role": "admin",
        "traceparent": PARENT,
    }
    lines: Lines = [
        ("X-Forwarded-User", "root"),
        ("Mcp-Param-Role", "admin"),
        ("Authorization", "Bearer canary-token"),
    ]
    call = ask(message(meta=forged), [*lines_of(message()), *lines])
    question = bytes(policy_input("call", SERVER, ALICE, call, TOOL))
    assert question == bytes(policy_input("call", SERVER, ALICE, ask(message()), TOOL))
    assert b"canary" not in question


def test_the_policy_sees_all_that_would_be_executed() -> None:
    """G3: methods without arguments show their params; which leg it is says the seal alone."""
    listen = {"notifications": {"resourceSubscriptions": ["file:///secret"]}}
    call = ask(message("subscriptions/listen", params=listen))
    assert orjson.loads(bytes(policy_input("call", SERVER, ALICE, call, None)))["request"]["arguments"] == listen
    params = {"uri": "file:///a", "requestState": "s", "inputResponses": {"q": {"action": "accept"}}}
    read = ask(message("resources/read", params=params))
    for opened, leg, approved in (
        (None, 0, False),
        (OpenedState("s", 1), 1, False),
        (OpenedState(None, 3, USE), 3, True),
    ):
        request = orjson.loads(bytes(policy_input("call", SERVER, ALICE, read, None, opened=opened)))["request"]
        assert (request["name"], request["leg"], request["approved"]) == ("file:///a", leg, approved)
        assert (request["arguments"], request["input_responses"]) == ({}, params["inputResponses"])


def test_an_allowed_call_leaves_as_the_bytes_that_were_judged() -> None:
    """G3: white space, escapes and number spellings included."""
    body = json.dumps(message(params={"name": "read_file", "arguments": {"n": 1.0, "t": "é"}}), indent=2).encode()
    admitted = admit(walked(body=body))
    assert admitted.body is body
    assert (admitted.decision_id, admitted.server, admitted.use) == ("d" * 32, SERVER, None)


@pytest.mark.parametrize("removed", [{"ttl": 60_000, "pollInterval": 100}, None, "x"])
@pytest.mark.parametrize("use", [None, USE])
def test_what_the_revision_removed_is_ignored_by_taking_it_off(use: Claimed | None, removed: object) -> None:
    """SEP-2663: `task` of 2025-11-25 is no error, and no server that still knows it sees it; all else is as asked."""
    params = {"name": "read_file", "arguments": {"n": 1.0, "t": "é", "task": 1}}
    admitted = admit(walked(message(params={**params, "task": removed}), use=use))
    assert orjson.loads(admitted.body) == message(params=params)
    assert admit(walked(message(params=params), use=use)).body == admitted.body


def test_a_request_about_a_task_leaves_with_the_servers_own_id() -> None:
    """In body and header; the policy hears the handle, and without the room that opens handles nothing leaves."""
    passage = walked(message("tasks/get", params={"taskId": "handle"}, meta=TASKS_META))
    with pytest.raises(RoomSkipped, match="open_tasks"):
        admit(passage)
    for wrong in (OpenedTasks((None,), "why"), OpenedTasks((Task("other", "u", "t"),))):
        passage.tasks = wrong
        with pytest.raises(RoomSkipped, match="open_tasks"):
            admit(passage)
    passage.tasks = OpenedTasks((Task("handle", "\u00fc 1", "pay", "ticket-1"),))
    admitted = admit(passage)
    assert orjson.loads(admitted.body)["params"] == {"taskId": "\u00fc 1", "_meta": TASKS_META}
    assert dict(admitted.headers)[b"mcp-name"] == b"=?base64?w7wgMQ==?="
    assert passage.call is not None
    asked = bytes(policy_input("call", SERVER, ALICE, passage.call, None, tasks=passage.tasks))
    question = orjson.loads(asked)["request"]
    assert (question["kind"], question["name"]) == ("task", "handle")
    assert question["tasks"] == [{"id": "handle", "tool": "pay", "approved": True}]


def test_a_subscription_leaves_with_the_servers_own_ids() -> None:
    """In the order that was asked for, beside what else was."""
    notifications = {"toolsListChanged": True, "taskIds": ["b", "a"]}
    passage = walked(message("subscriptions/listen", params={"notifications": notifications}, meta=TASKS_META))
    passage.tasks = OpenedTasks((Task("b", "2", "t"), Task("a", "1", "t")))
    admitted = admit(passage)
    assert orjson.loads(admitted.body)["params"]["notifications"] == {**notifications, "taskIds": ["2", "1"]}
    assert b"mcp-name" not in dict(admitted.headers)


def test_only_the_gateways_own_headers_leave() -> None:
    """UPS-01, HDR-14, G1: an allow-list; no header of the caller's connection, credentials or proxies travels."""
    hostile: Lines = [
        ("Cookie", "c"), ("Proxy-Authorization", "p"), ("X-Forwarded-For", "1.2.3.4"), ("Forwarded", "for=1"),
        ("X-Real-IP", "1"), ("X_Forwarded_User", "root"), ("Mcp-Session-Id", "s"), ("Last-Event-ID", "1"),
        ("Connection", "Mcp-Name"), ("Host", "evil"), ("Origin", "https://x"), ("Accept-Encoding", "gzip"),
        ("Content-Encoding", "identity"), ("Transfer-Encoding", "chunked"), ("Content-Length", "5"),
        ("TE", "trailers"),
        ("Mcp-Param-Region", "us-west1"), ("Baggage", "a=b"), ("User-Agent", "u"),
    ]  # fmt: skip
    assert admit(walked(lines=[*lines_of(message()), *hostile])).headers == (
        (b"content-type", b"application/json"),
        (b"accept", b"application/json, text/event-stream"),
        (b"mcp-protocol-version", VERSION.encode()),
        (b"mcp-method", b"tools/call"),
        (b"mcp-name", b"read_file"),
        (b"mcp-param-region", b"us-west1"),
    )


def test_the_name_is_written_anew() -> None:
    """G2: the upstream gets the one plain spelling of a name, and none where the method has none."""
    lines = [line for line in lines_of(message()) if line[0] != "Mcp-Name"]
    encoded = admit(walked(lines=[*lines, ("Mcp-Name", "=?base64?cmVhZF9maWxl?=")]))
    assert dict(encoded.headers)[b"mcp-name"] == b"read_file"
    listed = message("tools/list")
    assert b"mcp-name" not in dict(admit(walked(listed, lines=[*lines_of(listed), ("Mcp-Name", "evil")])).headers)


GATED = message(
    meta={**META, "com.example/tenant": {"b": 1.0, "a": 2}, "com.example/request": "r-1", "progressToken": 7},
    params={
        "name": "read_file",
        "arguments": {"z": 1.0, "a": ["\u00e9", 1e21]},
        "inputResponses": {"q": {"b": 1, "a": 2}},
    },
    id=9007199254740993,
)


def test_a_gated_call_leaves_as_the_text_that_was_digested() -> None:
    """G7: arguments, input responses and bound `_meta` in canonical text; volatile keys gone; all else as asked."""
    passage = walked({**GATED, "params": {**GATED["params"], "requestState": "sealed"}}, use=USE)
    passage.opened_state = OpenedState(None)
    admitted = admit(passage, volatile_meta=frozenset({"com.example/request"}))
    for part in (GATED["params"]["arguments"], GATED["params"]["inputResponses"], {"b": 1, "a": 2}):
        assert rfc8785.dumps(part) in admitted.body
    sent = orjson.loads(admitted.body)
    expected = json.loads(json.dumps(GATED))
    del expected["params"]["_meta"]["com.example/request"]
    assert sent == expected
    assert admitted.use == USE


@given(
    st.dictionaries(
        st.text(max_size=4),
        st.none() | st.text(max_size=4) | st.floats(-1e9, 1e9) | st.lists(st.integers(0, 9)),
        max_size=4,
    )
)
def test_what_was_approved_is_what_is_sent(arguments: dict[str, Any]) -> None:
    """G7 as a property: the sent body, asked again, has the very digest of the approval."""
    passage = walked(message(params={"name": "read_file", "arguments": arguments}), use=USE)
    assert passage.call is not None
    head = received(lines_of(message()))
    again = match_headers(head, parse_envelope(admit(passage).body))
    digests = {describe_effect(ALICE, SERVER, call, TOOL, frozenset()).digest for call in (passage.call, again)}
    assert len(digests) == 1


def test_absent_arguments_are_approved_and_sent_as_empty_ones() -> None:
    """G7: a gated call without arguments leaves with the `{}` that was digested."""
    sent = orjson.loads(admit(walked(message(params={"name": "read_file"}), use=USE)).body)
    assert sent["params"]["arguments"] == {}
    resource = message("resources/read", params={"uri": "file:///a"})
    assert "arguments" not in orjson.loads(admit(walked(resource, use=USE)).body)["params"]


@pytest.mark.parametrize("opened", ["upstream's own", None])
@pytest.mark.parametrize("use", [None, USE])
def test_a_sealed_state_leaves_as_the_opened_one(opened: str | None, use: Claimed | None) -> None:
    """The upstream gets the state that it gave, or none where it gave none; never the seal."""
    passage = walked(message(params={"name": "read_file", "arguments": {"a": 1}, "requestState": "sealed"}), use=use)
    with pytest.raises(RoomSkipped, match="open_state"):
        admit(passage)
    passage.opened_state = OpenedState(opened)
    params = orjson.loads(admit(passage).body)["params"]
    assert params.get("requestState", None) == opened
    assert params["arguments"] == {"a": 1}


def skipped(**facts: Any) -> str:
    """What `admit` says of a passage that is right but for these facts."""
    passage = walked()
    for name, value in facts.items():
        setattr(passage, name, value)
    with pytest.raises(RoomSkipped) as caught:
        admit(passage)
    return str(caught.value)


def test_an_extensions_method_is_one_that_the_server_lists() -> None:
    """Request or notification: what is only called an extension by a room that erred is not forwarded."""
    listed = replace(SERVER, methods=frozenset({"example.com/ping", "notifications/example"}))
    for request in (message("example.com/ping"), message("notifications/example", id=None)):
        head, envelope = received(lines_of(request)), parse_envelope(orjson.dumps(request))
        call = match_headers(replace(head, server=listed), envelope)
        passage = Passage("d" * 32, 0.0, 0.0, server=listed, received=replace(head, server=listed), identity=ALICE)
        passage.envelope, passage.call, passage.verdict = envelope, call, Verdict(Effect.ALLOW)
        assert admit(passage).call is call
        passage.server, passage.received = SERVER, head
        with pytest.raises(RoomSkipped, match="match_headers"):
            admit(passage)


def test_no_room_can_be_skipped() -> None:
    """G6: no admission without identity, agreed call, tool, an allowing verdict or a consumed use."""
    assert admit(walked()).use is None
    held = object.__new__(Held)  # what it holds does not matter here
    other = parse_envelope(orjson.dumps(message("tools/list")))
    assert skipped(received=None) == "receive"
    assert skipped(server=replace(SERVER, name="other")) == "receive"
    assert skipped(identity=None) == "identify"
    assert skipped(identity=replace(ALICE, subject="")) == "identify"
    assert skipped(call=None) == "match_headers"
    assert skipped(envelope=other) == "match_headers"
    assert skipped(heard=Heard(Spoken(Session("2025-11-25", {})))) == "hear"
    assert skipped(opened_state=OpenedState("s")) == "open_state"
    assert skipped(tool=replace(TOOL, quarantine="new")) == "check_call"
    assert skipped(tool=None) == "look_up"
    assert skipped(tool=replace(TOOL, name="delete_all")) == "look_up"
    assert skipped(verdict=None) == "judge and settle"
    assert skipped(verdict=Verdict(Effect.DENY)) == "judge and settle"
    assert skipped(verdict=Verdict(Effect.DENY), settled=USE) == "judge and settle"
    assert skipped(verdict=Verdict(Effect.APPROVE)) == "judge and settle"
    assert skipped(verdict=Verdict(Effect.APPROVE), settled=held) == "judge and settle"
    assert skipped(verdict=Verdict(Effect.ALLOW), settled=USE) == "judge and settle"
    assert skipped(refused=Refused(Refusal.POLICY_DENIED)) == "the walk is over"
    assert skipped(admitted=admit(walked())) == "the walk is over"


def continued(verdict: Effect, settled: Claimed | None, waiting: Claimed | None) -> bool:
    """Whether a leg that runs under `waiting` is admitted with this verdict and this use."""
    passage = walked(message(params={"name": "read_file", "requestState": "x", "inputResponses": {}}))
    passage.verdict, passage.settled = Verdict(verdict), settled
    passage.opened_state = OpenedState("s", 1, waiting)
    try:
        return admit(passage).use == settled
    except RoomSkipped:
        return False


def test_a_leg_of_an_approved_call_is_admitted_under_its_own_use_alone() -> None:
    """The use that the seal names, at that leg, continued; and the answers approved where the policy wants it."""
    waiting = replace(USE, leg=1)
    answered = replace(waiting, answers=Claimed("ticket-2", "use-2"))
    assert continued(Effect.ALLOW, waiting, waiting)
    assert continued(Effect.APPROVE, answered, waiting)
    for other in (replace(waiting, leg=2), replace(waiting, use_id="use-2"), replace(waiting, ticket_id="t"), USE):
        assert not continued(Effect.ALLOW, other, waiting)
    assert not continued(Effect.ALLOW, None, waiting)
    assert not continued(Effect.ALLOW, answered, waiting)
    assert not continued(Effect.APPROVE, waiting, waiting)
    assert not continued(Effect.APPROVE, answered, None)
    assert not continued(Effect.ALLOW, waiting, None)
    assert not continued(Effect.DENY, waiting, waiting)
    answers = message(params={"name": "read_file", "inputResponses": {}})
    assert b"inputResponses" in admit(walked(answers)).body
    with pytest.raises(RoomSkipped, match="open_state"):
        admit(walked(answers, use=USE))


def test_no_call_under_an_approval_is_repeatable() -> None:
    """UPS-08: whatever definition and configuration say, a use of an approval or a grant is of one execution."""
    for use in (None, USE, replace(USE, by_grant=True)):
        passage = walked(use=use)
        assert passage.received is not None
        server = replace(SERVER, idempotent_tools=frozenset({"read_file"}))
        passage.server, passage.received = server, replace(passage.received, server=server)
        passage.tool = replace(TOOL, annotations={"idempotentHint": True}, pinned=True)
        assert admit(passage).repeatable is (use is None)


def test_no_call_under_an_idempotency_key_is_repeatable() -> None:
    """UPS-08: a key never permits a second sending, not by the gateway itself either."""
    for key in ("", "k-1"):
        passage = walked()
        assert passage.received is not None
        server = replace(SERVER, idempotent_tools=frozenset({"read_file"}))
        passage.server, passage.received, passage.key = server, replace(passage.received, server=server), key
        passage.tool = replace(TOOL, annotations={"idempotentHint": True}, pinned=True)
        assert admit(passage).repeatable is (not key)


def test_an_approval_never_admits_what_can_not_wait_for_one() -> None:
    """`approve` outside calls, prompts and resources is no admission."""
    with pytest.raises(RoomSkipped):
        admit(walked(message("tools/list"), use=USE))


def test_a_gated_call_that_can_not_be_written_canonically_is_refused() -> None:
    """400 -32602 for an integer beyond 2^53 - 1 in a gated call; the same call ungated is served."""
    request = message(params={"name": "read_file", "arguments": {"n": 2**53}})
    assert admit(walked(request)).body == orjson.dumps(request)
    with pytest.raises(Refused) as caught:
        admit(walked(request, use=USE))
    assert caught.value.refusal is Refusal.PARAMS_INVALID


def test_only_first_requests_begin() -> None:
    """What may be remembered of a decision is of a first request or a page: no leg, no answers, no task, no grant."""
    call, page = ask(message()), ask(message("tools/list"))
    assert policy_input("call", SERVER, ALICE, call, TOOL).begins
    assert policy_input("list", SERVER, ALICE, page, None, Candidates([{"id": "read_file"}])).begins
    assert not policy_input("call", SERVER, ALICE, call, TOOL, grant={}).begins
    assert not policy_input("call", SERVER, ALICE, call, TOOL, opened=OpenedState("s", 1)).begins
    params = {"name": "read_file", "arguments": {}}
    legs: tuple[dict[str, Any], ...] = ({"requestState": "s"}, {"inputResponses": {}})
    for more in legs:
        assert not policy_input("call", SERVER, ALICE, ask(message(params={**params, **more})), TOOL).begins
    task = ask(message("tasks/get", params={"taskId": "handle"}, meta=TASKS_META))
    opened = OpenedTasks((Task("handle", "u", "t"),))
    assert not policy_input("call", SERVER, ALICE, task, None, tasks=opened).begins


def test_what_is_kept_in_words_is_of_this_very_fact() -> None:
    """A caller's, tool's and server's part of a question is made once, and a changed copy has one of its own."""
    passage = walked()
    assert passage.call is not None

    def ask_about(server: Any, identity: Identity, tool: Tool) -> Any:
        return json.loads(bytes(policy_input("call", server, identity, passage.call, tool)))  # type: ignore[arg-type]

    first = ask_about(SERVER, ALICE, TOOL)
    assert first == ask_about(SERVER, ALICE, TOOL)
    changed = ask_about(
        replace(SERVER, environment="another"),
        replace(ALICE, scopes=frozenset({"c"}), claims={"sub": "alice", "groups": []}),
        replace(TOOL, pinned=True),
    )
    assert changed["server"] == {**first["server"], "environment": "another"}
    assert changed["subject"] == {**first["subject"], "scopes": ["c"], "claims": {"sub": "alice", "groups": []}}
    assert changed["tool"] == {**first["tool"], "pinned": True}
    assert ask_about(SERVER, ALICE, TOOL) == first
