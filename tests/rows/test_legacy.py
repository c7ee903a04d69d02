"""Clients of older revisions and quirks through the whole gateway: served by name alone, and nothing is believed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from gateway.contract.headers import VERSIONS
from gateway.contract.refusals import Refusal
from tests.rows.asking import Ask, spell
from tests.rows.conftest import DATA, furnish, opened, provoked, served, settings_of
from tests.rows.proof import refused
from tests.rows.stage import House, Server, Stage, listed
from tests.support.http_raw import Answer, RawClient
from tests.support.stack import Stack, body
from tests.support.upstream import SSE_HEAD, Exchange, chunk, http, result_of

SESSION, VERSION, METHOD = b"Mcp-Session-Id", b"MCP-Protocol-Version", b"Mcp-Method"
OLD = "2025-11-25"
MODERN = "io.modelcontextprotocol/"
BOUND = {"inputSchema": {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}}


@pytest.fixture(scope="module")
def aged(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A gateway with a server for older clients, one more, a strict one, and one with every quirk."""
    tools = listed(read=BOUND, hidden={}, write={})
    behind = {name: [Server(tools)] for name in ("old", "older", "strict", "odd")}
    stack = Stack(tmp_path_factory.mktemp("legacy"), {}, data=DATA)
    with opened(stage, [one for replicas in behind.values() for one in replicas]):
        quirks = ["accept_json_only", "discover_without_method", "session_without_version"]
        on = {"legacy_clients": True}
        furnish(stack, settings_of(behind, old=on, older=on, odd={**on, "quirks": quirks}))
        house = House(stage, stack, behind)
        with served(stage, stack), house.http:
            yield house


@pytest.fixture
def house(aged: House, request: pytest.FixtureRequest) -> Iterator[House]:
    """What a test says to provoke has been provoked when it is over."""
    yield aged
    owed = {refusal for mark in request.node.iter_markers("provokes") for refusal in mark.args}
    assert owed <= provoked(aged), owed


def plain(method: str, params: Mapping[str, Any] | None = None, request_id: Any = 7) -> dict[str, Any]:
    """A message of an older revision."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = dict(params)
    return message if request_id is None else {**message, "id": request_id}


def call(name: str = "read", **arguments: Any) -> dict[str, Any]:
    """A `tools/call` of an older revision."""
    return plain("tools/call", {"name": name, "arguments": arguments})


def initialize(version: str = OLD, **capabilities: Any) -> dict[str, Any]:
    """How a conversation of an older revision begins."""
    info = {"name": "tests", "version": "1"}
    return plain("initialize", {"protocolVersion": version, "capabilities": capabilities, "clientInfo": info})


def older(
    house: House, message: Mapping[str, Any], server: str = "old", session: str = "", subject: str = "alice"
) -> Ask:
    """A request as a client of an older revision sends it."""
    ask = house.good(body(str(message["method"])), server, house.token(server, subject)).line(METHOD).line(VERSION)
    if session:
        ask = ask.line(SESSION, session.encode()).line(VERSION, OLD.encode())
    return replace(ask, body=spell(message))


def begin(house: House, server: str = "old", subject: str = "alice", version: str = OLD) -> str:
    """A new session's id."""
    return begun_by(house, older(house, initialize(version), server, subject=subject))


def begun_by(house: House, ask: Ask) -> str:
    """The id of the session that this `initialize` begins."""
    with RawClient(house.address) as client:
        answer = client.send(ask.encode()).read_answer()
    assert answer.status == 200, answer
    (session,) = answer.values("mcp-session-id")
    return session


def error(answer: Answer) -> tuple[int, int, str]:
    """Status, code and message."""
    told = answer.json()["error"]
    return answer.status, told["code"], told["message"]


def counted(house: House, quirk: str) -> float:
    """How often a quirk helped at the server that has all of them."""
    head = f'ostiary_quirks_total{{quirk="{quirk}",server="odd"}} '
    return sum(float(line.removeprefix(head)) for line in house.metrics().splitlines() if line.startswith(head))


def untouched(house: House, ask: Ask, status: int, code: int, reason: Refusal) -> Answer:
    """Refused so, with nothing forwarded and one record; the same twin without the flaw is the caller's to prove."""
    before = len(house.forwarded())
    answer = house.ask(ask)
    assert error(answer)[:2] == (status, code), answer
    assert len(house.forwarded()) == before
    (record,) = house.await_records(answer.values("ostiary-decision")[0], "refusal")
    assert record["reasons"][0] == reason.reason
    assert record["request_id"] == 7
    return answer


