"""RPC and JSN at the envelope: one message, one reading, the caller's id wherever it can be read."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract.envelope import RESERVED, fold, parse_envelope
from gateway.contract.refusals import Refusal, Refused
from tests.contract.asking import META, envelope_of, message, unreadable


def put(request: dict[str, Any], place: str, name: str, value: Any) -> dict[str, Any]:
    """The request with one more member at the place that RESERVED calls so."""
    request = json.loads(json.dumps(request))
    target = request
    if place != "message":
        target = target["params"]
        if place != "params":
            target = target.setdefault(place, {})
    target[name] = value
    return request


def test_a_request_is_read_and_its_bytes_are_kept() -> None:
    """The bytes that are judged are kept as they came."""
    body = json.dumps(message()).encode()
    envelope = parse_envelope(body)
    assert envelope.raw is body
    assert (envelope.id, envelope.method, envelope.meta) == (1, "tools/call", META)
    assert envelope.params["arguments"] == {"path": "/etc/motd"}


@pytest.mark.parametrize("body", [[], [message()], [message(), message("tools/list")], None, 42, "x", True])
def test_anything_but_one_object_is_refused(body: Any) -> None:
    """RPC-01: batches, also of one or none, null and scalars: -32600 without an id."""
    assert unreadable(orjson.dumps(body), Refusal.ENVELOPE_INVALID).request_id is None


@pytest.mark.parametrize("identifier", [None, True, False, 1.5, 1.0, {}, [], [1]])
def test_an_id_is_a_string_or_an_integer(identifier: Any) -> None:
    """RPC-03: any other id is -32600, and the error has no id."""
    request = {**message(), "id": identifier}
    assert unreadable(orjson.dumps(request), Refusal.ENVELOPE_INVALID).request_id is None


@pytest.mark.parametrize("digits", ["18446744073709551616", "1e2", "-9223372036854775809", "1" * 5000])
def test_an_id_that_could_not_be_echoed_is_refused(digits: str) -> None:
    """RPC-08: an id that would lose its digits is refused without one, not echoed wrongly."""
    with pytest.raises(Refused) as caught:
        parse_envelope(f'{{"jsonrpc":"2.0","id":{digits},"method":"tools/list","params":{{}}}}'.encode())
    assert caught.value.refusal in {Refusal.ENVELOPE_INVALID, Refusal.BODY_NOT_JSON}
    assert caught.value.request_id is None


@pytest.mark.parametrize(
    "identifier", [9007199254740993, "007", 0, -1, "", "x" * 200, 2**64 - 1, -(2**63), "\u00e9\u0000"]
)
@pytest.mark.parametrize("indent", [None, 1])
def test_an_id_keeps_its_type_and_digits(identifier: Any, indent: int | None) -> None:
    """RPC-08: read exactly, in compact and in spaced texts."""
    envelope = parse_envelope(json.dumps({**message(), "id": identifier}, indent=indent).encode())
    assert envelope.id == identifier
    assert type(envelope.id) is type(identifier)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"jsonrpc": "1.0"}, Refusal.ENVELOPE_INVALID),
        ({"jsonrpc": 2.0}, Refusal.ENVELOPE_INVALID),
        ({"jsonrpc": None}, Refusal.ENVELOPE_INVALID),
        ({"method": 7}, Refusal.ENVELOPE_INVALID),
        ({"method": None}, Refusal.ENVELOPE_INVALID),
        ({"result": {}}, Refusal.ENVELOPE_INVALID),
        ({"error": {"code": 1, "message": ""}}, Refusal.ENVELOPE_INVALID),
        ({"params": []}, Refusal.PARAMS_INVALID),
        ({"params": None}, Refusal.PARAMS_INVALID),
        ({"params": "x"}, Refusal.PARAMS_INVALID),
    ],
)
def test_a_wrong_envelope_is_refused_with_its_id(change: dict[str, Any], expected: Refusal) -> None:
    """RPC-03: -32600, or -32602 for params, and the id that could be read."""
    assert parse_envelope(orjson.dumps({**message(), "id": "mine"})).id == "mine"
    assert unreadable(orjson.dumps({**message(), "id": "mine", **change}), expected).request_id == "mine"


@pytest.mark.parametrize(
    "body",
    [
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": 1, "error": {}},
        {"jsonrpc": "2.0", "id": 1},
    ],
)
def test_a_response_is_not_a_request(body: dict[str, Any]) -> None:
    """RPC-03: a JSON-RPC response as the body is refused."""
    unreadable(orjson.dumps(body), Refusal.ENVELOPE_INVALID)


def test_params_may_be_absent() -> None:
    """A message without params is read; whether the method can do without is judged later."""
    envelope = parse_envelope(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}')
    assert envelope.params == {} == envelope.meta


@pytest.mark.parametrize("meta", [None, 42, [], "x"])
def test_a_meta_of_the_wrong_type_is_left_to_the_metadata_check(meta: Any) -> None:
    """Headers come before `_meta` in the order of checks, so the envelope passes it on as empty."""
    assert parse_envelope(orjson.dumps(message(meta=meta))).meta == {}


@pytest.mark.parametrize(
    ("place", "name"), [(place, name) for place, names in RESERVED.items() for name in sorted(names)]
)
def test_variants_of_reserved_names_are_refused_where_they_are_reserved(place: str, name: str) -> None:
    """G3: case and width variants, Unicode folds, snake case, outer space, what stands behind a NUL: each beside a
    right request."""
    base = message("prompts/get", params={"name": "p"})
    assert parse_envelope(orjson.dumps(base)).id == 1
    variants = {
        name.upper(),
        name.capitalize(),
        name.swapcase(),
        name + "\0",
        name + "\0x",
        "_" + name,
        "".join(f"_{char.lower()}" if char.isupper() else char for char in name),
        name.lstrip("_"),
        name.replace("s", "\u017f").replace("k", "\u212a").replace("i", "\u0131"),
        name.replace("i", "\u0130"),
        f" {name}",
        f"{name}\t",
        f"{name}\u00a0",
        "".join(chr(ord(char) + 0xFEE0) for char in name),  # full-width: the same after NFKC
    } - RESERVED[place]
    for variant in variants:
        refused = unreadable(orjson.dumps(put(base, place, variant, "x")), Refusal.BODY_AMBIGUOUS)
        known = None if (place, fold(name)) == ("message", "id") else 1
        assert refused.request_id == known, variant


def test_the_official_sdk_is_a_lenient_reader() -> None:
    """Why snake case is refused: the SDK of most servers reads `request_state` and `meta` as the real ones."""
    sdk = pytest.importorskip("mcp_types")
    read = sdk.CallToolRequestParams.model_validate({"name": "t", "request_state": "forged", "meta": {"k": 1}})
    assert (read.request_state, dict(read.meta)) == ("forged", {"k": 1})


@pytest.mark.parametrize("name", ["Method", "PARAMS", "request_state", "Name", "_META"])
def test_arguments_may_use_any_name(name: str) -> None:
    """The positive twin: inside arguments these names are the tool's own."""
    assert envelope_of(orjson.dumps({name: 1}).decode()).params["arguments"] == {name: 1}


