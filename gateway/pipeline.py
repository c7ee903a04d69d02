"""The corridor: the order of the rooms, and nothing else.

Each room adds one fact to the `Passage`; any room may refuse; nothing is forwarded before its decision is durable.
`walk()` is everything before the forwarding, and so also the decision door of `ostiary decide`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from approvals.desk import Desk
from approvals.ticket import Held
from gateway.audit.port import AuditSink, AuditUnavailable
from gateway.budgets import Budgets
from gateway.catalog import Catalog
from gateway.challenge import Challenges
from gateway.contract.admission import admit, policy_input
from gateway.contract.envelope import parse_envelope
from gateway.contract.folding import kind_of
from gateway.contract.headers import match_headers
from gateway.contract.identity import Implications, require_scopes
from gateway.contract.judgement import check_call, check_reach, check_tasks, check_verdict
from gateway.contract.legacy import Answered, mirror_params
from gateway.contract.passage import (
    NO_TASKS,
    Admitted,
    Arrival,
    Call,
    Identity,
    OpenedState,
    OpenedTasks,
    Passage,
    Received,
    Reply,
    Server,
    Tool,
)
from gateway.contract.record import Redactor, decision_record, refusal_record
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.retelling import reply_of
from gateway.contract.tracing import trace_context
from gateway.decision_ids import fresh_ids
from gateway.delivery import Delivery, Observer
from gateway.eras import Eras, in_served_words
from gateway.errands import Errands
from gateway.grants import Grants
from gateway.handles import Handles
from gateway.holding import Holding, check_waits, take_up
from gateway.legs import Needed, find_needed, is_approved, open_leg
from gateway.repeats import Repeats, Replayed
from gateway.runs import waited_for
from gateway.seals import Seals
from gateway.signals.traces import Traces
from gateway.tokens import Tokens
from gateway.turnstile import Turnstile
from gateway.upstream.port import UpstreamFault
from policies.port import Policy
from policies.shadow import DECISION
from policies.verdict import Effect, Verdict

DEFINITION_FRESH_S = 5.0
"""How old a tool's definition may be where a call is held for a person, run by an approval, or refused."""


