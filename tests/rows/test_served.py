"""What must pass, and what the servers behind see of it: HDR-04, 08, 13, 14, RPC-04, 08, 09, UPS-01, AZ-03, AZ-04."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.contract.refusals import Refusal
from tests.rows.asking import Ask, encoded, spell, tool, version_of
from tests.rows.conftest import INJECTED, LITERALS, LOOK_ALIKES
from tests.rows.proof import passes, refused
from tests.rows.stage import House, listing
from tests.rows.table import JSN, METHOD, NAME, VERSION, VERSION_KEY, Row
from tests.support.stack import body as message_of
from tests.support.upstream import SSE_HEAD, Exchange, Seen, chunk, http, result_of

LONG = "i" * 200
IDS = [9007199254740993, "007", 0, -1, "", LONG, 2**63 - 1, -(2**63), "\u2028", "7"]


def seen_of(house: House, ask: Ask) -> Seen:
    """What the server behind saw of a request that passes."""
    before = {id(seen) for seen in house.forwarded("plain")}
    passes(house, ask)
    (seen,) = [seen for seen in house.forwarded("plain") if id(seen) not in before]
    return seen


@pytest.mark.parametrize("spelled", [str.lower, str.upper, str.title])
def test_header_names_have_no_case(house: House, spelled: Any) -> None:
    """HDR-04: names in any case; spaces and tabs around a value are no part of it."""
    ask = house.good()
    for name in (VERSION, METHOD, NAME):
        ask = ask.line(name).more(spelled(name.decode()).encode(), b" \t" + ask.values(name)[0] + b"\t ")
    passes(house, ask)


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("Hello", b"Hello"),
        ("Hello", b"=?base64?SGVsbG8=?="),
        ("=?BASE64?SGVsbG8=?=", b"=?BASE64?SGVsbG8=?="),
        ("=?base64?SGVsbG8=", b"=?base64?SGVsbG8="),
        ("=?base64?SGVsbG8=?=", encoded("=?base64?SGVsbG8=?=")),
        ("gr\u00fc\u00dfe", encoded("gr\u00fc\u00dfe")),
        ("a b", b"a b"),
    ],
)
def test_a_name_may_be_encoded_and_a_literal_is_itself(house: House, name: str, header: bytes) -> None:
    """HDR-08: the sentinel is decoded before it is compared; without its prefix or suffix a value is literal."""
    assert name in LITERALS
    seen = seen_of(house, house.good(tool(name, n=header.decode())).line(NAME, header))
    assert json.loads(seen.body)["params"]["name"] == name


@pytest.mark.parametrize("method", ["tools/list", "prompts/list", "resources/list", "server/discover"])
@pytest.mark.parametrize("name", [b"hidden", b"read", b"=?base64?cmVhZA==?=", b"=?base64?x?="])
def test_a_name_where_none_is_mirrored_steers_nothing(house: House, method: str, name: bytes) -> None:
    """HDR-13: `Mcp-Name` on a list leads to the same decision and the same answer as without it."""
    plain, named = house.good(listing(method)), house.good(listing(method)).line(NAME, name)
    assert house.ask(plain).body == house.ask(named).body


def test_meta_that_nobody_here_knows_reaches_the_server(house: House) -> None:
    """contract.md section 2: unknown `_meta` keys pass untouched, reserved prefixes included."""
    unknown = {
        "io.modelcontextprotocol/later": {"a": [1, None]},
        "com.example/widget": "\u00fc",
        "openai/userAgent": "x/1",
        "ui": {},
        "Method": 1,
    }
    ask = house.good().edit(lambda m: version_of(m).update(unknown))
    assert seen_of(house, ask).body == ask.body


@pytest.mark.parametrize("media", [b"Application/JSON; charset=utf-8", b'application/json;charset="UTF-8"'])
def test_another_spelling_of_the_media_type_is_judged_alike(house: House, media: bytes) -> None:
    """FRM-07: what is JSON in any case is read, judged and refused as JSON."""
    assert seen_of(house, house.good().line(b"Content-Type", media)).values("content-type") == ["application/json"]
    refused(house, house.good(tool("hidden")).line(b"Content-Type", media), Refusal.POLICY_DENIED, twin=house.good())


def test_a_parameters_header_that_nothing_names_is_forwarded(house: House) -> None:
    """HDR-13: an unknown `Mcp-Param-*` goes on unchanged."""
    seen = seen_of(house, house.good().line(b"Mcp-Param-Foo", b"=?base64?w7w=?=").line(b"mcp-param-bar", b"1"))
    assert (seen.values("mcp-param-foo"), seen.values("mcp-param-bar")) == (["=?base64?w7w=?="], ["1"])


FORGED = {
    b"X_Forwarded_User": b"root", b"X-Forwarded-For": b"10.0.0.1", b"X-Forwarded-Host": b"evil.example.com",
    b"X-Forwarded-Proto": b"https", b"X-Forwarded-User": b"root", b"Forwarded": b"for=10.0.0.1",
    b"X-Real-IP": b"10.0.0.1",
    b"Proxy-Authorization": b"Basic cm9vdDpyb290", b"Mcp-Session-Id": b"stolen", b"Last-Event-ID": b"7",
    b"Via": b"1.1 evil", b"X-Http-Method-Override": b"DELETE", b"Traceparent": b"not one",
    b"Baggage": b"not one", b"Tracestate": b"a=1", b"Te": b"trailers",
    b"Accept-Encoding": b"gzip", b"X-Original-Url": b"/admin", b"Priority": b"u=0", b"User-Agent": b"curl",
}  # fmt: skip


def test_nothing_of_the_callers_own_headers_travels(house: House) -> None:
    """HDR-14, UPS-01: no alias, forwarding, cookie or credential of the caller's; the gateway's own credential."""
    ask = house.good()
    for name, value in FORGED.items():
        ask = ask.more(name, value)
    seen = seen_of(house, ask)
    names = {name.lower() for name, _ in seen.headers}
    assert names == {
        "host", "accept-encoding", "authorization", "content-type", "accept", "mcp-protocol-version", "mcp-method",
        "mcp-name", "content-length",
    }  # fmt: skip
    assert seen.values("accept-encoding") == ["identity"]
    assert seen.values("host")[0] in {replica.url.split("/")[2] for replica in house.behind["plain"]}
    assert seen.values("authorization")[0].startswith("Bearer planted-upstream-")
    told = str(seen.headers) + seen.line
    assert house.cookie not in told
    assert house.query not in told
    assert house.token() not in told
    assert seen.body == ask.body


def test_a_trace_is_the_only_thing_that_travels(house: House) -> None:
    """HDR-14: what is valid of trace context and baggage goes on as it came; no other header does."""
    parent = b"00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
    ask = house.good().more(b"Traceparent", parent).more(b"Baggage", b"a=1").more(b"X-Request-Id", b"1")
    seen = seen_of(
        house, ask.more(b"Trace_Parent", parent).more(b"baggage", b"b=2").more(b"Correlation-Context", b"c=3")
    )
    assert seen.values("traceparent") == [parent.decode()]
    assert seen.values("baggage") == ["a=1,b=2"]
    names = {name.lower() for name, _ in seen.headers}
    assert not {"x-request-id", "trace_parent", "correlation-context", "tracestate"} & names


@pytest.mark.parametrize("name", [b"Mcp_Name", b"Mcp.Name", b"mcp_method"])
def test_an_alias_of_a_mirrored_header_is_refused(house: House, name: bytes) -> None:
    """HDR-14: a server behind CGI-like rules would take it for the header itself."""
    passes(house)
    before = len(house.forwarded())
    assert house.ask(house.good().more(name, b"evil")).status == 400
    assert len(house.forwarded()) == before


def test_client_info_is_optional_and_decides_nothing(house: House) -> None:
    """RPC-04, RPC-09: without clientInfo, with a forged one, with a role of the caller's own making: one decision."""
    meta = "io.modelcontextprotocol/"
    plain = house.good()
    asks = [
        plain,
        plain.edit(lambda m: version_of(m).pop(meta + "clientInfo")),
        plain.edit(lambda m: version_of(m).update({meta + "clientInfo": {"name": "admin-console", "version": "1"}})),
        plain.edit(lambda m: version_of(m).update({meta + "role": "admin", "role": "admin", "sub": "root"})),
        plain.edit(lambda m: version_of(m).update({"traceparent": "forged"})),
    ]
    told = []
    for ask in asks:
        answer = passes(house, ask)
        decision = house.await_records(answer.values("ostiary-decision")[0], "decision", "outcome")[0]
        told.append(
            [decision[member] for member in ("actor", "verdict", "reasons", "policy_revision", "arguments_hmac")]
        )
    assert told == [told[0]] * len(told)
    assert told[0][0] == {"issuer": house.stack.issuer.name, "subject": "alice", "client": "tests"}


