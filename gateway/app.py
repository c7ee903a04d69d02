"""The composition root: a plan becomes rooms, rooms become a corridor, the corridor becomes an ASGI application.

`build()` judges the configuration and touches nothing (plan.py); `House.start()` opens what has to be open;
`House.close()` leaves nothing open and no record unwritten. Settings are known here, in plan.py and in cli.py alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Mapping
from typing import Any

import structlog
import uvicorn

from approvals.desk import StoreUnavailable
from approvals.keyed import KeyedCalls
from approvals.notify import Courier
from approvals.shelf import Shelf
from approvals.store import Store
from approvals.tally import Tally
from gateway.answers import Answers, keep_within_reach
from gateway.asgi import Asgi, Receive, Scope, Send
from gateway.audit.commits import GroupCommit
from gateway.budgets import Budgets, Counter, MemoryTally, OneOfSeveral
from gateway.catalog import Catalog
from gateway.challenge import Challenge, Challenges
from gateway.config import Settings
from gateway.contract.identity import Implications, close_implications
from gateway.contract.record import Redactor
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.stream import StreamLimits
from gateway.control import is_control_path
from gateway.definitions import Definitions
from gateway.delivery import Delivery
from gateway.door.connection import Peer, server_options
from gateway.door.threshold import make_server
from gateway.edge import Edge
from gateway.elicitation import Elicitation
from gateway.engines import make_engine, shadowed, tell_replaced
from gateway.eras import Eras
from gateway.errands import Errands
from gateway.grants import Grants
from gateway.handles import Handles, tell_of_tasks
from gateway.holding import Holding
from gateway.informing import open_courier
from gateway.notices import Notices
from gateway.opening import (
    CannotStart,
    Office,
    Record,
    argument_rules,
    check_key_files,
    make_prompts,
    open_desk,
    open_examiner,
    open_keyed,
    open_pins,
    open_policy,
    open_record,
    open_tokens,
    open_traces,
    open_upstream,
    open_wires,
    watch_registry,
)
from gateway.pins.keeper import Pins
from gateway.pipeline import Corridor
from gateway.plan import LISTENER, Plan, make_plan
from gateway.receiving import open_control
from gateway.reception import Behind
from gateway.registry.watching import RegistryWatch
from gateway.repeats import Repeats
from gateway.runs import Runs
from gateway.seals import Seals
from gateway.serving.status import Status
from gateway.serving.upkeep import Upkeep
from gateway.sessions import Sessions
from gateway.signals.key_age import first_seen
from gateway.streams import Streams
from gateway.telemetry import CountedPolicy, Telemetry
from gateway.tokens import Tokens
from gateway.turnstile import Turnstile
from gateway.upstream.figures import gauges
from gateway.upstream.http import HttpUpstream
from gateway.upstream.legacy import LegacyUpstream
from gateway.wires.watching import Wires
from policies.port import Engine, Policy
from policies.shadow import Shadow


def build(settings: Settings, *, workers: int = 1, texts: Mapping[str, str] | None = None) -> House:
    """Judge the whole configuration. Raises `ConfigError` or `ValueError` naming the setting; opens nothing.

    `workers`: how many serve this configuration here; `texts`: see `make_plan`.
    """
    return House(make_plan(settings, texts), workers)


class House:
    """One worker's rooms, opened together and closed in the reverse order."""

    def __init__(self, plan: Plan, workers: int = 1) -> None:
        self._plan = plan
        self._workers = workers
        self._log = structlog.get_logger("house")
        self._open = contextlib.AsyncExitStack()
        self._redactor = Redactor(plan.audit_keys)
        self._record: Record
        self._sink: GroupCommit
        self._office: Office
        self._store: Store
        self._courier: Courier
        self._shelf: Shelf
        self._keyed: KeyedCalls
        self._runs: Runs
        self._tokens: Tokens
        self._telemetry = Telemetry()
        self._pins: Pins
        self._wires: Wires
        self._policy: Engine
        self._counted: CountedPolicy
        self._shadow: Shadow | None
        self._http: HttpUpstream
        self._upstream: LegacyUpstream
        self._upkeep: Upkeep
        self._registry: RegistryWatch
        self._notices: Notices
        self._streams: Streams
        self._turnstile: Turnstile
        self._corridor: Corridor
        self._key_seen = 0.0
        self._standing: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._edge: Asgi
        self._control: Asgi

    async def start(self) -> None:
        """Open every room. Raises `CannotStart` where one can't be opened at all; keys may still be on their way."""
        try:
            await self._open_rooms()
        except BaseException:
            await self._open.aclose()
            raise

    async def _open_rooms(self) -> None:
        plan, settings, limits, opened = self._plan, self._plan.settings, self._plan.settings.limits, self._open
        telemetry = self._telemetry
        telemetry.traces = open_traces(plan, opened)
        self._record = record = await open_record(plan, opened, telemetry.told)
        self._sink = sink = record.sink
        journal = record.journal(self._redactor, telemetry.moved)
        self._office = office = await open_desk(plan, record, journal, opened)
        self._store = office.store
        shelf = await self._take_over(office)
        self._policy = policy = make_engine(plan, lambda to: tell_replaced(to, telemetry.replaced, sink.note))
        await open_policy(plan, policy, opened)
        check_key_files(plan)
        self._tokens = tokens = await open_tokens(plan, opened)
        self._pins = pins = await open_pins(plan, record.tell, telemetry.deviated, opened)
        self._wires = wires = await open_wires(plan, record.tell, telemetry.certified, opened)
        self._http, self._upstream = _, upstream = await open_upstream(plan, opened, wires)
        definitions = Definitions(argument_rules(plan), pins)
        catalog = Catalog(upstream, definitions=definitions, prompts=make_prompts(plan))
        opened.push_async_callback(catalog.close)
        self._notices = notices = Notices(upstream, catalog.expire, telemetry.list_changed)
        catalog.attend = notices.attend
        opened.push_async_callback(notices.close)
        self._key_seen = first_seen(plan.seal_keys, settings.audit.file, settings.seals.since)
        self._counted = counted = CountedPolicy(policy, telemetry)
        judging, self._shadow = await opened.enter_async_context(
            shadowed(plan, counted, sink.writer, telemetry.differed)
        )
        self._streams = streams = Streams(limits.subscriptions, limits.subscriptions_per_subject)
        opened.callback(streams.close)
        implications = close_implications(settings.identity.scope_implies)
        self._corridor = corridor = self._make_corridor(judging, catalog, shelf, implications)
        opened.push_async_callback(corridor.delivery.drain)
        self._edge = Edge(corridor, plan.servers, plan.door, plan.hosts)
        behind = Behind(plan, corridor, office.desk, office.store, tokens, implications, sink)
        self._control = await open_control(behind, opened)
        self._upkeep = upkeep = Upkeep(plan, office.desk, office.store, shelf, self._keyed)
        upkeep.start()
        opened.push_async_callback(upkeep.close)
        self._courier = open_courier(plan, office, record, telemetry.attempted, opened)
        examiner = open_examiner(plan, upstream, catalog)
        self._registry = watch_registry(plan, examiner, record, telemetry.compared, opened)

    def _make_corridor(self, judging: Policy, catalog: Catalog, shelf: Shelf, implies: Implications) -> Corridor:
        """All rooms of it; none of this opens anything."""
        plan, settings, limits = self._plan, self._plan.settings, self._plan.settings.limits
        telemetry, desk = self._telemetry, self._office.desk
        seals, handles = Seals(plan.seal_keys), Handles(plan.seal_keys)
        volatile_meta = frozenset(settings.approvals.volatile_meta)
        repeats = Repeats(self._keyed, volatile_meta, settings.idempotency.outcome_bytes, telemetry.keyed)
        delivery = self._make_delivery(judging, catalog, seals, handles, repeats)
        self._runs = Runs(shelf, delivery, result_bytes=limits.held_result_bytes, count=telemetry.errand)
        errands = Errands(shelf, desk, handles, self._runs, count=telemetry.errand)
        self._turnstile = Turnstile(limits.at_once_per_subject, limits.requests_per_subject, limits.burst_per_subject)
        return Corridor(
            tokens=self._tokens,
            catalog=catalog,
            policy=judging,
            desk=desk,
            challenges=Challenges(desk, {Challenge.ELICITATION: Elicitation(seals), Challenge.TASK: errands.take_in}),
            grants=Grants(implies),
            budgets=Budgets(self._make_counter()),
            turnstile=self._turnstile,
            repeats=repeats,
            holding=Holding(desk, settings.approvals.hold_s, most=max(1, limits.concurrent // 4)),
            errands=errands,
            seals=seals,
            handles=handles,
            eras=Eras(Sessions(plan.seal_keys, limits.legacy_session_s)),
            sink=self._sink,
            delivery=delivery,
            redactor=self._redactor,
            implications=implies,
            observer=telemetry,
            traces=telemetry.traces,
            volatile_meta=volatile_meta,
            concurrent=limits.concurrent,
        )

    def _make_delivery(
        self, judging: Policy, catalog: Catalog, seals: Seals, handles: Handles, repeats: Repeats
    ) -> Delivery:
        state_s, event_bytes = self._plan.settings.seals.state_s, self._plan.settings.limits.event_bytes
        told = (catalog.definitions, catalog.prompts)
        return Delivery(
            self._upstream,
            Answers(judging, seals, handles, *told, state_s=state_s, left_out=catalog.left_out),
            self._office.desk,
            self._sink,
            self._redactor,
            self._telemetry,
            stream_limits=StreamLimits(event_bytes=event_bytes),
            streams=self._streams,
            rewriters=(keep_within_reach, tell_of_tasks),
            repeats=repeats,
        )

    def _make_counter(self) -> Counter:
        """Who counts the policy's limits: a worker's own memory is enough only where it is the one worker."""
        if self._plan.settings.budgets.store == "database":
            return Tally(self._store)
        return MemoryTally() if self._workers == 1 else OneOfSeveral()

    async def _take_over(self, office: Office) -> Shelf:
        """Shelf and keyed calls; what the process before this one ran has come to its end. Raises `CannotStart`."""
        settings, tenure = self._plan.settings, office.tenure
        keep_s, per_subject = settings.approvals.task_keep_s, settings.limits.held_tasks_per_subject
        self._shelf = Shelf(self._store, owner=tenure.owner, keep_s=keep_s, per_subject=per_subject)
        try:
            if tenure.before:
                await office.desk.reconcile(tenure.before)
                await self._shelf.reconcile(tenure.before)
            self._keyed = await open_keyed(self._plan, office)
        except StoreUnavailable as error:
            raise CannotStart(f"approvals.database: {error}") from error
        tenure.write_down()
        return self._shelf

    def _carry_over(self) -> None:
        self._telemetry.carry_over(self._sink, self._counted, self._upstream.sessions, self._streams, self._shadow)
        self._telemetry.replicas.carry_over(self._http)

    def status(self) -> Status:
        """How it is: readiness, the revision that judges, and every gauge."""
        tokens, policy, sink, store = self._tokens, self._policy, self._sink, self._store
        self._carry_over()
        # Leases that nobody extends end calls that run as `unknown`.
        looked_after = self._upkeep.well and self._courier.well
        own = {"keys": tokens.issuers.ready, "policy": policy.ready, "audit": sink.healthy, "upkeep": looked_after}
        missing = tuple(name for name, there in own.items() if not there)
        shared = {"approvals": store.healthy, "policy": not policy.fault}
        if self._plan.settings.policy.engine == "opa":
            shared["policy"] = policy.ready  # and missing as well: without it nothing at all is served
        keeper, export = self._record.keeper, self._record.export
        traces = self._telemetry.traces
        degraded = (*tokens.issuers.degraded, *(name for name, there in shared.items() if not there))
        if self._standing != (missing, degraded):
            self._standing = missing, degraded
            self._log.warning("readiness_changed", missing=missing, degraded=degraded)
        return Status(
            ready=not missing,
            missing=missing,
            degraded=degraded,
            revision=policy.revision,
            loaded={**self._plan.parts, "policy": policy.digest, "pins": self._pins.digest},
            gauges={
                "requests_in_flight": self._corridor.in_flight,
                "busiest_subject_requests": self._turnstile.busiest,
                "calls_waiting": self._corridor.holding.waiting,
                "held_tasks_running": len(self._runs.going),
                "streams_open": {"subscription": self._streams.subscriptions, "call": self._streams.calls},
                "policy_evaluators": len(policy.pids),
                "policy_current": not policy.fault,
                "shadow_healthy": self._shadow is None or self._shadow.ready,
                "audit_healthy": sink.healthy,
                "audit_lag_seconds": sink.lag,
                "audit_export_waiting": export.waiting if export else 0,
                "audit_export_lost": export.lost if export else 0,
                "audit_checkpoint_age_seconds": keeper.age_s if keeper else 0.0,
                "spans_waiting": traces.spans.waiting if traces else 0,
                "seal_key_age_seconds": max(0.0, time.time() - self._key_seen),
                "tickets": self._upkeep.tickets,
                "approvals_healthy": store.healthy,
                "idempotency_keys": self._keyed.count,
                "idempotency_bytes": self._keyed.bytes,
                "webhooks_waiting": self._courier.waiting,
                "keys_healthy": tokens.issuers.key_health(),
                "keys_age_seconds": tokens.issuers.key_ages(),
                "pins_healthy": self._pins.healthy,
                "tools_quarantined": self._pins.quarantined(),
                "list_changes_heard": self._notices.heard(),
                **gauges(self._http, asyncio.get_running_loop().time()),
                "upstream_sessions": self._upstream.sessions.counts(),
                "certificates_current": self._wires.current(),
                "certificate_expires_seconds": self._wires.expires_in(),
                **self._registry.figures(),
            },
        )

    def drain(self) -> None:
        """The worker stops: subscriptions and waiting end gracefully now, calls go on to their end."""
        self._streams.drain()
        self._corridor.desk.hurry()

    @property
    def drain_s(self) -> float:
        """How long it serves on when it stops; a part of the grace time."""
        limits = self._plan.settings.limits
        return min(limits.drain_s, limits.grace_s)

    def server(self) -> uvicorn.Server:
        """uvicorn, serving this house; over TLS where the listener has a certificate."""
        limits, wire = self._plan.settings.limits, self._wires.get(LISTENER)
        config = uvicorn.Config(
            self,
            lifespan="off",
            log_config=None,
            timeout_graceful_shutdown=max(1, round(limits.grace_s - self.drain_s)),
            **server_options(self._plan.door, self._refused_at_the_door),
        )
        return make_server(config, wire, on_refused=self._refused_at_the_door, count=self._telemetry.came)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """The switch between data plane and control plane."""
        app = self._control if is_control_path(scope["raw_path"]) else self._edge
        return app(scope, receive, send)

    def _refused_at_the_door(self, reason: str, detail: str, _peer: Peer) -> str:
        """A request that the framing refused before it became one is recorded all the same."""
        passage = self._corridor.open_passage(None)
        self._corridor.write_off(passage, Refused(Refusal[reason.upper()], detail))
        return passage.decision_id

    async def close(self) -> None:
        """Close every room; what waits to be recorded is recorded, and what the last calls counted is told."""
        await self._open.aclose()
        self._carry_over()
