"""Event streams through the whole gateway: a client reads what its server wrote, or an error (UPS-03, UPS-05)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from tests.contract.sse import whatwg
from tests.rows.asking import tool, version_of
from tests.rows.conftest import furnish, opened, served, settings_of
from tests.rows.proof import passes
from tests.rows.stage import PATIENCE_S, House, Server, Stage, listed
from tests.support.http_raw import Answer, RawClient
from tests.support.stack import Stack, body
from tests.support.upstream import SSE_HEAD, Exchange, Script, chunk

DATA = {
    "methods": {"subscriptions/listen": {}},
    "tools": {"read": {"effect": "read"}},
    "resources": {"file:///srv/": {}},
}
POISON = "planted-in-a-wrong-stream"
LOGGED = tool("read")
version_of(LOGGED)["io.modelcontextprotocol/logLevel"] = "debug"
MINE, NAMED = "file:///srv/mine", "io.modelcontextprotocol/subscriptionId"
LISTEN = body(
    "subscriptions/listen", {"notifications": {"toolsListChanged": True, "resourceSubscriptions": [MINE]}}, 7
)


@pytest.fixture(scope="module")
def house(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A gateway whose policy lets callers subscribe to what lies in one folder."""
    behind = {"plain": [Server(listed(read={}))]}
    stack = Stack(tmp_path_factory.mktemp("streams"), {}, data=DATA)
    with opened(stage, behind["plain"]):
        furnish(stack, settings_of(behind, plain={"resources": {"allow": ["file:///srv/"]}}))
        house = House(stage, stack, behind)
        with served(stage, stack), house.http:
            yield house


def playing(stream: bytes, size: int) -> Script:
    """Write a stream in chunks of that many bytes, and end it."""

    async def script(exchange: Exchange) -> None:
        pieces = [chunk(stream[at : at + size]) for at in range(0, len(stream), size)]
        await exchange.send(SSE_HEAD + b"".join(pieces) + chunk(b""))

    return script


def answered(house: House, message: dict[str, Any], stream: bytes, size: int = 1 << 20) -> Answer:
    """What a client gets whose server writes that stream."""
    with house.behind["plain"][0].playing(playing(stream, size)):
        answer = house.ask(house.good(message))
    assert (answer.status, answer.values("content-type")) == (200, ["text/event-stream"])
    return answer


def messages(answer: Answer) -> list[Any]:
    """What a WHATWG reader makes of it."""
    return [orjson.loads(data) for _, data, _ in whatwg(answer.body)]


def written(*said: Any) -> bytes:
    """Messages as events."""
    return b"".join(b"data: " + orjson.dumps(one) + b"\n\n" for one in said)


DONE = {"jsonrpc": "2.0", "id": 7, "result": {"resultType": "complete", "content": []}}
END = written(DONE)
FAKE = b'data: {"jsonrpc":"2.0","id":7,"result":{"x":"%s"}}' % POISON.encode()
NOTE = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"on"}}'
INJECTED: dict[str, bytes] = {
    "lines that end in CR": b"event: message\rid: 1\rdata: " + NOTE + b"\r\r" + END.replace(b"\n", b"\r"),
    "lines that end in CRLF": b"data: " + NOTE + b"\r\n\r\n" + END.replace(b"\n", b"\r\n"),
    "all three, mixed": b"data: {\rdata: " + NOTE[1:-1] + b"\r\ndata: }\n\r" + END,
    "CR in event": b"event: mess\rage\ndata: " + NOTE + b"\n\n" + END,
    "CR in id": b"id: 1\r" + b": " + FAKE + b"\rdata: " + NOTE + b"\n\n" + END,
    "NUL in id": b"id: 1\n\nid: a\0b\ndata: " + NOTE + b"\n\n" + END,
    "U+2028, U+0085 and BOM in a text": b"data: "
    + NOTE.replace(b'"on"', '"a\u2028data: x\u0085data: y\ufeff"'.encode())
    + b"\n\n"
    + END,
    "U+2028 in a comment": ": a\u2028".encode() + FAKE + b"\n\n" + END,
    "BOM at the start": b"\xef\xbb\xbfdata: " + NOTE + b"\n\n" + END,
    "BOM before a field": b"data: " + NOTE + b"\n\n\xef\xbb\xbf" + FAKE + b"\n\n" + END,
    "a field of another case": b"Data: " + FAKE[6:] + b"\n\n" + END,
    "an event without data": b"event: message\nid: 1\n\n" + END,
    "an empty event": b"id: 1\ndata:\n\n" + END,
    "vertical tab and form feed": b": \x0b" + FAKE + b"\x0c" + FAKE + b"\n\n" + END,
    "a time to retry": b"retry: 1\n\n" + END,
}


@pytest.mark.parametrize("size", [1, 11, 1 << 20])
@pytest.mark.parametrize("name", INJECTED)
def test_a_client_reads_the_events_that_its_server_wrote(house: House, name: str, size: int) -> None:
    """UPS-05: what a WHATWG parser gets from the gateway is what it gets from the server, and no event more."""
    stream = INJECTED[name]
    answer = answered(house, LOGGED, stream, size)
    assert whatwg(answer.body) == whatwg(stream)
    assert messages(answer)[-1] == DONE if name != "an empty event" else whatwg(answer.body)[-1][1]
    assert not [one for _, one, _ in whatwg(answer.body) if f'"x":"{POISON}"' in one]


