"""House rules about quirks: each has a source, and the page says of each what it does."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from pathlib import Path

import pytest

from gateway.contract import quirks
from gateway.contract.quirks import Quirk

PAGE = (Path(__file__).parents[2] / "docs/legacy-clients.md").read_text()
ISSUE = re.compile(r"[\w.-]+/[\w.-]+#[0-9]+")


def documented() -> dict[str, str]:
    """Each quirk's docstring: the text that stands behind it."""
    (body,) = [node.body for node in ast.parse(inspect.getsource(quirks)).body if isinstance(node, ast.ClassDef)]
    found = {}
    for before, after in itertools.pairwise(body):
        if isinstance(before, ast.Assign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            (name,) = before.targets
            assert isinstance(name, ast.Name)
            found[name.id] = str(after.value.value)
    return found


@pytest.mark.parametrize("quirk", Quirk)
def test_a_quirk_has_a_source_and_a_place_on_the_page(quirk: Quirk) -> None:
    """Who needs it is a public report, named where the quirk is made and where it is explained."""
    sources = ISSUE.findall(documented()[quirk.name])
    assert sources
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{quirk}` |")]
    assert set(ISSUE.findall(row)) <= set(sources)
    assert ISSUE.findall(row)


def test_the_page_knows_no_other_quirk() -> None:
    """A quirk that is gone is gone from the page."""
    table = PAGE.partition("## Quirks")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(Quirk)
