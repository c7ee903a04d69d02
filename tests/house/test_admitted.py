"""House rule: `Admitted` is made in one place, so that the type checker proves that no room was skipped."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(path for package in ("gateway", "policies", "approvals") for path in (ROOT / package).rglob("*.py"))


def makers(source: str) -> list[int]:
    """The lines that make, copy or take apart the class `Admitted`: every use of the name but as an annotation."""
    tree = ast.parse(source)
    annotated = {
        id(inner)
        for node in ast.walk(tree)
        for hint in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if hint is not None
        for inner in ast.walk(hint)
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if id(node) not in annotated
        and (
            (isinstance(node, ast.Name) and node.id == "Admitted")
            or (isinstance(node, ast.Attribute) and node.attr == "Admitted")
            or (isinstance(node, ast.alias) and node.name == "Admitted" and node.asname is not None)
        )
    ]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("Admitted(1)", 1),
        ("make = Admitted", 1),
        ("passage.Admitted(1)", 1),
        ("object.__new__(Admitted)", 1),
        ("from gateway.contract.passage import Admitted as A", 1),
        ("from x import Admitted\ndef f(a: Admitted, b: list[Admitted]) -> Admitted | None: ...\nc: Admitted", 0),
    ],
)
def test_the_scan_finds_what_it_looks_for(source: str, found: int) -> None:
    """The rule's own twin: each way of getting at the class is seen, and annotations are not."""
    assert len(makers(source)) == found


def test_only_admit_makes_admitted() -> None:
    """`gateway/contract/admission.py` has the one call; no other module does anything with the class."""
    found = {path.relative_to(ROOT).as_posix(): lines for path in MODULES if (lines := makers(path.read_text()))}
    assert list(found) == ["gateway/contract/admission.py"]
    assert len(found["gateway/contract/admission.py"]) == 1


def test_admitted_is_never_copied_with_changes() -> None:
    """`dataclasses.replace` makes a second one of whatever it is given: nobody gives it an admitted call."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", getattr(node.func, "attr", "")) == "replace"
                and node.args
            ):
                assert "admitted" not in ast.unparse(node.args[0]).lower(), path
