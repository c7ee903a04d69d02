"""Tasks beside the requests: nobody awaits them, so a defect that ends one is told of in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog


def tell_if_broken(room: str) -> Callable[[asyncio.Task[Any]], None]:
    """A task's done callback: an end by an exception is `task_broke` in the log of `room`, with the task's name."""

    def tell(task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            structlog.get_logger(room).error("task_broke", task=task.get_name(), exc_info=error)

    return tell
