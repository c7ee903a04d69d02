"""What a `subscriptions/listen` stream may carry, and what rooms make of it on the way."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.contract.guard import guard_answer
from gateway.contract.refusals import Refused
from gateway.contract.stream import ResponseStream
from gateway.contract.subscription import SUBSCRIPTION_ID, Rewrite, farewell
from tests.contract.sse import whatwg
from tests.support.upstream import a_subscription

ASKED = {"toolsListChanged": True, "resourceSubscriptions": ["file:///a", "file:///b/"], "taskIds": ["t1"]}


def note(method: str, subscription: Any = 1, **params: Any) -> dict[str, Any]:
    """A notification on subscription 1."""
    return {"jsonrpc": "2.0", "method": method, "params": {"_meta": {SUBSCRIPTION_ID: subscription}, **params}}


def ack(filter_: Any = None, **more: Any) -> dict[str, Any]:
    """The acknowledgement, of all that was asked for unless said otherwise."""
    return note(
        "notifications/subscriptions/acknowledged", notifications=ASKED if filter_ is None else filter_, **more
    )


TOOLS = note("notifications/tools/list_changed")
RESULT = {"jsonrpc": "2.0", "id": 1, "result": {"resultType": "complete", "_meta": {SUBSCRIPTION_ID: 1}}}
CANCELLED = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "reason": "stop"}}


def played(
    *messages: Any, asked: dict[str, Any] = ASKED, rewrite: Rewrite | None = None
) -> tuple[list[Any], ResponseStream]:
    """What a subscription that gets `messages` relays, and the stream after it."""
    stream = ResponseStream(a_subscription(asked), rewrite=rewrite)
    out = b"".join(piece for one in messages for piece in stream.feed(b"data: " + orjson.dumps(one) + b"\n\n"))
    return [orjson.loads(data) for _, data, _ in whatwg(out)], stream


def test_a_subscription_from_its_acknowledgement_to_its_result() -> None:
    """Acknowledgement, what was asked for, the cancellation of itself, the result: all as they came."""
    said = [
        ack(),
        TOOLS,
        note("notifications/resources/updated", uri="file:///a"),
        note("notifications/tasks", taskId="t1", status="working"),
        CANCELLED,
    ]
    out, stream = played(*said, RESULT)
    assert out == said
    assert (stream.fault, stream.dropped) == ("", 0)
    assert stream.final is not None
    assert stream.final.outcome == "executed"


@pytest.mark.parametrize(
    "unwanted",
    [
        note("notifications/prompts/list_changed"),
        note("notifications/resources/list_changed"),
        note("notifications/resources/updated", uri="file:///c"),
        note("notifications/resources/updated", uri="file:///ab"),
        note("notifications/resources/updated", uri="file:///a/../c"),
        note("notifications/resources/updated", uri="file:///b/%2e%2E/c"),
        note("notifications/resources/updated", uri=7),
        note("notifications/resources/updated"),
        note("notifications/tasks", taskId="t2"),
        note("notifications/tasks", taskId="t1/x"),
        note("notifications/progress", progressToken="t", progress=1),
        note("notifications/message", level="info", data="x"),
        note("com.example/notifications/x"),
    ],
    ids=str,
)
def test_what_was_not_asked_for_is_dropped(unwanted: dict[str, Any]) -> None:
    """The caller's no holds even if the server forgets it; the stream goes on."""
    out, stream = played(ack(), unwanted, TOOLS, RESULT)
    assert out == [ack(), TOOLS]
    assert (stream.fault, stream.dropped) == ("", 1)
    assert stream.final is not None


def test_what_was_asked_for_but_not_acknowledged_is_dropped_too() -> None:
    """The acknowledgement says what will come; more than it says does not."""
    out, stream = played(ack({"resourceSubscriptions": ["file:///a"]}), TOOLS)
    assert len(out) == 1
    assert stream.dropped == 1


@pytest.mark.parametrize(
    ("uri", "told"), [("file:///a", "file:///a"), ("file:///a/x", "file:///a"), ("file:///b/x/y", "file:///b/")]
)
def test_a_resource_stands_for_what_lies_below_it(uri: str, told: str) -> None:
    """A server may name a sub-resource; the caller learns no name but the one that the policy was asked about."""
    out, _ = played(ack(), note("notifications/resources/updated", uri=uri, title="secret"))
    assert len(out) == 2
    assert out[1]["params"]["uri"] == told
    assert ("title" in out[1]["params"]) is (uri == told)


def test_an_extensions_notifications_pass_where_one_was_asked_for() -> None:
    """A member that the revision does not know stands for notifications that it does not know."""
    asked = {"com.example/x": True}
    out, _ = played(ack(asked), note("com.example/notifications/x"), asked=asked)
    assert len(out) == 2


