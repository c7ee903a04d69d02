"""HDR-13, SEP-2243: what an annotation of a schema is, and that a parameter's header says what its argument says."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from approvals.ticket import Claimed
from gateway.contract.admission import admit
from gateway.contract.bindings import Binding, check_bindings, mirror, mirror_anew, read_bindings, without_nulls
from gateway.contract.passage import OpenedState, Tool
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.schemas import Unusable
from policies.verdict import Effect, Verdict
from tests.contract.asking import lines_of, message
from tests.contract.test_admission import walked

REGION = Binding(("region",), b"mcp-param-region", "Mcp-Param-Region")
BOUND = {"type": "string", "x-mcp-header": "Region"}


def properties(**schemas: Any) -> dict[str, Any]:
    """A schema of an object with these properties."""
    return {"type": "object", "properties": schemas}


# What an annotation is


@pytest.mark.parametrize("kind", ["string", "integer", "boolean"])
@pytest.mark.parametrize("name", ["Region", "Method", "x", "a.b-c_d", "!#$%&'*+-.^_`|~0Aa"])
def test_an_annotation_names_a_header(kind: str, name: str) -> None:
    """Any RFC 9110 token on a property of the three types; `Method` gives `Mcp-Param-Method`, which is no other's."""
    schema = properties(region={"type": kind, "x-mcp-header": name})
    assert read_bindings(schema) == (
        Binding(("region",), b"mcp-param-" + name.lower().encode(), "Mcp-Param-" + name),
    )


def test_an_annotation_may_lie_deep_and_beside_others() -> None:
    """Every step is a `properties` key: each binding has the whole path, and what is not annotated has none."""
    schema = properties(
        region=BOUND,
        query={"type": "string"},
        where=properties(
            zone={"type": "integer", "x-mcp-header": "Zone"}, deep=properties(flag={**BOUND, "x-mcp-header": "F"})
        ),
        properties={"type": "boolean", "x-mcp-header": "P"},
    )
    assert {binding.path: binding.spelled for binding in read_bindings(schema)} == {
        ("region",): "Mcp-Param-Region",
        ("where", "zone"): "Mcp-Param-Zone",
        ("where", "deep", "flag"): "Mcp-Param-F",
        ("properties",): "Mcp-Param-P",
    }


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        properties(**{"x-mcp-header": {"type": "string"}}),
        properties(a={"type": "string", "default": {"x-mcp-header": ""}}),
        properties(a={"const": {"x-mcp-header": ""}}, b={"enum": [{"x-mcp-header": ""}]}),
        {"examples": [{"x-mcp-header": ""}], "x-other": {"x-mcp-header": ""}},
        {"required": ["x-mcp-header"], "dependentRequired": {"x-mcp-header": ["x-mcp-header"]}},
        {"properties": ["x-mcp-header"], "allOf": {"x-mcp-header": ""}, "items": "x-mcp-header"},
    ],
)
def test_data_that_looks_like_an_annotation_is_none(schema: dict[str, Any]) -> None:
    """Only schemas are annotated: a property of that name, a default, a constant or an unknown keyword is data."""
    assert read_bindings(schema) == ()


@pytest.mark.parametrize(
    "name",
    ["", "My Region", "Region:Primary", "R\u00e9gion", "Region\t1", "Region\r\nEvil: 1", "a/b", "(a)", "\x7f", "a\n"],
)
def test_a_name_that_is_no_token_is_invalid(name: str) -> None:
    """SEP-2243: empty, space, colon, non-ASCII, control characters."""
    assert read_bindings(properties(region=BOUND))
    with pytest.raises(Unusable, match="token"):
        read_bindings(properties(region={**BOUND, "x-mcp-header": name}))


@pytest.mark.parametrize("name", [None, 5, True, ["Region"], {"name": "Region"}, 1.5])
def test_a_name_that_is_no_text_is_invalid(name: Any) -> None:
    """An annotation is a string or it is wrong, never absent."""
    with pytest.raises(Unusable, match="token"):
        read_bindings(properties(region={**BOUND, "x-mcp-header": name}))


