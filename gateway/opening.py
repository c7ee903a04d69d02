"""Rooms that more than one way in opens: each from the plan, and closed by the stack that it is opened on.

The house (app.py) opens all of them; the lobbies (lobbies.py) what a local administrator's command needs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from approvals.desk import Desk, StoreUnavailable
from approvals.keyed import KeyedCalls
from approvals.outbox import Outbox
from approvals.store import Store
from approvals.ticket import Transition
from gateway.audit.commits import GroupCommit
from gateway.audit.jsonl import JsonlSettings, JsonlSink
from gateway.audit.keeping import CheckpointFile, Keeper, Keeping, SecondPlace
from gateway.audit.port import AuditUnavailable
from gateway.audit.segments import slot_path
from gateway.catalog import Catalog
from gateway.contract.pins import PinsUnreadable
from gateway.contract.record import Redactor, admin_record, approval_record
from gateway.contract.secret_shapes import conceal
from gateway.definitions import ArgumentRules
from gateway.engines import name_setting
from gateway.pins.keeper import Deviated, Pins
from gateway.plan import LISTENER, Plan, tls_of
from gateway.prompts import Prompts
from gateway.registry.chair import Chair
from gateway.registry.client import RegistryClient
from gateway.registry.sources import Sources
from gateway.registry.watching import Compared, Examiner, RegistryWatch, Subject
from gateway.sealing import derive_keys
from gateway.serving.plain import load_plain
from gateway.serving.tenure import Tenure, begin_tenure
from gateway.signals.traces import Traces
from gateway.tokens import Tokens
from gateway.upstream.health import HealthRules
from gateway.upstream.http import HttpUpstream
from gateway.upstream.legacy import LegacyUpstream
from gateway.upstream.port import Upstream
from gateway.upstream.probes import Probes
from gateway.upstream.ring import ServerRules
from gateway.upstream.target import UpstreamLimits
from gateway.wires.pem import WireRefused
from gateway.wires.watching import Journal, Wires
from policies.port import Engine
from policies.verdict import PolicyUnavailable

if TYPE_CHECKING:
    from gateway.audit.otlp import OtlpExport

GRANTING = frozenset({"request", "approve", "deny", "revoke", "withdraw", "restore", "resolve", "justify"})
"""Transitions whose record people (or a given-back use) wait for; the others join the next commit."""


OWN_CONNECTIONS: Final = 256
"""To one replica, beside those of callers: idle ones, probes, and the gateway's own questions."""


class CannotStart(Exception):  # noqa: N818 - what it is
    """A room could not be opened; the text says which, and why."""


@dataclass(frozen=True, slots=True)
class Record:
    """The durable record, and what goes on beside it: checkpoints elsewhere, the export to OpenTelemetry."""

    sink: GroupCommit
    keeper: Keeper | None
    export: OtlpExport | None

    async def act(self, act: str, by: str, facts: Mapping[str, Any]) -> None:
        """Write an administrator's act down. Durable when it returns; raises `AuditUnavailable`."""
        await self.sink.append(admin_record(act, by, facts))

    def tell(self, act: str, facts: Mapping[str, Any]) -> None:
        """Write down what the gateway did by itself. It joins the next commit; nobody waits for it."""
        self.sink.note(admin_record(act, facts=facts))

    def journal(
        self, redactor: Redactor, moved: Callable[[Transition], None] = lambda _: None
    ) -> Callable[[Transition], Awaitable[None]]:
        """Writes a ticket's or use's transition as a record of the chain; `moved` counts it."""

        async def write(transition: Transition) -> None:
            moved(transition)
            record = approval_record(transition, redactor)
            if transition.verb in GRANTING:
                await self.sink.append(record)
            else:
                self.sink.note(record)

        return write


async def open_record(
    plan: Plan, opened: AsyncExitStack, told: Callable[[Mapping[str, Any]], None] = lambda _: None
) -> Record:
    """Raises `CannotStart`. `told` is given each record that the refusals of a flood share."""
    audit = plan.settings.audit
    sink: GroupCommit
    if plan.audit_database is not None:
        from gateway.audit.postgres import PostgresSettings, PostgresSink  # noqa: PLC0415 - and its driver

        sink = PostgresSink(PostgresSettings(plan.audit_database))
    else:
        sink = JsonlSink(JsonlSettings(audit.file, rotate_bytes=audit.rotate_bytes, rotate_s=audit.rotate_s))
    export = None
    if audit.otlp.endpoint is not None:
        from gateway.audit.otlp import OtlpExport  # noqa: PLC0415 - OpenTelemetry only where it is asked for

        export = OtlpExport(audit.otlp.endpoint, plan.audit_headers)
        sink.export = export.take
        export.start()
        opened.push_async_callback(asyncio.to_thread, export.close)
    sink.told = told
    sink.introduction = {"configuration": plan.digest} if plan.digest else {}
    keeper = _make_keeper(plan, sink)
    if keeper is not None:
        opened.push_async_callback(keeper.close)  # after the sink: the last checkpoint is of its end
    try:
        await sink.start()
    except AuditUnavailable as error:
        raise CannotStart(f"audit.{'database' if plan.audit_database else 'file'}: {error}") from error
    opened.push_async_callback(sink.close)
    if keeper is not None:
        keeper.start()
    return Record(sink, keeper, export)


