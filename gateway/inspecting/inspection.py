"""`ostiary check`: would this configuration serve, and does everything that it names exist?

Opens what a worker opens at start and closes it again; of the record it looks for the folder only, of the store at
the revision. What the policy's data could never match is found from the data and the configuration (data_look.py).
Issuers are asked for their keys, and whether they would sign people in. Nothing is changed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import click
import orjson

from gateway.config import ConfigError, EmbeddedPolicySettings, Settings
from gateway.contract.pins import PinsUnreadable, State
from gateway.engines import make_candidate, make_engine
from gateway.inspecting.data_look import ask_servers, look_at_data, look_at_database, look_at_record, tell_unasked
from gateway.inspecting.finding import Finding
from gateway.inspecting.published_look import look_at_published
from gateway.inspecting.wire_look import look_at_wires
from gateway.lobbies import pin_lobby
from gateway.logs import set_up_logs
from gateway.opening import make_tokens
from gateway.pins.acceptance import Shelf
from gateway.plan import Plan, make_plan
from gateway.rehearsal.promises import find_broken
from gateway.sign_in.trial import try_sign_in
from policies.bundles import load_bundle
from policies.port import Engine
from policies.rego_tests import run_tests
from policies.verdict import UNVERSIONED, PolicyUnavailable

KEYS_WITHIN_S = 10.0


def inspect(settings: Settings, as_json: bool, *, live: bool = False) -> int:
    """Print every finding -> exit code: 0 all in order, 1 not, 2 where all that is not could not be asked."""
    set_up_logs(logging.ERROR)
    try:
        plan = make_plan(settings)
    except (ConfigError, ValueError) as error:
        findings = [Finding("configuration", False, str(error))]
    else:
        names = sorted(settings.servers)
        servers = f"{len(names)} server{'s' * (len(names) != 1)}: {', '.join(names)}"
        findings = [
            Finding("configuration", True, servers),
            *tell_tolerance(settings),
            *look_for_folders(settings),
            *look_for_trust(settings),
            *look_at_wires(plan),
            *look_at_published(settings),
            *look_at_data(settings),
            *(asyncio.run(ask_servers(plan)) if live else tell_unasked(settings)),
            *asyncio.run(look_at_database(settings)),
            *asyncio.run(look_at_record(settings)),
            *asyncio.run(look(plan, settings)),
            *(Finding("sign-in", *told) for told in asyncio.run(try_sign_in(plan.sign_in))),
            *asyncio.run(look_at_pins(plan, settings)),
        ]
    for finding in findings:
        click.echo(orjson.dumps(finding.document()).decode() if as_json else finding.line())
    wrong = [finding for finding in findings if not finding.ok]
    return 0 if not wrong else 1 if any(finding.asked for finding in wrong) else 2


def tell_tolerance(settings: Settings) -> list[Finding]:
    """What is served besides clients and servers of the one revision: in order, and not to be overlooked."""
    older = sorted(name for name, server in settings.servers.items() if server.legacy_clients)
    found = [Finding("legacy clients", True, f"served by {', '.join(older)}")] if older else []
    for name, server in sorted(settings.servers.items()):
        if server.legacy_servers != "off":
            found.append(Finding("legacy servers", True, f"{name} is initialized, with {server.legacy_servers}"))
        if server.quirks:
            found.append(Finding("quirks", True, f"tolerated by {name}: {', '.join(sorted(server.quirks))}"))
    return found


def look_for_folders(settings: Settings) -> list[Finding]:
    """The folders that the record, the tickets and the pins need and that are not there. Nothing is opened."""
    needed = {} if settings.audit_database_url else {"audit": ("audit.file", settings.audit.file)}
    scheme, _, database = settings.database_url.partition(":///")
    if scheme == "sqlite":
        needed["approvals"] = ("approvals.database", Path(database))
    if any(server.pins != "off" for server in settings.servers.values()):
        needed["pins"] = ("pins.file", settings.pins.file)
    return [
        Finding(what, False, f"{setting}: there is no folder {file.parent}")
        for what, (setting, file) in needed.items()
        if not file.parent.is_dir()
    ]


def look_for_trust(settings: Settings) -> list[Finding]:
    """Databases elsewhere whose certificate nobody looks at: told, for the way to them may be one's own."""
    asked = {"approvals": settings.database_url, "audit": settings.audit_database_url or ""}
    modes = {what: _mode_afar(url) for what, url in asked.items()}
    return [
        Finding(what, True, f"{what}.database: sslmode={mode} does not look at the server's certificate")
        for what, mode in modes.items()
        if mode not in ("", "verify-full", "verify-ca")
    ]


