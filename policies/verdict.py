"""What a policy answers, and the reader that refuses everything else.

A verdict is read strictly: an undefined result, a missing or unknown member, a wrong type is `PolicyUnavailable`,
never an allow (requirements G6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class PolicyUnavailable(Exception):  # noqa: N818 - the room's own word; only the house refuses
    """No well-formed verdict could be had: engine down, too slow, undefined, malformed. The text says which."""


class Effect(StrEnum):
    """What the policy wants to happen."""

    ALLOW = "allow"
    APPROVE = "approve"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class ApprovalTerms:
    """What an approval must look like: how many uses, how long (seconds), by whom, by how many."""

    uses: int = 1
    ttl_s: int = 3600
    approvers: tuple[str, ...] = ()
    min_approvers: int = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """One decision. `clear` and `mask` are JSON pointers into the arguments; `visible` holds ids (list phase)."""

    effect: Effect
    scopes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    disclose: bool = False
    approval: ApprovalTerms | None = None
    clear: tuple[str, ...] = ()
    mask: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()
    limits: Mapping[str, Any] | None = None
    revision: str = ""


def read_verdict(answer: Any, revision: str) -> Verdict:
    """The engine's decoded `decision` document -> `Verdict`, or `PolicyUnavailable` saying what is wrong with it."""
    raise NotImplementedError
