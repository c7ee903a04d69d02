"""What a person sees of a changed definition: everything, as it is, and nothing that plays with the terminal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract.differences import Difference, differences, lines, visible

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def told(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """All lines of what differs."""
    return [line for found in differences(before, now) for line in lines(found)]


def test_each_place_is_named_with_both_sides() -> None:
    """Changed, added, removed; pointers that lead there; what stayed is not shown."""
    before = {"name": "t", "a": {"b/c": 1, "gone": True}, "list": ["x", "y"], "same": [1, {"z": 2}]}
    now = {"name": "t", "a": {"b/c": 2}, "list": ["x", "z", "new"], "same": [1, {"z": 2}]}
    assert differences(before, now) == [
        Difference("/a/b~1c", "1", "2"),
        Difference("/a/gone", "true", None),
        Difference("/list/1", '"y"', '"z"'),
        Difference("/list/2", None, '"new"'),
    ]
    assert told(before, now) == [
        "~ /a/b~1c", "  - 1", "  + 2", "- /a/gone", "  - true", "~ /list/1", "  - | y", "  + | z", "+ /list/2",
        "  + | new",
    ]  # fmt: skip


def test_another_type_is_a_difference() -> None:
    """1, 1.0, true and "1" are four values; null is not absent."""
    spellings: list[Any] = [1, 1.0, True, "1", None]
    for left in spellings:
        for right in spellings:
            same = type(left) is type(right)
            assert bool(differences({"a": left}, {"a": right})) != same
            assert len(told({"a": left}, {"a": right})) == (0 if same else 3)
            assert (told({}, {"a": left}) == told({}, {"a": right})) == same
    assert differences({"a": None}, {}) == [Difference("/a", "null", None)]


def test_a_text_is_compared_line_by_line() -> None:
    """In a long description the changed lines stand out, with one beside each."""
    rows = [f"line {number}" for number in range(40)]
    before, now = "\n".join(rows), "\n".join([*rows[:20], "line twenty", *rows[21:]])
    shown = told({"description": before}, {"description": now})
    assert shown == [
        "~ /description", "  @ line 20", "    | line 19", "  - | line 20", "  + | line twenty", "    | line 21",
    ]  # fmt: skip


def test_lines_that_look_like_a_diffs_own_are_text() -> None:
    """A description that is made to look like the marks of a diff hides nothing."""
    assert told({"d": "a\n"}, {"d": "a\n++ \n-- \n@@ -1 +1 @@\n~ /x"}) == [
        "~ /d", "    | a", "  - | ", "  + | ++ ", "  + | -- ", "  + | @@ -1 +1 @@", "  + | ~ /x",
    ]  # fmt: skip


def test_in_a_long_line_the_changed_part_is_pointed_at() -> None:
    """Two lines of a hundred characters that differ in a word."""
    before = "Reads a file of the project and returns its text, up to one megabyte, never a secret."
    shown = told({"d": before}, {"d": before.replace("never", "also")})
    assert shown[-1] == '  @ from character 71: "never" became "also"'


@pytest.mark.parametrize(
    "hidden",
    ["\x1b[2J", "\u202e", "\u200b", "\u2066", "\r", "\x00", "\x7f", "\x9b", "\ufeff", "\u00ad", "\u2028", "\ue000",
     "\U000e0041", "\ufe0f", "\U000e0101", "\u3164", "\u00a0", "\u2003", "\u3000", "\u034f", "\u2800", "\t"],
)  # fmt: skip
def test_nothing_is_hidden(hidden: str) -> None:
    """Controls, ANSI, bidi, zero width, tags, selectors, blanks: written out, in values, names and places."""
    for definition in ({"d": f"a{hidden}b"}, {"d": {f"a{hidden}b": 1}}, {"d": [{"x": f"a{hidden}b"}]}):
        text = "\n".join(told({"d": 0}, definition))
        assert hidden not in text
        assert f"\\u{{{ord(hidden[0]):x}}}" in text or "\\u00" in text or "\\t" in text or "\\r" in text


def test_letters_that_look_like_others_are_named() -> None:
    """A Cyrillic letter in a word is a letter: it is shown, and named."""
    shown = told({"d": "paypal"}, {"d": "p\u0430ypal"})
    assert shown[-1] == "  ! not ASCII: U+0430 CYRILLIC SMALL LETTER A"
    assert not told({"d": "\u0430"}, {"d": "\u0430b"})[-1].startswith("  !")


@given(texts, texts)
def test_every_line_is_one_line_of_visible_text(before: str, now: str) -> None:
    """Whatever a server says, no line breaks out, and each side can be read back from its lines."""
    for line in told({"d": before}, {"d": now}):
        assert line.isprintable()
        assert all(one == " " or not one.isspace() for one in line)
    if before != now:
        assert visible(before) != visible(now)


@given(texts)
def test_what_is_visible_can_be_taken_back(text: str) -> None:
    """Two texts never look alike because of the escapes: they are exact."""
    back, rest = "", visible(text)
    while rest:
        if rest.startswith("\\u{"):
            code, _, rest = rest[3:].partition("}")
            back += chr(int(code, 16))
        else:
            step = 2 if rest.startswith("\\\\") else 1
            back, rest = back + rest[step - 1], rest[step:]
    assert back == text


def test_texts_of_many_lines_cost_no_square() -> None:
    """Beyond what can be aligned, both sides are shown whole."""
    before, now = ("\n".join(f"{word} {n % 7}" for n in range(5000)) for word in ("a", "b"))
    assert len(told({"d": before}, {"d": now})) == 10_001
