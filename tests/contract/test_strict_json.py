"""JSN: a text has one reading, or it is refused."""

from __future__ import annotations

import json
import time
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.contract import strict_json
from gateway.contract.strict_json import MAX_DEPTH, MAX_VALUES, NotStrict, TwoReadings, read_strictly

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5)
)


def first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs))


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":1}',
        b'{"a":1,"a":2}',
        b'{"a":1,"\\u0061":2}',
        b'{"\\u00e9":1,"\xc3\xa9":2}',
        b'{"x":[[{"deep":{"a":1,"b":2,"a":3}}]]}',
        b'{"":1,"":2}',
        b'{"a":1,"a":1}\n',
        b' {"a":1,"a":1}',
        b'{"a\\u0000":1,"a\\u0000":2}',
        b'{"\\ud83d\\ude00":1,"\xf0\x9f\x98\x80":2}',
        b'{"a": 1, "a": 1}',
        b'{"a b": 1, "ab": 1, "a b": 1}',
        b'{"x": [{"": 1, " ": 2, "": 1}]}',
    ],
)
def test_a_name_that_stands_twice_has_two_readings(text: bytes) -> None:
    """JSN-01: duplicate names are refused at any depth, however they are spelled."""
    with pytest.raises(TwoReadings):
        read_strictly(text)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"b":1}',
        b'{"x":[{"a":1},{"a":1}]}',
        b'[ {"a" : 1.50, "A":-0} , 1E2 ]',
        b"1e-300",
        b'{"a b": 1, "ab": 1, " ab": "a  b"}',
    ],
)
def test_the_same_names_in_different_objects_are_one_reading(text: bytes) -> None:
    """JSN-01, the positive twin: names repeat across objects, in any spelling of the text."""
    assert read_strictly(text) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        b"", b" ", b"\xef\xbb\xbf{}", b"{} {}", b"{}\x00", b"{}x", b"[1,]", b"{'a':1}", b"[1]//", b"/**/1",
        b'["\xff"]', b'["\xc0\xaf"]', b'["\xed\xa0\x80\xed\xb0\x80"]', b'["\xf4\x90\x80\x80"]',
        b"NaN", b"[-Infinity]", b"[Infinity]", b"[1e400]", b"[-1e400]", b"[1e-400]",
        b"[1E-400]", b"[0." + b"0" * 400 + b"1]", b"[0.0000e-1,0.1e-999]",
        b"[01]", b"[+1]", b"[.5]", b"[0x10]", b"[1_0]",
        b"[" + b"9" * 5000 + b"]", b"[18446744073709551616]", b"[-9223372036854775809]",
        b'["\\ud800"]', b'{"\\ud800":1}', b'["\\udc00\\ud800"]', b'["\\x41"]', b'["a\nb"]',
        "[1]".encode("utf-16"), "[1]".encode("utf-16-le"), "[1]".encode("utf-32"),
    ],
)  # fmt: skip
def test_what_only_some_readers_take_is_refused(text: bytes) -> None:
    """JSN-05, JSN-06: bad UTF-8, BOM, non-numbers, numbers out of range, lone surrogates, anything after the text."""
    with pytest.raises(NotStrict):
        read_strictly(text)


