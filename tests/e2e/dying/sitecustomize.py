"""Makes a gateway worker die, by its own kill -9, at a chosen step of the corridor. Only the crash tests load this.

It is put on PYTHONPATH by tests/e2e/test_crash.py, so production code needs no hook. A worker dies when it reaches
the step whose name the file `DYING_AT` holds; the file goes first, so it dies once. A seam that no longer exists ends
the worker with 70 and the test with a clear word, instead of a test that kills nothing.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

SEAMS = {
    # step: (module, class, method, whether the worker dies before or after that method's work)
    "before the use is consumed": ("approvals.desk", "Desk", "settle", "before"),
    "after the use is consumed": ("approvals.desk", "Desk", "settle", "after"),
    "before the leg is taken": ("approvals.desk", "Desk", "go_on", "before"),
    "after the leg is taken": ("approvals.desk", "Desk", "go_on", "after"),
    "before the lease is taken": ("approvals.shelf", "Shelf", "take", "before"),
    "after the lease is taken": ("approvals.shelf", "Shelf", "take", "after"),
    "before the result is kept": ("approvals.shelf", "Shelf", "tell", "before"),
    "after the result is kept": ("approvals.shelf", "Shelf", "tell", "after"),
    "before the key is taken": ("approvals.keyed", "KeyedCalls", "take", "before"),
    "after the key is taken": ("approvals.keyed", "KeyedCalls", "take", "after"),
    "before the outcome is kept": ("approvals.keyed", "KeyedCalls", "end", "before"),
    "after the outcome is kept": ("approvals.keyed", "KeyedCalls", "end", "after"),
    "after the decision is durable": ("gateway.pipeline", "Corridor", "commit", "after"),
    "after the use is marked as sent": ("approvals.desk", "Desk", "sent", "after"),
    "after the answer's head": ("gateway.upstream.http", "HttpUpstream", "forward", "after"),
    "before the outcome is recorded": ("gateway.delivery", "Delivery", "conclude", "before"),
    "before the use is ended": ("approvals.desk", "Desk", "finish", "before"),
}

Work = Callable[..., Awaitable[Any]]


def die_if_it_is_time(order: Path, step: str) -> None:
    """kill -9 when the order names this step: of this process, or of the one on its second line and all its own."""
    try:
        named, _, victim = order.read_text().partition("\n")
        if named != step:
            return
        order.unlink()
    except FileNotFoundError:
        return
    if not victim:
        os.kill(os.getpid(), signal.SIGKILL)
    children = Path(f"/proc/{victim}/task/{victim}/children").read_text().split()
    for pid in (victim, *children):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def arm(order: Path) -> None:
    """Wrap every seam."""
    for step, (module, owner, method, when) in SEAMS.items():
        holder = getattr(importlib.import_module(module), owner)
        setattr(holder, method, wrap(getattr(holder, method), order, step, when))


def wrap(work: Work, order: Path, step: str, when: str) -> Work:
    """The method, with death before or after its work."""

    @functools.wraps(work)
    async def mortal(*arguments: Any, **options: Any) -> Any:
        if when == "before":
            die_if_it_is_time(order, step)
        done = await work(*arguments, **options)
        if when == "after":
            die_if_it_is_time(order, step)
        return done

    return mortal


if "DYING_AT" in os.environ and "worker" in sys.orig_argv:
    try:
        arm(Path(os.environ["DYING_AT"]))
    except (ImportError, AttributeError):
        traceback.print_exc()
        os._exit(70)