def test_a_conversation_of_an_older_revision(house: House) -> None:
    """Begun, pinged, listed, called: the server sees requests of 2026-07-28 only, the client answers of its own."""
    session = begin(house)
    assert house.ask(older(house, plain("notifications/initialized", None, None), session=session)).status == 202
    assert house.ask(older(house, plain("ping"), session=session)).json()["result"] == {}
    tools = house.ask(older(house, plain("tools/list"), session=session)).json()["result"]
    assert [tool["name"] for tool in tools["tools"]] == ["read", "write"]
    assert not tools.keys() & {"resultType", "ttlMs", "cacheScope"}

    answer = house.ask(older(house, call(region="eu", path="/x"), session=session))
    assert answer.json()["result"] == {"content": [{"type": "text", "text": "done"}], "isError": False}
    seen = house.forwarded("old")[-1]
    sent = json.loads(seen.body)
    assert sent["params"]["arguments"] == {"region": "eu", "path": "/x"}
    meta = {MODERN + "protocolVersion": VERSIONS[0], MODERN + "clientCapabilities": {}}
    assert sent["params"]["_meta"] == meta
    named = {
        name: seen.values(name) for name in ("mcp-method", "mcp-name", "mcp-param-region", "mcp-protocol-version")
    }
    assert named == {
        "mcp-method": ["tools/call"], "mcp-name": ["read"], "mcp-param-region": ["eu"],
        "mcp-protocol-version": [VERSIONS[0]],
    }  # fmt: skip
    assert not seen.values("mcp-session-id")
    records = house.await_records(answer.values("ostiary-decision")[0], "decision", "outcome")
    assert [record["legacy"] for record in records] == [OLD, OLD]
    assert f'ostiary_legacy_requests_total{{revision="{OLD}",server="old"}}' in house.metrics()


def test_initialize_answers_for_the_server_and_for_us(house: House) -> None:
    """The server's own name and instructions, the newest common revision, what can be served and no more."""
    for asked, agreed in ((OLD, OLD), ("2025-06-18", "2025-06-18"), ("2024-11-05", OLD), ("2099-01-01", OLD)):
        ask = older(house, initialize(asked, elicitation={"form": {}}, sampling={}))
        with RawClient(house.address) as client:
            answer = client.send(ask.encode()).read_answer()
        assert answer.json()["result"] == {
            "protocolVersion": agreed,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "rows", "version": "7"},
            "instructions": "Go.",
        }
        assert json.loads(house.forwarded("old")[-1].body)["method"] == "server/discover"


def test_off_means_what_it_always_meant(house: House) -> None:
    """Where it is not switched on, an older client gets the one refusal that names what is served, session or not."""
    session = begin(house)
    answer = house.ask(older(house, initialize(), "strict"))
    assert error(answer)[:2] == (400, -32020)
    assert answer.json()["error"]["data"]["supported"] == list(VERSIONS)
    assert error(house.ask(older(house, call(), "strict", session=session)))[:2] == (400, -32020)


@pytest.mark.provokes(Refusal.SESSION_UNKNOWN)
def test_a_session_is_its_callers_at_its_server(house: House) -> None:
    """Another subject, another server, a changed, doubled-up or endless id: unknown, all alike, nothing forwarded."""
    session = begin(house)
    assert "result" in house.ask(older(house, call(), session=session)).json()
    flipped = session[:-2] + ("A" if session[-2] != "A" else "B") + session[-1]
    for ask in (
        older(house, call(), session=session, subject="mallory"),
        older(house, call(), "older", session=session),
        *(older(house, call(), session=one) for one in (flipped, session + "=", session + "A", "x", "A" * 20_000)),
        older(house, call(), session="x").line(SESSION, "s\u00e9ance".encode("latin-1")),
    ):
        answer = untouched(house, ask, 404, -32600, Refusal.SESSION_UNKNOWN)
        assert error(answer)[2] == Refusal.SESSION_UNKNOWN.value.sentence


