"""What a desk goes by, from its beginning to its end: handed down to each of its rooms as one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from approvals.store import Store
from approvals.ticket import Transition

Journal = Callable[[Transition], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Charter:
    """`Desk` says what each of these is."""

    store: Store
    journal: Journal
    page_url: str
    issuers: Sequence[str]
    owner: str
    clock: Callable[[], float]
    lease_s: float
    tickets_per_hour: int
    local_approve: bool
