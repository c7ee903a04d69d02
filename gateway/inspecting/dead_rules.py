"""What of the shipped policy's data could never match behind this configuration, each with its place and remedy.

Two kinds: what is wrong whatever is served (a misspelt member, an hour that never comes), and what is told because it
may be meant for another gateway (a server that is not here, an environment that is another one's).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from approvals.approvers import read_approver
from approvals.ticket import Unapprovable
from gateway.config import ServerSettings, Settings
from gateway.contract.methods import METHODS
from gateway.contract.resources import Reach
from policies.data_form import SECTIONS, find_faults
from policies.forms import At, Fault

_PLAIN = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*\Z")
BY_NAME = {"tools/call": "tools", "prompts/get": "prompts", "resources/read": "resources"}


def find_wrong(data: Any) -> list[Fault]:
    """What is wrong with the data whatever is served."""
    return list(find_faults(data))


def find_unmatched(data: Any, settings: Settings) -> list[Fault]:
    """What nothing behind this configuration could match. Nothing where the data has another form."""
    named = data.get("servers") if isinstance(data, dict) else None
    if not isinstance(named, dict):
        return []
    found = []
    for name in settings.servers:
        if name not in named:
            what = f"does not name {name}: all requests are denied there"
            found.append(At("servers").fault(what, "add it, or remove it from servers of the configuration"))
    for name, server in named.items():
        at = At("servers", name)
        if name not in settings.servers:
            close = get_close_matches(name, settings.servers, 1)
            mend = f"write {close[0]!r}" if close else "remove it, or add it to servers of the configuration"
            found.append(at.fault("names what is no server here", mend))
        elif isinstance(server, dict):
            found += _of_server(at, server, name, settings)
    return found


def _of_server(at: At, server: Mapping[str, Any], name: str, settings: Settings) -> Iterator[Fault]:
    here = settings.servers[name]
    yield from _of_both(at, server, here, settings)
    for section in SECTIONS:
        entries = server.get(section)
        for item, entry in entries.items() if isinstance(entries, dict) else ():
            place = at / section / item
            if section == "methods":
                yield from _method(place, item, here)
            if section == "resources":
                yield from _resource(place, item, here)
            if isinstance(entry, dict):
                yield from _of_both(place, entry, here, settings)
                yield from _approvers(place / "approval" / "approvers", entry.get("approval"), settings)


def _of_both(at: At, one: Mapping[str, Any], here: ServerSettings, settings: Settings) -> Iterator[Fault]:
    """Environments, tenants and scopes, of a server or an entry."""
    environments = _texts(one.get("environments"))
    if environments and here.environment not in environments:
        what = f"never holds here: this server's environment is {here.environment!r}"
        yield (at / "environments").fault(what, "add it, or mend servers.NAME.environment")
    issuers = [one for one in settings.identity.issuers if not here.issuers or one.issuer in here.issuers]
    tenants = _texts(one.get("tenants"))
    if tenants and "" not in tenants and not any(issuer.tenant_claim for issuer in issuers):
        what = "never holds: no issuer of this server has a tenant_claim, so no caller has a tenant"
        yield (at / "tenants").fault(what, "set identity.issuers[].tenant_claim, or leave it out")
    known = {*here.scopes, *settings.identity.scope_implies}
    known |= {scope for implied in settings.identity.scope_implies.values() for scope in implied}
    for place, scope in enumerate(_texts(one.get("scopes"))):
        close = get_close_matches(scope, known, 1, 0.85)
        if scope not in known and close:
            what = f"is a scope that the configuration names nowhere, and nearly {close[0]!r}"
            yield (at / "scopes" / place).fault(what, f"write {close[0]!r}, or name it in servers.NAME.scopes")


def _approvers(at: At, approval: Any, settings: Settings) -> Iterator[Fault]:
    approvers = approval.get("approvers") if isinstance(approval, dict) else None
    issuers = settings.approvals.issuers or tuple(one.issuer for one in settings.identity.issuers)
    for place, one in enumerate(_texts(approvers)):
        try:
            read_approver(one, issuers)
        except Unapprovable as error:
            close = get_close_matches(one.partition(":")[2].partition("|")[0], issuers, 1)
            mend = f"write the issuer as {close[0]!r}" if close else "name an issuer of approvals.issuers"
            yield (at / place).fault(f"is nobody: {error}", mend)


def _method(at: At, method: str, here: ServerSettings) -> Iterator[Fault]:
    if method in BY_NAME:
        yield at.fault("is never asked for: what it names is judged by itself", f"put it under {BY_NAME[method]!r}")
    elif method not in METHODS and method not in here.methods:
        close = get_close_matches(method, [*METHODS, *here.methods], 1)
        mend = f"write {close[0]!r}" if close else "add it to servers.NAME.methods, or remove it"
        yield at.fault("is a method that is not served", mend)


def _resource(at: At, uri: str, here: ServerSettings) -> Iterator[Fault]:
    if uri.endswith("/") and not _reads_once(uri):
        yield at.fault(
            "is not in normal form: no URI that is accepted lies below it", "write it as servers will see it"
        )
    elif here.resources.allow is not None:
        reach = Reach(here.resources.allow)
        # A key may be wider than a prefix, and a prefix wider than a key: dead is what shares nothing.
        if not reach.admits(uri) and not (
            uri.endswith("/") and any(prefix.startswith(uri) for prefix in here.resources.allow)
        ):
            yield at.fault("lies outside resources.allow: nobody can name it", "widen servers.NAME.resources.allow")


def _reads_once(uri: str) -> bool:
    """Whether a key that covers what lies below it can do so: the rules take no dots, empty segments or strangers."""
    rest = uri.rpartition("://")[2].removesuffix("/")
    parts = re.split(r"[/?#;]", rest)
    return bool(_PLAIN.match(uri)) and "//" not in rest and not any(part and not part.strip(".") for part in parts)


def find_unoffered(data: Any, offered: Mapping[str, Mapping[str, Sequence[str]]]) -> Iterator[Fault]:
    """Tools and prompts that the data names and their servers do not offer (`offered`: server, section, names)."""
    named = data.get("servers") if isinstance(data, dict) else None
    for name, sections in offered.items():
        server = named.get(name) if isinstance(named, dict) else None
        for section, names in sections.items():
            entries = server.get(section) if isinstance(server, dict) else None
            for item in entries if isinstance(entries, dict) else ():
                if item not in names:
                    close = get_close_matches(item, names, 1)
                    mend = f"write {close[0]!r}" if close else "remove it"
                    what = f"is none of the {len(names)} {section} that the server offers"
                    yield At("servers", name, section, item).fault(what, mend)


def _texts(value: Any) -> list[str]:
    """The value where it is a list of texts, else nothing: what it is instead is told elsewhere."""
    return value if isinstance(value, list) and all(isinstance(one, str) for one in value) else []