def open_traces(plan: Plan, opened: AsyncExitStack) -> Traces | None:
    """What makes spans, if they are to be exported; OpenTelemetry's SDK is loaded then, and not before."""
    chosen = plan.settings.telemetry.traces
    if chosen.endpoint is None:
        return None
    from gateway.signals.span_export import SpanExport  # noqa: PLC0415

    export = SpanExport(chosen.endpoint, plan.trace_headers)
    export.start()
    opened.push_async_callback(asyncio.to_thread, export.close)
    return Traces(export, chosen.sample)


def _make_keeper(plan: Plan, sink: GroupCommit) -> Keeper | None:
    """Who keeps the record's checkpoints elsewhere, if that is configured."""
    audit, key = plan.settings.audit, plan.checkpoint_key
    if audit.checkpoints is None or key is None:
        return None
    places: dict[str, SecondPlace] = {}
    if audit.checkpoints.file is not None:
        places["file"] = CheckpointFile(audit.checkpoints.file)
    if audit.checkpoints.webhook is not None:
        load_plain("httpx")
        from gateway.audit.courier import CheckpointCourier  # noqa: PLC0415

        places["webhook"] = CheckpointCourier(audit.checkpoints.webhook)
    file = None if plan.audit_database else audit.file
    return Keeper(sink, file, places, key, Keeping(audit.checkpoints.every_s, audit.keep_s))


@dataclass(frozen=True, slots=True)
class Office:
    """The desk with its store, what is to be told of its tickets, and in whose name it holds its leases."""

    desk: Desk
    store: Store
    outbox: Outbox
    tenure: Tenure


async def open_desk(
    plan: Plan, record: Record, journal: Callable[[Transition], Awaitable[None]], opened: AsyncExitStack
) -> Office:
    """Raises `CannotStart`."""
    settings = plan.settings
    outbox = Outbox([webhook.hook for webhook in plan.webhooks], plan.page_url, lambda text: conceal(text)[0])
    keys = derive_keys(plan.seal_keys, "tickets")
    store = Store(plan.database, keys, migrate=settings.approvals.migrate, outbox=outbox)
    tenure = begin_tenure(slot_path(settings.audit.file, record.sink.writer))
    if plan.audit_database is not None:
        # Another host may have been this writer since: no file here says who ended. Leases lapse by themselves.
        tenure = replace(tenure, before="")
    desk = Desk(
        store,
        journal,
        page_url=plan.page_url,
        issuers=sorted(plan.approvals.issuers),
        owner=tenure.owner,
        tickets_per_hour=settings.limits.tickets_per_hour,
        local_approve=settings.approvals.local_approve,
    )
    try:
        await store.start()
    except StoreUnavailable as error:
        raise CannotStart(f"approvals.database: {error}") from error
    opened.push_async_callback(store.close)
    return Office(desk, store, outbox, tenure)


async def open_keyed(plan: Plan, office: Office) -> KeyedCalls:
    """Calls under idempotency keys; what the process before this one ran is `unknown`. Raises `StoreUnavailable`."""
    chosen, tenure = plan.settings.idempotency, office.tenure
    keyed = KeyedCalls(
        office.store,
        derive_keys(plan.seal_keys, "idempotency"),
        owner=tenure.owner,
        keep_s=chosen.keep_s,
        per_subject=chosen.keys_per_subject,
        most=chosen.keys,
        bytes_in_all=chosen.total_bytes,
    )
    await keyed.check_keys()
    if tenure.before:
        await keyed.reconcile(tenure.before)
    await keyed.measure()
    return keyed


async def open_policy(plan: Plan, engine: Engine, opened: AsyncExitStack) -> None:
    """Raises `CannotStart`."""
    try:
        await engine.start()
    except PolicyUnavailable as error:
        raise CannotStart(name_setting(plan.settings.policy, error)) from error
    opened.push_async_callback(engine.close)


async def open_tokens(plan: Plan, opened: AsyncExitStack) -> Tokens:
    """The issuers; their keys may still be on their way."""
    tokens = make_tokens(plan)
    await tokens.start()
    opened.push_async_callback(tokens.close)
    return tokens


def check_key_files(plan: Plan) -> None:
    """Raises `CannotStart`: an issuer that is away for a moment can come back, a file that is not there can't."""
    for issuer in plan.issuers:
        if issuer.jwks_file is not None and not os.access(issuer.jwks_file, os.R_OK):
            raise CannotStart(f"identity.issuers: {issuer.issuer}: jwks_file {issuer.jwks_file} can't be read")


def make_tokens(plan: Plan) -> Tokens:
    """The issuers and their keys, not yet loaded."""
    settings = plan.settings
    return Tokens(plan.issuers, leeway_s=settings.identity.leeway_s, waiting=settings.limits.concurrent)