@pytest.mark.parametrize("number", [-(2**63), 2**53 + 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("space", [b"", b" "])
def test_integers_of_64_bits_keep_every_digit(number: int, space: bytes) -> None:
    """JSN-05, the positive twin: both readers give the exact integer."""
    assert read_strictly(b"[%d%b]" % (number, space)) == [number]


@pytest.mark.parametrize("space", [b"", b" "])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_is_bounded(opening: bytes, closing: bytes, space: bytes) -> None:
    """JSN-07: 64 levels are read, 65, 1,200 and 100,000 are refused and never exhaust the stack."""
    read_strictly(opening * MAX_DEPTH + b"1" + closing * MAX_DEPTH + space)
    for levels in (MAX_DEPTH + 1, 300, 1200, 100_000):
        with pytest.raises(NotStrict):
            read_strictly(opening * levels + b"1" + closing * levels + space)
        with pytest.raises(NotStrict):
            read_strictly(opening * levels)


def test_many_brackets_in_strings_or_side_by_side_are_not_deep() -> None:
    """JSN-07, the positive twin: depth is counted in levels, not in brackets."""
    read_strictly(orjson.dumps({"text": "[{" * 1000, "rows": [[i] for i in range(1000)]}))


def test_the_number_of_values_is_bounded_outside_strings() -> None:
    """JSN-07: 100,000 values are read and more are refused; punctuation in strings does not count."""
    read_strictly(orjson.dumps(["a" * 8] * (MAX_VALUES - 1)))
    read_strictly(orjson.dumps({'escaped \\"': ',[{"' * MAX_VALUES}))
    with pytest.raises(NotStrict, match="values"):
        read_strictly(orjson.dumps([0] * (MAX_VALUES + 1)))


LONG = st.sampled_from(
    ["x" * 600, "\u201c" * 300, "\\" * 700, '"' * 700, ',[{"' * 300, "a\\" * 300 + '"', "\n" * 599, "\0" * 520]
)


@given(st.lists(LONG | VALUES, min_size=1, max_size=6), st.sampled_from([None, 1]), st.booleans())
def test_long_strings_are_read_as_they_were_written(values: list[Any], indent: int | None, ascii_only: bool) -> None:
    """JSN-05: whatever a long string holds, quotes, backslashes and brackets too, it is read, in each spelling."""
    named = {f"{place} {value}"[:900]: value for place, value in enumerate(values)}
    for value in (values, named):
        assert read_strictly(json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()) == value
        assert read_strictly(orjson.dumps(value)) == value


@given(LONG, LONG, VALUES)
def test_a_doubled_name_beside_long_strings_is_found(before: str, name: str, value: Any) -> None:
    """JSN-01: long strings hide no doubled name, be it long itself; long names that differ are no doubled one."""
    first, twin, rest = json.dumps(before), json.dumps(name), json.dumps(value)
    assert read_strictly(f'{{"a":{first}, {twin}:1, {json.dumps(name + "!")}:2, "":3}}'.encode())["a"] == before
    for text in (
        f'{{"a":{first},"a":{rest}}}',
        f'{{{twin}:1,"b":{first},{twin}:{rest}}}',
        f'[{first},{{"":1,"":2}}]',
    ):
        with pytest.raises(TwoReadings):
            read_strictly(text.encode())


@pytest.mark.parametrize("long", [b"x" * 1200, b"\\\\" * 700, b'\\"' * 10 + b"x" * 1200, b"\\\\" * 700 + b'\\"'])
@pytest.mark.parametrize(
    "rest",
    [
        b"1,]",
        b'{",":1,",":2}]',
        b"1e400]",
        b"-]",
        b"[" * 65 + b"]" * 66,
        b'"\xff"]',
        b'"a\nb"]',
        b"18446744073709551616]",
        b'"\\ud800"]',
    ],
)
def test_what_stands_behind_a_long_string_is_judged(long: bytes, rest: bytes) -> None:
    """JSN-05, JSN-06, JSN-07: a long string ends where its reader has it end, and what follows is read strictly."""
    assert len(read_strictly(b'["' + long + b'",1]')) == 2
    for text in (b'["' + long + b'",' + rest, b'["' + long + b'" , ' + rest):
        with pytest.raises(NotStrict):
            read_strictly(text)


PIECES = [
    b'"', b"\\", b",", b":", b"[", b"]", b"{", b"}", b" ", b"1", b"1e400", b"null", b'""', b'"a"', b'"long"',
    b'"long":', b'"long" :', b'"twin":', b'"\\u006cong":', b'"quoted\\"more"', b'"ends\\\\"', b'"[[{{,,"',
    b'{"long":', b'"b":"long"', b"}]",
]  # fmt: skip
SENTENCES = st.recursive(
    st.sampled_from(["1", "1e400", '"a"', '"long"', '"quoted\\"more"', '"ends\\\\"', '"[[{{,,"']),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | st.lists(
            st.tuples(st.sampled_from(["a", "long", "twin", "ends\\\\", "\\u006cong"]), inner), max_size=4
        ).map(lambda members: "{" + ", ".join(f'"{name}" :{value}' for name, value in members) + "}")
    ),
).map(str.encode)


@given(st.lists(st.sampled_from(PIECES), max_size=16).map(b"".join) | SENTENCES, st.sampled_from([3, 6, 24]))
def test_to_leave_long_strings_out_changes_no_word(text: bytes, quotes: int) -> None:
    """G3: whatever counts as long and however many quotes are looked at, the same texts are read and refused."""

    def found(long: int) -> tuple[str, str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(strict_json, "_LONG", long)
            patch.setattr(strict_json, "_QUOTES", quotes)
            try:
                return "read", repr(read_strictly(text))
            except NotStrict as why:
                return type(why).__name__, repr(why.document)

    assert found(2) == found(1 << 20)


@pytest.mark.parametrize("opening", [b'"', b'"\\"', b'"\\\\', b'"\\\\\\"', b'"a\\"b\\"c'])
def test_what_stands_between_strings_is_no_string(opening: bytes) -> None:
    """JSN-05: however much stands between two strings, whatever their quotes are escaped like, it is judged."""
    text = b'[%b",%b","]'
    assert len(read_strictly(text % (opening, b"1.0," * 400))) == 402
    with pytest.raises(NotStrict, match="too small"):
        read_strictly(text % (opening, b"1e-400," * 400))


@pytest.mark.parametrize("quoted", ['",', '"]', '"}', '\\"', '\\",', '":', "\\"])
@pytest.mark.parametrize("before", ["", "a", 'a"b', "\\", '\\"'])
def test_a_text_about_one_long_string_is_read_whole(before: str, quoted: str) -> None:
    """JSN-05: quotes and brackets in the one long string that a text is about end nothing, wherever they stand."""
    for at in range(1990, 2020):
        for value in ([before, "x" * at + quoted + "y" * 2000], {before: "x" * at + quoted + "y" * 2000, "z": 1}):
            assert read_strictly(orjson.dumps(value)) == value


@pytest.mark.parametrize("spoilt", [b"x\ny", b"\xff", b"\\ud800", b"\\x", b"\xed\xa0\x80", b"\0"])
def test_a_long_string_is_itself_judged(spoilt: bytes) -> None:
    """JSN-05, JSN-06: what is wrong in a short string is wrong in a long one."""
    assert read_strictly(b'["' + b"x" * 5000 + b'"]') == ["x" * 5000]
    for text in (b'["' + b"x" * 3000 + spoilt + b"x" * 3000 + b'"]', b'["' + b"x" * 3000 + spoilt + b'", 1]'):
        with pytest.raises(NotStrict):
            read_strictly(text)


BOMBS = {
    "values behind a long string": b'["' + b"x" * 600 + b'",' + b"0," * 1_000_000 + b"0]",
    "values behind long backslashes": b'["' + b"\\\\" * 300 + b'",' + b"[]," * 700_000 + b"0]",
    "quotes behind a long string": b'["' + b"x" * 600 + b'"' + b'\\"' * 1_000_000,
    "long names that look alike": b"{ " + b",".join(b'"%600d":0' % i for i in range(3_000)) + b',"a":0,"a":1}',
    "1M keys": b"{" + b",".join(b'"%d":0' % i for i in range(1_000_000)) + b"}",
    "100k keys, read twice": b"{ " + b",".join(b'"%d":0' % i for i in range(MAX_VALUES - 2)) + b',"5":1}',
    "100k arrays": b"[" * 100_000,
    "1,200 objects": b'{"a":' * 1200 + b"1" + b"}" * 1200,
    "a quote that never closes": b'"' + b'\\"' * 1_000_000,
    "a backslash at the end": b'["' + b',\\"[{' * 500_000 + b"\\",
    "digits": b"[" + b"9" * 1_000_000 + b"]",
    "a long fraction": b"[ 0." + b"1" * 1_000_000 + b"e-999]",
    "commas": b"[" + b"," * 2_000_000,
    "quotes": b'"' * 2_000_001,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_time(name: str) -> None:
    """JSN-07: refused within 250 ms per MB of processor time (and 50 ms for small ones), whatever the shape."""
    text = BOMBS[name]
    deadline, spent = 0.25 * len(text) / 1e6 + 0.05, 0.0
    for _ in range(5):  # what else runs on this machine only ever adds to the time
        began = time.process_time()
        with pytest.raises(NotStrict):
            read_strictly(text)
        spent = time.process_time() - began
        if spent < deadline:
            return
    pytest.fail(f"{spent:.3f} s, allowed are {deadline:.3f} s")


@given(VALUES, st.sampled_from([None, 1]), st.booleans())
def test_every_value_in_every_spelling_is_read_as_it_was_written(
    value: Any, indent: int | None, ascii_only: bool
) -> None:
    """What a writer of strict JSON writes is read, to the same value, in compact, spaced and escaped form."""
    assert read_strictly(json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()) == value
    assert read_strictly(orjson.dumps(value)) == value
    assert read_strictly(b"\r\n\t " + orjson.dumps(value) + b"\n") == value


@given(st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode()))
@example(b'{"a":{"b":1,"b":2}}')
@example(b'{"a":1,"a":1} ')
@example(b"[1e999]")
def test_what_is_accepted_has_the_same_reading_for_everybody(text: bytes) -> None:
    """G3: strict, first-wins and last-wins readers agree on every accepted text, types and order included."""
    try:
        value = read_strictly(text)
    except NotStrict:
        return
    assert repr(value) == repr(json.loads(text))
    assert value == json.loads(text, object_pairs_hook=first_wins)


@given(VALUES, VALUES, st.data())
def test_a_doubled_name_is_found_wherever_it_is_put(outer: Any, inner: Any, data: st.DataObject) -> None:
    """JSN-01 as a property: put one name twice into any object of any text, and the text is refused."""
    name = data.draw(st.text(max_size=3))
    twin = f"{json.dumps(name)}:{json.dumps(inner)}"
    again = json.dumps("".join(chr(ord(char)) for char in name), ensure_ascii=False)
    text = f'[{json.dumps(outer)},{{{twin},"other":{json.dumps(outer)},{again}:0}}]'
    with pytest.raises(TwoReadings):
        read_strictly(text.encode())