async def _stream(exchange: Exchange) -> None:
    await exchange.send(SSE_HEAD + chunk(b"data: " + result_of(exchange.id) + b"\n\n") + chunk(b""))


def events(body: bytes) -> list[Any]:
    """The messages of an event stream."""
    lines = [line for line in body.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("request_id", IDS)
def test_an_id_comes_back_with_its_type_and_digits(house: House, request_id: Any) -> None:
    """RPC-08: on success, on an error, and on an event stream."""
    told = b'"id":' + json.dumps(request_id, ensure_ascii=False).encode()
    assert told in passes(house, house.good(tool("read", request_id))).body
    denied = house.ask(house.good(tool("hidden", request_id)))
    assert denied.status == 403
    assert told in denied.body
    with house.behind["odd"][0].playing(_stream):
        streamed = house.ask(house.good(tool("read", request_id), "odd"))
    assert streamed.values("content-type") == ["text/event-stream"]
    assert [type(message["id"]) for message in events(streamed.body)] == [type(request_id)]
    assert told in streamed.body


@pytest.mark.parametrize(
    "split", [lambda ask: ask.line(VERSION, b"2025-11-25"), lambda ask: ask.line(METHOD, b"tools/list")]
)
def test_a_split_of_header_and_body_reaches_neither_policy_nor_tool(house: House, split: Any) -> None:
    """Must-show 3: the same body under another header is 400 -32020, and both counters stand still."""
    asked, called = house.evaluations(), len(house.forwarded())
    passes(house)
    assert (house.evaluations(), len(house.forwarded())) == (asked + 1, called + 1), "the counters count"
    answer = house.ask(split(house.good()))
    assert (answer.status, answer.json()["error"]["code"], answer.json()["id"]) == (400, -32020, 7)
    assert (house.evaluations(), len(house.forwarded())) == (asked + 1, called + 1)


def test_an_unsupported_version_is_answered_with_the_supported_ones(house: House) -> None:
    """RPC-05: `data` is exactly what the revision says."""
    ask = house.good().line(VERSION, b"v999.0.0").edit(lambda m: version_of(m).update({VERSION_KEY: "v999.0.0"}))
    answer = refused(house, ask, Refusal.VERSION_UNSUPPORTED, twin=house.good())
    assert answer.json()["error"]["data"] == {"supported": ["2026-07-28"], "requested": "v999.0.0"}


def test_an_old_client_is_told_what_is_served(house: House) -> None:
    """RPC-06: `initialize` without headers shows the versions in the message and in `data.supported`."""
    ask = house.good({"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}})
    answer = house.ask(ask.line(VERSION).line(METHOD))
    assert (answer.status, answer.json()["error"]["code"]) == (400, -32020)
    assert "2026-07-28" in answer.json()["error"]["message"]
    assert answer.json()["error"]["data"]["supported"] == ["2026-07-28"]


@pytest.mark.parametrize("name", [*INJECTED, "n" * 100_000])
def test_a_name_is_only_data(house: House, name: str) -> None:
    """AZ-03: a tool's name is nothing but input; it is denied like any that nobody offers."""
    ask = house.good(tool(name)).line(NAME, encoded(name) if len(name) < 1000 else b"n")
    if len(name) < 1000:
        answer = refused(house, ask, Refusal.POLICY_DENIED, twin=house.good())
        assert house.records_of(answer.values("ostiary-decision")[0])[0]["server"] == "plain"
    else:
        refused(house, ask.line(NAME, name.encode()), Refusal.HEAD_TOO_LARGE, twin=house.good(), request_id="no id")


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_a_name_that_only_looks_allowed_is_denied(house: House, name: str) -> None:
    """AZ-04: bytes decide. The server offers all of these; the policy allows `read` and the composed `caf\u00e9`."""
    passes(house, house.good(tool("caf\u00e9")))
    answer = refused(house, house.good(tool(name)), Refusal.POLICY_DENIED, twin=house.good())
    assert name.isprintable() or name not in json.dumps(
        house.records_of(answer.values("ostiary-decision")[0]), ensure_ascii=False
    )


def test_what_a_server_says_of_itself_stays_behind(house: House) -> None:
    """UPS-01: none of the server's own headers is relayed, and no session is echoed."""
    extra = (
        "Set-Cookie: a=b\r\nMcp-Session-Id: s\r\nServer: x\r\nAccess-Control-Allow-Origin: *\r\n"
        'WWW-Authenticate: Bearer\r\nX-Powered-By: y\r\nContent-Security-Policy: none\r\nLink: <x>\r\nETag: "1"\r\n'
    )

    async def talkative(exchange: Exchange) -> None:
        await exchange.send(http(200, result_of(exchange.id), extra=extra))

    ask = house.good(server="odd")
    quiet = house.ask(ask)
    with house.behind["odd"][0].playing(talkative):
        answer = house.ask(ask)
    assert answer.status == quiet.status == 200
    assert {name for name, _ in answer.headers} == {name for name, _ in quiet.headers}


def test_a_browser_of_an_allowed_origin_may_ask(house: House) -> None:
    """ORG-03: the configured origin is echoed, never a wildcard, never credentials; no Origin at all passes."""
    origin = b"https://app.example.com"
    answer = passes(house, house.good().line(b"Origin", origin))
    assert answer.values("access-control-allow-origin") == [origin.decode()]
    assert answer.values("access-control-allow-credentials") == []
    preflight = (
        house.good().line(b"Authorization").line(b"Origin", origin).line(b"Access-Control-Request-Method", b"POST")
    )
    preflight = preflight.line(b"Access-Control-Request-Headers", b"authorization, mcp-method")
    shown = house.ask(preflight.encode().replace(b"POST /", b"OPTIONS /", 1))
    assert shown.status == 204
    assert shown.values("access-control-allow-origin") == [origin.decode()]
    assert shown.values("access-control-allow-credentials") == []
    evil = preflight.line(b"Origin", b"https://evil.example.com").encode().replace(b"POST /", b"OPTIONS /", 1)
    assert house.ask(evil).values("access-control-allow-origin") == []


@pytest.mark.parametrize("host", [b"gw.example.com", b"GW.example.com:80", b"gw.example.com:"])
def test_a_host_that_is_configured_is_served(house: House, host: bytes) -> None:
    """ORG-03: `allowed_hosts` are served, in any case, with or without the scheme's port."""
    passes(house, house.good().line(b"Host", host))


def test_a_bomb_is_not_inflated(house: House) -> None:
    """FRM-08: what inflates to 100 MB is 415 that asks for identity; memory grows by less than 8 MiB."""
    passes(house)
    bomb = gzip.compress(bytes(100_000_000), 1)
    (worker,) = house.stage.run(house.stack.worker_pids())
    before = resident(worker)
    for _ in range(3):
        answer = house.ask(replace(house.good().line(b"Content-Encoding", b"gzip"), body=bomb))
        assert (answer.status, answer.values("accept-encoding")) == (415, ["identity"])
    assert resident(worker) - before < 8 * 1024 * 1024
    passes(house)


def resident(pid: int) -> int:
    """A process's resident memory in bytes."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("row", [row for row in JSN if row.name.startswith("JSN-07")], ids=lambda row: row.name)
def test_deep_and_wide_texts_are_refused_in_time(house: House, row: Row) -> None:
    """JSN-07: within 250 ms a megabyte, by the record's own clock."""
    ask = row.change(house.good())
    answer = house.ask(ask)
    assert answer.status == 400
    passes(house)
    (record,) = house.records_of(answer.values("ostiary-decision")[0])
    assert record["latency_ms"] < 250 * max(1.0, len(ask.body) / 1e6)


def test_by_default_it_listens_on_this_machine_only(house: House) -> None:
    """ORG-03: a configuration that names no host is bound to 127.0.0.1, both listeners."""
    document = yaml.safe_load(house.stack.config.read_text())
    assert "host" not in document["listen"]
    assert "host" not in document["admin"]
    bound = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, state = line.split()[1], line.split()[3]
        host, port = address.split(":")
        if state == "0A" and int(port, 16) in (house.stack.port, house.stack.admin_port):
            bound.add((host, int(port, 16)))
    assert bound == {("0100007F", house.stack.port), ("0100007F", house.stack.admin_port)}


def test_an_extension_that_is_configured_is_served(house: House) -> None:
    """contract.md section 2: other methods only where the server's configuration lists them."""
    ask = house.good(message_of("example.com/ping", {"n": 1}, 7), "odd")
    passes(house, ask)
    refused(house, house.good(message_of("example.com/ping", {"n": 1}, 7)), Refusal.METHOD_UNKNOWN, twin=house.good())


def test_a_notification_that_is_accepted_is_202_without_a_body(house: House) -> None:
    """contract.md section 1: and it reached its server, once, as it came."""
    message = message_of("notifications/example", {"n": 1}, 7)
    message.pop("id")
    before = len(house.forwarded("odd"))

    async def accept(exchange: Exchange) -> None:
        await exchange.send(http(202, kind=""))

    with house.behind["odd"][0].playing(accept):
        answer = house.ask(house.good(message, "odd"))
    assert (answer.status, answer.body) == (202, b"")
    assert len(house.forwarded("odd")) == before + 1
    assert house.forwarded("odd")[-1].body == spell(message)
    records = house.await_records(answer.values("ostiary-decision")[0], "decision", "outcome")
    assert (records[0]["request_id"], records[1]["outcome"]) == (None, "executed")


def test_head_is_answered_without_a_body(house: House) -> None:
    """FRM-06: HEAD is not served either, and the connection can still be used."""
    passes(house)
    answer = house.ask(replace(house.good(), verb=b"HEAD", body=b"", length=-1))
    assert (answer.status, answer.body) == (405, b"")
    passes(house)


@pytest.mark.parametrize("verb", [b"GET", b"DELETE"])
def test_a_verb_is_answered_with_the_one_that_is_served(house: House, verb: bytes) -> None:
    """FRM-06: 405 with `Allow: POST`."""
    answer = house.ask(house.good().encode().replace(b"POST", verb, 1))
    assert (answer.status, answer.values("allow")) == (405, ["POST"])
    passes(house)
