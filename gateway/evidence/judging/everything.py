"""All checks of a pack, in the order of the report."""

from __future__ import annotations

from typing import Final

from gateway.evidence.checks import CLASSES, Check
from gateway.evidence.judging.calls import CALLS
from gateway.evidence.judging.operation import OPERATION
from gateway.evidence.judging.registry import REGISTRY
from gateway.evidence.judging.scale import SCALE

CHECKS: Final[tuple[Check, ...]] = tuple(
    check for group in CLASSES for check in (*CALLS, *SCALE, *REGISTRY, *OPERATION) if check.group == group
)