@pytest.mark.parametrize(
    "kind", ["number", "array", "object", "null", ["string"], ["string", "null"], None, 5, "String"]
)
def test_only_three_types_have_a_header(kind: Any) -> None:
    """string, integer, boolean; `number` is not one, nor are several types or none at all."""
    with pytest.raises(Unusable, match="type"):
        read_bindings(properties(region={"type": kind, "x-mcp-header": "Region"}))
    with pytest.raises(Unusable, match="type"):
        read_bindings(properties(region={"x-mcp-header": "Region"}))


@pytest.mark.parametrize("second", ["Region", "REGION", "region"])
def test_a_name_is_unique_in_its_schema(second: str) -> None:
    """Ignoring case, and however far apart."""
    other = {**BOUND, "x-mcp-header": second}
    for schema in (properties(a=BOUND, b=other), properties(a=BOUND, b=properties(c=properties(d=other)))):
        with pytest.raises(Unusable, match="twice"):
            read_bindings(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {**BOUND},
        properties(a={"type": "array", "items": BOUND}),
        properties(a={"type": "array", "prefixItems": [BOUND]}),
        properties(a={"type": "array", "items": [BOUND]}),
        properties(a={"contains": BOUND}),
        properties(a={"anyOf": [BOUND, {"type": "null"}]}),
        properties(a={"oneOf": [properties(b=BOUND)]}),
        {"allOf": [properties(a=BOUND)]},
        {"not": properties(a=BOUND)},
        {"if": properties(a=BOUND)},
        {"then": properties(a=BOUND)},
        {"else": properties(a=BOUND)},
        {"additionalProperties": BOUND},
        {"unevaluatedProperties": BOUND},
        {"patternProperties": {"^a$": BOUND}},
        {"propertyNames": BOUND},
        {"dependentSchemas": {"a": properties(b=BOUND)}},
        {"dependencies": {"a": properties(b=BOUND)}},
        {"$defs": {"a": BOUND}, "properties": {"a": {"$ref": "#/$defs/a"}}},
        {"definitions": {"a": BOUND}},
        {"$defs": {"never": {"properties": {"a": BOUND}}}},
        properties(a=properties(b={"items": properties(c=BOUND)})),
    ],
)
def test_an_annotation_anywhere_else_is_invalid(schema: dict[str, Any]) -> None:
    """Arrays, compositions, conditions, references: no header can be read from there; the whole tool is wrong."""
    with pytest.raises(Unusable, match="properties leads"):
        read_bindings(schema)


def test_a_deep_schema_takes_no_stack() -> None:
    """The walk is a loop: a schema of any depth is read."""
    schema: Any = BOUND
    for _ in range(5000):
        schema = {"properties": {"a": schema}}
    (binding,) = read_bindings(schema)
    assert len(binding.path) == 5000


# What a header says


def accepted(value: Any, *headers: bytes) -> bool:
    """Whether a call with this argument (and `...`: without it) and these header lines is accepted."""
    arguments: Any = {} if value is ... else {"region": value}
    lines = tuple((b"mcp-param-region", header) for header in headers)
    try:
        check_bindings((REGION,), arguments, lines)
    except Refused as refused:
        told = (refused.refusal, (refused.message or "").startswith("Header mismatch: Mcp-Param-Region header "))
    else:
        return True
    assert told == (Refusal.HEADER_MISMATCH, True)
    return False


def sentinel(text: str) -> bytes:
    """A value in its encoded form."""
    return b"=?base64?" + b64encode(text.encode()) + b"?="


