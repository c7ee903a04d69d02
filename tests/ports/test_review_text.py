"""A stranger's text, values and forms before they meet a page: nothing runs, nothing hides, nothing is unbounded."""

from __future__ import annotations

import re
import time
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from approvals.review.body import BodyRefused
from approvals.review.faces import MOST_RUNS, since
from approvals.review.fields import Field, FieldInvalid, arguments_in, arguments_of, fields_of
from approvals.review.forms import parse_form
from approvals.review.leaves import DEEP, MOST_COMPARED, MOST_COUNTED, Change, compare, count, leaves
from approvals.review.plainly import BIDI, MOST_MARKS, in_a_line, in_lines
from approvals.review.times import ago, moment, span, until

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@given(st.text())
def test_no_text_is_markup_and_none_of_it_is_invisible(text: str) -> None:
    """Whatever stands in it: the only tags are ours, and no control, format, bidi or odd blank character is left."""
    for plain in (in_a_line(text, 10_000), in_lines(text, 10_000)):
        html = str(plain.html)
        bare = re.sub(r'</?bdi>|<span class="(?:mark|odd)" title="[^"<>]*">|</span>', "", html)
        assert "<" not in bare
        assert ">" not in bare
        assert all(one == "\n" or one.isprintable() for one in bare)
        assert BIDI.isdisjoint(bare)


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("invoice\u202egpj.exe", "U+202E"),
        ("ze\u200bro", "U+200B"),
        ("nul\x00", "U+0000"),
        ("esc\x1b[31m", "U+001B"),
        ("soft\u00adhyphen", "U+00AD"),
        ("no\u00a0break", "U+00A0"),
        ("filler\u3164", "U+3164"),
        ("tag\U000e0041", "U+E0041"),
        ("variation\ufe0f", "U+FE0F"),
        ("line\u2028separator", "U+2028"),
        ("private\ue000", "U+E000"),
        ("z\u0301\u0301\u0301\u0301", "U+0301"),
    ],
)
def test_what_could_not_be_seen_is_written_out_and_said(text: str, mark: str) -> None:
    """A mark with the code point stands in its place, and a hint says so; plain text has neither."""
    plain = in_a_line(text)
    assert mark in plain.html
    assert plain.hints
    assert in_a_line("plain text, as it is").hints == ()


@pytest.mark.parametrize(
    ("text", "hinted"),
    [
        ("p\u0430ypal", True),  # a Cyrillic a
        ("\uff50ay", True),  # full width
        ("\U0001d429ay", True),  # mathematical
        ("paypal", False),
        ("Zürich", False),
        ("Москва", False),
        ("naïve ωμέγα", False),
    ],
)
def test_letters_that_only_look_alike_are_hinted_at(text: str, hinted: bool) -> None:
    """A word of several scripts, or of dressed-up letters, is told; an ordinary word of any language is not."""
    plain = in_a_line(text)
    assert any("look alike" in hint for hint in plain.hints) is hinted
    assert ('class="odd"' in plain.html) is hinted


def test_text_from_right_to_left_is_isolated_and_told() -> None:
    """It can't move what stands beside it, and a reader knows that its order is another."""
    plain = in_a_line("שלום")
    assert plain.html.startswith("<bdi>")
    assert plain.html.endswith("</bdi>")
    assert any("right to left" in hint for hint in plain.hints)


def test_megabytes_are_cut_at_once_and_said_to_be() -> None:
    """Only what is shown is looked at; how much there is stands beside it; a text of marks alone is cut as well."""
    began = time.process_time()
    for text in ("a" * 5_000_000, "\u202e\u200b" * 2_500_000, "<" * 5_000_000):
        plain = in_lines(text)
        assert plain.is_cut
        assert (plain.whole, plain.shown <= 4000) == (5_000_000, True)
        assert len(plain.html) < 40_000
    assert in_a_line("\u202e\u200b" * 1000, 2000).html.count("mark") <= MOST_MARKS * 2
    assert "×3000" in in_a_line("\u200b" * 3000, 3000).html
    assert time.process_time() - began < 2


