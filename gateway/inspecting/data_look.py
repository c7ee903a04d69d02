"""`ostiary check` on the policy's data and on both databases: what could never match; what the tables are.

Nothing is changed: the database is read only where it is there, servers are asked only where that is wanted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

from approvals.database import migrate
from approvals.revisions import RevisionRefused, newest
from approvals.ticket import StoreUnavailable
from gateway.audit.port import AuditUnavailable
from gateway.audit.tables import FAULTS, explain, look_at_tables
from gateway.config import EmbeddedPolicySettings, Settings
from gateway.inspecting.dead_rules import find_unmatched, find_unoffered, find_wrong
from gateway.inspecting.finding import Finding
from gateway.lobbies import catalog_lobby
from gateway.plan import Plan
from gateway.upstream.port import UpstreamFault
from policies.forms import Fault

DATA = "mcp/authz/data.json"


def look_at_data(settings: Settings) -> list[Finding]:
    """All of the shipped rules' data that could never match; of other rules', the names alone. Loads no engine."""
    read = _read(settings)
    if read is None:
        return []
    file, data = read
    found = find_unmatched(data, settings)
    if not _are_shipped(settings):
        told = "the rules are not the shipped ones: of data.json only names are compared"
        return [Finding("policy data", True, told), *_findings(file, found, ok=True)]
    wrong = find_wrong(data)
    # What can't be read is told once, not also as what it does not match.
    blamed = {fault.pointer for fault in wrong}
    others = [fault for fault in found if not any(_is_within(fault.pointer, pointer) for pointer in blamed)]
    return [*_findings(file, wrong, ok=False), *_findings(file, others, ok=True)]


async def ask_servers(plan: Plan) -> list[Finding]:
    """Tools and prompts of the data that their servers do not offer now."""
    read = _read(plan.settings)
    if read is None:
        return []
    file, data = read
    named = data.get("servers") if isinstance(data, dict) else None
    offered: dict[str, dict[str, tuple[str, ...]]] = {}
    found = []
    async with catalog_lobby(plan) as catalog:
        for server in plan.servers.values():
            name = server.name
            entry = named.get(name) if isinstance(named, dict) else None
            try:
                for section in ("tools", "prompts"):
                    if isinstance(entry, dict) and entry.get(section):
                        names = await (catalog.whole(server) if section == "tools" else catalog.whole_prompts(server))
                        offered.setdefault(name, {})[section] = tuple(names)
            except UpstreamFault as fault:
                found.append(Finding("offers", False, f"{name}: could not be asked: {fault}", asked=False))
    found += _findings(file, find_unoffered(data, offered), ok=False, what="offers")
    return found or [Finding("offers", True, "servers offer all tools and prompts that data.json names")]


def tell_unasked(settings: Settings) -> list[Finding]:
    """That nobody asked the servers."""
    told = "servers were not asked whether they offer what data.json names: --live asks them"
    return [Finding("offers", True, told)] if isinstance(settings.policy, EmbeddedPolicySettings) else []


async def look_at_database(settings: Settings) -> list[Finding]:
    """The revision of the approvals' database, where there is one; read, and nothing else."""
    scheme, _, file = settings.database_url.partition(":///")
    if scheme == "sqlite" and not await asyncio.to_thread(Path(file).exists):
        return []
    try:
        standing = await migrate(settings.database_url, check=True)
    except RevisionRefused as error:
        return [Finding("approvals", False, f"approvals.database: {error}")]
    except StoreUnavailable as error:
        return [Finding("approvals", False, f"approvals.database: {error}", asked=False)]
    if standing.is_newest:
        return [Finding("approvals", True, f"approvals.database: revision {standing.revision}")]
    has = f"approvals.database: has revision {standing.revision or 'none'} and not {newest()}"
    if settings.approvals.migrate:
        return [Finding("approvals", True, f"{has}: the next start brings it there")]
    return [Finding("approvals", False, has, mend="run `ostiary approvals migrate`")]


async def look_at_record(settings: Settings) -> list[Finding]:
    """The record's tables, where it is in PostgreSQL; read, and nothing else."""
    if (url := settings.audit_database_url) is None:
        return []
    try:
        tables = await look_at_tables(url)
    except AuditUnavailable as error:
        return [Finding("audit", False, f"audit.database: {error}")]
    except FAULTS as fault:
        return [Finding("audit", False, f"audit.database: {explain(fault)}", asked=False)]
    if not tables.made:
        return [Finding("audit", True, "audit.database: has no tables yet: the first start makes them")]
    owned = "; this role owns the tables, and could switch off what keeps them from being changed"
    return [Finding("audit", True, f"audit.database: the record only grows{owned if tables.owned else ''}")]


def _read(settings: Settings) -> tuple[Path, Any] | None:
    """The data, or nothing where it does not load or an OPA server has it (`look` tells that)."""
    if not isinstance(settings.policy, EmbeddedPolicySettings):
        return None
    file = settings.policy.path / DATA
    try:
        return file, orjson.loads(file.read_bytes())
    except (OSError, ValueError):
        return None


def _are_shipped(settings: Settings) -> bool:
    """Whether the bundle's rules are those that came with this gateway, to the byte."""
    if not isinstance(settings.policy, EmbeddedPolicySettings):
        return False
    rules = [file for file in (settings.policy.path / DATA).parent.glob("*.rego") if "_test." not in file.name]
    shipped = files("policies") / "bundle" / "mcp" / "authz" / "authz.rego"
    try:
        return [file.read_bytes() for file in rules] == [shipped.read_bytes()]
    except OSError:
        return False


def _is_within(pointer: str, other: str) -> bool:
    return pointer == other or pointer.startswith(f"{other}/")


def _findings(file: Path, faults: Iterable[Fault], *, ok: bool, what: str = "policy data") -> list[Finding]:
    return [Finding(what, ok, fault.what, f"{file}#{fault.pointer}", fault.mend) for fault in faults]
