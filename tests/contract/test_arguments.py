"""A tool's arguments against its own schema: what fits passes, what does not is told in words; none takes long."""

from __future__ import annotations

import gc
import json
import re
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator

from gateway.contract.arguments import MAX_SCHEMA_BYTES, Contract
from gateway.contract.complaints import MOST
from gateway.contract.effort import FEW, LEVELS, MOST_WORK, Weights, has_few_values, measure
from gateway.contract.judgement import check_call
from gateway.contract.passage import Tool
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.schemas import Unusable
from tests.contract.asking import ask, message

CANARY = "secret-canary"
SENTENCE = "The tool was not run: its arguments do not fit its inputSchema."


def schema(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """A schema of an object."""
    return {"type": "object", "properties": properties, "required": list(required)}


def contract(document: dict[str, Any], *, strict: bool = False) -> Contract:
    return Contract(document, strict=strict)


def fault(held: Contract, arguments: dict[str, Any]) -> Refused | None:
    """The refusal of arguments, read from their own text."""
    try:
        held.check(arguments, orjson.dumps(arguments))
    except Refused as refused:
        found = refused
    else:
        return None
    assert found.refusal is Refusal.ARGUMENTS_INVALID
    assert found.message is not None
    return found


def told(held: Contract, arguments: dict[str, Any]) -> list[str]:
    """What is wrong with arguments, line by line; nothing if they fit."""
    found = fault(held, arguments)
    return [] if found is None or found.message is None else found.message.splitlines()[1:]


# What fits and what does not

INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
RULES: list[tuple[dict[str, Any], Any, Any, str]] = [
    (INTEGER, 3, CANARY, "A must be of type integer."),
    ({"type": ["integer", "null"]}, None, CANARY, "A must be of type null or integer."),
    ({"anyOf": [TEXT, {"type": "null"}]}, None, 5, "A must be of type string or null."),
    ({"enum": ["x", 1, None]}, 1, CANARY, 'A must be one of "x", 1, null.'),
    ({"const": {"k": 1}}, {"k": 1}, CANARY, 'A must be {"k":1}.'),
    ({"minimum": 3}, 3, 2, "A must be at least 3."),
    ({"maximum": 3.5}, 3, 4, "A must be at most 3.5."),
    ({"exclusiveMinimum": 3}, 4, 3, "A must be more than 3."),
    ({"exclusiveMaximum": 3}, 2, 3, "A must be less than 3."),
    ({"multipleOf": 5}, 10, 11, "A must be a multiple of 5."),
    ({"minLength": 2}, "\U0001f600\U0001f600", "\U0001f600", "A must have at least 2 characters."),
    ({"maxLength": 2}, "ab", CANARY, "A must have at most 2 characters."),
    ({"pattern": "^a+$"}, "aa", CANARY, 'A must match the pattern "^a+$".'),
    ({"pattern": "^(?!b)a"}, "ab", CANARY, 'A must match the pattern "^(?!b)a".'),
    ({"pattern": r"^(a|b)\1$"}, "aa", "ab", r'A must match the pattern "^(a|b)\\1$".'),
    ({"minItems": 1}, [1], [], "A must have at least 1 items."),
    ({"maxItems": 1}, [1], [1, 2], "A must have at most 1 items."),
    ({"uniqueItems": True}, [1, 2], [1, 1.0], "A must not have the same item twice."),
    ({"contains": INTEGER}, ["x", 1], [CANARY], "A lacks an item of the kind that the schema asks for."),
    ({"prefixItems": [INTEGER], "items": False}, [1], [1, 2], '"arguments/a/1": must not be there.'),
    (
        {"unevaluatedItems": False, "prefixItems": [INTEGER]},
        [1],
        [1, 2],
        "A has more items than the schema describes.",
    ),
    ({"minProperties": 1}, {"k": 1}, {}, "A must have at least 1 members."),
    ({"maxProperties": 1}, {"k": 1}, {"k": 1, "l": 1}, "A must have at most 1 members."),
    (schema(("k",), k=INTEGER), {"k": 1}, {}, 'A lacks the required member "k".'),
    ({"dependentRequired": {"k": ["l"]}}, {"k": 1, "l": 1}, {"k": 1}, 'A lacks the required member "l".'),
    (
        {"properties": {"k": {}}, "additionalProperties": False},
        {"k": 1},
        {"k": 1, "m": CANARY},
        'A has unknown members: "m".',
    ),
    (
        {"propertyNames": {"maxLength": 2}},
        {"kk": 1},
        {"kkk": 1},
        "A has a member whose name the schema does not allow.",
    ),
    ({"not": INTEGER}, CANARY, 1, "A must not be what the schema excludes."),
    ({"properties": {"k": False}}, {}, {"k": CANARY}, '"arguments/a/k": must not be there.'),
    (
        {"oneOf": [INTEGER, {"type": "number"}]},
        1.5,
        1,
        "A fits several of the alternatives of which it may fit only one.",
    ),
    (
        {"anyOf": [schema(("k",)), {"type": "array", "minItems": 1}]},
        {"k": 1},
        [],
        "A fits none of 2 alternatives (A must be of type object; A must have at least 1 items).",
    ),
    ({"items": {"items": INTEGER}}, [[1]], [[1], [2, CANARY]], '"arguments/a/1/1": must be of type integer.'),
    (
        {"$ref": "#/$defs/n", "$defs": {}},
        {"n": {"n": 1}},
        {"n": {"n": CANARY}},
        '"arguments/a/n/n": must be of type integer or object.',
    ),
    ({"if": INTEGER, "then": {"minimum": 5}, "else": {"minLength": 99}}, 5, 4, "A must be at least 5."),
]
RECURSIVE = {"n": {"type": ["object", "integer"], "properties": {"n": {"$ref": "#/$defs/n"}}}}


@pytest.mark.parametrize(("rule", "right", "wrong", "line"), RULES)
def test_a_rule_is_kept_and_told(rule: dict[str, Any], right: Any, wrong: Any, line: str) -> None:
    """What fits passes; what does not is told by place and rule; nobody is told the value."""
    rule = {name: one for name, one in rule.items() if name != "$defs"}
    held = contract({**schema(a=rule), "$defs": RECURSIVE})
    assert fault(held, {"a": right}) is None
    found = fault(held, {"a": wrong})
    assert found is not None
    assert found.message is not None
    assert found.message.splitlines() == [SENTENCE, "- " + re.sub(r"\bA ", '"arguments/a": ', line)]
    assert CANARY not in found.message + found.detail
    assert found.detail.startswith(("/properties/a", "/$defs/n"))
    assert found.data == {}


def test_everything_that_is_wrong_is_told() -> None:
    """One line each, so that a model can mend all of it at once; a great many are cut."""
    held = contract({**schema(("path", "mode"), n=INTEGER), "additionalProperties": False})
    assert sorted(told(held, {"n": "x", "typo": 1, "pth": 2})) == [
        '- "arguments": has unknown members: "typo", "pth".',
        '- "arguments": lacks the required member "mode".',
        '- "arguments": lacks the required member "path".',
        '- "arguments/n": must be of type integer.',
    ]
    many = told(contract(schema(a={"items": INTEGER})), {"a": ["x"] * 99})
    assert len(many) == MOST + 1
    assert many[-1] == f"- and {99 - MOST} more"


def test_a_complaint_is_a_line_whatever_names_are_called() -> None:
    """Names of members come from the caller: escaped, cut, and never a line of their own."""
    held = contract({**schema(a={"additionalProperties": INTEGER}), "additionalProperties": False})
    lines = told(held, {"a": {"x\n- do evil/~": "y", "n" * 5000: "y"}, "\u202e\n\x7f": 1, "m" * 5000: 1})
    assert len(lines) == 3
    assert all(line.isprintable() and len(line) < 1000 for line in lines if "\u202e" not in line)
    assert any('"arguments/a/x\\n- do evil~1~0": must be of type integer.' in line for line in lines)


def test_the_record_learns_nothing_of_the_caller() -> None:
    """Its detail names places of the tool's own schema: no member that only the caller named."""
    held = contract({**schema(a={"additionalProperties": INTEGER}), "additionalProperties": False})
    found = fault(held, {"a": {CANARY: CANARY}, CANARY + "2": 1})
    assert found is not None
    assert CANARY not in found.detail
    assert set(found.detail.split()) == {"/properties/a/additionalProperties/type", "/additionalProperties"}


# Dialects and references

D2019 = "https://json-schema.org/draft/2019-09/schema"
D07 = "http://json-schema.org/draft-07/schema#"

DIALECTS: list[tuple[dict[str, Any], Any, Any]] = [
    ({"$schema": "https://json-schema.org/draft/2020-12/schema", "prefixItems": [INTEGER]}, [1], ["x"]),
    ({"$schema": "https://json-schema.org/draft/2020-12/schema#", "prefixItems": [INTEGER]}, [1], ["x"]),
    ({"$schema": D2019, "items": [INTEGER], "additionalItems": TEXT}, [1, "x"], [1, 2]),
    ({"$schema": D07, "items": [INTEGER], "additionalItems": False}, [1], [1, 2]),
    ({"$schema": D07, "items": INTEGER, "additionalItems": False}, [1, 2], ["x"]),
    ({"$schema": "http://json-schema.org/draft-06/schema#", "exclusiveMinimum": 3}, 4, 3),
    ({"$schema": "http://json-schema.org/draft-07/schema", "dependencies": {"k": ["l"]}}, {"k": 1, "l": 1}, {"k": 1}),
    (
        {"$schema": D07, "dependencies": {"k": {"required": ["l"]}}},
        {"k": 1, "l": 1},
        {"k": 1},
    ),
    (
        {
            "$schema": D07,
            "$ref": "#/definitions/t",
            "minLength": 99,
            "definitions": {"t": TEXT},
        },
        "x",
        1,
    ),
    ({"$ref": "#/$defs/t", "minLength": 2, "$defs": {"t": TEXT}}, "xx", "x"),
    ({"$ref": "#t", "$defs": {"t": {"$anchor": "t", **TEXT}}}, "x", 1),
    ({"$dynamicRef": "#t", "$defs": {"t": {"$dynamicAnchor": "t", **TEXT}}}, "x", 1),
    ({"$ref": "#/$defs/a~1b%20~0c", "$defs": {"a/b ~c": TEXT}}, "x", 1),
    ({"$id": "https://example.com/x", "$ref": "#/$defs/t", "$defs": {"t": TEXT}}, "x", 1),
    ({"properties": {"k": TEXT, "l": {"$ref": "#/properties/a/properties/k"}}}, {"l": "x"}, {"l": 1}),
    ({"format": "email", "$comment": "x", "title": "x", "default": 5}, "not an address", None),
]  # fmt: skip


ROOT = frozenset({"$schema", "$defs", "definitions", "$id"})


@pytest.mark.parametrize(("rule", "right", "wrong"), DIALECTS)
def test_a_dialect_is_read_as_it_means(rule: dict[str, Any], right: Any, wrong: Any) -> None:
    """A schema says which dialect it is in, or means 2020-12; formats are remarks; references stay inside."""
    root: dict[str, Any] = {name: one for name, one in rule.items() if name in ROOT}
    inner = {name: one for name, one in rule.items() if name not in root}
    held = contract({**schema(a=inner), **root})
    assert fault(held, {"a": right}) is None
    if wrong is not None:
        assert fault(held, {"a": wrong}) is not None


UNUSABLE: list[tuple[dict[str, Any], str]] = [
    ({"type": "strnig"}, "not a JSON Schema: .* at '/type'"),
    ({"required": "path"}, "not a JSON Schema: type at '/required'"),
    ({"properties": [1]}, "not a JSON Schema"),
    ({"properties": {"a": 5}}, "not a JSON Schema"),
    ({"minLength": -1}, "not a JSON Schema"),
    ({"$ref": 5}, "not a JSON Schema"),
    ({"$ref": "https://example.com/schema.json"}, "leads outside"),
    ({"$ref": "file:///etc/passwd"}, "leads outside"),
    ({"$ref": "other.json#/a"}, "leads outside"),
    ({"$ref": ""}, "leads outside"),
    ({"$id": "https://example.com/x", "$ref": "https://example.com/x#/$defs/a", "$defs": {"a": {}}}, "leads outside"),
    ({"$ref": "#/$defs/a"}, "leads nowhere"),
    ({"$ref": "#/$defs/a/00", "$defs": {"a": {"allOf": [{}]}}}, "leads nowhere"),
    ({"$ref": "#nowhere"}, "leads nowhere"),
    ({"$ref": "#/x-mine", "x-mine": {"required": 5}}, "where no schema stands"),
    ({"$ref": "#/$defs/a/const", "$defs": {"a": {"const": {}}}}, "where no schema stands"),
    ({"$ref": "#"}, "back to itself"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"not": {"$ref": "#/$defs/a"}}]}}}, "back to itself"),
    ({"$defs": {"a": {"$anchor": "q"}, "b": {"$anchor": "q"}}}, "stands twice"),
    ({"properties": {"a": {"$id": "https://example.com/y"}}}, "inside of the schema"),
    ({"properties": {"a": {"$schema": D07}}}, "inside of the schema"),
    ({"$recursiveRef": "#"}, "not supported"),
    ({"$schema": "http://json-schema.org/draft-04/schema#"}, "not supported"),
    ({"$schema": "https://example.com/mine"}, "not supported"),
    ({"$schema": 5}, "not supported"),
    ({"pattern": "("}, "that can be compiled"),
    ({"pattern": "(a{1000}){1000}"}, "that can be compiled"),
    ({"patternProperties": {"(?=a)b": {}}}, "that can be compiled"),
    ({"properties": {f"a{number}": {"pattern": "a"} for number in range(201)}}, "patterns"),
    ({"properties": {f"a{number}": {"pattern": "[^a]{1040}"} for number in range(20)}}, "patterns that take more"),
    ({"patternProperties": {f"[^a]{{10{number}}}": {} for number in range(10, 30)}}, "patterns that take more"),
    ({"properties": {f"a{number}": {} for number in range(5001)}}, "more than 5000 schemas"),
    ({"enum": ["x" * MAX_SCHEMA_BYTES]}, "too large"),
]


