"""What follows for a call from the tickets of its effect: pure rules, no I/O.

An approval counts only as far as today's terms and today's tool would grant it; what is in flight or unknown, or was
denied, weighs more than any approval (design.md, "What an approval is").
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from approvals.approvers import Approver, Party, enough, read_approver
from approvals.filed import Filed, Open
from approvals.showing import standing
from approvals.ticket import Asked, Claimed, Run, State, Terms, Unapprovable


@dataclass(frozen=True, slots=True)
class Today:
    """What is asked now, under which terms, by whom (all parties), at what time; `local`: see `enough`."""

    asked: Asked
    terms: Terms
    mask: tuple[str, ...]
    approvers: tuple[Approver, ...]
    parties: tuple[Party, ...]
    issuers: Sequence[str]
    local: bool
    now: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing runs; `why` as in `Held`."""

    why: str
    filed: Filed


@dataclass(frozen=True, slots=True)
class Claim:
    """This ticket has a use for the call."""

    filed: Filed


@dataclass(frozen=True, slots=True)
class Lapse:
    """This ticket's use lost its holder, or the time in which it could be answered: it ends as `run` first."""

    filed: Filed
    use_id: str
    run: Run = Run.UNKNOWN


@dataclass(frozen=True, slots=True)
class Replace:
    """A new ticket is to be opened, after each of these was closed: (ticket, verb, why)."""

    closing: tuple[tuple[Filed, str, str], ...]


Step = Hold | Claim | Lapse | Replace


def weigh(found: Sequence[Filed], today: Today) -> Step:
    """The tickets of one effect, newest first -> the one step that follows."""
    for filed in found:
        if filed.running is None:
            continue
        return weigh_running(filed, filed.running, today.now)
    for filed in found:
        if filed.ticket.state is State.DENIED and filed.ticket.expires_at > today.now:
            return Hold("denied", filed)
    closing = []
    for filed in found:
        state = standing(filed.ticket, today.now).state
        if state is State.EXPIRED:
            closing.append((filed, "expire", ""))
        elif state is State.PENDING:
            why = no_longer_asked(filed, today)
            if not why:
                return Hold("pending", filed)
            closing.append((filed, "expire", why))
        elif state is State.APPROVED:
            why = no_longer_granted(filed, today)
            if not why:
                return Claim(filed)
            closing.append((filed, "revoke", why))
    return Replace(tuple(closing))


def weigh_running(filed: Filed, running: Open, now: float) -> Hold | Lapse:
    """What a ticket's use means for whoever would use it too."""
    if running.run is Run.UNKNOWN:
        return Hold("unknown", filed)
    if running.run is Run.WAITING:
        if filed.ticket.state is State.APPROVED and filed.ticket.expires_at > now:
            return Hold("waiting", filed)
        return Lapse(filed, running.use_id, Run.ABANDONED)
    return Hold("in_flight", filed) if running.lease_until > now else Lapse(filed, running.use_id)


def weigh_leg(filed: Filed, use: Claimed, today: Today | None, now: float) -> Hold | Claim | Lapse | Replace:
    """The ticket of a use that was asked for input -> whether its leg `use.leg` can go on (`Claim`) now.

    `Replace` closes what no longer holds (`today` is `None` where nobody could approve the call any more); a leg
    never opens a ticket of its own.
    """
    running = filed.running
    if running is None or running.use_id != use.use_id or running.leg != use.leg:
        if running is not None and running.use_id == use.use_id and running.run is Run.UNKNOWN:
            return Hold("unknown", filed)
        ended = filed.ticket.state in (State.REVOKED, State.EXPIRED)
        return Hold(filed.ticket.state.value if ended else "continued", filed)
    if running.run is not Run.WAITING:
        return weigh_running(filed, running, now)
    if filed.ticket.state is not State.APPROVED:
        return Hold(filed.ticket.state.value, filed)
    if filed.ticket.expires_at <= now:
        return Hold("expired", filed)
    why = "approvers_changed" if today is None else no_longer_granted(filed, today, running=1)
    return Replace(((filed, "revoke", why),)) if why else Claim(filed)


def no_longer_asked(filed: Filed, today: Today) -> str:
    """Why a pending ticket is not what would be asked for today, or `""`: its approval would be worth nothing."""
    ticket, terms = filed.ticket, today.terms
    if ticket.asked.tool_digest != today.asked.tool_digest:
        return "tool_changed"
    same = ticket.min_approvers == terms.min_approvers and ticket.uses == terms.uses
    if (
        not same
        or set(ticket.mask) != set(today.mask)
        or entries_in(ticket.approvers, today.issuers) != {approver.entry for approver in today.approvers}
    ):
        return "terms_changed"
    return ""


def no_longer_granted(filed: Filed, today: Today, *, running: int = 0) -> str:
    """Why an approved ticket would not be approved today, or `""`. `running`: uses that count as not consumed yet."""
    ticket, terms = filed.ticket, today.terms
    if ticket.asked.tool_digest != today.asked.tool_digest:
        return "tool_changed"
    parties: Collection[Party] = {*filed.parties, *today.parties}
    client = (today.asked.issuer, today.asked.client)
    if not enough(filed.approvals, today.approvers, terms.min_approvers, parties, client=client, local=today.local):
        return "approvers_changed"
    if ticket.uses - ticket.uses_left - running >= terms.uses or ticket.created_at + terms.ttl_s <= today.now:
        return "terms_tightened"
    return ""


def entries_in(approvers: Sequence[str], issuers: Sequence[str]) -> set[str]:
    """The entries in their one spelling; those that no longer can be read stand for themselves and match nobody."""
    entries = set()
    for entry in approvers:
        try:
            entries.add(read_approver(entry, issuers).entry)
        except Unapprovable:
            entries.add(entry)
    return entries