@pytest.mark.provokes(Refusal.SESSION_MISMATCH)
def test_a_request_repeats_what_its_session_says(house: House) -> None:
    """A version that is missing, doubled, another one or none at all; a session that is missing or doubled: 400."""
    session = begin(house)
    good = older(house, call(), session=session)
    assert "result" in house.ask(good).json()
    for ask, named in (
        (good.line(VERSION), "MCP-Protocol-Version header is missing"),
        (good.line(VERSION, b"2025-06-18"), "MCP-Protocol-Version"),
        (good.line(VERSION, b"1900-01-01"), "MCP-Protocol-Version"),
        (good.line(VERSION, OLD.encode(), OLD.encode()), "MCP-Protocol-Version"),
        (good.line(SESSION), "begins with initialize"),
        (good.line(SESSION, session.encode(), session.encode()), "Mcp-Session-Id"),
        (older(house, initialize()).line(SESSION, session.encode()), "Mcp-Session-Id"),
        (older(house, initialize()).line(VERSION, b"2025-06-18"), "params.protocolVersion"),
    ):
        answer = untouched(house, ask, 400, -32600, Refusal.SESSION_MISMATCH)
        assert named in error(answer)[2]


@pytest.mark.parametrize(
    "member",
    [{"_meta": {MODERN + key: value}} for key, value in (
        ("clientCapabilities", {"elicitation": {}}), ("clientInfo", {}), ("logLevel", "debug"),
    )] + [{"requestState": "x"}, {"inputResponses": {}}],
    ids=str,
)  # fmt: skip
def test_members_of_the_newer_revision_are_not_believed(house: House, member: dict[str, Any]) -> None:
    """An older client can't know them: who sends them claims what the session already says."""
    good = older(house, call(), session=begin(house))
    assert "result" in house.ask(good).json()
    ask = good.edit(lambda message: message["params"].update(member))
    untouched(house, ask, 400, -32600, Refusal.SESSION_MISMATCH)


def test_a_version_in_the_body_makes_it_a_newer_request(house: House) -> None:
    """Then head and body have to agree about it as ever, and a version that is not served is negotiated."""
    good = older(house, call(), session=begin(house))
    assert "result" in house.ask(good).json()
    for version in (OLD, VERSIONS[0]):
        claim = {MODERN + "protocolVersion": version}
        message = call()
        message["params"]["_meta"] = claim
        untouched(house, replace(good, body=spell(message)), 400, -32020, Refusal.HEADER_MISMATCH)
    whole = house.good(body("tools/call", {"name": "read"}, 7), "old").line(VERSION, OLD.encode())
    ask = whole.edit(lambda message: message["params"]["_meta"].update({MODERN + "protocolVersion": OLD}))
    answer = untouched(house, ask, 400, -32022, Refusal.VERSION_UNSUPPORTED)
    assert answer.json()["error"]["data"] == {"supported": list(VERSIONS), "requested": OLD}


def test_no_header_can_say_another_thing_than_the_body(house: House) -> None:
    """What some clients mirror in every revision has to agree; with the marks of both, nothing is forgiven."""
    session = begin(house)
    good = older(house, call(), session=session)
    assert "result" in house.ask(good).json()
    name = b"Mcp-Name"
    mirrored = good.line(METHOD, b"tools/call").line(name, b"read")
    assert "result" in house.ask(mirrored).json()
    for ask in (
        mirrored.line(METHOD, b"tools/list"),
        mirrored.line(METHOD, b"tools/call", b"tools/call"),
        mirrored.line(name, b"hidden"),
        mirrored.line(name, b"read", b"read"),
        mirrored.line(name, b"=?base64?cmVhZA=?="),
    ):
        untouched(house, ask, 400, -32600, Refusal.SESSION_MISMATCH)
    for ask in (
        good.line(b"Mcp-Param-Region", b"eu"),
        good.line(VERSION, VERSIONS[0].encode()),
        good.line(VERSION, OLD.encode(), VERSIONS[0].encode()),
    ):
        untouched(house, ask, 400, -32020, Refusal.HEADER_MISMATCH)


def test_what_begins_a_conversation_may_name_itself(house: House) -> None:
    """Clients that know both revisions do: a header that says the same leaves no doubt; any other refuses."""
    ask = older(house, initialize())
    for honest in (ask, ask.line(METHOD, b"initialize"), ask.line(METHOD, b"initialize").line(VERSION, OLD.encode())):
        session = begun_by(house, honest)
    begun = older(house, plain("notifications/initialized", None, None), session=session)
    assert house.ask(begun.line(METHOD, b"notifications/initialized")).status == 202
    assert house.ask(begun.line(METHOD, b"initialize")).status == 400
    for lying in (ask.line(METHOD, b"tools/list"), ask.line(METHOD, b"initialize").line(b"Mcp-Name", b"read")):
        untouched(house, lying, 400, -32600, Refusal.SESSION_MISMATCH)
    lying = older(house, call(), session=session).line(METHOD, b"initialize")
    untouched(house, lying, 400, -32600, Refusal.SESSION_MISMATCH)