def test_unknown_meta_keys_pass() -> None:
    """`_meta` keys that nobody reserved pass untouched, in any case."""
    meta = {**META, "com.example/Trace": {"A": 1, "a": 2}, "openai/userAgent": "x"}
    assert parse_envelope(orjson.dumps(message(meta=meta))).meta == meta


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ('{"jsonrpc":"2.0","id":7,"method":"a","method":"b","params":{}}', 7),
        ('{"jsonrpc":"2.0","id":7,"id":7,"method":"a","params":{}}', None),
        ('{"jsonrpc":"2.0","id":7,"\\u0069d":8,"method":"a","params":{}}', None),
        ('{"jsonrpc":"2.0","id":7,"method":"a","params":{"x":{"id":1,"id":2}}}', 7),
        ('{"params":{"_meta":{"k":1,"k":2}},"jsonrpc":"2.0","id":"s","method":"a"}', "s"),
    ],
)
def test_an_ambiguous_body_is_answered_with_an_unambiguous_id(text: str, known: Any) -> None:
    """JSN-01: the id is echoed only if it stands there once."""
    assert unreadable(text.encode(), Refusal.BODY_AMBIGUOUS).request_id == known


@pytest.mark.parametrize("place", ['"name":"\\ud800"', '"\\ud800":1', '"arguments":{"v":"\\udc00"}'])
def test_a_lone_surrogate_is_refused_wherever_it_stands(place: str) -> None:
    """JSN-06: as a value, as a key, in a tool's name, in the id."""
    unreadable(
        f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{{place}}}}}'.encode(), Refusal.BODY_NOT_JSON
    )
    unreadable(b'{"jsonrpc":"2.0","id":"\\ud800","method":"tools/list","params":{}}', Refusal.BODY_NOT_JSON)


@given(
    st.binary(max_size=80)
    | st.dictionaries(st.text(max_size=8), st.none() | st.text() | st.integers()).map(
        lambda d: json.dumps(d).encode()
    )
)
def test_only_refusals_are_ever_raised(body: bytes) -> None:
    """JSN: no input makes the envelope raise anything but `Refused`, and never with a 5xx row."""
    status = 400
    try:
        parse_envelope(body)
    except Refused as refused:
        status = refused.refusal.value.status
    assert status == 400


@given(st.sampled_from(sorted(RESERVED["params"])), st.data())
def test_a_case_blind_reader_sees_the_same_message(name: str, data: st.DataObject) -> None:
    """G3 as a property: of any mixture of cases of a reserved name, only the exact one is accepted."""
    mixed = "".join(data.draw(st.sampled_from([char.lower(), char.upper()])) for char in name)
    body = orjson.dumps(put(message("tools/list", meta=None), "params", mixed, {}))
    if mixed == name:
        parse_envelope(body)
    else:
        unreadable(body, Refusal.BODY_AMBIGUOUS)