BROKEN: dict[str, list[Any]] = {
    "nothing acknowledged": [TOOLS],
    "cancelled before the acknowledgement": [CANCELLED],
    "a result before the acknowledgement": [RESULT],
    "acknowledged twice": [ack(), ack()],
    "acknowledged for another": [ack() | {"params": {"_meta": {SUBSCRIPTION_ID: 2}, "notifications": ASKED}}],
    "acknowledged for one of another type": [
        ack() | {"params": {"_meta": {SUBSCRIPTION_ID: "1"}, "notifications": ASKED}}
    ],
    "acknowledged without an id": [ack() | {"params": {"notifications": ASKED}}],
    "acknowledged without a filter": [note("notifications/subscriptions/acknowledged")],
    "a flag that is none": [ack({"toolsListChanged": 1})],
    "URIs that are none": [ack({"resourceSubscriptions": [1]})],
    "one URI": [ack({"resourceSubscriptions": "file:///a"})],
    "a kind that was not asked for": [ack({"promptsListChanged": True})],
    "a URI that was not asked for": [ack({"resourceSubscriptions": ["file:///a", "file:///c"]})],
    "a task that was not asked for": [ack({"taskIds": ["t2"]})],
    "an extension that was not asked for": [ack({"com.example/x": True})],
    "a variant of a member": [ack({"ToolsListChanged": True})],
    "no id": [ack(), {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}],
    "another id": [ack(), note("notifications/tools/list_changed", 2)],
    "an id of another type": [ack(), note("notifications/tools/list_changed", "1")],
    "a number that is equal": [ack(), note("notifications/tools/list_changed", 1.0)],
    "true": [ack(), note("notifications/tools/list_changed", True)],
    "_meta that is none": [ack(), {**TOOLS, "params": {"_meta": 1}}],
    "a variant of the id": [ack(), {**TOOLS, "params": {"_meta": {SUBSCRIPTION_ID: 1, SUBSCRIPTION_ID.upper(): 2}}}],
    "a variant of the URI": [ack(), note("notifications/resources/updated", uri="file:///a", URI="file:///c")],
    "another's cancellation": [ack(), {**CANCELLED, "params": {"requestId": 2}}],
    "a cancellation without an id": [ack(), {**CANCELLED, "params": {}}],
    "a cancellation on another's stream": [ack(), note("notifications/cancelled", 2, requestId=1)],
    "something after the cancellation": [ack(), CANCELLED, TOOLS],
    "a second cancellation": [ack(), CANCELLED, CANCELLED],
    "a request": [ack(), {**TOOLS, "id": 4}],
    "a batch": [ack(), [TOOLS]],
    "another's result": [ack(), {**RESULT, "id": 2}],
    "a result without the subscription": [ack(), {**RESULT, "result": {"resultType": "complete"}}],
    "a result of another subscription": [
        ack(),
        {**RESULT, "result": {"resultType": "complete", "_meta": {SUBSCRIPTION_ID: 2}}},
    ],
}


@pytest.mark.parametrize("said", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_rule_ends_a_subscription(said: list[Any]) -> None:
    """What breaks a rule is not relayed, nor anything after it, and no result is believed."""
    out, stream = played(*said, TOOLS, RESULT)
    assert out == said[:-1]
    assert stream.fault
    assert stream.final is None


def test_an_acknowledgement_in_an_event_that_clients_skip_is_none() -> None:
    """Client and gateway see the same first message."""
    stream = ResponseStream(a_subscription(ASKED))
    assert stream.feed(b"event: other\ndata: " + orjson.dumps(ack()) + b"\n\n") == []
    assert stream.fault


def test_an_error_needs_no_acknowledgement() -> None:
    """A server that can't subscribe says so at once."""
    _, stream = played({"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": "no"}})
    assert stream.final is not None


def test_rooms_put_notifications_into_the_callers_terms() -> None:
    """What a rewrite returns is relayed, `None` drops, and what it leaves alone keeps its very bytes."""

    def rewrite(message: dict[str, Any]) -> dict[str, Any] | None:
        params = message["params"]
        if message["method"] == "notifications/tasks":
            return {**message, "params": {**params, "taskId": "t1"}} if params["taskId"] == "raw1" else None
        if "taskIds" in params.get("notifications", {}):
            return {**message, "params": {**params, "notifications": {"taskIds": ["t1"]}}}
        return message

    out, stream = played(
        ack({"taskIds": ["raw1", "raw2"]}),
        note("notifications/tasks", taskId="raw1"),
        note("notifications/tasks", taskId="raw2"),
        rewrite=rewrite,
    )
    assert out == [ack({"taskIds": ["t1"]}), note("notifications/tasks", taskId="t1")]
    assert stream.dropped == 1


def test_what_a_room_makes_of_an_acknowledgement_is_held_to_the_request() -> None:
    """A rewrite can take away, never promise more, and never take the whole acknowledgement."""
    good, stream = played(ack(), rewrite=lambda message: message)
    assert (good, stream.fault) == ([ack()], "")
    said: list[dict[str, Any] | None] = [None, ack({"taskIds": ["raw1"]})]
    while said:
        out, stream = played(ack(), rewrite=lambda _: said.pop())
        assert out == []
        assert stream.fault


def test_the_gateways_own_farewell_is_a_result_that_its_guard_takes() -> None:
    """A subscription that the gateway ends, ends as its server should have ended it."""
    call = a_subscription(ASKED, request_id="s-1")
    assert guard_answer(call, farewell(call)).outcome == "executed"
    other = a_subscription(ASKED, request_id="s-2")
    with pytest.raises(Refused):
        guard_answer(other, farewell(call))


def test_a_farewell_is_preceded_by_an_acknowledgement() -> None:
    """A subscription that ends before its server said anything was honoured in nothing, and is told so, in order."""
    _, stream = played(ack())
    assert [orjson.loads(data) for _, data, _ in whatwg(stream.encode_farewell())] == [RESULT]
    early = ResponseStream(a_subscription(ASKED)).encode_farewell()
    assert [orjson.loads(data) for _, data, _ in whatwg(early)] == [ack({}), RESULT]
    out, again = played(ack({}), RESULT)
    assert (out, again.fault) == ([ack({})], "")  # which is what the gateway itself takes for one that is in order
