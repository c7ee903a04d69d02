"""House rule: each row that is promised is defended by a test that runs with every change."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.house.promises import CASES, LATER, ROWS

TESTS = Path(__file__).parents[1]
NAMED = re.compile(r"\b(FRM|HDR|JSN|RPC|ORG|JWT|AZ|APR|UPS|CCH|AUD|OPS)-(\d\d)((?:, \d\d)*)\b")
IN_A_NAME = re.compile(r"^test_([a-z]+)_(\d\d)_")


@dataclass(frozen=True)
class Defence:
    """A test: where it is, the rows that it says to defend, and whether it runs with every change."""

    place: str
    rows: frozenset[str]
    always: bool


def rows_of(name: str, doc: str) -> frozenset[str]:
    """The rows that a test names: `UPS-03, UPS-08: ...` or `UPS-03, 08: ...`, or `test_jwt_02_...`."""
    found = {
        f"{kind}-{number}"
        for kind, first, more in NAMED.findall(doc)
        for number in (first, *more.replace(",", "").split())
    }
    return frozenset(found | {f"{kind.upper()}-{number}" for kind, number in IN_A_NAME.findall(name)})


def defences(place: str, source: str) -> Iterator[Defence]:
    """The tests of a module. One that is marked as a whole, alone or with its module, is `soak`'s or nobody's."""
    tree = ast.parse(source)
    module = {
        ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    }
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            marks = [re.sub(r"\(.*", "", ast.unparse(mark), flags=re.DOTALL) for mark in node.decorator_list]
            never = [mark for mark in marks if mark.rpartition(".")[2] in ("soak", "skip")]
            rows = rows_of(node.name, ast.get_docstring(node) or "")
            yield Defence(f"{place}::{node.name}", rows, not never and not re.search("soak|skip", "".join(module)))


@cache
def all_defences() -> tuple[Defence, ...]:
    """Every test of the project."""
    files = sorted(TESTS.rglob("test_*.py"))
    return tuple(one for file in files for one in defences(file.relative_to(TESTS).as_posix(), file.read_text()))


EXAMPLE = """
@pytest.mark.parametrize("count", [1, pytest.param(9, marks=pytest.mark.soak)])
def test_small_and_large(count): "OPS-01, 02: here."
@pytest.mark.soak
def test_large(): "OPS-03: elsewhere."
def test_jwt_02_by_name(): "No row. XOPS-04, OPS-055."
def helper(): "OPS-05: no test."
"""


def test_the_search_finds_what_it_looks_for() -> None:
    """Rows are read from docstrings and names; what only `make soak` runs does not count."""
    assert [(one.place, sorted(one.rows), one.always) for one in defences("x", EXAMPLE)] == [
        ("x::test_small_and_large", ["OPS-01", "OPS-02"], True),
        ("x::test_large", ["OPS-03"], False),
        ("x::test_jwt_02_by_name", ["JWT-02"], True),
    ]
    assert not any(one.always for one in defences("x", EXAMPLE + "pytestmark = pytest.mark.soak\n"))
    assert len(all_defences()) > 1000


@pytest.mark.parametrize("row", ROWS)
def test_each_row_is_defended(row: str) -> None:
    """A row that no test names is a promise that nobody keeps."""
    assert [one.place for one in all_defences() if row in one.rows and one.always]


def test_tests_name_rows_that_there_are() -> None:
    """A misspelt row would be defended by nobody; one of a later issue leaves that list with its first test."""
    named: defaultdict[str, list[str]] = defaultdict(list)
    for one in all_defences():
        for row in one.rows:
            named[row].append(one.place)
    assert {row: places for row, places in named.items() if row not in ROWS} == {}
    assert not ROWS.keys() & LATER.keys()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[1])
def test_what_went_wrong_elsewhere_is_defended(case: tuple[str, str]) -> None:
    """Each report about another gateway names tests that are there, and that run with every change."""
    running = {one.place for one in all_defences() if one.always}
    assert CASES[case]
    assert [place for place in CASES[case] if place not in running] == []
