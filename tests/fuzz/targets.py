"""What is fuzzed: a function of bytes for each reader of a stranger's bytes, which fails where a rule is broken.

Anything but `Refused` (or the reader's own word for it) that comes out of a reader is a failure too.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from gateway.contract.arguments import Contract
from gateway.contract.differences import differences, lines
from gateway.contract.envelope import parse_envelope
from gateway.contract.guard import guard_answer
from gateway.contract.headers import decode_value, encode_value, match_headers
from gateway.contract.passage import Call, Identity, OpenedState, Received, Server
from gateway.contract.pins import PinsUnreadable, read_pins, write_pins
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.reply import refusal_reply
from gateway.contract.schemas import Unusable
from gateway.contract.stream import Event, EventParser, ResponseStream, encode_event
from gateway.contract.strict_json import NotStrict, read_strictly
from gateway.handles import Handles
from gateway.seals import Seals
from gateway.sessions import Sessions
from tests.contract.sse import Triple, whatwg
from tests.contract.walked import KEY
from tests.fuzz import reference
from tests.support.upstream import a_call, a_subscription

Target = Callable[[bytes], None]

SERVER = Server(
    "main", "/main/mcp", "https://gw.example/main/mcp", "https://gw.example/md", methods=frozenset({"x/y"})
)
ALICE = Identity("https://idp.example", "alice")
PROGRESSING = a_call(meta={"progressToken": "p"})
LISTENING = a_subscription({"toolsListChanged": True, "resourceSubscriptions": ["a:b"]})
ASKING = a_call(capabilities={"elicitation": {"url": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}})


def _expect(refused: Refused, *rows: Refusal) -> None:
    assert refused.refusal in rows, f"{refused.refusal}: {refused.detail}"


def read_json(data: bytes) -> None:
    """What is read has one value, the same for a second reader; what that one reads strictly is not refused."""
    try:
        wanted = reference.strict(data)
    except ValueError:
        wanted = None
        readable = False
    else:
        readable = True
    try:
        value = read_strictly(data)
    except NotStrict:
        assert not readable, "refused what is strict"
        return
    assert readable, "read what is not strict"
    assert reference.same(value, wanted)
    assert reference.same(read_strictly(orjson.dumps(value)), value)


def read_envelope(data: bytes) -> None:
    """One message for every reader: exact or lenient about names, first or last member wins."""
    try:
        envelope = parse_envelope(data)
    except Refused as refused:
        _expect(
            refused, Refusal.BODY_NOT_JSON, Refusal.BODY_AMBIGUOUS, Refusal.ENVELOPE_INVALID, Refusal.PARAMS_INVALID
        )
        _check_reply(refused)
        return
    assert envelope.raw is data
    assert type(envelope.id) in {str, int, type(None)}
    message = reference.as_written(data)
    _has_one_reading(message, {"jsonrpc": "2.0", "id": envelope.id, "method": envelope.method})
    params = dict(message).get("params", reference.Pairs())
    scalars = {
        name: envelope.params.get(name) for name in ("name", "uri", "requestState", "taskId", "cursor", "arguments")
    }
    _has_one_reading(params, {name: one for name, one in scalars.items() if not isinstance(one, (dict, list))})


def _has_one_reading(written: Any, wanted: Mapping[str, Any]) -> None:
    assert isinstance(written, reference.Pairs)
    for name, value in wanted.items():
        found = [(key, one) for key, one in written if _loose(key) == _loose(name)]
        assert len(found) <= 1, f"two candidates for {name}"
        for key, one in found:
            assert key == name
            assert one == value
            assert type(one) is type(value)


def _loose(name: str) -> str:
    return name.partition("\0")[0].strip().lower().replace("_", "").replace("-", "")


def _check_reply(refused: Refused) -> None:
    reply = refusal_reply(refused, request_id=refused.request_id, server=SERVER, decision_id="d")
    assert json.loads(reply.body)["jsonrpc"] == "2.0"
    for name, value in reply.headers:
        assert b"\r" not in name + value
        assert b"\n" not in name + value


def read_headers(data: bytes) -> None:
    """`NAME: VALUE` lines, an empty line, a body: what is called is what each header, sent once, says."""
    head, _, body = data.partition(b"\n\n")
    pairs = [line.partition(b":") for line in head.split(b"\n") if b":" in line]
    headers = tuple((name.strip().lower(), value.strip(b" \t")) for name, _, value in pairs)
    _check_value(head)
    try:
        call = match_headers(Received(SERVER, "POST", SERVER.path, headers), parse_envelope(body))
    except Refused as refused:
        _check_reply(refused)
        return
    said: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        said.setdefault(name, []).append(value)
    meta = call.envelope.meta
    for name, wanted, needed in (
        (b"mcp-protocol-version", meta.get("io.modelcontextprotocol/protocolVersion"), call.envelope.id is not None),
        (b"mcp-method", call.envelope.method, call.envelope.id is not None),
        (b"mcp-name", call.name, call.name is not None),
    ):
        values = said.get(name, [])
        assert len(values) == 1 if needed else len(values) <= 1
        if values and wanted is not None:
            meant = reference.header_value(values[0]) if name == b"mcp-name" else values[0].decode()
            assert meant == wanted
    assert call.method == call.envelope.method
    for name, value in call.param_headers:
        assert said[name] == [value]


def _check_value(data: bytes) -> None:
    """A value means the same to a second reader, and every text has a value that means it."""
    try:
        meant: str | None = decode_value(data)
    except ValueError:
        meant = None
    assert meant == reference.header_value(data)
    text = data.decode("utf-8", "replace")
    value = encode_value(text)
    assert decode_value(value) == reference.header_value(value) == text
    assert b"\n" not in value
    assert b"\r" not in value


def _cut(data: bytes, seed: int) -> Iterable[bytes]:
    """The same bytes in other pieces."""
    start, size = 0, 1 + seed % 7
    while start < len(data):
        yield data[start : start + size]
        start, size = start + size, 1 + (size * 5 + seed) % 11


def read_events(data: bytes) -> None:
    """The parser sees what a WHATWG parser sees, under any cut; what is written anew reads the same."""
    seed, stream = data[0] if data else 0, data[1:]
    found: list[Event] = []
    parser = EventParser(1 << 20)
    for piece in _cut(stream, seed):
        found += [one for one in parser.feed(piece) if isinstance(one, Event)]
    wanted = whatwg(stream)
    assert [_triple(one) for one in found] == wanted
    sent = b""
    anew = b""
    for one in found:
        anew += encode_event(one.data, kind=one.kind, last_id=None if one.last_id == sent else one.last_id)
        sent = one.last_id
    assert whatwg(anew) == wanted


def _triple(one: Event) -> Triple:
    kind, data, last_id = (part.decode("utf-8", "replace") for part in (one.kind, one.data, one.last_id))
    return kind or "message", data, last_id


def read_stream(data: bytes) -> None:
    """What is relayed does not depend on the cut, and is a part of what came; nothing follows a fault or an end."""
    seed, stream = data[0] if data else 0, data[1:]
    call = LISTENING if seed % 2 else PROGRESSING
    whole, whole_out = _relay(call, [stream])
    parts, parts_out = _relay(call, _cut(stream, seed))
    assert (whole_out, whole.fault, whole.dropped) == (parts_out, parts.fault, parts.dropped)
    came = iter(whatwg(stream))
    relayed = whatwg(whole_out)
    if whole.final is not None:
        assert parts.final is not None
        assert whole.final.raw == parts.final.raw
        assert not whole.fault
        relayed += whatwg(whole.encode_final(whole.final.raw))
    else:
        assert parts.final is None
    for one in relayed:
        # The last id is told only where it changes, so a relayed event may know a later one: it is not compared.
        assert any(one[:2] == other[:2] for other in came), one


def _relay(call: Call, pieces: Iterable[bytes]) -> tuple[ResponseStream, bytes]:
    stream = ResponseStream(call)
    out = b""
    for piece in pieces:
        broken = bool(stream.fault)
        ready = b"".join(stream.feed(piece))
        assert not (broken and ready)
        out += ready
    return stream, out


def read_answer(data: bytes) -> None:
    """An answer is delivered as it came and reads one way, or it is none."""
    for call in (PROGRESSING, ASKING):
        try:
            guarded = guard_answer(call, data)
        except Refused as refused:
            _expect(refused, Refusal.UPSTREAM_INVALID)
            continue
        assert guarded.raw == data
        message = reference.strict(data)
        assert message["jsonrpc"] == "2.0"
        assert reference.same(message["id"], call.envelope.id)
        assert ("result" in message) != ("error" in message)


_SEALS, _HANDLES, _SESSIONS = Seals([KEY]), Handles([KEY]), Sessions([KEY])
_STATE = OpenedState("upstream's")
_SEALED = _SEALS.seal_state(_STATE, ALICE, SERVER, PROGRESSING, 2e9)


def open_seals(data: bytes) -> None:
    """A seal that was changed in any way opens nothing, nor does any other text; the untouched one opens."""
    text = _mend(_SEALED, data)
    if text == _SEALED:
        assert _SEALS.open_state(text, ALICE, SERVER, PROGRESSING, 1e9) == _STATE
    for one in {text, data.decode("latin-1"), data.decode("utf-8", "replace")} - {_SEALED}:
        _stays_shut(one)
    # Moved to another caller, and kept too long.
    _expect_shut(_SEALED, replace(ALICE, subject=data.decode("latin-1")), 1e9)
    _expect_shut(_SEALED, ALICE, 2e9)


def _stays_shut(text: str) -> None:
    """Not as a state, not as a session, not as a task."""
    _expect_shut(text, ALICE, 1e9)
    try:
        opened = _SESSIONS.resume(text.encode(), ALICE, SERVER, PROGRESSING.envelope, 1e9)
    except Refused as refused:
        _expect(refused, Refusal.SESSION_UNKNOWN)
    else:
        raise AssertionError(f"resumed: {opened!r}")
    named = replace(PROGRESSING, task_ids=(text,))
    assert _HANDLES.open_all(named, ALICE, SERVER, 1e9).found == (None,)


def _expect_shut(text: str, identity: Identity, now: float) -> None:
    try:
        opened = _SEALS.open_state(text, identity, SERVER, PROGRESSING, now)
    except Refused as refused:
        _expect(refused, Refusal.STATE_NOT_ACCEPTED)
    else:
        raise AssertionError(f"opened: {opened!r}")


def _mend(text: str, script: bytes) -> str:
    """Three bytes an edit: where, how, and with which character."""
    for start in range(0, len(script) - 2, 3):
        place, how, character = script[start] % (len(text) + 1), script[start + 1] % 4, chr(script[start + 2])
        cut = place + (how < 2)
        text = text[:place] + ("" if how == 1 else character) + text[cut:]
        if how == 3:
            text = text[: place + 1]
    return text


def read_pin_file(data: bytes) -> None:
    """A file of pins is read or it is none; what was read is written in one form, and reads the same."""
    with contextlib.suppress(PinsUnreadable):
        pinned = read_pins(data)
        text = write_pins(pinned)
        assert text.isascii()
        assert read_pins(text) == {server: tools for server, tools in pinned.items() if tools}
        assert write_pins(read_pins(text)) == text


def show_differences(data: bytes) -> None:
    """`[before, now]`: every line is one line of visible text, and where the two differ there is one."""
    try:
        before, now = orjson.loads(data)
    except (ValueError, TypeError):
        return
    if not isinstance(before, dict) or not isinstance(now, dict):
        return
    found = differences(before, now)
    assert bool(found) == (_sorted(before) != _sorted(now))
    for one in found:
        shown = lines(one)
        assert len(shown) > 1
        assert all(line.isprintable() for line in shown)


def _sorted(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def hold_arguments(data: bytes) -> None:
    """`[schema, arguments]`: a schema is usable or not, arguments fit or not; nothing else comes of them."""
    try:
        schema, arguments = read_strictly(data)
    except (NotStrict, ValueError, TypeError):
        return
    if not isinstance(schema, dict) or not isinstance(arguments, dict):
        return
    raw = orjson.dumps(arguments)
    fits = {}
    for strict in (False, True):
        try:
            contract = Contract(schema, strict=strict)
        except Unusable:
            return
        try:
            contract.check(arguments, raw)
        except Refused as refused:
            _expect(refused, Refusal.ARGUMENTS_INVALID, Refusal.PARAMS_INVALID)
            fits[strict] = False
        else:
            fits[strict] = True
    assert fits[False] or not fits[True], "strict lets through what declared does not"


TARGETS: Mapping[str, Target] = {
    "json": read_json,
    "envelope": read_envelope,
    "headers": read_headers,
    "events": read_events,
    "stream": read_stream,
    "answer": read_answer,
    "seals": open_seals,
    "pins": read_pin_file,
    "differences": show_differences,
    "arguments": hold_arguments,
}
