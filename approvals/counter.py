"""The people's side of the desk: look, approve, deny, revoke, withdraw, justify, resolve.

Four eyes: whoever asks, by whatever client or in whoever's name, never decides. A ticket that is neither one's own
nor one's to decide answers like one that is not there. A person's act counts only with its record, which is durable
before the commit.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import struct
from dataclasses import replace
from typing import Any

from approvals.acts import ACTS, READ
from approvals.approvers import (
    LOCAL,
    Approver,
    Person,
    agreeing,
    asks_as_well,
    enough,
    is_at_home,
    may_decide,
    read_approver,
)
from approvals.charter import Charter
from approvals.filed import Filed
from approvals.ledger import Ledger
from approvals.showing import is_what_stands, iso, line, show, standing
from approvals.sieve import Sieve
from approvals.sight import Sight
from approvals.ticket import (
    MOVES,
    ActInvalid,
    MovedOn,
    NotAllowed,
    Run,
    Standing,
    State,
    StoreUnavailable,
    Ticket,
    TicketUnknown,
    Transition,
    Unapprovable,
)
from approvals.watching import Moved, Watch, is_no_longer_pending

ITSELF = "ostiary"
MOST_CHARACTERS = 4000
MOST_JUSTIFICATIONS = 10
MOST_PER_PAGE = 100
PAGE_BYTES = 4 * 1024 * 1024
JOURNAL_S = 2.0

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{23}\Z")


class Counter:
    """What people may do with tickets."""

    def __init__(self, charter: Charter) -> None:
        self._store = charter.store
        self._journal = charter.journal
        self._page_url = charter.page_url
        self._issuers = charter.issuers
        self._clock = charter.clock
        self._local_approve = charter.local_approve
        self._watch = Watch(charter.store, charter.clock)

    async def watch(self, ticket_id: str, *, within_s: float, moved: Moved = is_no_longer_pending) -> Standing | None:
        """Wait until a ticket has `moved`, at most `within_s` -> where it stands then; `None`: there is none.

        Hundreds may wait: they share one look at the store. Whether the caller may know of the ticket is not asked
        here. Raises `StoreUnavailable`.
        """
        return await self._watch.wait(ticket_id, moved, within_s)

    def hurry(self) -> None:
        """The worker stops: whoever waits for a ticket is told where it stands, and nobody waits from now on."""
        self._watch.hurry()

    def describe(self, ticket: Ticket | Standing) -> dict[str, Any]:
        """What a refused caller is told: `{id, state, page, expiresAt}`; `{}` for one that was never stored."""
        if not ticket.id:
            return {}
        stands = ticket if isinstance(ticket, Standing) else standing(ticket, self._clock())
        return {
            "id": ticket.id,
            "state": stands.state.value,
            "page": self.page_of(ticket.id),
            "expiresAt": iso(ticket.expires_at),
        }

    def page_of(self, ticket_id: str) -> str:
        """The URL of a ticket's page."""
        return f"{self._page_url}/{ticket_id}"

    async def page(
        self, person: Person, *, state: State | None = None, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Tickets that this person asked for or may decide, newest first, and the cursor of what follows.

        Raises `NotAllowed`, `ActInvalid` (a cursor that this desk did not make), `StoreUnavailable`.
        """
        require(person, READ)
        before = None if cursor is None else _position(cursor)
        now = self._clock()
        limit = max(1, min(limit, MOST_PER_PAGE))
        found, more = await self._store.read(
            lambda ledger: ledger.page(
                person, sieve=Sieve(state), before=before, limit=limit, budget=PAGE_BYTES, now=now
            )
        )  # fmt: skip
        following = _cursor(found[-1].ticket) if more and found else None
        return [self._show(filed, now) for filed in found if _is_for(person, filed)], following

    async def show(self, person: Person, ticket_id: str) -> dict[str, Any]:
        """One ticket as this person may see it. Raises `NotAllowed`, `TicketUnknown`, `StoreUnavailable`."""
        require(person, READ)
        now = self._clock()
        return self._show(await self._store.read(lambda ledger: _look(ledger, person, ticket_id)), now)

    async def queue(
        self, person: Person, sieve: Sieve, *, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Likewise, narrowed, as lines without arguments (`showing.line`). Raises like `page`."""
        require(person, READ)
        before = None if cursor is None else _position(cursor)
        now = self._clock()
        limit = max(1, min(limit, MOST_PER_PAGE))
        found, more = await self._store.read(
            lambda ledger: ledger.lines(person, sieve=sieve, before=before, limit=limit, now=now)
        )
        lines = [
            line(one.ticket, self._agreed(one), now, unknown=_is_unknown(one))
            for one in found
            if _is_for(person, one)
        ]
        return lines, _cursor(found[-1].ticket) if more and found else None

    async def look(self, person: Person, ticket_id: str) -> Sight:
        """One ticket with all that a decision rests on, of one moment: what this person may do about it, and the last
        approval of the same tool. Raises like `show`.
        """
        require(person, READ)
        now = self._clock()

        async def work(ledger: Ledger) -> tuple[Filed, Filed | None]:
            filed = await _look(ledger, person, ticket_id)
            before = await ledger.last_approved(filed.ticket, person)
            return filed, before if before is not None and _is_for(person, before) else None

        filed, before = await self._store.read(work)
        ticket, told = filed.ticket, None
        if before is not None:  # by both masks: what either hides is told by no comparison
            mask = tuple(dict.fromkeys((*ticket.mask, *before.ticket.mask)))
            told = show(replace(before.ticket, mask=mask), self._store.vault, self._page_url, now)
        return Sight(
            ticket=self._show(filed, now),
            now=now,
            is_own=person.party == (ticket.asked.issuer, ticket.asked.subject),
            agreed=self._agreed(filed),
            barred={verb: why for verb in ACTS if (why := self._bars(verb, person, filed, now))},
            before=told,
        )

    def _bars(self, verb: str, person: Person, filed: Filed, now: float) -> str:
        """Why this person can't do this now, by its stable name; `""` where nothing bars it."""
        rule = ACTS[verb]
        try:
            require(person, rule.scope)
            self._permit(verb, person, filed)
            state = standing(filed.ticket, now).state
            if state not in rule.states:
                return state.value
            self._target(verb, person, filed)
        except (NotAllowed, MovedOn) as fault:
            return fault.why
        return ""

    def _agreed(self, filed: Filed) -> int:
        asked = filed.ticket.asked
        return agreeing(
            filed.approvals,
            self._approvers(filed.ticket),
            filed.parties,
            client=(asked.issuer, asked.client),
            local=self._local_approve,
        )

    async def act(
        self, verb: str, person: Person, ticket_id: str, *, comment: str = "", seen: str = ""
    ) -> dict[str, Any]:
        """Approve, deny, revoke, withdraw, justify or resolve -> the ticket as it is then; without the scope to
        read only `{id, state, done}`, of which `done` is the verb.

        `seen` is the digest of what the person was shown; where given, the act fails if that is not what stands.
        Raises `NotAllowed`, `TicketUnknown`, `MovedOn`, `ActInvalid`, `StoreUnavailable`, what the journal raises.
        """
        rule = ACTS[verb]
        require(person, rule.scope)
        if person.local and not rule.local:
            raise NotAllowed("not_locally")
        if len(comment) > MOST_CHARACTERS:
            raise ActInvalid("comment_too_long")
        if verb in ("resolve", "justify") and not comment.strip():
            raise ActInvalid("comment_required")

        # Whoever guesses, or may not, is told so without taking the write lock from anybody.
        self._permit(verb, person, await self._store.read(lambda ledger: _look(ledger, person, ticket_id)))

        shown = await self._store.write(
            lambda ledger: self._move(ledger, verb, person, ticket_id, comment=comment, seen=seen),
            patience_s=JOURNAL_S,
        )
        self._watch.tell(ticket_id)
        return shown

    async def _move(
        self, ledger: Ledger, verb: str, person: Person, ticket_id: str, *, comment: str, seen: str
    ) -> dict[str, Any]:
        """The act itself, of one moment -> what the person is shown of the ticket after it. Raises like `act`."""
        await ledger.hold(ticket_id)
        now = self._clock()
        filed = await _look(ledger, person, ticket_id)
        self._permit(verb, person, filed)
        if seen and not is_what_stands(filed.ticket, seen, self._store.vault, self._page_url, now):
            raise MovedOn("stale")
        state = standing(filed.ticket, now).state
        if state not in ACTS[verb].states:
            raise MovedOn(state.value)
        target = self._target(verb, person, filed)
        if verb == "resolve":
            if not await ledger.resolve(filed, now):
                raise MovedOn("nothing_unknown")
            filed = await _look(ledger, person, ticket_id)
        if not await ledger.decide(filed, verb, person, comment=comment, seen=seen, target=target, now=now):
            raise MovedOn("moved")
        waits = filed.running if filed.running is not None and filed.running.run is Run.WAITING else None
        # A use that waits for an answer which could not be sent any more.
        is_abandoned = waits is not None and await ledger.run(waits.use_id, Run.ABANDONED, now)
        after = await _look(ledger, person, ticket_id)
        await self._record(Transition(after.ticket, verb, person.by, now, comment, seen))
        if waits is not None and is_abandoned:
            told = Transition(after.ticket, "abandoned", ITSELF, now, use_id=waits.use_id, leg=waits.leg)
            await self._record(told)
        if READ in person.scopes or person.local:
            return self._show(after, now)
        return {"id": ticket_id, "state": standing(after.ticket, now).state.value, "done": verb}

    def _permit(self, verb: str, person: Person, filed: Filed) -> None:
        asked = filed.ticket.asked
        requester = person.party == (asked.issuer, asked.subject)
        if verb in ("withdraw", "justify"):
            if not requester:
                raise NotAllowed("not_your_request")
            return
        if verb == "revoke" and requester:
            return
        if asks_as_well(person, filed.parties, (asked.issuer, asked.client)):
            raise NotAllowed("own_request")
        if person.local and asked.issuer == LOCAL:
            raise NotAllowed("own_request")
        if person.local:
            if verb == "approve" and not self._local_approve:
                raise NotAllowed("not_locally")
            return
        if not may_decide(self._approvers(filed.ticket), person):
            raise NotAllowed("not_an_approver")

    def _target(self, verb: str, person: Person, filed: Filed) -> State:
        state = filed.ticket.state
        if verb == "resolve":
            if not _is_unknown(filed):
                raise MovedOn("nothing_unknown")
            return state
        if verb == "justify":
            if sum(one["verb"] == verb for one in filed.ticket.decisions) >= MOST_JUSTIFICATIONS:
                raise MovedOn("said_enough")
            return state
        if verb != "approve":
            return MOVES[state][verb]
        if any(one.party == person.party or (one.local and person.local) for one in filed.approvals):
            raise MovedOn("already_approved")
        agreed = enough(
            [*filed.approvals, person],
            self._approvers(filed.ticket),
            filed.ticket.min_approvers,
            filed.parties,
            client=(filed.ticket.asked.issuer, filed.ticket.asked.client),
            local=self._local_approve,
        )
        return MOVES[state][verb] if agreed else state

    def _approvers(self, ticket: Ticket) -> list[Approver]:
        # An entry whose issuer was taken out of the configuration since then names nobody any more.
        approvers = []
        for entry in ticket.approvers:
            try:
                approvers.append(read_approver(entry, self._issuers))
            except Unapprovable:
                continue
        return approvers

    def _show(self, filed: Filed, now: float) -> dict[str, Any]:
        return show(filed.ticket, self._store.vault, self._page_url, now)

    async def _record(self, transition: Transition) -> None:
        try:
            async with asyncio.timeout(JOURNAL_S):
                await self._journal(transition)
        except TimeoutError as fault:
            raise StoreUnavailable("the transition was not recorded in time") from fault


def require(person: Person, scope: str) -> None:
    """Raises `NotAllowed` for a token without this scope; a local administrator has no token."""
    if not person.local and scope not in person.scopes:
        raise NotAllowed("insufficient_scope", scopes=(scope,))


async def _look(ledger: Ledger, person: Person, ticket_id: str) -> Filed:
    if not _ID.match(ticket_id):
        raise TicketUnknown("malformed")
    if not await ledger.is_readable(person, ticket_id):
        raise TicketUnknown(await _why_not(ledger, person) if await ledger.is_there(ticket_id) else "absent")
    filed = await ledger.whole(ticket_id)
    if filed is None:
        raise TicketUnknown("absent")
    if not _is_for(person, filed):
        raise TicketUnknown(await _why_not(ledger, person))
    return filed


async def _why_not(ledger: Ledger, person: Person) -> str:
    return f"not_theirs: approver_{'elsewhere' if await ledger.is_approver(person) else 'nowhere'}"


def _is_for(person: Person, filed: Filed) -> bool:
    """By the tenant that is sealed: the one that a ticket is found by can be changed by whoever writes the database,
    and tickets of before it was filed have none."""
    return is_at_home(person, filed.ticket.asked.issuer, filed.ticket.asked.tenant)


def _is_unknown(filed: Filed) -> bool:
    return filed.running is not None and filed.running.run is Run.UNKNOWN


def _cursor(ticket: Ticket) -> str:
    return base64.urlsafe_b64encode(struct.pack(">d", ticket.created_at) + ticket.id.encode()).decode().rstrip("=")


def _position(cursor: str) -> tuple[float, str]:
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        at, ticket_id = struct.unpack(">d", raw[:8])[0], raw[8:].decode("ascii")
    except (ValueError, binascii.Error, struct.error):
        raise ActInvalid("cursor_invalid") from None
    if not _ID.match(ticket_id) or not 0 <= at < 1e12:
        raise ActInvalid("cursor_invalid")
    return at, ticket_id