@dataclass(slots=True)
class Corridor:
    """All rooms, in the order in which a request walks them. One per worker; no state but the count in flight."""

    tokens: Tokens
    catalog: Catalog
    policy: Policy
    desk: Desk
    challenges: Challenges
    holding: Holding
    errands: Errands
    seals: Seals
    handles: Handles
    eras: Eras
    sink: AuditSink
    delivery: Delivery
    redactor: Redactor
    implications: Implications
    observer: Observer
    traces: Traces | None = None
    grants: Grants = field(default_factory=Grants)
    budgets: Budgets = field(default_factory=Budgets)
    turnstile: Turnstile = field(default_factory=Turnstile)
    repeats: Repeats = field(default_factory=Repeats)
    volatile_meta: frozenset[str] = frozenset()
    concurrent: int = 1000
    clock: Callable[[], float] = time.time
    ids: Iterator[str] = field(default_factory=fresh_ids)
    in_flight: int = 0

    async def serve(self, arrival: Arrival, passage: Passage | None = None) -> Reply:
        """One request from the door to a reply. Never raises but for cancellation (the client has gone)."""
        passage = passage or self.open_passage(arrival.server)
        try:
            try:
                admitted = await self.walk(arrival, passage)
            except Replayed as replayed:
                self.uncount(passage)
                await self.commit(passage)
                return await self.delivery.replay(passage, replayed.outcome)
            await self.commit(passage)
            return await self.delivery.deliver(passage, admitted)
        except Answered as answered:
            return await self.delivery.answer(passage, answered)
        except Exception as error:  # noqa: BLE001 - the house's one broad except: a defect refuses, it never admits
            return await self.turn_away(passage, self.delivery.refusal_of(passage, error))
        except BaseException as gone:
            self.delivery.abandon(passage)
            if not passage.committed:
                self.uncount(passage)
                self.write_off(passage, Refused(Refusal.CLIENT_GONE, str(gone)))
            raise
        finally:
            self.in_flight -= passage.inside
            self.delivery.expect_no_more(passage)
            if passage.turn is not None:
                passage.turn()

    def open_passage(self, server: Server | None) -> Passage:
        """A new request's empty record, under an id that its reply, its records and `explain` share."""
        DECISION.set(decision_id := next(self.ids))
        return Passage(decision_id, self.clock(), time.perf_counter(), server=server)

    async def walk(self, arrival: Arrival, passage: Passage) -> Admitted:
        """Every room before the forwarding, in order. Raises `Refused` or a leaf room's own word."""
        left, now = passage.left, time.perf_counter
        passage.received = received = arrival.receive()
        server = received.server
        passage.identity = identity = await self.let_in(received, passage)
        passage.turn = self.turnstile.enter(identity)
        left["identify"] = now()
        passage.envelope = envelope = parse_envelope(await arrival.body())
        if server.legacy_clients or server.quirks:
            passage.heard = heard = self.eras.hear(received, identity, envelope, self.clock())
            received, passage.envelope = in_served_words(heard, received, envelope)
        passage.call = call = self.repeats.read(passage, match_headers(received, passage.envelope))
        self.delivery.streams.check(call, identity)
        passage.trace = trace_context(received, call)
        if self.traces is not None:
            passage.span = self.traces.begin(passage.trace)
        passage.tasks = tasks = self.handles.open_all(call, identity, server, self.clock())
        if tasks.found:
            passage.tasks = tasks = await self.errands.recall(tasks)
        passage.opened_state, not_accepted = opened, _ = open_leg(self.seals, call, identity, server, self.clock())
        left["read"] = now()
        if opened is not None:
            identity, call, opened = await self.hold(passage, received, identity, call, opened)
        self.delivery.expect(passage, call)
        passage.tool, passage.verdict = tool, verdict = await self.judge(server, identity, call, tasks, opened)
        left["judge"] = now()
        require_scopes(identity, verdict.scopes, self.implications)
        check_verdict(call, verdict)
        check_tasks(tasks)
        if tasks.found:
            await self.errands.attend(passage, received, self)
        if passage.spoken is not None:
            passage.call = call = mirror_params(call, tool)
        check_call(call, tool)
        await self.catalog.hold(server, call)
        if not_accepted is not None:
            raise not_accepted
        await self.repeats.look(passage)
        passage.taken = await self.budgets.take(verdict.limits, server, identity, call)
        if verdict.effect is Effect.APPROVE or is_approved(opened):
            asked = (server, identity, call, tool, verdict, opened)
            needed = await find_needed(self.policy, *asked, self.volatile_meta, self.grants)
            require_scopes(identity, needed.scopes, self.implications)
            await self.settle(passage, needed)
        if passage.key:
            await self.repeats.take(passage, self.delivery.spawn)
        left["settle"] = now()
        passage.admitted = admitted = admit(passage, volatile_meta=self.volatile_meta)
        return admitted

    async def let_in(self, received: Received, passage: Passage) -> Identity:
        """Who calls, and its place. That is taken last: a token can be sent by anybody, and its check takes none.

        Raises `Refused`.
        """
        self.check_room()
        identity = await self.identify(received)
        self.check_room()
        self.in_flight += 1
        passage.inside = True
        return identity

    def check_room(self) -> None:
        """Raises `Refused` where every place is taken."""
        if self.in_flight + self.delivery.streams.calls >= self.concurrent:
            raise Refused(Refusal.OVERLOADED)

    async def identify(self, received: Received) -> Identity:
        """Who calls. Raises `Refused`."""
        credentials, server = received.values(b"authorization"), received.server
        return await self.tokens.identify(credentials, resource=server.resource, issuers=server.issuers)

    async def hold(
        self, passage: Passage, received: Received, identity: Identity, call: Call, opened: OpenedState
    ) -> tuple[Identity, Call, OpenedState | None]:
        """A call that waits for a person is kept for a while, and then what it was before it was held.

        It walks on as if it had just come: nothing that was found before the wait counts, the token neither. Raises
        `Refused`, `StoreUnavailable`.
        """
        if opened.waits is None:
            return identity, call, opened
        passage.waits = opened.waits
        await self.holding.wait(call, identity, opened.waits)
        passage.identity = identity = await self.identify(received)
        passage.left["hold"] = time.perf_counter()
        call, going_on = take_up(call, opened)
        passage.envelope, passage.call, passage.opened_state = call.envelope, call, going_on
        return identity, call, going_on

    async def judge(
        self,
        server: Server,
        identity: Identity,
        call: Call,
        tasks: OpenedTasks = NO_TASKS,
        opened: OpenedState | None = None,
        *,
        grant: Mapping[str, Any] | None = None,
    ) -> tuple[Tool | None, Verdict]:
        """Ask the policy about this very call -> its verdict, and the definition of the tool that it judged.

        Only an allow that no person approved may rest on the list as it was last read. Whoever is held or refused, is
        for the list as it is, so that asking for it tells nobody a hidden tool from one that does not exist.
        `grant`: the schema of a grant that somebody asks for.
        """
        check_reach(server, call)
        tool = await self.catalog.look_up(server, call)
        asked = (server, identity, call)
        verdict = await self.policy.judge(policy_input("call", *asked, tool, tasks=tasks, opened=opened, grant=grant))
        if call.kind == "tool" and (
            tool is None or tool.quarantine or verdict.effect is not Effect.ALLOW or is_approved(opened)
        ):
            try:
                now = await self.catalog.confirm(server, call, DEFINITION_FRESH_S)
            except UpstreamFault:
                if verdict.effect is Effect.APPROVE or is_approved(opened):
                    raise
                return tool, verdict
            if now != tool:
                return now, await self.policy.judge(
                    policy_input("call", *asked, now, tasks=tasks, opened=opened, grant=grant)
                )
        return tool, verdict

    async def settle(self, passage: Passage, needed: Needed) -> None:
        """Consume one use of an approval of exactly this effect, or go on with the one that waits for this leg.

        Raises `Refused` where there is none, and `AuditUnavailable` where the call could not be recorded anyway.
        """
        if not self.sink.healthy:  # else the use would be gone, and nothing done
            raise AuditUnavailable("no use is consumed while the record fails")
        waits, digest = passage.waits, needed.asked.digest
        ticket_id = waited_for(passage) if waits is None else check_waits(waits, digest)
        passage.settled = settled = await self.delivery.claim(needed.settle(self.desk, ticket_id))
        if isinstance(settled, Held):
            raise await self.challenges.challenge(passage, settled)

    async def commit(self, passage: Passage) -> None:
        """Write the decision down. Durable when it returns; otherwise nothing may be forwarded."""
        record = decision_record(passage, self.redactor)
        await self.sink.append(record)
        passage.committed, passage.decided = True, record
        passage.left["record"] = time.perf_counter()

    async def turn_away(self, passage: Passage, refused: Refused) -> Reply:
        """The one exit of every refusal: a reply for the caller and a record of why."""
        # Its frames hold the passage, which holds it: without them it goes as soon as it was told.
        refused.__traceback__ = refused.__context__ = refused.__cause__ = None
        if not passage.committed:
            self.uncount(passage)
            self.write_off(passage, refused)
            await self.delivery.give_back(passage)
        else:
            passage.refuse(refused)
            await self.delivery.conclude(passage, "unknown" if passage.sent else "failed")
        return reply_of(passage, refused)

    def uncount(self, passage: Passage) -> None:
        """A call that is not admitted after all costs its budgets nothing; nobody waits for that."""
        taken, passage.taken = passage.taken, ()
        if taken:
            self.delivery.spawn(self.budgets.give_back(taken))

    def write_off(self, passage: Passage, refused: Refused) -> None:
        """Record a refusal of which nothing was forwarded. It joins the next commit; nobody waits for it."""
        passage.refuse(refused)
        passage.latency_s = time.perf_counter() - passage.began
        self.write_down(passage, lambda: refusal_record(passage, self.redactor))

    def write_down(self, passage: Passage, make: Callable[[], dict[str, Any]]) -> None:
        """Record and count a refusal by its record, which nobody makes where a flood's one record speaks for it."""
        kind = kind_of(passage)
        if kind is not None and self.sink.fold(kind, make):
            self.observer.counted(passage, make)
            return
        record = make()
        self.sink.note(record)
        self.observer.concluded(passage, record)
