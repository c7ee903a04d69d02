"""Parameters' headers and arguments through the whole gateway: HDR-13, SEP-2243, and tools' own schemas."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.contract.refusals import Refusal
from tests.contract.test_bindings import SAID, UNSAID, sentinel
from tests.rows.asking import Ask, tool
from tests.rows.conftest import furnish, opened, provoked, served, settings_of
from tests.rows.proof import passes, refused
from tests.rows.stage import House, Server, Stage, at_once, listed, listing
from tests.support.http_raw import Answer
from tests.support.stack import HOLD, Stack
from tests.support.upstream import SSE_HEAD, Exchange, chunk, result_of

REGION = b"Mcp-Param-Region"
PROPERTIES = {
    "region": {"type": "string", "x-mcp-header": "Region"},
    "count": {"type": "integer", "x-mcp-header": "Count"},
    "flag": {"type": "boolean", "x-mcp-header": "Flag"},
    "where": {"type": "object", "properties": {"zone": {"type": "string", "x-mcp-header": "Zone"}}},
}
BOUND = {"inputSchema": {"type": "object", "properties": PROPERTIES}}


LATE = [(value, header) for value, header in UNSAID if isinstance(value, str) and header.isascii()]
"""Pairs that only the tool's definition tells wrong: bytes beyond ASCII are refused on the way in."""


def schema(**properties: Any) -> dict[str, Any]:
    """A definition with these properties."""
    return {"inputSchema": {"type": "object", "properties": properties}}


TEXT = {"type": "string"}
CROOKED: dict[str, dict[str, Any]] = {
    "empty": schema(a={**TEXT, "x-mcp-header": ""}),
    "spaced": schema(a={**TEXT, "x-mcp-header": "My Region"}),
    "colon": schema(a={**TEXT, "x-mcp-header": "Region:Primary"}),
    "split": schema(a={**TEXT, "x-mcp-header": "R\r\nEvil: 1"}),
    "twice": schema(a={**TEXT, "x-mcp-header": "MyField"}, b={**TEXT, "x-mcp-header": "myfield"}),
    "number": schema(a={"type": "number", "x-mcp-header": "A"}),
    "object": schema(a={"type": "object", "x-mcp-header": "A"}),
    "listed": schema(a={"type": "array", "items": {**TEXT, "x-mcp-header": "A"}}),
    "choice": schema(a={"anyOf": [{**TEXT, "x-mcp-header": "A"}, {"type": "null"}]}),
    "bare": {"inputSchema": None},
    "wrong": {"inputSchema": {"type": "strnig"}},
    "remote": {"inputSchema": {"$ref": "http://127.0.0.1:9/schema.json"}},
}
ASKED = {
    "inputSchema": {
        "type": "object",
        "properties": {"path": {**TEXT, "maxLength": 60}, "limit": {"type": "integer", "minimum": 1}},
        "required": ["path"],
    }
}
READS = {"effect": "read", "scopes": ["files:read"]}
WRITES = {"effect": "write", "scopes": ["files:write"], "approval": HOLD}
DATA = {
    "methods": {"tools/list": {}},
    "tools": {
        **dict.fromkeys(("locate", "read", "absent", "search", *CROOKED), READS),
        **dict.fromkeys(("place", "change"), WRITES),
    },
}
ORDER = ["locate", *CROOKED, "read", "hidden", "place", "search", "change"]
VISIBLE = ["locate", "read", "place", "search", "change"]


