"""structlog set-up: one JSON line per event, on standard output, in one pass.

What callers control arrives here already escaped and cut by the audit projection; nothing is formatted twice.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import orjson
import structlog


def _render(_: Any, __: str, event: structlog.typing.EventDict) -> bytes:
    return orjson.dumps(event, default=repr)


def set_up_logs(level: int = logging.INFO) -> None:
    """Configure structlog, and send the standard library's warnings and worse (uvicorn, asyncio) the same way."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.BytesLoggerFactory(file=sys.stdout.buffer),
        cache_logger_on_first_use=True,
    )
    handler = _Bridge(level=logging.WARNING)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)


class _Bridge(logging.Handler):
    """Standard library records -> structlog. Exceptions are named by type: their text can hold a caller's data."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        fields = {"error": type(error).__name__} if error else {}
        structlog.get_logger().log(record.levelno, record.getMessage(), logger=record.name, **fields)