SAID: list[tuple[Any, bytes]] = [
    ("us-west1", b"us-west1"),
    ("us west 1", b"us west 1"),
    ("us-west1", sentinel("us-west1")),
    (" us-west1", b"=?base64?IHVzLXdlc3Qx?="),
    ("us-west1 ", b"=?base64?dXMtd2VzdDEg?="),
    (" us-west1 ", b"=?base64?IHVzLXdlc3QxIA==?="),
    ("\u65e5\u672c\u8a9e", b"=?base64?5pel5pys6Kqe?="),
    ("Hello, \u4e16\u754c", b"=?base64?SGVsbG8sIOS4lueVjA==?="),
    ("line1\nline2", b"=?base64?bGluZTEKbGluZTI=?="),
    ("line1\r\nline2", b"=?base64?bGluZTENCmxpbmUy?="),
    ("\tindented", b"=?base64?CWluZGVudGVk?="),
    ("=?base64?literal?=", b"=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
    ("", b""),
    ("SGVsbG8=", b"SGVsbG8="),
    ("=?base64?SGVsbG8=", b"=?base64?SGVsbG8="),
    ("=?BASE64?SGVsbG8=?=", b"=?BASE64?SGVsbG8=?="),
    ("true", b"true"),
    ("42", b"42"),
    (True, b"true"),
    (False, b"false"),
    (True, sentinel("true")),
    (42, b"42"),
    (42, b"42.0"),
    (42, b"42.000"),
    (42, b"4.2e1"),
    (42, b"4.2E+1"),
    (42, b"420e-1"),
    (42, sentinel("42")),
    (42.0, b"42"),
    (42.0, b"42.0"),
    (-7, b"-7"),
    (0, b"0"),
    (0, b"-0"),
    (2**53 - 1, b"9007199254740991"),
    (-(2**53) + 1, b"-9007199254740991"),
    (3.5, b"3.5"),
]
UNSAID: list[tuple[Any, bytes]] = [
    ("us-west1", b"us-west2"),
    ("us-west1", b"US-WEST1"),
    ("us-west1", b""),
    ("", b"x"),
    ("Hello", b"=?base64?SGVsbG8?="),
    ("Hello", b"=?base64?SGVs!!!bG8=?="),
    ("Hello", b"=?base64?SGVsbG9=?="),
    ("Hello", b"=?BASE64?SGVsbG8=?="),
    ("Hello", b"SGVsbG8="),
    ("=?base64?SGVsbG8=?=", b"=?base64?SGVsbG8=?="),
    ("a\u00e9", b"a\xe9"),
    ("\ufffd", b"=?base64?/w==?="),
    ("42", b"42.0"),
    ("true", b"True"),
    (True, b"True"),
    (True, b"1"),
    (True, b"false"),
    (1, b"true"),
    (42, b"43"),
    (42, b"42.00000000000000000001"),
    (42, b"+42"),
    (42, b"042"),
    (42, b"4_2"),
    (42, b"0x2a"),
    (42, b"\xd9\xa4\xd9\xa2"),
    (42, sentinel("\u0664\u0662")),
    (42, b"42 "),
    (42, b"42."),
    (42, b".42e2"),
    (42, b"nan"),
    (42, b"42e99999999999"),
    (42, b"4" * 100_000),
    (2**53 - 1, b"9007199254740992"),
    (2**53, b"9007199254740992"),
    (-(2**53), b"-9007199254740992"),
    (2**63, b"9223372036854775808"),
    (1e300, b"1e300"),
    (9007199254740992.0, b"9007199254740992"),
    (3.5, b"3.6"),
]


@pytest.mark.parametrize(("value", "header"), SAID)
def test_a_header_that_says_the_argument_is_accepted(value: Any, header: bytes) -> None:
    """SEP-2243's table of encodings, integers as numbers: every one of them, and none of them missing or doubled."""
    assert accepted(value, header)
    assert not accepted(value)
    assert not accepted(..., header)
    assert not accepted(None, header)


@pytest.mark.parametrize(("value", "header"), UNSAID)
def test_a_header_that_says_something_else_is_a_mismatch(value: Any, header: bytes) -> None:
    """Another value, another case, another type, a broken encoding, a number that only a lenient reader takes."""
    assert not accepted(value, header)


@pytest.mark.parametrize("value", [..., None, {"a": 1}, ["a"], [], {}])
def test_what_no_header_can_say_has_none(value: Any) -> None:
    """Absent and null, and what the annotated type excludes: no header, or a mismatch."""
    assert accepted(value)
    for header in (b"", b"null", b"a", sentinel("null")):
        assert not accepted(value, header)


@pytest.mark.parametrize(
    ("arguments", "rest"),
    [
        ({"region": None, "a": None}, {"a": None}),
        ({"region": "eu", "where": {"zone": None, "b": 1}}, {"region": "eu", "where": {"b": 1}}),
        ({"region": None, "where": {"zone": None}}, {"where": {}}),
        ({"where": [{"zone": None}]}, {"where": [{"zone": None}]}),
        ({"region": False, "where": None}, {"region": False, "where": None}),
        ({}, {}),
    ],
)
def test_a_bound_null_counts_as_absent(arguments: dict[str, Any], rest: dict[str, Any]) -> None:
    """The revision's table has null beside "not in arguments", for types that have no null; what is sent stays."""
    before = json.dumps(arguments)
    assert without_nulls((REGION, Binding(("where", "zone"), b"mcp-param-zone", "Mcp-Param-Zone")), arguments) == rest
    assert json.dumps(arguments) == before


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"where": {"zone": "a"}}, "a"),
        ({"where": {"zone": None}}, None),
        ({"where": {}}, None),
        ({"where": None}, None),
        ({"where": "zone"}, None),
        ({"where": [{"zone": "a"}]}, None),
        ({"zone": "a"}, None),
        ({"where.zone": "a"}, None),
        ({}, None),
    ],
)
def test_the_value_is_the_one_at_the_exact_path(arguments: dict[str, Any], value: str | None) -> None:
    """Nothing beside the path counts, and where the path breaks off there is no value."""
    zone = Binding(("where", "zone"), b"mcp-param-zone", "Mcp-Param-Zone")
    right = () if value is None else ((b"mcp-param-zone", value.encode()),)
    wrong = ((b"mcp-param-zone", b"a"),) if value is None else ()
    check_bindings((zone,), arguments, right)
    with pytest.raises(Refused):
        check_bindings((zone,), arguments, wrong)