@given(JSON, JSON)
def test_what_differs_is_exactly_what_differs(then: Any, now: Any) -> None:
    """No change without a difference, no difference without a change; types are never taken for one another."""
    changes = compare(then, now).changes
    before = {one.steps: (one.kind, one.text) for one in leaves(then) if one.steps or one.kind != "object"}
    after = {one.steps: (one.kind, one.text) for one in leaves(now) if one.steps or one.kind != "object"}
    wanted = {
        steps: Change.ADDED if steps not in before else Change.REMOVED if steps not in after else Change.CHANGED
        for steps in before.keys() | after.keys()
        if before.get(steps) != after.get(steps)
    }
    assert {one.steps: one.change for one in changes} == wanted


@pytest.mark.parametrize(
    ("then", "now"), [(1, "1"), (1, True), (1, 1.0), (None, "null"), ([], {}), (["x"], {"0": "x"}), ("a", "a ")]
)
def test_values_that_read_alike_are_told_apart(then: Any, now: Any) -> None:
    """Types, blanks and containers count."""
    assert compare({"v": then}, {"v": then}).changes == ()
    assert compare({"v": then}, {"v": now}).changes


def test_what_is_hidden_is_compared_by_nobody() -> None:
    """A masked value is neither the same nor another."""
    compared = compare({"pin": "[masked]", "a": 1}, {"pin": "[masked]x", "a": 1}, {"/pin"})
    assert (compared.changes, compared.same, compared.whole) == ((), 1, True)
    assert len(compare({"pin": 1}, {"pin": 2}).changes) == 1


def test_many_and_deep_values_are_bounded_and_said_to_be() -> None:
    """A million items or sixty levels cost what is shown of them; what is not compared is not called the same."""
    began = time.process_time()
    many = {"items": list(range(1_000_000))}
    compared = compare(many, {"items": [-1, *range(1_000_000)]})
    assert not compared.whole
    assert all(one.change is Change.CHANGED for one in compared.changes)
    assert len(compared.changes) + compared.same <= MOST_COMPARED
    assert count(many) == MOST_COUNTED
    deep: Any = "x"
    for _ in range(60):
        deep = {"a": [deep]}
    (leaf,) = leaves(deep)
    assert (leaf.kind, len(leaf.steps)) == (DEEP, 24)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b"a=1&a=2", "form_ambiguous"),
        (b"a=%zz", "form_malformed"),
        (b"a=%ff", "form_malformed"),
        (b"a", "form_malformed"),
        (b"a=1&", "form_malformed"),
        ("a=ä".encode(), "form_malformed"),
        (b"&".join(b"f%d=1" % number for number in range(200)), "form_malformed"),
    ],
)
def test_a_form_has_one_reading(body: bytes, name: str) -> None:
    """A field twice, a broken escape, what is no UTF-8, or too many fields: refused, never guessed at."""
    with pytest.raises(BodyRefused) as caught:
        parse_form(body)
    assert (caught.value.status, caught.value.name) == (400, name)


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=10))
def test_what_a_browser_sends_is_read_back(fields: dict[str, str]) -> None:
    """Every text comes back as it was typed, line ends as one."""
    sent = {key.replace("\r", ""): value.replace("\r", "") for key, value in fields.items()}
    assert parse_form(urlencode({key: value.replace("\n", "\r\n") for key, value in sent.items()}).encode()) == sent


SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "title": "IBAN", "description": "Whose account"},
        "amount": {"type": "integer"},
        "rate": {"type": "number"},
        "urgent": {"type": "boolean"},
        "kind": {"enum": ["sepa", "swift", 3]},
        "note": {"type": "string", "maxLength": 2000},
    },
    "required": ["to", "amount"],
}


def test_a_flat_schema_makes_fields_and_typed_values() -> None:
    """Texts stay texts, numbers are JSON's, choices are the schema's; what is left empty is left out."""
    fields = fields_of(SCHEMA)
    assert fields is not None
    assert fields[0] == Field("to", "string", True, "IBAN", "Whose account")
    assert [one.name for one in fields if one.long] == ["note"]
    typed = {"arg.to": "DE 1", "arg.amount": " 12 ", "arg.rate": "0.5", "arg.urgent": "true", "arg.kind": "3"}
    assert arguments_of(fields, typed) == {"to": "DE 1", "amount": 12, "rate": 0.5, "urgent": True, "kind": 3}
    assert arguments_of(fields, {"arg.to": "", "arg.amount": "0"}) == {"to": "", "amount": 0}