@pytest.fixture(scope="module")
def formal(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A gateway in front of a server whose tools have bindings, right ones and wrong ones."""
    tools = listed(locate=BOUND, **CROOKED, read={}, hidden=BOUND, place=BOUND, search=ASKED, change=ASKED)
    assert [one["name"] for one in tools] == ORDER
    behind = {name: [Server(tools)] for name in ("formal", "strict", "loose")}
    stack = Stack(tmp_path_factory.mktemp("parameters"), {}, data=DATA)
    with opened(stage, [one for replicas in behind.values() for one in replicas]):
        loose = {"arguments": "off", "tool_arguments": {"search": "strict"}}
        furnish(stack, settings_of(behind, strict={"arguments": "strict"}, loose=loose))
        house = House(stage, stack, behind)
        with served(stage, stack), house.http:
            yield house


@pytest.fixture
def house(formal: House, request: pytest.FixtureRequest) -> Iterator[House]:
    """What a test says to provoke has been provoked when it is over."""
    yield formal
    owed = {refusal for mark in request.node.iter_markers("provokes") for refusal in mark.args}
    assert owed <= provoked(formal), owed


def locating(house: House, name: str = "locate", header: bytes | None = None, **arguments: Any) -> Ask:
    """A call of a bound tool, with this value of the region's header."""
    ask = house.good(tool(name, **arguments), "formal")
    return ask if header is None else ask.line(REGION, header)


def sent(house: House, ask: Ask) -> tuple[list[str], Any]:
    """What the server saw of a call that passes: the region's header and the arguments."""
    passes(house, ask)
    seen = house.forwarded("formal")[-1]
    return seen.values("mcp-param-region"), json.loads(seen.body)["params"]["arguments"]


def mismatch(house: House, ask: Ask, twin: Ask) -> str:
    """Refused for a parameter's header, after the policy was asked -> the message."""
    answer = refused(house, ask, Refusal.HEADER_MISMATCH, twin=twin, judged=True)
    return str(answer.json()["error"]["message"])


@pytest.mark.parametrize(("value", "header"), [pair for pair in SAID if isinstance(pair[0], str)])
def test_a_header_that_says_the_argument_passes_untouched(house: House, value: str, header: bytes) -> None:
    """SEP-2243: every right encoding is accepted and forwarded as it came."""
    ask = locating(house, region=value, header=header)
    assert sent(house, ask) == ([header.decode()], {"region": value})


@pytest.mark.parametrize("header", [b"42", b"42.0", b"4.2e1"])
def test_a_number_is_compared_as_one(house: House, header: bytes) -> None:
    """HDR-13: `42.0` against 42 is accepted, and goes on as it came."""
    ask = locating(house, count=42).line(b"Mcp-Param-Count", header)
    passes(house, ask)
    assert house.forwarded("formal")[-1].values("mcp-param-count") == [header.decode()]
    mismatch(house, ask.line(b"Mcp-Param-Count", b"43"), ask)


def test_all_bindings_of_a_tool_are_held(house: House) -> None:
    """Each type, a nested path, names in any case; each of them missing or wrong is refused by its own name."""
    ask = locating(house, region="eu", count=-7, flag=False, where={"zone": "\u00fc"}, header=b"eu")
    ask = (
        ask.line(b"MCP-PARAM-COUNT", b"-7")
        .line(b"mcp-param-flag", b"false")
        .line(b"Mcp-Param-Zone", sentinel("\u00fc"))
    )
    passes(house, ask)
    for name in (b"Mcp-Param-Region", b"Mcp-Param-Count", b"Mcp-Param-Flag", b"Mcp-Param-Zone"):
        for wrong in (ask.line(name), ask.line(name, b"other"), ask.line(name, b"=?base64?!?=")):
            assert name.decode() in mismatch(house, wrong, ask)


@pytest.mark.parametrize("value", [None, ...])
def test_what_has_no_value_has_no_header(house: House, value: Any) -> None:
    """Null or absent: without a header it passes (null is no fault of the type either), with one it is refused."""
    ask = locating(house, **({} if value is ... else {"region": value}))
    mismatch(house, ask.line(REGION, b"eu"), ask)


@pytest.mark.provokes(Refusal.HEADER_MISMATCH)
@pytest.mark.parametrize(("value", "header"), LATE)
def test_a_header_that_says_something_else_is_refused(house: House, value: str, header: bytes) -> None:
    """400 -32020 with the request's id and the header's name, before anything is sent or any approval is read."""
    good = locating(house, region="eu", header=b"eu")
    answer = refused(
        house, locating(house, region=value, header=header), Refusal.HEADER_MISMATCH, twin=good, judged=True
    )
    assert "Mcp-Param-Region" in answer.json()["error"]["message"]


def test_an_omitted_header_is_refused(house: House) -> None:
    """HDR-13: an argument that is there, its header not; a header that nobody named changes nothing of it."""
    good = locating(house, region="eu", header=b"eu")
    bare = locating(house, region="eu")
    mismatch(house, bare, good)
    mismatch(house, bare.line(b"Mcp-Param-Other", b"eu"), good)
    passes(house, good.line(b"Mcp-Param-Other", b"=?base64?w7w=?="))
    assert house.forwarded("formal")[-1].values("mcp-param-other") == ["=?base64?w7w=?="]


def test_a_tool_without_annotations_minds_no_header(house: House) -> None:
    """HDR-13: what no annotation names is forwarded unchanged, whatever it says."""
    ask = locating(house, "read", region="eu", header=b"us")
    assert sent(house, ask) == (["us"], {"region": "eu"})


def told(answer: Answer) -> Any:
    """A refusal without what differs in every reply."""
    error = answer.json()["error"]
    error["data"].pop("decisionId")
    return answer.status, error


def test_a_mismatch_tells_nobody_that_a_hidden_tool_is_there(house: House) -> None:
    """The policy comes first: denied, absent and crooked tools answer alike, whatever the headers say."""
    absent = told(house.ask(locating(house, "nowhere", region="eu", header=b"us")))
    assert absent[1]["code"] == 40302
    for name in ("hidden", "absent", *CROOKED):
        assert told(house.ask(locating(house, name, region="eu", header=b"us"))) == absent
        assert told(house.ask(locating(house, name, region="eu", header=b"eu"))) == absent


@pytest.mark.parametrize("name", CROOKED)
def test_a_tool_whose_annotations_are_invalid_is_not_callable(house: House, name: str) -> None:
    """It is refused like one that does not exist; the record says no more."""
    refused(house, locating(house, name), Refusal.POLICY_DENIED, twin=locating(house, "read"))


def shown(answer: Answer) -> list[str]:
    """The names of a list, JSON or on a stream."""
    assert answer.status == 200
    data = answer.body
    if answer.values("content-type") == ["text/event-stream"]:
        (data,) = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")]
    return [one["name"] for one in json.loads(data)["result"]["tools"]]


def test_crooked_tools_are_not_listed_and_the_others_stay(house: House) -> None:
    """contract.md section 3: left out with one warning each, the order of the others unchanged; on streams too."""
    assert shown(house.ask(house.good(listing(), "formal"))) == VISIBLE

    async def stream(exchange: Exchange) -> None:
        server = house.behind["formal"][0]
        page = result_of(exchange.id, tools=server.tools, ttlMs=0, cacheScope="public")
        await exchange.send(SSE_HEAD + chunk(b"data: " + page + b"\n\n") + chunk(b""))

    with house.behind["formal"][0].playing(stream):
        assert shown(house.ask(house.good(listing(), "formal"))) == VISIBLE
    lines = [
        json.loads(line) for line in (house.stack.folder / "gateway.log").read_text().splitlines() if line[:1] == "{"
    ]
    left_out = [line for line in lines if line["event"] == "tool_left_out" and line["server"] == "formal"]
    warned = [(line["tool"], line["level"]) for line in left_out]
    assert sorted(warned) == sorted((name, "warning") for name in CROOKED if name != "bare")


def test_a_mismatch_opens_no_ticket_and_burns_no_approval(house: House) -> None:
    """Checked before any ticket is read: no ticket without the header, and the approved use is there afterwards."""
    before = len(house.api("GET").json()["tickets"])
    refused(
        house,
        locating(house, "place", region="eu"),
        Refusal.HEADER_MISMATCH,
        twin=locating(house, "read"),
        judged=True,
    )
    assert len(house.api("GET").json()["tickets"]) == before
    good = locating(house, "place", region="eu", header=b"eu")
    ticket = house.ask(good).json()["error"]["data"]["ticket"]["id"]
    assert house.act("approve", ticket).status_code == 200
    for wrong in (b"us", b"=?base64?!?="):
        assert told(house.ask(good.line(REGION, wrong)))[1]["code"] == -32020
    assert house.api("GET", f"/{ticket}").json()["uses_left"] == 1
    assert sent(house, good) == (["eu"], {"region": "eu"})
    assert house.api("GET", f"/{ticket}").json()["state"] == "used"


def test_a_gated_body_has_headers_of_its_own(house: House) -> None:
    """When the gateway writes the body anew it writes the headers anew: they say what is sent, not what was sent."""
    good = locating(house, "place", region="\u00fc\u00df", count=1, header=sentinel("\u00fc\u00df"))
    good = good.line(b"Mcp-Param-Count", b"1.0").line(b"Mcp-Param-Other", b"7")
    ask = Ask(good.target, good.lines, good.body.replace(b'"count":1', b'"count": 1.0'))
    ticket = house.ask(ask).json()["error"]["data"]["ticket"]["id"]
    assert house.act("approve", ticket).status_code == 200
    passes(house, ask)
    seen = house.forwarded("formal")[-1]
    assert b'"count":1,' in seen.body
    assert (seen.values("mcp-param-count"), seen.values("mcp-param-other")) == (["1"], ["7"])
    assert seen.values("mcp-param-region") == [sentinel("\u00fc\u00df").decode()]


def test_an_approval_that_is_asked_for_ahead_needs_no_headers(house: House) -> None:
    """`POST /approvals` names arguments alone; the call that comes with right headers finds the ticket."""
    asked = {
        "server": "formal",
        "method": "tools/call",
        "name": "place",
        "arguments": {"region": "ahead", "count": 3},
    }
    opened_ahead = house.api("POST", "", house.person("alice"), {**asked, "justification": "row"})
    assert opened_ahead.status_code == 201, opened_ahead.text
    ticket = opened_ahead.json()["id"]
    assert house.act("approve", ticket).status_code == 200
    ask = locating(house, "place", region="ahead", count=3, header=b"ahead").line(b"Mcp-Param-Count", b"3")
    passes(house, ask)
    assert house.api("GET", f"/{ticket}").json()["state"] == "used"


# Arguments


def unfit(house: House, ask: Ask, twin: Ask, *lines: str) -> None:
    """Answered as the tool would, in these words, and the tool was not run: one record says why, no value is told."""
    passes(house, twin)
    before, evaluations = len(house.forwarded()), house.evaluations()
    answer = house.ask(ask)
    assert (answer.status, answer.values("content-type")) == (200, ["application/json"])
    reply = answer.json()
    assert reply.keys() == {"jsonrpc", "id", "result"}
    assert (reply["jsonrpc"], reply["id"]) == ("2.0", 7)
    assert reply["result"].keys() == {"resultType", "content", "isError"}
    assert (reply["result"]["resultType"], reply["result"]["isError"]) == ("complete", True)
    (content,) = reply["result"]["content"]
    assert content["type"] == "text"
    assert content["text"].splitlines()[1:] == [f"- {line}" for line in lines]
    assert len(house.forwarded()) == before
    assert house.evaluations() == evaluations + 1
    passes(house, twin)
    (record,) = house.records_of(answer.values("ostiary-decision")[0])
    assert (record["kind"], record["reasons"][0]) == ("refusal", "arguments_invalid")
    assert (record["status"], record["code"]) == (200, -32602)
    assert (record["ticket"], record["outcome"]) == (None, None)
    assert house.planted_in(ask.body)
    assert not house.planted_in(answer.body + json.dumps(record).encode() + house.metrics().encode())


UNFIT: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ['"arguments": lacks the required member "path".']),
    ({"path": 5}, ['"arguments/path": must be of type string.']),
    ({"path": "long"}, ['"arguments/path": must have at most 60 characters.']),
    ({"path": "x", "limit": 0}, ['"arguments/limit": must be at least 1.']),
    ({"path": "x", "limit": "5"}, ['"arguments/limit": must be of type integer.']),
    ({"path": None}, ['"arguments/path": must be of type string.']),
]