def test_a_header_that_no_annotation_names_is_nobodys_business() -> None:
    """Whatever it says."""
    check_bindings((REGION,), {}, ((b"mcp-param-other", b"=?base64?!?="),))
    check_bindings((), {"region": "a"}, ((b"mcp-param-region", b"b"),))


def test_the_first_that_disagrees_is_named() -> None:
    """The message names the header as the schema spells it, and tells nothing of its value or the argument's."""
    other = Binding(("b",), b"mcp-param-zone", "Mcp-Param-ZONE")
    with pytest.raises(Refused) as caught:
        check_bindings(
            (REGION, other),
            {"region": "a", "b": "secret-argument"},
            ((b"mcp-param-region", b"a"), (b"mcp-param-zone", b"secret-header")),
        )
    assert caught.value.message is not None
    assert "Mcp-Param-ZONE" in caught.value.message
    assert "secret" not in caught.value.message + caught.value.detail


SCALARS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.booleans(),
    st.integers(-(2**53) + 1, 2**53 - 1),
    st.integers(-(2**53) + 1, 2**53 - 1).map(float),
)


@given(SCALARS)
@example("=?base64??=")
@example(" ")
@example(-0.0)
def test_what_is_mirrored_is_accepted(value: Any) -> None:
    """Any value that a header can say: the one that the gateway writes for it agrees with it, and is a legal line."""
    ((name, header),) = mirror((REGION,), {"region": value})
    assert name == b"mcp-param-region"
    assert all(0x20 <= byte <= 0x7E for byte in header)
    assert header == header.strip()
    assert accepted(value, header)