@pytest.mark.parametrize(("document", "why"), UNUSABLE)
def test_a_schema_that_cant_be_held_is_none(document: dict[str, Any], why: str) -> None:
    """Not valid, not local, not bounded, not known: no contract, and the reason for the operator."""
    with pytest.raises(Unusable, match=why):
        contract(document)


def doubled(times: int, rule: dict[str, Any] | None = None) -> dict[str, Any]:
    """A chain of schemas each of which refers twice to the next: 2^times evaluations of one value."""
    links = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(times)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{times}": rule or {}}}


def looked_at_again(times: int) -> dict[str, Any]:
    """A chain of schemas each of which must know what the next evaluated."""
    links = {
        f"d{n}": {"properties": {"a": {}}, "anyOf": [{"$ref": f"#/$defs/d{n + 1}"}], "unevaluatedProperties": False}
        for n in range(times)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{times}": {}}}


@pytest.mark.parametrize("bomb", [doubled(60), looked_at_again(60), doubled(2000)])
def test_references_that_multiply_are_no_contract(bomb: dict[str, Any]) -> None:
    """Known before anything is validated; twenty such links would take half a minute."""
    assert fault(contract(doubled(8)), {}) is None
    assert fault(contract(looked_at_again(6)), {"a": 1}) is None
    began = time.process_time()
    with pytest.raises(Unusable, match=r"multiply|intricate|more than"):
        contract(bomb)
    assert time.process_time() - began < 2


# strict

OPEN = {
    **schema(
        free={"type": "object"},
        nested=schema(k=INTEGER),
        referred={"$ref": "#/$defs/r"},
        listed={"items": {"properties": {"k": {}}}},
        composed={"allOf": [{"properties": {"k": {}}}, {"properties": {"l": {}}}]},
        chosen={"anyOf": [schema(("k",), k=INTEGER), schema(("l",), l=INTEGER)]},
        opened={"properties": {"k": {}}, "additionalProperties": True},
        named={"patternProperties": {"^x-": {}}},
    ),
    "$defs": {"r": {"properties": {"k": {}, "deep": {"$ref": "#/$defs/r"}}}},
}
STRICT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"undeclared": 1}),
    ({"nested": {"k": 1}}, {"nested": {"k": 1, "z": 1}}),
    ({"referred": {"k": 1}}, {"referred": {"z": 1}}),
    ({"referred": {"deep": {"deep": {"k": 1}}}}, {"referred": {"deep": {"deep": {"z": 1}}}}),
    ({"listed": [{"k": 1}]}, {"listed": [{"k": 1}, {"z": 1}]}),
    ({"composed": {"k": 1, "l": 1}}, {"composed": {"k": 1, "l": 1, "z": 1}}),
    ({"chosen": {"k": 1}}, {"chosen": {"k": 1, "z": 1}}),
    ({"named": {"x-a": 1}}, {"named": {"a": 1}}),
    ({"free": {"anything": {"goes": 1}}}, {}),
    ({"opened": {"z": 1}}, {}),
]