def searching(house: House, server: str = "formal", name: str = "search", **arguments: Any) -> Ask:
    """A call of a tool that asks for arguments; a text called `long` is a secret that is too long."""
    if arguments.get("path") == "long":
        arguments["path"] = house.argument * 3
    return house.good(tool(name, **arguments), server)


@pytest.mark.provokes(Refusal.ARGUMENTS_INVALID)
@pytest.mark.parametrize(("arguments", "lines"), UNFIT)
def test_arguments_that_do_not_fit_are_told_and_not_run(
    house: House, arguments: dict[str, Any], lines: list[str]
) -> None:
    """Declared: what the tool's own schema says is held, and the model is told what to mend."""
    twin = searching(house, path=house.argument[:60], limit=1, undeclared=house.argument)
    unfit(house, searching(house, **arguments, note=house.argument), twin, *lines)


def test_strict_refuses_what_is_not_declared(house: House) -> None:
    """By server, and by tool on a server that is held to nothing else."""
    for server in ("strict", "loose"):
        ask = searching(house, server, path="x", pth=house.argument)
        unfit(house, ask, searching(house, server, path="x"), '"arguments": has unknown members: "pth".')


@pytest.mark.parametrize("arguments", [{}, {"path": 5}, {"path": "x", "undeclared": 1}])
def test_off_holds_nothing(house: House, arguments: dict[str, Any]) -> None:
    """Any arguments reach the server as they came, and a schema that is none hides no tool."""
    ask = house.good(tool("locate", **arguments), "loose")
    passes(house, ask)
    assert house.forwarded("loose")[-1].body == ask.body
    passes(house, house.good(tool("wrong", **arguments), "loose"))