def note(method: str, subscription: Any = 7, **params: Any) -> dict[str, Any]:
    """A subscription's notification."""
    return {
        "jsonrpc": "2.0",
        "method": f"notifications/{method}",
        "params": {**params, "_meta": {NAMED: subscription}},
    }


def acknowledged(subscription: Any = 7, **honoured: Any) -> dict[str, Any]:
    """What a server says first."""
    kinds = honoured or {"toolsListChanged": True, "resourceSubscriptions": [MINE]}
    return note("subscriptions/acknowledged", subscription, notifications=kinds)


FAREWELL = {"jsonrpc": "2.0", "id": 7, "result": {"resultType": "complete", "_meta": {NAMED: 7}}}
TOOLS, UPDATED = note("tools/list_changed"), note("resources/updated", uri=MINE)
STRANGE = [
    note("prompts/list_changed"),
    note("resources/updated", uri="file:///srv/other"),
    note("resources/updated", uri=f"{MINE}/../../../etc/passwd"),
    note("resources/updated", uri=f"{MINE}/%2e%2e/other"),
    note("resources/updated", uri=f"{MINE}/..%2fother"),
]
WRONG: dict[str, list[Any]] = {
    "a notification before the acknowledgement": [note("tools/list_changed", x=POISON), FAREWELL],
    "a result before it": [{**FAREWELL, "result": {**FAREWELL["result"], "x": POISON}}],  # type: ignore[dict-item]
    "another's acknowledgement": [acknowledged(8), note("tools/list_changed", x=POISON), FAREWELL],
    "the id as text": [acknowledged("7"), note("tools/list_changed", x=POISON), FAREWELL],
    "more than was asked for": [acknowledged(promptsListChanged=True), note("prompts/list_changed", x=POISON)],
    "two acknowledgements": [acknowledged(), acknowledged(), note("tools/list_changed", x=POISON), FAREWELL],
    "another's notification": [acknowledged(), note("tools/list_changed", 8, x=POISON), FAREWELL],
    "a request of the server": [acknowledged(), {"jsonrpc": "2.0", "id": 1, "method": "roots/list", "x": POISON}],
    "another's end": [acknowledged(), {**FAREWELL, "id": 8, "x": POISON}],
    "no end": [acknowledged()],
}


def test_a_subscription_hears_of_what_it_asked_for(house: House) -> None:
    """UPS-03, the twin: acknowledgement, what was acknowledged and lies within reach, the graceful end."""
    answer = answered(house, LISTEN, written(acknowledged(), *STRANGE, TOOLS, UPDATED, FAREWELL))
    assert messages(answer) == [acknowledged(), TOOLS, UPDATED, FAREWELL]
    records = house.await_records(answer.values("ostiary-decision")[0], "decision", "outcome")
    assert records[1]["outcome"] == "executed"


def test_a_client_that_leaves_a_subscription_lets_its_server_go(house: House) -> None:
    """UPS-09: the server's side sees the close within 1 s, and the record says `cancelled`."""
    left: list[float] = []

    async def hold(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + chunk(written(acknowledged())))
        await exchange.gone(20)
        left.append(time.monotonic())

    with house.behind["plain"][0].playing(hold):
        with RawClient(house.address, 30) as client:
            head = client.send(house.good(LISTEN).encode()).read_head()
            assert b"acknowledged" in client.read_chunk()
        closed = time.monotonic()
        records = house.await_records(head.values("ostiary-decision")[0], "decision", "outcome")
        while not left:
            assert time.monotonic() < closed + PATIENCE_S
            time.sleep(0.01)
    assert left[0] - closed < 1
    assert records[1]["outcome"] == "cancelled"


@pytest.mark.parametrize("uri", ["file:///etc/passwd", "file:///srv/../etc/passwd", "file:///srv/%2e%2e/x", "x"])
@pytest.mark.parametrize("beside", [[], [MINE]], ids=["alone", "beside one's own"])
def test_nobody_subscribes_to_what_is_out_of_reach(house: House, uri: str, beside: list[str]) -> None:
    """The server's prefixes hold for `resourceSubscriptions`: one that lies elsewhere spoils the subscription."""
    answered(house, LISTEN, written(acknowledged(), FAREWELL))
    message = body("subscriptions/listen", {"notifications": {"resourceSubscriptions": [*beside, uri]}}, 7)
    before = len(house.forwarded())
    answer = house.ask(house.good(message))
    assert (answer.status, answer.json()["error"]["code"], answer.json()["id"]) == (403, 40302, 7)
    assert len(house.forwarded()) == before


@pytest.mark.parametrize("name", WRONG)
def test_a_subscription_that_breaks_a_rule_ends_in_an_error(house: House, name: str) -> None:
    """UPS-03: nothing of what broke the rule, nothing after it, and an error with the caller's id."""
    answer = answered(house, LISTEN, written(*WRONG[name]))
    *before, last = messages(answer)
    assert before in ([], [acknowledged()])
    assert (last["id"], last["error"]["code"]) == (7, 50202)
    assert POISON.encode() not in answer.body
    records = house.await_records(answer.values("ostiary-decision")[0], "decision", "outcome")
    assert records[1]["reasons"] == ["upstream_invalid"]
    passes(house)