@pytest.mark.parametrize(("right", "wrong"), STRICT)
def test_strict_refuses_what_nothing_declares(right: dict[str, Any], wrong: dict[str, Any]) -> None:
    """At any depth, through references and compositions; where an object declares nothing, it is open."""
    strict, declared = contract(OPEN, strict=True), contract(OPEN)
    assert fault(strict, right) is None
    assert fault(declared, right) is None
    if wrong:
        assert fault(declared, wrong) is None
        assert ["has unknown members" in line for line in told(strict, wrong)] == [True]


@pytest.mark.parametrize("document", [{}, {"type": "object"}, {"$schema": D07}])
def test_strict_takes_no_arguments_where_none_are_declared(document: dict[str, Any]) -> None:
    """The root is closed whatever it says, unless it says to be open."""
    assert fault(contract(document, strict=True), {}) is None
    assert fault(contract(document), {"a": 1}) is None
    assert fault(contract(document, strict=True), {"a": 1}) is not None
    assert fault(contract({**document, "additionalProperties": True}, strict=True), {"a": 1}) is None


def test_the_servers_schema_is_left_as_it_is() -> None:
    """A contract is made of a copy: the definition is what was digested, and what a list shows."""
    before = json.dumps(OPEN)
    contract(OPEN, strict=True)
    contract({**schema(a={"pattern": "(?=a)a"}), "$schema": D07})
    assert json.dumps(OPEN) == before