def test_a_newer_client_is_served_as_ever_whatever_session_it_sends(house: House) -> None:
    """On the same endpoint a client of 2026-07-28 works; a session is ignored, right or wrong."""
    for session in ("x", begin(house, subject="bob")):
        answer = house.ask(
            house.good(body("tools/call", {"name": "write"}, 7), "old").line(SESSION, session.encode())
        )
        assert error(answer)[:2] == (403, 40303)
        ask = house.good(server="old").line(SESSION, session.encode())
        answer = house.ask(ask)
        assert answer.json()["result"]["resultType"] == "complete"
        assert not house.forwarded("old")[-1].values("mcp-session-id")
        records = house.await_records(answer.values("ostiary-decision")[0], "decision", "outcome")
        assert [record["legacy"] for record in records] == [None, None]


def test_before_initialize_there_is_nothing(house: House) -> None:
    """A call without a session is refused in either era's words, and nothing is forwarded."""
    untouched(house, older(house, call()), 400, -32020, Refusal.HEADER_MISMATCH)
    ask = older(house, call()).line(VERSION, OLD.encode())
    untouched(house, ask, 400, -32600, Refusal.SESSION_MISMATCH)


def test_a_session_is_no_credential(house: House) -> None:
    """The token comes first: without a good one the session is not even looked at."""
    session = begin(house)
    good = older(house, call(), session=session)
    assert "result" in house.ask(good).json()
    assert house.ask(good.line(b"Authorization")).status == 401
    assert house.ask(good.line(b"Authorization", b"Bearer x")).status == 401
    assert house.ask(older(house, initialize()).line(b"Authorization")).status == 401


@pytest.mark.parametrize(
    "method",
    [
        "logging/setLevel",
        "resources/subscribe",
        "tasks/list",
        "server/discover",
        "subscriptions/listen",
        "Tools/Call",
        "x",
    ],
)
def test_what_is_not_offered_does_not_exist(house: House, method: str) -> None:
    """An error of the request itself: with status 404 the client would take its session for lost."""
    ask = older(house, plain(method, {}), session=begin(house))
    answer = untouched(house, ask, 200, -32601, Refusal.METHOD_UNKNOWN)
    assert answer.json()["id"] == 7


def test_notifications_are_taken_and_none_is_forwarded(house: House) -> None:
    """202 and a record for what that revision sends; anything else without an id is refused, and nothing runs."""
    session = begin(house)
    before = len(house.forwarded())
    for method in ("initialized", "cancelled", "progress", "roots/list_changed"):
        answer = house.ask(older(house, plain(f"notifications/{method}", {}, None), session=session))
        assert (answer.status, answer.body) == (202, b"")
        (record,) = house.await_records(answer.values("ostiary-decision")[0], "outcome")
        assert (record["outcome"], record["method"]) == ("answered", f"notifications/{method}")
    for message in (plain("notifications/made-up", {}, None), plain("tools/call", {"name": "read"}, None)):
        assert error(house.ask(older(house, message, session=session)))[:2] == (400, -32600)
    assert len(house.forwarded()) == before


def test_policy_and_approvals_are_the_very_same(house: House) -> None:
    """Denied is denied; held is shown with its page; approved from either era, it runs once."""
    session = begin(house)
    denied = untouched(house, older(house, call("hidden"), session=session), 200, 40302, Refusal.POLICY_DENIED)
    assert denied.json()["error"]["message"] == Refusal.POLICY_DENIED.value.sentence
    message = call("write", number=1)
    held = house.ask(older(house, message, session=session))
    ticket = held.json()["error"]["data"]["ticket"]
    assert error(held)[:2] == (200, 40303)
    assert error(held)[2].count(ticket["page"]) == 1
    modern = body("tools/call", {"name": "write", "arguments": {"number": 1}}, 9)
    assert house.held("old", modern)["id"] == ticket["id"], "one effect, one ticket"
    assert house.act("approve", ticket["id"]).status_code == 200
    before = len(house.forwarded("old"))
    assert "result" in house.ask(older(house, message, session=session)).json()
    assert error(house.ask(older(house, message, session=session)))[:2] == (200, 40303)
    assert len(house.forwarded("old")) == before + 1


