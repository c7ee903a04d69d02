"""The checks of the class `registry`."""

from __future__ import annotations

from typing import Final

from gateway.evidence.checks import Check
from gateway.evidence.seen import Seen, Unproven


def _missing(seen: Seen) -> str:
    seen.document("registry/drift.json")
    raise Unproven("this version can't judge it")


REGISTRY: Final = (
    Check(
        "registry",
        "drift",
        "docs/evidence.md",
        "The published record against the live server",
        "no difference",
        ("registry/drift.json",),
        _missing,
    ),
)