# The same verdict as the validator's own

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([1.5, 2.0, "", "a", "ab", "aab"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=6,
)
LEAVES = st.sampled_from(
    [
        True, False, {}, INTEGER, TEXT, {"type": ["object", "array"]}, {"minimum": 1}, {"maxLength": 1},
        {"enum": [1, "a", []]},
        {"pattern": "^a"}, {"pattern": "^(?!b)"}, {"pattern": r"(a)\1"}, {"required": ["a"]}, {"minItems": 2},
        {"uniqueItems": True}, {"const": {"a": 1}}, {"dependentRequired": {"a": ["b"]}}, {"$ref": "#/$defs/x"},
    ]
)  # fmt: skip


def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas of schemas."""
    several = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3)
    keywords: dict[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), several),
        **dict.fromkeys(("properties", "dependentSchemas"), named),
        **dict.fromkeys(("not", "if", "then", "else", "items", "contains", "additionalProperties"), inner),
        **dict.fromkeys(("propertyNames", "unevaluatedProperties", "unevaluatedItems"), inner),
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner, min_size=1),
    }
    return st.dictionaries(st.sampled_from(sorted(keywords)), st.none(), min_size=1, max_size=3).flatmap(
        lambda chosen: st.fixed_dictionaries({keyword: keywords[keyword] for keyword in chosen})
    )


@settings(max_examples=300, deadline=None)
@given(st.recursive(LEAVES, grown, max_leaves=8), st.recursive(LEAVES, grown, max_leaves=4), VALUES)
@example({"not": {"pattern": "^(?!b)"}}, True, "b")
@example({"$ref": "#/$defs/x"}, {"properties": {"a": {"$ref": "#/$defs/x"}}}, {"a": {"a": 1}})
def test_the_verdict_is_the_validators(rule: Any, defined: Any, value: Any) -> None:
    """Rewriting and stand-ins for patterns change no verdict: whatever has a contract is judged by 2020-12."""
    document = {"properties": {"v": rule}, "$defs": {"x": defined}}
    try:
        held = contract(document)
    except Unusable as unusable:
        why = str(unusable)
    else:
        why = ""
    if why:
        assert "back to itself" in why
        return
    plain = Draft202012Validator(document, offline=True)
    assert (fault(held, {"v": value}) is None) == plain.is_valid({"v": value})


@settings(max_examples=200, deadline=None)
@given(st.recursive(LEAVES, grown, max_leaves=8), VALUES)
def test_strict_is_never_laxer(rule: Any, value: Any) -> None:
    """What strict lets through, declared lets through."""
    document = {"properties": {"v": rule}, "$defs": {"x": {"properties": {"a": INTEGER}}}}
    if fault(contract(document, strict=True), {"v": value}) is None:
        assert fault(contract(document), {"v": value}) is None


@given(st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3))
def test_the_quick_bound_is_a_bound(document: dict[str, Any]) -> None:
    """What a text can hold at most is at least what it holds."""
    counts, characters = measure(document)
    text = orjson.dumps(document)
    assert sum(counts) <= 1 + text.count(b",") + text.count(b"[") + text.count(b"{") <= 1 + len(text)
    assert characters <= len(text)


@given(VALUES, st.sampled_from([1, 1_000, 2_000_000]), st.sampled_from([0, 5_000]), st.booleans(), st.booleans())
def test_the_quick_answer_is_the_exact_one(value: Any, each: int, texts: int, many: bool, long: bool) -> None:
    """However it is found out, a document is too much where the work on it is, whatever else stands in its text."""
    document = [value, *(["text" * 4] * 2 * FEW if many else ()), "long" * (100_000 if long else 1)]
    weights = Weights((each,) * LEVELS, texts)
    assert weights.exceed(document, orjson.dumps([document, ",[{"])) == (weights.of(document) > MOST_WORK)


def test_few_values_are_counted_at_every_depth() -> None:
    """A document is of few values by all that stand in it, and one too many ends the count."""
    assert has_few_values([0] * (FEW - 1))
    assert not has_few_values([0] * FEW)
    assert has_few_values({"a": [0] * (FEW - 3), "b": {}})
    assert not has_few_values({"a": [0] * (FEW - 3), "b": {"c": 0}})


# What it costs

ROWS = schema(rows={"items": {**schema(("a",), a=INTEGER, b=TEXT), "additionalProperties": False}})
TREE = {"$ref": "#/$defs/n", "$defs": {"n": schema(l={"$ref": "#/$defs/n"}, r={"$ref": "#/$defs/n"})}}
FORK = {
    "$ref": "#/$defs/n",
    "$defs": {"n": {"anyOf": [schema(x={"$ref": "#/$defs/n"}), schema(x={"$ref": "#/$defs/n"})]}},
}


def nested(times: int, name: str = "x", leaf: Any = None) -> dict[str, Any]:
    """An object in an object, and so on."""
    found: Any = {} if leaf is None else leaf
    for _ in range(times):
        found = {name: found}
    return dict(found)


def seconds(work: Callable[[], object]) -> float:
    """The quickest of three."""
    found = []
    for _ in range(3):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def rows(count: int, **last: Any) -> dict[str, Any]:
    return {"rows": [*({"a": number, "b": "text" * 3} for number in range(count)), {"a": 1, **last}]}


BIG: list[tuple[str, dict[str, Any], dict[str, Any], bool]] = [
    ("a megabyte of rows", ROWS, rows(33_000), True),
    ("its last row wrong", ROWS, rows(33_000, a="x"), False),
    ("every row wrong", ROWS, {"rows": [{"b": 1, "c": 2}] * 33_000}, False),
    (
        "every row wrong in branches",
        schema(rows={"items": {"anyOf": [INTEGER, TEXT]}}),
        {"rows": [None] * 90_000},
        False,
    ),
    (
        "four megabytes of text",
        schema(t={"pattern": "^[a-z]*$", "maxLength": 5_000_000}),
        {"t": "a" * 4_000_000},
        True,
    ),
    ("a balanced tree", TREE, nested(60, "l"), True),
    (
        "many alternatives",
        schema(a={"items": {"oneOf": [{"const": n} for n in range(100)]}}),
        {"a": [5] * 9_000},
        True,
    ),
    (
        "too many alternatives",
        schema(a={"items": {"oneOf": [{"const": n} for n in range(500)]}}),
        {"a": [5] * 90_000},
        False,
    ),
    ("a fork", FORK, nested(8), True),
    ("a deep fork", FORK, nested(60), False),
    ("a wide and deep fork", FORK, {"x": [nested(58)] * 300}, False),
    ("different objects", schema(a={"uniqueItems": True}), {"a": [{"x": [n]} for n in range(10_000)]}, True),
    ("multiples of a cent", schema(a={"items": {"multipleOf": 0.25}}), {"a": [19.25] * 1_500}, True),
    ("multiples of next to nothing", schema(a={"items": {"multipleOf": 1e-300}}), {"a": [1e300] * 90_000}, False),
    (
        "wanted by names",
        {"items": {"dependentRequired": {f"v{n}": ["x"] for n in range(3000)}}, **schema()},
        {},
        True,
    ),
]


@pytest.mark.parametrize(("document", "arguments", "fits"), [row[1:] for row in BIG], ids=[row[0] for row in BIG])
def test_no_arguments_take_long(document: dict[str, Any], arguments: dict[str, Any], fits: bool) -> None:
    """Whatever a caller sends, a check and its explanation are over in less than 100 ms on an idle core."""
    held = contract(document)
    text = orjson.dumps(arguments)

    def check() -> bool:
        try:
            held.check(arguments, text)
        except Refused:
            return False
        return True

    assert check() == fits
    gc.collect()
    assert seconds(check) < 0.4, "100 ms, and room for the machine that tests run on"


def test_a_small_call_costs_microseconds() -> None:
    """At most 10 us for each call, patterns with look-around included."""
    held = contract(
        schema(("path",), path={**TEXT, "maxLength": 100}, mail={"pattern": "^(?!\\.)[a-z.]+@"}, n=INTEGER)
    )
    arguments, text = {"path": "/srv", "mail": "a.b@c", "n": 5}, b"x" * 400

    def thousand() -> None:
        for _ in range(1000):
            held.check(arguments, text)

    assert seconds(thousand) < 1000 * 10e-6 * 4, "and room for the machine that tests run on"


HARD = schema(a={"items": {"pattern": "(?=.*a)b"}}, no={"not": {"pattern": "(?=.*a)b"}})


def test_a_pattern_that_backtracks_has_little_to_try() -> None:
    """Look-around is tried on short texts, with a limit; beyond it nothing is let through, negated or not."""
    held = contract(HARD)
    assert fault(held, {"a": ["ab"]}) is not None
    assert fault(held, {"a": ["cba"], "no": "c"}) is None
    for arguments in ({"a": ["a" * 2000]}, {"no": "a" * 2000}, {"no": "c" * 2049}, {"a": ["ba" * 1000] * 9}):
        began = time.process_time()
        found = fault(held, arguments)
        assert time.process_time() - began < 0.5
        assert found is not None
        assert "too long" in str(found.message)
    assert fault(held, {"a": ["cba"], "no": "c"}) is None, "and the next check begins anew"


def test_what_is_too_much_says_so() -> None:
    """A refusal that tells no place still tells what to do about it."""
    assert told(contract(FORK), nested(60)) == ["They are too large or too deep to be checked."]
    assert MOST_WORK == 1_000_000


def test_large_arguments_are_told_one_fault_or_the_top() -> None:
    """The first fault where that is quick; with branches, what is missing or unknown at the top."""
    assert told(contract(ROWS), rows(33_000, a="x")) == ['- "arguments/rows/33000/a": must be of type integer.']
    listed = {"items": {"anyOf": [INTEGER, TEXT]}}
    branches = {**schema(("name",), name={}, rows=listed), "additionalProperties": False}
    assert told(contract(branches), {"rows": [None] * 9_000, "nam": 1}) == [
        '- "arguments": lacks the required member "name".',
        '- "arguments": has unknown members: "nam".',
    ]
    assert told(contract(branches), {"rows": [None] * 9_000, "name": 1}) == ["They are too large to say where."]


def test_a_rested_contract_is_slower_and_not_laxer() -> None:
    """The compiled schema can be given up at any time."""
    held = contract(HARD)
    held.rest()
    assert fault(held, {"a": ["ab"]}) is not None
    assert fault(held, {"a": ["cba"]}) is None


def test_a_tools_call_is_held_to_its_contract() -> None:
    """The place in the corridor: after the tool was found, for tools alone, and only where there is a contract."""
    call = ask(message(params={"name": "read_file", "arguments": {"path": 5}}))
    check_call(call, Tool("read_file", "d" * 64, {}, {}))
    tool = Tool("read_file", "d" * 64, {}, {}, contract=contract(schema(path=TEXT)))
    check_call(ask(message(params={"name": "read_file", "arguments": {"path": "x"}})), tool)
    check_call(ask(message(params={"name": "read_file"})), tool)
    with pytest.raises(Refused) as caught:
        check_call(call, tool)
    assert caught.value.refusal is Refusal.ARGUMENTS_INVALID