def test_a_page_that_an_older_client_says_it_opens_is_the_error_to_it(house: House) -> None:
    """Its revision asks by requests of the server, which are not served: 40303, whatever it declared."""
    ask = older(house, initialize(OLD, elicitation={"form": {}, "url": {}}))
    with RawClient(house.address) as client:
        session = client.send(ask.encode()).read_answer().values("mcp-session-id")[0]
    held = house.ask(older(house, call("write", number=2), session=session))
    assert error(held)[:2] == (200, 40303)
    assert held.json()["error"]["data"]["ticket"]["page"] in error(held)[2]


def test_a_missing_scope_keeps_its_challenge(house: House) -> None:
    """Clients of those revisions step up by it."""
    session = begin(house)
    ask = older(house, call(), session=session)
    poor = house.token("old", scope="mcp:use")
    answer = house.ask(ask.line(b"Authorization", f"Bearer {poor}".encode()))
    assert error(answer)[:2] == (403, 40301)
    assert "files:read" in answer.values("www-authenticate")[0]


@pytest.mark.provokes(Refusal.REVISION_REQUIRED)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_server_that_asks_for_input_can_not_be_understood(house: House, streamed: bool) -> None:
    """The exact error names the revision that is needed; the record says how the call ended."""

    async def ask_back(exchange: Exchange) -> None:
        asks = result_of(exchange.id, resultType="input_required", requestState="s")
        if streamed:
            await exchange.send(SSE_HEAD + chunk(b"data: " + asks + b"\n\n") + chunk(b""))
        else:
            await exchange.send(http(200, asks))

    session = begin(house)
    with house.behind["old"][0].playing(ask_back):
        answer = house.ask(older(house, call(), session=session))
    text = answer.body.decode()
    told = json.loads(text.partition("data: ")[2]) if streamed else json.loads(text)
    assert (answer.status, told["id"], told["error"]["code"]) == (200, 7, 40001)
    assert VERSIONS[0] in told["error"]["message"]
    assert "requestState" not in text
    records = house.await_records(answer.values("ostiary-decision")[0], "decision", "outcome")
    assert (records[1]["outcome"], records[1]["reasons"]) == ("input_required", ["revision_required"])


def test_an_approved_call_that_can_not_be_answered_does_not_wait(house: House) -> None:
    """A client that can't be asked can't go on either: the outcome is unknown, and the call is not run again."""
    message = call("write", number=77)
    session = begin(house)
    held = json.loads(house.ask(older(house, message, session=session)).body)["error"]["data"]["ticket"]["id"]
    assert house.act("approve", held).status_code == 200

    async def ask_back(exchange: Exchange) -> None:
        await exchange.send(http(200, result_of(exchange.id, resultType="input_required", requestState="s")))

    with house.behind["old"][0].playing(ask_back):
        assert error(house.ask(older(house, message, session=session)))[1] == 40001
    assert [run["state"] for run in house.api("GET", f"/{held}").json()["runs"]] == ["unknown"]
    assert error(house.ask(older(house, message, session=session)))[:2] == (200, 40304)


def test_a_servers_error_and_stream_are_told_in_older_words(house: House) -> None:
    """A needed capability is a needed revision; an error has status 200; streams are relayed."""

    async def lacks(exchange: Exchange) -> None:
        wrong = {"code": -32021, "message": "m", "data": {"requiredCapabilities": {"elicitation": {}}}}
        await exchange.send(http(404, json.dumps({"jsonrpc": "2.0", "id": exchange.id, "error": wrong}).encode()))

    async def stream(exchange: Exchange) -> None:
        note = b'{"jsonrpc":"2.0","method":"com.example/notifications/note","params":{"level":"info","data":1}}'
        events = b"data: " + note + b"\n\ndata: " + result_of(exchange.id, structuredContent=[1]) + b"\n\n"
        await exchange.send(SSE_HEAD + chunk(events) + chunk(b""))

    good = older(house, call(), session=begin(house))
    with house.behind["old"][0].playing(lacks):
        assert error(house.ask(good)) == (200, 40001, Refusal.REVISION_REQUIRED.value.sentence)
    with house.behind["old"][0].playing(stream):
        answer = house.ask(good)
    first, second = (json.loads(part.partition("data: ")[2]) for part in answer.body.decode().strip().split("\n\n"))
    assert first["method"] == "com.example/notifications/note"
    assert second == {"jsonrpc": "2.0", "id": 7, "result": {"content": []}}


