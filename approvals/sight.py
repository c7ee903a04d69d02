"""All that a person's decision about one ticket rests on, read in one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Sight:
    """`ticket` as `showing.show` has it at `now` (seconds since the epoch), for one person.

    `agreed`: approvals that count so far. `barred`: verb -> why this person can't do it now (a verb that is not in it
    can be done). `before` is the last approval of this tool, target and environment that they may read, masked by
    both tickets' masks; it belongs to history, as `earlier` does, and is not part of the ticket's digest.
    """

    ticket: Mapping[str, Any]
    now: float
    is_own: bool
    agreed: int
    barred: Mapping[str, str]
    before: Mapping[str, Any] | None
