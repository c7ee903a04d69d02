"""THE TABLE of what a pack has to show, by class, and how a verdict is derived from what was kept.

A check is data and one function of the pack's bytes: making a pack and verifying one years later derive the same
verdicts. A check whose transcripts are missing fails; a class without checks does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.evidence.seen import Seen, Unproven

CLASSES: Final[Mapping[str, str]] = {
    "wire": "The wire",
    "authorization": "Authorization, policy and approvals",
    "scale": "Proxy and scale",
    "registry": "Registry",
    "audit": "Audit, redaction, health, drain and rollback",
}
"""The five classes, in the order of the report."""

MALFORMED: Final = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What reading a transcript of another form raises: it proves nothing."""


@dataclass(frozen=True, slots=True)
class Check:
    """`judge` gives what came, in a few words, or raises `Unproven` with what came instead.

    `group` is the class, `rule` the requirement's row or the page that promises it, `files` what shows it.
    """

    group: str
    name: str
    rule: str
    asked: str
    expected: str
    files: Sequence[str]
    judge: Callable[[Seen], str]

    @property
    def key(self) -> str:
        """Its name in the manifest."""
        return f"{self.group}/{self.name}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One check's, and what came."""

    check: Check
    holds: bool
    came: str


def judge(checks: Sequence[Check], seen: Seen) -> list[Verdict]:
    """Every check's verdict, from the pack's bytes alone."""
    return [_judge(check, seen) for check in checks]


def _judge(check: Check, seen: Seen) -> Verdict:
    try:
        return Verdict(check, True, check.judge(seen))
    except Unproven as unproven:
        return Verdict(check, False, str(unproven))
    except MALFORMED as error:
        return Verdict(check, False, f"the transcript can't be read ({type(error).__name__}: {error})"[:300])
