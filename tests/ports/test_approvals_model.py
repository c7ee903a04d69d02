"""The desk against a model of a dozen lines, over random histories of calls, people, time and crashes."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from approvals.approvers import Person
from approvals.store import Store
from approvals.ticket import (
    MOVES,
    Claimed,
    Held,
    MovedOn,
    NotAllowed,
    NotHeld,
    Origin,
    Run,
    State,
    TicketUnknown,
)
from tests.support.approvals import ALICE, BOB, CAROL, KEY, TERMS, Bench, effect, person

TWICE_AND_ONCE = [replace(TERMS, uses=uses, ttl_s=1000) for uses in (2, 1)]
"""The terms of either effect: the end of an approval's last use is another thing than that of one of several."""
LEASE = 300.0
ENDS = {
    Run.CLAIMED: {Run.FAILED, Run.UNKNOWN},
    Run.SENT: {Run.WAITING, Run.EXECUTED, Run.FAILED, Run.UNKNOWN},
    Run.UNKNOWN: {Run.EXECUTED, Run.FAILED},
}
"""What its holder may say of a use, in the model's own words: a table of the desk's would agree with itself."""

PEOPLE = [BOB, CAROL, replace(ALICE, groups=frozenset({"payers"})), person("dave")]


@dataclass
class Model:
    """What a ticket is, as the design says it."""

    id: str
    effect: int
    expires_at: float
    left: int
    state: State = State.PENDING
    use: str = ""
    run: Run | None = None
    lease: float = 0.0
    leg: int = 0
    executed: int = 0
    moves: list[State] = field(default_factory=list)

    def to(self, state: State) -> None:
        assert state in MOVES[self.state].values()
        self.state = state

    def answerable(self, now: float) -> bool:
        return self.state is State.APPROVED and self.expires_at > now

    def end(self, run: Run) -> None:
        self.run = run
        if run is not Run.UNKNOWN:
            self.use = ""
        if self.state is State.APPROVED and self.left == 0:
            self.to(State.USED)


