"""`ostiary check`: would this configuration serve, and does everything that it names exist?

Opens what a worker opens at start and closes it again; of the record and the store it looks for the folder only.
Issuers are asked for their keys, and whether they would sign people in. Nothing is changed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click
import orjson

from approvals.approvers import read_approver
from approvals.ticket import Unapprovable
from gateway.config import ConfigError, EmbeddedPolicySettings, Settings
from gateway.contract.pins import PinsUnreadable, State
from gateway.engines import make_engine, name_setting
from gateway.lobbies import pin_lobby
from gateway.logs import set_up_logs
from gateway.opening import make_tokens
from gateway.pins.acceptance import Shelf
from gateway.plan import Plan, make_plan
from gateway.sign_in.trial import try_sign_in
from policies.port import Engine
from policies.rego_tests import run_tests
from policies.verdict import UNVERSIONED, PolicyUnavailable

KEYS_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, whether it is in order, and in words what is (or is not) there."""

    what: str
    ok: bool
    detail: str


def inspect(settings: Settings, as_json: bool) -> int:
    """Print every finding -> exit code: 0 all in order, 1 not."""
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
            *compare_names(settings),
            *asyncio.run(look(plan, settings)),
            *(Finding("sign-in", *told) for told in asyncio.run(try_sign_in(plan.sign_in))),
            *asyncio.run(look_at_pins(plan, settings)),
        ]
    for finding in findings:
        mark = "ok  " if finding.ok else "FAIL"
        click.echo(orjson.dumps(asdict(finding)).decode() if as_json else f"{mark} {finding.what}: {finding.detail}")
    return 0 if all(finding.ok for finding in findings) else 1


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
    """A database elsewhere whose certificate nobody looks at: told, for the way to it may be one's own."""
    url = urlsplit(settings.database_url)
    host = url.netloc.rpartition("@")[2].rpartition(":")[0] or url.netloc.rpartition("@")[2]
    mode = parse_qs(url.query).get("sslmode", [os.environ.get("PGSSLMODE", "prefer")])[-1]
    near = url.scheme == "sqlite" or host in ("", "localhost", "127.0.0.1", "[::1]")
    if near or mode in ("verify-full", "verify-ca"):
        return []
    return [
        Finding("approvals", True, f"approvals.database: sslmode={mode} does not look at the server's certificate")
    ]


def compare_names(settings: Settings) -> list[Finding]:
    """What only one of the configuration and the shipped policy's data names: told, for it may be meant so.

    Servers, and issuers of approvers. Nothing of data of another form, which rules of one's own may have, or that
    does not load (`look` tells that).
    """
    if not isinstance(settings.policy, EmbeddedPolicySettings):
        return []
    try:
        data = orjson.loads((settings.policy.path / "mcp/authz/data.json").read_bytes())
    except (OSError, ValueError):
        return []
    named = data.get("servers") if isinstance(data, dict) else None
    if not isinstance(named, dict):
        return []
    unnamed, strange = settings.servers.keys() - named.keys(), named.keys() - settings.servers.keys()
    told = [f"does not name {', '.join(sorted(unnamed))}: all requests are denied there"] if unnamed else []
    told += [f"names what is no server here: {', '.join(map(ascii, sorted(strange)))}"] if strange else []
    told += _strange_approvers(named, settings.approvals.issuers or [one.issuer for one in settings.identity.issuers])
    return [Finding("policy data", True, f"data.json {one}") for one in told]


def _strange_approvers(servers: Mapping[str, Any], issuers: Sequence[str]) -> Iterator[str]:
    """A line for every entry that could never be approved, because of one of its approvers."""
    for name, server in servers.items():
        sections = [server.get(one) for one in ("tools", "prompts", "resources")] if isinstance(server, dict) else []
        entries = [pair for one in sections if isinstance(one, dict) for pair in one.items()]
        for item, entry in entries:
            approval = entry.get("approval") if isinstance(entry, dict) else None
            approvers = approval.get("approvers") if isinstance(approval, dict) else None
            try:
                for one in approvers if isinstance(approvers, list) else ():
                    read_approver(str(one), issuers)
            except Unapprovable as error:
                yield f"lets nobody approve {item!a} of {name!a}: {error}"


async def look(plan: Plan, settings: Settings) -> list[Finding]:
    """Open and close the rooms that can be opened without changing anything."""
    found: list[Finding] = []
    policy = make_engine(plan)
    try:
        await policy.start()
        found.append(_engine_of(policy))
        if isinstance(settings.policy, EmbeddedPolicySettings):
            found.append(await asyncio.to_thread(run_bundle_tests, settings.policy.path))
    except PolicyUnavailable as error:
        found.append(Finding("policy", False, name_setting(settings.policy, error)))
    finally:
        await policy.close()
    if settings.approvals.local_approve:
        found.append(
            Finding("approvals", True, "approvals.local_approve: an administrator of this machine may approve")
        )
    tokens = make_tokens(plan)
    try:
        await tokens.start()
        async with asyncio.timeout(KEYS_WITHIN_S):
            while not tokens.ready:  # noqa: ASYNC110 - a command that looks once, not a server that waits
                await asyncio.sleep(0.05)
        found.append(Finding("keys", True, ", ".join(one.issuer for one in settings.identity.issuers)))
    except TimeoutError:
        missing = tokens.without_keys().items()
        asked = {one.issuer: one.jwks_uri or one.jwks_file or "metadata" for one in settings.identity.issuers}
        found += [
            Finding("keys", False, f"identity.issuers: {issuer}: {asked[issuer]}: {why}") for issuer, why in missing
        ]
    finally:
        await tokens.close()
    return found


def _engine_of(policy: Engine) -> Finding:
    """How the engine is, started as it was a moment ago."""
    if not policy.ready:
        return Finding("policy", False, f"policy.url: {policy.why}")
    if policy.revision == UNVERSIONED:
        return Finding("policy", True, "OPA names no revision: no record tells which policy judged")
    return Finding("policy", True, f"revision {policy.revision}")


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


def run_bundle_tests(path: Path) -> Finding:
    """The bundle's own Rego tests, as a finding of `ostiary check`. Raises `PolicyUnavailable`."""
    outcomes = run_tests(path)
    failed = [f"{one.name}: {one.why}" for one in outcomes if not one.passed]
    return Finding("policy tests", not failed, "; ".join(failed) or f"{len(outcomes)} passed")
