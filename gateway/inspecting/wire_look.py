"""`ostiary check` on certificates: whether each pair could be shown, for how long, and by which names it is known."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from gateway.inspecting.finding import Finding
from gateway.plan import Plan
from gateway.wires.pem import Files, Material, WireRefused, load

DAY_S: Final = 86_400
SOON_S: Final = 30 * DAY_S
"""An end that is nearer is worth a look, unless most of the certificate's life is still left."""


def look_at_wires(plan: Plan) -> list[Finding]:
    """Every place where certificates are shown or asked for. Files are read; nobody is connected to.

    And whom the gateway tells who calls: a server that is told less than one thinks authorises nobody.
    """
    told = [
        Finding("statements", True, f"{name} is told who calls, in {target.stating.header}")
        for name, target in sorted(plan.targets.items())
        if target.stating is not None
    ]
    return [finding for files in plan.wires for finding in _look(plan, files)] + told


def _look(plan: Plan, files: Files) -> Iterator[Finding]:
    try:
        found = load(files)
    except WireRefused as refused:
        yield Finding("certificates", False, str(refused))
        return
    if found.expires_at is None:
        yield Finding("certificates", True, f"{files.setting}: authorities of one's own, no certificate shown")
        return
    until = time.strftime("%Y-%m-%d", time.gmtime(found.expires_at))
    left_s = found.expires_at - time.time()
    if left_s < min(SOON_S, (found.expires_at - found.begins_at) / 3):
        told = f"expires in {left_s / DAY_S:.1f} days, on {until}"
        yield Finding("certificates", True, told, f"{files.setting}.cert", "renew it")
    else:
        yield Finding("certificates", True, f"{files.setting}: until {until}")
    host = urlsplit(plan.settings.public_url).hostname or ""
    if files.serves and not _covers(found, host):
        told = f"does not name {host}, where clients come (public_url)"
        yield Finding("certificates", True, told, f"{files.setting}.cert", "let it name that host")


def _covers(found: Material, host: str) -> bool:
    """Whether a client that comes to `host` would take the certificate: exactly, or by `*` in place of a label."""
    _, _, parent = host.partition(".")
    wanted = {host, f"*.{parent}"} if parent else {host}
    return any(name.lower() in wanted for name in found.names)
