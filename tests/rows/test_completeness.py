"""The house's rule about this package: every way to be refused is provoked here, or a later issue is named for it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import gateway
import tests.rows
from gateway.contract.refusals import Refusal
from tests.rows.table import ROWS
from tests.rows.test_upstream import ANSWERS

LATER: Mapping[Refusal, str] = {}
"""Refusals that nothing in this version raises, and which issue brings them."""


def marked() -> Iterator[tuple[Refusal, str]]:
    """Each refusal that a test says to provoke, and that test. Saying so is checked when it has run (conftest.py)."""
    for module in pkgutil.iter_modules(tests.rows.__path__):
        if module.name.startswith("test_"):
            found = importlib.import_module(f"tests.rows.{module.name}")
            for name, test in inspect.getmembers(found, inspect.isfunction):
                for mark in getattr(test, "pytestmark", []):
                    if mark.name == "provokes":
                        yield from ((refusal, f"{module.name}.{name}") for refusal in mark.args)


PROVOKED: Mapping[Refusal, str] = {
    **{refusal: name for name, (_, refusal) in ANSWERS.items()},
    **dict(marked()),
    **{row.refusal: row.name for rows in ROWS.values() for row in rows},
}
"""Refusal -> one of the rows or tests that provoke it, and prove it on the wire and in the record."""


@pytest.mark.parametrize("refusal", Refusal, ids=lambda refusal: refusal.reason)
def test_every_refusal_is_provoked_or_belongs_to_a_later_issue(refusal: Refusal) -> None:
    """A row of the table of refusals that nobody provokes is a promise that nobody keeps."""
    assert (refusal in PROVOKED) != (refusal in LATER), PROVOKED.get(refusal)


def test_what_is_said_to_come_later_is_not_raised_today() -> None:
    """A refusal leaves the list of later ones with the code that raises it."""
    sources = [file for file in Path(gateway.__path__[0]).rglob("*.py") if file.name != "refusals.py"]
    assert len(sources) > 20
    for file in sources:
        text = file.read_text()
        assert not [refusal.name for refusal in LATER if f"Refusal.{refusal.name}" in text], file


def test_names_of_rows_are_unique() -> None:
    """A row is found by its name."""
    names = [row.name for rows in ROWS.values() for row in rows]
    assert sorted(names) == sorted(set(names))
