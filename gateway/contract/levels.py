"""Which log messages a request asked for (MCP 2026-07-28, server/utilities/logging): none, unless it names a level.

A request that names one in `_meta` may get messages of that level and above on its own stream, and nowhere else. A
name that is no level asks for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LOG_LEVEL = "io.modelcontextprotocol/logLevel"
LOG_MESSAGE = "notifications/message"
_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


def lowest_wanted(meta: Mapping[str, Any]) -> int:
    """A request's `_meta` -> the rank of the level from which on messages were asked for; beyond all where none."""
    wanted = meta.get(LOG_LEVEL)
    return _LEVELS.index(wanted) if wanted in _LEVELS else len(_LEVELS)


def is_wanted(message: Mapping[str, Any], lowest: int) -> bool:
    """Whether a `notifications/message` is of a level that was asked for; one without a level never is."""
    params = message.get("params")
    level = params.get("level") if isinstance(params, dict) else None
    return level in _LEVELS and _LEVELS.index(level) >= lowest
