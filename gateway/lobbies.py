"""What a local administrator's command opens of the house, and no more: each closes behind whoever leaves.

Nothing here serves anybody: no listener, no corridor, no upkeep. Raises `CannotStart` where a room can't be opened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from approvals.desk import Desk
from gateway.catalog import Catalog
from gateway.config_file import read_stanzas
from gateway.contract.identity import close_implications
from gateway.contract.record import Redactor
from gateway.definitions import Definitions
from gateway.engines import make_engine
from gateway.eras import Eras
from gateway.handles import Handles
from gateway.opening import (
    argument_rules,
    make_prompts,
    open_desk,
    open_examiner,
    open_pins,
    open_policy,
    open_record,
    open_tokens,
    open_upstream,
    registry_of,
    subjects_of,
)
from gateway.pins.acceptance import Acceptance
from gateway.plan import Plan
from gateway.registry.room import RegistryRoom, Shelf
from gateway.rehearsal.decide import Rehearsal
from gateway.seals import Seals
from gateway.sessions import Sessions


@asynccontextmanager
async def desk_lobby(plan: Plan) -> AsyncIterator[Desk]:
    """The desk alone; its acts are records of a writer of their own."""
    async with AsyncExitStack() as opened:
        record = await open_record(plan, opened)
        yield (await open_desk(plan, record, record.journal(Redactor(plan.audit_keys)), opened)).desk


@asynccontextmanager
async def catalog_lobby(plan: Plan) -> AsyncIterator[Catalog]:
    """What servers offer, for whoever only looks."""
    async with AsyncExitStack() as opened:
        _, upstream = await open_upstream(plan, opened)
        catalog = Catalog(upstream, definitions=Definitions(argument_rules(plan)))
        opened.push_async_callback(catalog.close)
        yield catalog


@asynccontextmanager
async def pin_lobby(plan: Plan, *, recorded: bool) -> AsyncIterator[Acceptance]:
    """Pins beside what servers offer; `recorded` to accept."""
    async with AsyncExitStack() as opened:
        record = await open_record(plan, opened) if recorded else None
        _, upstream = await open_upstream(plan, opened)
        catalog = Catalog(upstream, definitions=Definitions(argument_rules(plan)))
        opened.push_async_callback(catalog.close)
        servers = {server.name: server for server in plan.servers.values()}
        told = None if record is None else record.act
        yield Acceptance(plan.settings.pins.file, plan.settings.pin_modes, servers, catalog, told)


@asynccontextmanager
async def registry_lobby(plan: Plan, unfit: Callable[[bytes], str], *, recorded: bool) -> AsyncIterator[RegistryRoom]:
    """Records beside live servers and the registry; `recorded` to admit. `unfit` is the shelf's."""
    registry = plan.settings.registry
    async with AsyncExitStack() as opened:
        record = await open_record(plan, opened) if recorded else None
        _, upstream = await open_upstream(plan, opened)
        catalog = Catalog(upstream, definitions=Definitions(argument_rules(plan)))
        opened.push_async_callback(catalog.close)
        theirs = read_stanzas(registry.servers) if registry.servers else {}
        own = frozenset(plan.settings.servers.keys() - theirs.keys())
        shelf = Shelf(
            registry.lock, registry.servers, registry.private_addresses, registry.publisher, own, read_stanzas, unfit
        )
        examiner, told = open_examiner(plan, upstream, catalog), None if record is None else record.act
        yield RegistryRoom(subjects_of(plan, every=True), examiner, registry_of(plan), shelf, told)


@asynccontextmanager
async def rehearsal(plan: Plan) -> AsyncIterator[Rehearsal]:
    """What it takes to decide about a request without making it."""
    settings = plan.settings
    async with AsyncExitStack() as opened:
        record = await open_record(plan, opened)
        engine = make_engine(plan)
        await open_policy(plan, engine, opened)
        tokens = await open_tokens(plan, opened)
        pins = await open_pins(plan, lambda _act, _facts: None, lambda *_: None, opened)
        _, upstream = await open_upstream(plan, opened)
        catalog = Catalog(upstream, definitions=Definitions(argument_rules(plan), pins), prompts=make_prompts(plan))
        opened.push_async_callback(catalog.close)
        yield Rehearsal(
            engine=engine,
            tokens=tokens,
            catalog=catalog,
            seals=Seals(plan.seal_keys),
            handles=Handles(plan.seal_keys),
            eras=Eras(Sessions(plan.seal_keys, settings.limits.legacy_session_s)),
            implications=close_implications(settings.identity.scope_implies),
            volatile_meta=frozenset(settings.approvals.volatile_meta),
            servers={server.name: server for server in plan.servers.values()},
            claims={one.issuer: (one.tenant_claim, one.groups_claim) for one in plan.issuers},
            record=record.act,
        )