def test_quirks_are_named_counted_and_off_by_default(house: House) -> None:
    """Each passes where it is listed, says so in record and metric; elsewhere it is refused, naming the header."""
    session = {server: begin(house, server) for server in ("old", "odd")}
    discover = {one: house.good(body("server/discover", {}, 7), one).line(METHOD) for one in session}
    accept = {one: house.good(server=one).line(b"Accept", b"application/json") for one in session}
    bare = {one: older(house, call(), one, session[one]).line(VERSION) for one in session}
    for asks, quirk, status, named in (
        (discover, "discover_without_method", 400, "Mcp-Method"),
        (accept, "accept_json_only", 406, "Accept"),
        (bare, "session_without_version", 400, "MCP-Protocol-Version"),
    ):
        strict = house.ask(asks["old"])
        assert strict.status == status
        assert named in error(strict)[2]
        before = counted(house, quirk)
        answer = house.ask(asks["odd"])
        assert "result" in answer.json(), answer
        records = house.await_records(answer.values("ostiary-decision")[0], "decision", "outcome")
        assert [record["quirks"] for record in records] == [[quirk], [quirk]]
        assert counted(house, quirk) == before + 1


def test_a_quirk_forgives_nothing_else(house: House) -> None:
    """What is there and wrong stays wrong; for one method, for a client that takes JSON, for what has an end."""
    odd = house.good(body("server/discover", {}, 7), "odd")
    assert "result" in house.ask(odd.line(METHOD)).json()
    untouched(house, odd.line(METHOD, b"tools/list"), 400, -32020, Refusal.HEADER_MISMATCH)
    untouched(house, odd.line(METHOD).line(VERSION), 400, -32020, Refusal.HEADER_MISMATCH)
    untouched(house, house.good(server="odd").line(METHOD), 400, -32020, Refusal.HEADER_MISMATCH)
    assert house.ask(odd.line(b"Accept", b"text/event-stream")).status == 406
    assert house.ask(odd.line(b"Accept", b"application/json;q=0")).status == 406
    listen = house.good(body("subscriptions/listen", {"notifications": {}}, 7), "odd")
    untouched(house, listen.line(b"Accept", b"application/json"), 406, -32600, Refusal.ACCEPT_UNSUPPORTED)


def test_who_reads_json_alone_gets_the_response_of_a_stream(house: House) -> None:
    """One JSON object with the response; a stream that breaks is an error with the request's id."""

    async def stream(exchange: Exchange) -> None:
        note = b'data: {"jsonrpc":"2.0","method":"com.example/notifications/note","params":{}}\n\n'
        await exchange.send(SSE_HEAD + chunk(note) + chunk(b"data: " + result_of(exchange.id) + b"\n\n") + chunk(b""))

    async def broken(exchange: Exchange) -> None:
        await exchange.send(
            SSE_HEAD + chunk(b'data: {"jsonrpc":"2.0","method":"com.example/notifications/note"}\n\n') + chunk(b"")
        )

    ask = house.good(server="odd").line(b"Accept", b"application/json")
    with house.behind["odd"][0].playing(stream):
        answer = house.ask(ask)
    assert answer.values("content-type") == ["application/json"]
    assert answer.json()["result"] == {"resultType": "complete", "content": []}
    with house.behind["odd"][0].playing(broken):
        answer = house.ask(ask)
    assert (answer.json()["id"], answer.json()["error"]["code"]) == (7, 50202)
    records = house.await_records(answer.values("ostiary-decision")[0], "decision", "outcome")
    assert records[1]["outcome"] == "unknown"


def test_older_methods_of_http_are_answered_405(house: House) -> None:
    """A client of those revisions tries GET for a stream and DELETE for its session, and goes on without either."""
    good = older(house, plain("ping"), session=begin(house))
    assert house.ask(good).status == 200
    for verb in (b"GET", b"DELETE"):
        answer = house.ask(replace(good, verb=verb, body=b"", length=-1))
        assert (answer.status, answer.values("allow")) == (405, ["POST"])


def test_the_proof_of_a_refusal_holds_here_too(house: House) -> None:
    """A mixed-up version, held to everything that all refusals owe."""
    good = older(house, call(), session=begin(house))
    refused(house, good.line(VERSION, b"2025-06-18"), Refusal.SESSION_MISMATCH, twin=good)
