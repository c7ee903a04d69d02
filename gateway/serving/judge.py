"""`ostiary judge` (of the supervisor): may this configuration follow the one that runs, and what became of it.

The same that a start rests on, before any worker is asked: settings, secrets and what goes together; folders, the
database's revision, the policy with its own tests, keys. And that nothing changes which can't without a restart.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import yaml

from gateway.audit.port import AuditUnavailable
from gateway.config import ConfigError, Settings
from gateway.config_file import load_settings
from gateway.inspecting.data_look import look_at_database
from gateway.inspecting.inspection import look, look_for_folders
from gateway.inspecting.wire_look import look_at_wires
from gateway.logs import set_up_logs
from gateway.mistakes import line_of
from gateway.opening import CannotStart, open_record
from gateway.plan import Plan, make_plan

FIXED: Final = (
    "listen.host", "listen.port", "admin.host", "admin.port",
    "audit.file", "audit.database", "audit.database_env", "approvals.database", "approvals.database_env",
)  # fmt: skip
"""Settings that a running gateway keeps: where it listens, and where what it must not forget is."""

_NAMED: Final = re.compile(r"([a-z_]+(?:\.[\w-]+)*)(?:\[\d+\])?(?:\.\w+)?: ")


def judge(file: Path, running: bytes, coming: bytes, home: Path | None = None) -> dict[str, Any]:
    """`mistakes`: lines for people (file, line, key, why, mend); the bounds that a supervisor needs, in seconds.

    `home`: the folder that the gateway began in, where `file` is a link that leads elsewhere by now.
    """
    set_up_logs(logging.CRITICAL)
    try:
        settings = load_settings(file, coming)
        plan = make_plan(settings)
    except (ConfigError, ValueError) as error:
        mistakes = str(error).splitlines()
    else:
        mistakes = _fixed(file, running, settings, home) or _found(plan, settings)
    if mistakes:
        return {"mistakes": [_placed(one, file, coming) for one in mistakes], "grace_s": 0, "drain_s": 0}
    limits = settings.limits
    return {"mistakes": [], "grace_s": limits.grace_s, "drain_s": min(limits.drain_s, limits.grace_s)}


def _fixed(file: Path, running: bytes, after: Settings, home: Path | None) -> list[str]:
    try:
        # What it takes in from other files may not be admitted any more: that may be why it is replaced.
        before = load_settings(file, running, admitted=False, home=home)
    except ConfigError as error:
        why = str(error).splitlines()[0]
        return [f"configuration: what runs can't be read any more, to be compared: {why} -> mend that, or restart"]
    changed = [name for name in FIXED if attrgetter(name)(before) != attrgetter(name)(after)]
    if (before.listen.tls is None) is not (after.listen.tls is None):
        changed.append("listen.tls")  # for a while, some workers would speak TLS on the one socket, and some not
    return [f"{name}: can't change while the gateway runs -> put the old value back, or restart" for name in changed]


def _found(plan: Plan, settings: Settings) -> list[str]:
    findings = [
        *look_for_folders(settings),
        *look_at_wires(plan),
        *asyncio.run(look_at_database(settings)),
        *asyncio.run(look(plan, settings)),
    ]
    return [
        f"{one.place and one.place + ': '}{one.detail}{one.mend and f' -> {one.mend}'}"
        for one in findings
        if not one.ok
    ]


def _placed(mistake: str, file: Path, text: bytes) -> str:
    """With the file and line of the setting that it begins with, where it does and they are not there yet."""
    named = _NAMED.match(mistake)
    if named is None:
        return mistake
    try:
        root = yaml.compose(text.decode(), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError):
        return mistake
    return f"{file}:{line_of(root, named[1].split('.'))}: {mistake}"


def note(file: Path, running: bytes, act: str, facts: Mapping[str, Any], home: Path | None = None) -> str:
    """Write what became of a configuration into the record -> why it could not be, `""` where it is there."""
    set_up_logs(logging.CRITICAL)

    async def write() -> None:
        async with AsyncExitStack() as opened:
            record = await open_record(make_plan(load_settings(file, running, admitted=False, home=home)), opened)
            await record.act(act, "ostiary", facts)

    try:
        asyncio.run(write())
    except (ConfigError, ValueError, CannotStart, AuditUnavailable) as error:
        return str(error)
    return ""