@pytest.mark.parametrize(
    "typed",
    [
        {"arg.to": "x"},
        {"arg.to": "x", "arg.amount": "1.5"},
        {"arg.to": "x", "arg.amount": "1e3"},
        {"arg.to": "x", "arg.amount": "01"},
        {"arg.to": "x", "arg.amount": "NaN"},
        {"arg.to": "x", "arg.amount": "1", "arg.rate": "1e999"},
        {"arg.to": "x", "arg.amount": "1", "arg.urgent": "yes"},
        {"arg.to": "x", "arg.amount": "1", "arg.kind": "sepa"},
    ],
)
def test_what_is_not_of_its_kind_is_said(typed: dict[str, str]) -> None:
    """By the field's name; nothing is made to fit."""
    fields = fields_of(SCHEMA)
    assert fields is not None
    with pytest.raises(FieldInvalid, match=r"^(amount|rate|urgent|kind): "):
        arguments_of(fields, typed)


@pytest.mark.parametrize(
    "schema",
    [
        None,
        [],
        {"properties": []},
        {"properties": {"a": {"type": "object"}}},
        {"properties": {"a": {"type": ["string", "null"]}}},
        {"properties": {"a": {"$ref": "#/x"}}},
        {"properties": {"a": {"enum": [{}]}}},
        {"properties": {"a\u202eb": {"type": "string"}}},
        {"properties": {f"p{number}": {"type": "string"} for number in range(50)}},
        {"properties": {"a": {"type": "string"}}, "required": ["b"]},
        {"anyOf": [{}], "properties": {"a": {"type": "string"}}},
        {"type": "object"},
    ],
)
def test_what_is_not_flat_gets_one_field_of_json(schema: Any) -> None:
    """No half a form: a schema that fields can't say is left to whoever writes JSON."""
    assert fields_of({"properties": {"a": {"type": "string"}}}) is not None
    assert fields_of(schema) is None


def test_the_field_of_json_is_read_strictly() -> None:
    """An object, no member twice, not too deep; empty is no arguments."""
    assert arguments_in(' {"a": [1]} ') == {"a": [1]}
    assert arguments_in("  ") == {}
    for text in ("[1]", "{", '{"a":1,"a":2}', '{"a":' * 80 + "1" + "}" * 80, "NaN"):
        with pytest.raises(FieldInvalid):
            arguments_in(text)


def test_a_long_history_keeps_what_people_did_and_the_newest_runs() -> None:
    """A grant may have a thousand uses: no decision and not the last run falls out, and what does is said."""

    def at(second: int) -> str:
        return f"2026-07-28T12:{second // 60:02}:{second % 60:02}.000Z"

    def told(runs: int) -> list[str]:
        approved = {"at": at(1), "verb": "approve", "by": "i|bob", "comment": ""}
        revoked = {"at": at(runs + 2), "verb": "revoke", "by": "i|bob", "comment": "enough"}
        ran = [{"at": at(one + 2), "state": "executed", "resolved": False} for one in range(runs - 1)]
        ran.append({"at": at(runs + 1), "state": "unknown", "resolved": False})
        whole = {"createdAt": at(0), "requester": {"issuer": "i", "subject": "alice"}, "runs": ran}
        return [one.text for one in since({**whole, "decisions": [approved, revoked]}, 0.0)]

    ends = (["asked for this", "approved"], ["Nobody knows how the call ended", "revoked the approval"])
    for runs in (3, MOST_RUNS):
        assert (told(runs)[:2], told(runs)[-2:], len(told(runs))) == (*ends, runs + 3)
    long = told(1000)
    assert (long[:2], long[-2:], len(long)) == (*ends, MOST_RUNS + 4)
    assert long[2] == "900 earlier runs are not listed here"


def test_times_are_right_wherever_they_are_read() -> None:
    """Date, time and zone; lengths in two units at most; what is over is not left."""
    at = "2026-07-28T12:00:00.000Z"
    assert moment(at) == "28 Jul 2026, 12:00:00 UTC"
    assert [span(one) for one in (0, 59, 61, 3600, 90061, -5)] == [
        "0 s",
        "59 s",
        "1 min 1 s",
        "1 h",
        "1 day 1 h",
        "0 s",
    ]
    assert until(at, 1785240000.0 - 61) == "1 min 1 s"
    assert until(at, 1785240000.0) == ""
    assert ago(at, 1785240000.0 + 7300) == "2 h ago"
