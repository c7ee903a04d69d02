"""A call under an idempotency key: what is asked, what stands of it, and what follows from both.

Values and rules only; `keyed.py` keeps the rows. docs/idempotency.md has the table of the states.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Stage(StrEnum):
    """`running -> kept | ended | asked | unknown`; `asked -> running` for the next leg; `running ->` what it was
    before, where provably not one byte left.

    `kept`: the outcome is known and can be told again. `ended`: it is known, and was not kept. `asked`: the server
    wants answers. `unknown`: it was sent, and nobody knows what came of it.
    """

    RUNNING = "running"
    ASKED = "asked"
    KEPT = "kept"
    ENDED = "ended"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call that is asked for under a key.

    `party` is issuer and subject; `scope` is what the key is one of beside them (client, tenant, server, resource,
    environment); `key` the key. `base` is a digest of what is asked for, `whole` of that with the answers and the
    state of this very leg. Two calls that differ in `party` or `scope` never meet.
    """

    party: tuple[str, str]
    scope: tuple[str, ...]
    key: str = field(repr=False)
    base: str
    whole: str
    leg: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call: the record's word for it, how it was answered (`status`, `code`, `text`: the whole
    JSON-RPC response as its caller got it), the digest of what its server said, and by which decision it ran.

    `why` it was not kept, where it was not: then there is no `text`.
    """

    word: str
    decision: str
    status: int = 0
    code: int = 0
    digest: str = ""
    text: bytes = b""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A key that was used already. `same`: for this very request, or while the call goes on for a later leg of it.

    `decision`: that of the call that holds it.
    """

    stage: Stage
    same: bool
    decision: str
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """A key that is this call's now. `before`: the row as it was where the call is a further leg, to be put back."""

    lookup: str
    decision: str
    before: tuple[str, int, bytes] | None = None


class TooManyKeys(Exception):  # noqa: N818 - what was found
    """There is no room for one more. `all_full`: not only for this subject."""

    def __init__(self, why: str, *, all_full: bool) -> None:
        super().__init__(why)
        self.all_full = all_full


def goes_on(stage: Stage, same_base: bool, leg: int, wanted: Wanted) -> bool:
    """Whether a call whose server asked for input is continued by this one: the same call, at its next leg."""
    return stage is Stage.ASKED and same_base and wanted.leg == leg + 1