async def open_pins(plan: Plan, tell: Journal, deviated: Deviated, opened: AsyncExitStack) -> Pins:
    """The keeper of accepted definitions. Raises `CannotStart`."""
    pins = Pins(plan.settings.pin_modes, plan.settings.pins.file, tell, deviated)
    try:
        await pins.start()
    except (OSError, PinsUnreadable) as error:
        raise CannotStart(f"pins.file: {plan.settings.pins.file}: {error}") from error
    opened.push_async_callback(pins.close)
    return pins


async def open_wires(plan: Plan, tell: Journal, count: Callable[[bool], None], opened: AsyncExitStack) -> Wires:
    """The certificates of the listener and towards servers, watched. Raises `CannotStart` naming the setting."""
    wires = Wires(plan.wires, tell, count)
    try:
        await wires.start()
    except WireRefused as refused:
        raise CannotStart(str(refused)) from refused
    opened.push_async_callback(wires.close)
    return wires


async def open_upstream(
    plan: Plan, opened: AsyncExitStack, wires: Wires | None = None
) -> tuple[HttpUpstream, LegacyUpstream]:
    """The way to the servers, and what speaks to the older ones among them over it.

    Without `wires` those towards servers are opened here. Raises `CannotStart`.
    """
    if wires is None:
        towards = replace(plan, wires=tuple(files for files in plan.wires if files.setting != LISTENER))
        wires = await open_wires(towards, lambda _act, _facts: None, lambda _taken: None, opened)
    settings = plan.settings
    targets = {name: replace(target, tls=wires.get(tls_of(name))) for name, target in plan.targets.items()}
    bounds = upstream_limits(plan)
    http = HttpUpstream(targets, bounds, {name: server_rules(plan, name) for name in targets})
    past = {name: one.legacy_servers for name, one in settings.servers.items() if one.legacy_servers != "off"}
    upstream = LegacyUpstream(http, past, bounds)
    opened.push_async_callback(upstream.close)
    probes = Probes(http)
    probes.start()
    opened.push_async_callback(probes.close)
    return http, upstream


def upstream_limits(plan: Plan) -> UpstreamLimits:
    """The bounds of exchanges. To one replica there may be as many connections as all that a worker can be asked at
    once: with less, those who subscribe would keep out those who call."""
    limits = plan.settings.limits
    return UpstreamLimits(
        answer_s=limits.answer_s,
        quiet_s=limits.quiet_s,
        result_bytes=limits.result_bytes,
        connections=limits.subscriptions + limits.concurrent + OWN_CONNECTIONS,
    )


def server_rules(plan: Plan, name: str) -> ServerRules:
    """How a server's replicas are asked."""
    server = plan.settings.servers[name]
    return ServerRules(
        health=HealthRules(**server.health.model_dump()),
        **server.load.model_dump(),
        deadlines=dict(server.deadlines),
        retry_share=server.retries.share,
    )


def open_examiner(plan: Plan, upstream: Upstream, catalog: Catalog) -> Examiner:
    """Who compares servers with their published records. Opens nothing before it is asked."""
    return Examiner(upstream, catalog, Sources(registry_of(plan)), plan.settings.pins.file)


def registry_of(plan: Plan) -> Callable[[], RegistryClient] | None:
    """Makes a client of the private registry; `None` where none is configured."""
    url = plan.settings.registry.url
    if url is not None:
        load_plain("httpx")  # now: clients are made in threads
    return None if url is None else lambda: RegistryClient(url, plan.registry_token)


def subjects_of(plan: Plan, *, every: bool = False) -> tuple[Subject, ...]:
    """The servers that have a record, by name; `every`: those without one too, their source empty."""
    settings = plan.settings
    found = []
    for server in sorted(plan.servers.values(), key=lambda one: one.name):
        own = settings.servers[server.name]
        if own.registry is not None:
            source, file = own.registry.record, own.registry.file
        elif every:
            source, file = "", None
        else:
            continue
        found.append(Subject(server, own.replicas, source, file, own.pins != "off"))
    return tuple(found)


def watch_registry(
    plan: Plan, examiner: Examiner, record: Record, count: Compared, opened: AsyncExitStack
) -> RegistryWatch:
    """The scheduled check: of all workers that start one here, the one that has the chair makes it."""
    file = plan.settings.audit.file
    chair, interval_s = Chair(file.with_name(f"{file.name}.registry")), plan.settings.registry.interval_s
    watch = RegistryWatch(subjects_of(plan), examiner, chair, interval_s, record.tell, count)
    watch.start()
    opened.push_async_callback(watch.close)
    return watch


def argument_rules(plan: Plan) -> dict[str, ArgumentRules]:
    """By server: what its tools' arguments are held to."""
    servers = plan.settings.servers.items()
    return {name: ArgumentRules(one.arguments, one.tool_arguments) for name, one in servers}


def make_prompts(plan: Plan) -> Prompts:
    """What prompts' arguments are held to."""
    return Prompts(frozenset(name for name, one in plan.settings.servers.items() if one.arguments == "off"))