@given(SCALARS, SCALARS)
@example(1, True)
@example("1", 1)
@example(0, False)
def test_what_is_mirrored_for_another_value_is_not(value: Any, other: Any) -> None:
    """Two values share a header only if they are spelled alike, or are the same number."""
    ((_, header),) = mirror((REGION,), {"region": other})
    spelled = [one if isinstance(one, str) else json.dumps(one) for one in (value, other)]
    numbers = all(type(one) in (int, float) for one in (value, other))
    alike = spelled[0] == spelled[1] or (numbers and value == other)
    if not alike and isinstance(value, str) != isinstance(other, str):
        alike = str(value) == mirror_text(other) or value == mirror_text(other)
    assert accepted(value, header) == alike


def mirror_text(value: Any) -> str:
    """What a header says for this value, decoded."""
    if isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(int(value))


# When the gateway writes the body anew

TOOL = Tool("read_file", "ab" * 32, {}, {}, (REGION,))


def admitted_headers(value: str, header: bytes, *, gated: bool) -> tuple[bytes, list[bytes]]:
    """A call whose argument is this JSON text: the body that leaves, and the values of its header."""
    request = message(params={"name": "read_file", "arguments": {"region": 0}})
    body = orjson.dumps(request).replace(b'"region":0', b'"region": ' + value.encode())
    lines = [*lines_of(request), ("Mcp-Param-Region", header), ("Mcp-Param-Other", b"=?base64?w7w=?=")]
    passage = walked(request, body=body, lines=lines)
    passage.tool = TOOL
    if gated:
        passage.verdict, passage.settled = Verdict(Effect.APPROVE), Claimed("t", "u")
    assert passage.call is not None
    check_bindings(TOOL.bindings, passage.call.arguments, passage.call.param_headers)
    admitted = admit(passage)
    assert [value for name, value in admitted.headers if name == b"mcp-param-other"] == [b"=?base64?w7w=?="]
    return admitted.body, [value for name, value in admitted.headers if name == b"mcp-param-region"]


@pytest.mark.parametrize(
    ("value", "header", "canonical", "anew"),
    [
        ("42.0", b"42.0", b"42", b"42"),
        ("4.2e1", b"42.000", b"42", b"42"),
        ("-0", b"-0", b"0", b"0"),
        ('"a\\u0062c"', sentinel("abc"), b'"abc"', b"abc"),
        ('"\\u00fc"', sentinel("\u00fc"), '"\u00fc"'.encode(), sentinel("\u00fc")),
        ("true", sentinel("true"), b"true", b"true"),
    ],
)
def test_a_body_that_is_written_anew_has_its_headers_written_anew(
    value: str, header: bytes, canonical: bytes, anew: bytes
) -> None:
    """G3: a gated call leaves in canonical text with headers that say that text; any other leaves as it came."""
    body, headers = admitted_headers(value, header, gated=True)
    assert b'"region":' + canonical in body
    assert headers == [anew]
    check_bindings((REGION,), orjson.loads(body)["params"]["arguments"], ((REGION.header, anew),))
    body, headers = admitted_headers(value, header, gated=False)
    assert b'"region": ' + value.encode() in body
    assert headers == [header]


def test_a_continued_call_has_its_headers_written_anew() -> None:
    """The body with the opened state is one that the gateway wrote."""
    request = message(params={"name": "read_file", "arguments": {"region": "a"}, "requestState": "sealed"})
    passage = walked(request, lines=[*lines_of(request), ("Mcp-Param-Region", sentinel("a"))])
    passage.tool, passage.opened_state = TOOL, OpenedState("open")
    admitted = admit(passage)
    assert (b"mcp-param-region", b"a") in admitted.headers
    assert orjson.loads(admitted.body)["params"]["requestState"] == "open"


def test_nothing_is_mirrored_that_has_no_value() -> None:
    """And what came under a bound name goes, whatever it said."""
    sent = ((b"mcp-param-region", b"a"), (b"mcp-param-other", b"b"))
    assert mirror_anew((REGION,), {"region": None}, sent) == ((b"mcp-param-other", b"b"),)
    assert mirror_anew((REGION,), {"region": 1}, ()) == ((b"mcp-param-region", b"1"),)
    assert mirror_anew((), {"region": 1}, sent) == sent