def test_unfit_arguments_of_a_hidden_tool_tell_nothing(house: House) -> None:
    """The policy comes first; what is denied looks the same whatever is asked of it."""
    absent = told(house.ask(searching(house, name="nowhere")))
    assert told(house.ask(searching(house, name="hidden", region=5))) == absent


def test_a_headers_fault_comes_before_the_arguments(house: House) -> None:
    """-32020 for a header that contradicts, though the argument is of the wrong type as well."""
    twin = locating(house, region="eu", header=b"eu")
    assert "Mcp-Param-Region" in mismatch(house, locating(house, region=5, header=b"eu"), twin)
    answer = house.ask(locating(house, region={"a": 1}))
    assert answer.json()["result"]["isError"] is True


def test_unfit_arguments_open_no_ticket_and_burn_no_approval(house: House) -> None:
    """Checked before any ticket is read."""
    before = len(house.api("GET").json()["tickets"])
    unfit(
        house,
        searching(house, name="change", path=5, note=house.argument),
        searching(house, path="x"),
        '"arguments/path": must be of type string.',
    )
    assert len(house.api("GET").json()["tickets"]) == before
    good = searching(house, name="change", path="held")
    ticket = house.ask(good).json()["error"]["data"]["ticket"]["id"]
    assert house.act("approve", ticket).status_code == 200
    assert house.ask(searching(house, name="change")).json()["result"]["isError"] is True
    assert house.api("GET", f"/{ticket}").json()["uses_left"] == 1
    passes(house, good)


def test_an_approval_of_unfit_arguments_cant_be_asked_for(house: House) -> None:
    """`POST /approvals` answers with an error that says why, and opens nothing."""
    asked = {"server": "formal", "method": "tools/call", "name": "change", "justification": "row"}
    right = house.api("POST", "", house.person("alice"), {**asked, "arguments": {"path": "fits"}})
    assert right.status_code == 201
    before = len(house.api("GET").json()["tickets"])
    wrong = house.api("POST", "", house.person("alice"), {**asked, "arguments": {"path": 5}})
    assert wrong.status_code == 400
    assert "must be of type string" in wrong.text
    assert len(house.api("GET").json()["tickets"]) == before


def test_large_arguments_hold_nobody_up(house: House) -> None:
    """A megabyte that does not fit is refused while others are served."""
    house.token("loose")
    large = searching(house, rows=[{"a": number, "b": "t" * 1000} for number in range(950)], note=house.argument)
    assert len(large.body) > 900_000

    def ask(number: int) -> float:
        began = time.monotonic()
        answer = house.ask(large if number == 0 else house.good(tool("locate"), "loose"))
        assert answer.json()["result"]["isError"] is (number == 0)
        return time.monotonic() - began

    assert max(at_once(4, ask)) < 5
