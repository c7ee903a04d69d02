"""docs/protocol.md under test: what it says to be served is what the contract knows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from gateway.config import ServerSettings
from gateway.contract.discovery import SERVED_EXTENSIONS
from gateway.contract.headers import METHODS, VERSIONS
from gateway.contract.legacy import OLDER_VERSIONS
from gateway.contract.methods import UNGUARDED

PAGE = (Path(__file__).parents[2] / "docs/protocol.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    table = PAGE[PAGE.index(f"## {heading}\n") :].partition("\n|---")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()[1:]]


def test_the_methods_are_those_of_the_contract() -> None:
    """Each method of the table of methods stands in exactly one row, and no other does."""
    named = [name for method, *_ in rows("Requests") for name in re.findall(r"`([^`]+)`", method)]
    assert sorted(named) == sorted(METHODS)


def test_what_is_not_served_is_not() -> None:
    """No method under "Not served" is one of the contract's; what no configuration can open is said to be closed."""
    named = [(name, cells[1]) for cells in rows("Not served") for name in re.findall(r"`(\w+/?\w+)`", cells[0])]
    assert len(named) > 6
    assert not {name for name, _ in named} & METHODS.keys()
    closed = {name for name, does in named if "can't name" in does}
    assert closed
    assert all(UNGUARDED.fullmatch(name) for name in closed)


@pytest.mark.parametrize("extension", sorted(SERVED_EXTENSIONS))
def test_every_extension_is_named(extension: str) -> None:
    """An extension that the gateway serves has its place on the page."""
    assert f"`{extension}`" in PAGE


def test_the_revisions_are_named() -> None:
    """The served one, those of older clients, and those of older servers."""
    assert all(f"**{version}**" in PAGE for version in VERSIONS)
    clients, servers = [who for who, _ in rows("Other revisions")][:2]
    assert set(re.findall(r"\d{4}-\d\d-\d\d", clients)) == set(OLDER_VERSIONS)
    annotation = ServerSettings.model_fields["legacy_servers"].annotation
    assert set(re.findall(r"\d{4}-\d\d-\d\d", servers)) == set(get_args(annotation)) - {"off"}