class Desks(RuleBasedStateMachine):
    """Two effects, one desk, everybody at the counter."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        store = Store(f"sqlite:///{Path(self.folder.name) / 'a.db'}", [KEY])
        self.runner.run(store.start())
        self.it = Bench(store, lease_s=LEASE, tickets_per_hour=10**6)
        self.tickets: list[Model] = []

    def teardown(self) -> None:
        self.runner.run(self.it.store.close())
        self.runner.close()
        self.folder.cleanup()

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    @property
    def now(self) -> float:
        return self.it.clock.now

    def expected(self, number: int) -> tuple[str, Model | None]:
        """What a call of this effect meets."""
        mine = [one for one in self.tickets if one.effect == number]
        for one in mine:
            if one.use and one.run is Run.WAITING:
                if one.answerable(self.now):
                    return "waiting", one
                one.end(Run.ABANDONED)
            if one.use:
                if one.run is not Run.UNKNOWN and one.lease <= self.now:
                    one.end(Run.UNKNOWN)
                return ("unknown" if one.run is Run.UNKNOWN else "in_flight"), one
        for one in mine:
            if one.state is State.DENIED and one.expires_at > self.now:
                return "denied", one
        for one in mine:
            if one.state in (State.PENDING, State.APPROVED) and one.expires_at <= self.now:
                one.to(State.EXPIRED)
        for one in mine:
            if one.state is State.PENDING:
                return "pending", one
            if one.state is State.APPROVED:
                return "claimed", one
        return "opened", None

    @rule(number=st.integers(0, 1))
    def call(self, number: int) -> None:
        """A call claims, attaches or opens exactly as the model says."""
        why, one = self.expected(number)
        settled = self.run(self.it.settle(effect({"number": number}), terms=TWICE_AND_ONCE[number]))
        if why == "claimed":
            assert isinstance(settled, Claimed)
            assert one is not None
            assert settled.ticket_id == one.id
            one.left -= 1
            one.use, one.run, one.lease, one.leg = settled.use_id, Run.CLAIMED, self.now + LEASE, 0
            return
        assert isinstance(settled, Held)
        if one is None:
            assert settled.why == "pending"
            assert settled.ticket.id not in {known.id for known in self.tickets}
            self.tickets.append(
                Model(settled.ticket.id, number, self.now + TWICE_AND_ONCE[number].ttl_s, TWICE_AND_ONCE[number].uses)
            )
        else:
            assert (settled.why, settled.ticket.id) == (why, one.id)

    def stands(self, one: Model) -> State:
        waits = one.state is State.PENDING or (one.state is State.APPROVED and one.left > 0)
        return State.EXPIRED if waits and one.expires_at <= self.now else one.state

    def attempt(self, verb: str, who: Person, one: Model) -> bool:
        """Whether the act was done; a stranger is not told that there is a ticket."""
        try:
            self.run(self.it.desk.act(verb, who, one.id, comment="c"))
        except TicketUnknown:
            return False
        except (NotAllowed, MovedOn):
            assert who.subject != "dave"
            return False
        return True

    @precondition(lambda self: self.tickets)
    @rule(data=st.data(), verb=st.sampled_from(["approve", "approve", "deny", "revoke", "withdraw", "resolve"]))
    def decide(self, data: st.DataObject, verb: str) -> None:
        """An act counts only from a state that admits it, by somebody who may."""
        one = data.draw(st.sampled_from(self.tickets))
        who = data.draw(st.sampled_from(PEOPLE))
        requester, approver = who.subject == "alice", "payers" in who.groups
        allowed = {"withdraw": requester, "revoke": requester or approver}.get(verb, approver and not requester)
        state = self.stands(one)
        admitted = one.run is Run.UNKNOWN and bool(one.use) if verb == "resolve" else verb in MOVES.get(state, {})
        done = self.attempt(verb, who, one)
        assert done is (allowed and admitted)
        if not done:
            return
        if verb == "resolve":
            one.use, one.run = "", None
        else:
            one.to(MOVES[state][verb])
            if verb in ("revoke", "withdraw") and one.use and one.run is Run.WAITING:
                one.end(Run.ABANDONED)

    @precondition(lambda self: any(one.use for one in self.tickets))
    @rule(
        data=st.data(),
        step=st.sampled_from(["sent", "sent", "waiting", "executed", "failed", "unknown", "restore", "crash"]),
    )
    def proceed(self, data: st.DataObject, step: str) -> None:
        """A use goes its way, comes back, or is left behind by a worker that died."""
        one = data.draw(st.sampled_from([one for one in self.tickets if one.use]))
        use = Claimed(one.id, one.use, one.leg)
        desk = self.it.desk
        if step == "sent":
            self.send(one, use, may=one.run is Run.CLAIMED and one.answerable(self.now))
        elif step == "restore":
            self.run(desk.restore(use))
            if one.run in (Run.CLAIMED, Run.SENT) and one.leg:
                one.run = Run.WAITING  # the same leg can be answered once more
            elif one.run in (Run.CLAIMED, Run.SENT):
                one.left += 1
                one.use, one.run = "", Run.FAILED
        elif step == "crash":
            self.it = Bench(self.it.store, clock=self.it.clock, lease_s=LEASE, tickets_per_hour=10**6)
            self.run(self.it.desk.reconcile("ostiary"))
            for left in self.tickets:
                if left.use and left.run in (Run.CLAIMED, Run.SENT):
                    left.end(Run.UNKNOWN)
        else:
            target = Run(step)
            self.run(desk.finish(use, target))
            if one.run is None or target not in ENDS.get(one.run, ()):
                return
            if target is Run.WAITING:
                one.run, one.leg = Run.WAITING, one.leg + 1
                return
            one.executed += target is Run.EXECUTED
            one.end(target)

    @precondition(
        lambda self: any(one.use and one.leg and one.run in {Run.CLAIMED, Run.SENT} for one in self.tickets)
    )
    @rule(data=st.data(), step=st.sampled_from(["sent", "waiting", "executed", "failed", "unknown", "restore"]))
    def speak_late(self, data: st.DataObject, step: str) -> None:
        """Whoever held an earlier leg of a use that runs moves nothing any more."""
        ran = [one for one in self.tickets if one.use and one.leg and one.run in {Run.CLAIMED, Run.SENT}]
        one = data.draw(st.sampled_from(ran))
        late = Claimed(one.id, one.use, data.draw(st.integers(0, one.leg - 1)))
        if step == "restore":
            self.run(self.it.desk.restore(late))
        elif step == "sent":
            with pytest.raises(NotHeld):
                self.run(self.it.desk.sent(late))
        else:
            self.run(self.it.desk.finish(late, Run(step)))

    @precondition(lambda self: any(one.use and one.run in {Run.CLAIMED, Run.WAITING} for one in self.tickets))
    @rule(data=st.data(), meanwhile=st.sampled_from(["revoked", "out of time", "gone on", "taken", ""]))
    def be_late(self, data: st.DataObject, meanwhile: str) -> None:
        """Between a look and what follows from it the world moves: only what still holds is sent or continued."""
        waits = [one for one in self.tickets if one.use and one.run in {Run.CLAIMED, Run.WAITING}]
        one = data.draw(st.sampled_from(waits))
        use, before = Claimed(one.id, one.use, one.leg), one.run
        seen = self.run(self.it.store.read(lambda ledger: ledger.holding(use.use_id, decided=True)))
        if meanwhile == "revoked" and self.stands(one) is State.APPROVED and self.attempt("revoke", BOB, one):
            one.to(State.REVOKED)
            if one.run is Run.WAITING:
                one.end(Run.ABANDONED)
        elif meanwhile == "out of time":
            self.it.clock.now = max(self.now, one.expires_at)
        elif meanwhile and before is Run.WAITING and one.answerable(self.now):
            self.go_on_with(one, use)
            if meanwhile == "gone on":
                self.ask(one, use)
        may = one.answerable(self.now) and (one.use, one.run, one.leg) == (use.use_id, before, use.leg)
        if before is Run.CLAIMED:
            self.send(one, use, may=may)
            return
        until = self.now + LEASE
        taken = self.run(
            self.it.store.write(lambda ledger: ledger.go_on(seen, use, "ostiary", now=self.now, lease_until=until))
        )
        assert taken is may
        if taken:
            one.run, one.lease = Run.CLAIMED, until

    def send(self, one: Model, use: Claimed, *, may: bool) -> None:
        """A revocation, or the end of the ticket's time, stops a call up to this moment."""
        try:
            self.run(self.it.desk.sent(use))
        except NotHeld:
            assert not may
        else:
            assert may
            one.run = Run.SENT

    def ask(self, one: Model, use: Claimed) -> None:
        """The call is sent, and its server asks for input."""
        self.run(self.it.desk.sent(use))
        self.run(self.it.desk.finish(use, Run.WAITING))
        one.run, one.leg = Run.WAITING, one.leg + 1

    def go_on_with(self, one: Model, use: Claimed) -> None:
        """A leg that waits goes on."""
        asked = effect({"number": one.effect})
        assert isinstance(
            self.run(self.it.desk.go_on(asked, Origin(use, TWICE_AND_ONCE[one.effect]), claims={})), Claimed
        )
        one.run, one.lease = Run.CLAIMED, self.now + LEASE

    @initialize(number=st.integers(0, 1), asked=st.booleans())
    def begin(self, number: int, asked: bool) -> None:
        """One call has come far already: short histories meet its end as well."""
        self.get_on(number, asked)

    @rule(number=st.integers(0, 1), asked=st.booleans())
    def get_on(self, number: int, asked: bool) -> None:
        """The way that most calls go, so that histories get far: held, approved, claimed, and asked for input."""
        self.call(number)
        for one in self.tickets:
            if one.effect == number and self.stands(one) is State.PENDING and self.attempt("approve", BOB, one):
                one.to(State.APPROVED)
                self.call(number)
            if one.effect == number and one.run is Run.CLAIMED and one.use and asked and one.answerable(self.now):
                self.ask(one, Claimed(one.id, one.use, one.leg))

    @precondition(lambda self: any(one.use and one.leg for one in self.tickets))
    @rule(data=st.data(), back=st.sampled_from([0, 0, 1]), tool=st.sampled_from(["tool-1", "tool-1", "tool-2"]))
    def go_on(self, data: st.DataObject, back: int, tool: str) -> None:
        """A leg goes on once, while its ticket is approved, in time and for the same tool; an earlier one never."""
        one = data.draw(st.sampled_from([one for one in self.tickets if one.use and one.leg]))
        asked = replace(effect({"number": one.effect}), tool_digest=tool)
        origin = Origin(Claimed(one.id, one.use, one.leg - back), TWICE_AND_ONCE[one.effect])
        settled = self.run(self.it.desk.go_on(asked, origin, claims={}))
        if isinstance(settled, Claimed):
            assert (back, one.run, tool) == (0, Run.WAITING, "tool-1")
            assert one.answerable(self.now)
            one.run, one.lease = Run.CLAIMED, self.now + LEASE
            return
        if back and one.run is not Run.UNKNOWN:
            assert settled.why in ("continued", "revoked", "expired")
        elif one.run is Run.UNKNOWN:
            assert settled.why == "unknown"
        elif one.run is not Run.WAITING:
            lapsed = one.lease <= self.now
            assert settled.why == ("unknown" if lapsed else "in_flight")
            if lapsed:
                one.end(Run.UNKNOWN)
        elif one.state is not State.APPROVED or one.expires_at <= self.now:
            assert settled.why == (one.state.value if one.state is not State.APPROVED else "expired")
        else:
            assert (settled.why, tool) == ("tool_changed", "tool-2")
            one.to(State.REVOKED)
            one.end(Run.ABANDONED)

    @rule(seconds=st.sampled_from([1, 299, 301, 1001]))
    def wait(self, seconds: int) -> None:
        """Time passes."""
        self.it.clock.now += seconds

    @rule()
    def sweep(self) -> None:
        """What is overdue is written down; nothing else changes."""
        self.run(self.it.desk.sweep())
        for one in self.tickets:
            if one.use and one.run in (Run.CLAIMED, Run.SENT) and one.lease <= self.now:
                one.end(Run.UNKNOWN)
            if one.use and one.run is Run.WAITING and not one.answerable(self.now):
                one.end(Run.ABANDONED)
            if self.stands(one) is State.EXPIRED and one.state is not State.EXPIRED:
                one.to(State.EXPIRED)

    @invariant()
    def agrees(self) -> None:
        """State and uses left are the model's, and no ticket executed more often than it was approved for."""
        shown, _ = self.run(self.it.desk.page(BOB, limit=100))
        found = {ticket["id"]: (ticket["state"], ticket["uses_left"]) for ticket in shown}
        assert found == {one.id: (self.stands(one), one.left) for one in self.tickets}
        for ticket in shown:
            executed = [run for run in ticket["runs"] if run["state"] == "executed"]
            assert len(executed) <= ticket["uses"] - ticket["uses_left"] <= ticket["uses"]


def explore(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        Desks,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_any_history_agrees_with_the_model() -> None:
    """Whatever people, calls, time and crashes do in whatever order: the desk does what the design says."""
    explore(12, 20)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_long_histories_agree_with_the_model() -> None:
    """The same, at length."""
    explore(300, 60)