def _mode_afar(text: str) -> str:
    """The `sslmode` with which a PostgreSQL elsewhere is reached; "" for what is on this machine."""
    url = urlsplit(text)
    host = url.netloc.rpartition("@")[2].rpartition(":")[0] or url.netloc.rpartition("@")[2]
    if not url.scheme.startswith("postgres") or host in ("", "localhost", "127.0.0.1", "[::1]"):
        return ""
    return parse_qs(url.query).get("sslmode", [os.environ.get("PGSSLMODE", "prefer")])[-1]


async def look(plan: Plan, settings: Settings) -> list[Finding]:
    """Open and close the rooms that can be opened without changing anything."""
    bundle = settings.policy.path if isinstance(settings.policy, EmbeddedPolicySettings) else None
    found = await look_at_engine("policy", make_engine(plan), bundle)
    if (shadow := settings.policy.shadow) is not None:
        found += await look_at_engine("shadow", make_candidate(plan, shadow), shadow.path)
    if settings.approvals.local_approve:
        found.append(
            Finding("approvals", True, "approvals.local_approve: an administrator of this machine may approve")
        )
    tokens = make_tokens(plan)
    try:
        await tokens.start()
        async with asyncio.timeout(KEYS_WITHIN_S):
            while not tokens.issuers.ready:  # noqa: ASYNC110 - a command that looks once, not a server that waits
                await asyncio.sleep(0.05)
        found.append(Finding("keys", True, ", ".join(one.issuer for one in settings.identity.issuers)))
    except TimeoutError:
        missing = tokens.issuers.without_keys().items()
        asked = {one.issuer: one.jwks_uri or one.jwks_file or "metadata" for one in settings.identity.issuers}
        found += [
            Finding("keys", False, f"identity.issuers: {issuer}: {asked[issuer]}: {why}") for issuer, why in missing
        ]
    finally:
        await tokens.close()
    return found


async def look_at_engine(what: str, engine: Engine, bundle: Path | None) -> list[Finding]:
    """An engine, the one that judges or the candidate, started and ended; its bundle's tests where it has one."""
    key = "policy" if what == "policy" else "policy.shadow"
    try:
        await engine.start()
        found = [_engine_of(what, engine, key)]
        if bundle is not None:
            found.append(await asyncio.to_thread(run_bundle_tests, bundle, f"{what} tests"))
            broken = await find_broken(await asyncio.to_thread(load_bundle, bundle))
            found += (Finding(what, False, f"{one.name}: {one.why}") for one in broken)
    except PolicyUnavailable as error:
        told = str(error) if bundle is None else f"{key}.path: {error}"
        return [Finding(what, False, told)]
    finally:
        await engine.close()
    return found


def _engine_of(what: str, engine: Engine, key: str) -> Finding:
    """How the engine is, started as it was a moment ago."""
    if not engine.ready:
        return Finding(what, False, f"{key}.url: {engine.why}")
    if engine.revision == UNVERSIONED:
        return Finding(what, True, "OPA names no revision: no record tells which policy judged")
    return Finding(what, True, f"revision {engine.revision}")


async def look_at_pins(plan: Plan, settings: Settings) -> list[Finding]:
    """The pins beside what the servers offer; nothing where no server is held to any."""
    if all(server.pins == "off" for server in settings.servers.values()):
        return []
    try:
        async with pin_lobby(plan, recorded=False) as acceptance:
            strange = sorted(acceptance.pinned().keys() - settings.servers.keys())
            look = await acceptance.look()
    except (OSError, PinsUnreadable) as error:
        return [Finding("pins", False, f"pins.file: {error}")]
    unknown = [Finding("pins", False, f"pins.file: {name}: no such server is configured") for name in strange]
    return [*unknown, *map(_pins_of, look.shelves)]


def _pins_of(shelf: Shelf) -> Finding:
    """Not in order is what can never be in force: no pin at all, a pin of a tool that is not there."""
    if shelf.fault:
        return Finding("pins", False, f"{shelf.server}: could not be asked: {shelf.fault}")
    tools = {state: [one.tool for one in shelf.found if one.state is state] for state in State}
    told = [f"{shelf.kept} as accepted"]
    told += [f"{state}: {', '.join(map(ascii, names))}" for state, names in tools.items() if names]
    nothing = shelf.mode == "enforce" and not shelf.kept
    if nothing:
        told.append("no tool would be served: look with `ostiary pins show`")
    return Finding("pins", not nothing and not tools[State.GONE], f"{shelf.server} ({shelf.mode}): {'; '.join(told)}")


def run_bundle_tests(path: Path, what: str = "policy tests") -> Finding:
    """The bundle's own Rego tests, as a finding of `ostiary check`. Raises `PolicyUnavailable`."""
    outcomes = run_tests(path)
    failed = [f"{one.name}: {one.why}" for one in outcomes if not one.passed]
    return Finding(what, not failed, "; ".join(failed) or f"{len(outcomes)} passed")
