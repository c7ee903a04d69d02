"""Counters to which a turn of the loop adds once, at its end, however many requests ended in it.

A counter lives in a file that others read, and to write there costs ten times what it costs to remember. What is
counted is there before the next turn, so before anybody who was answered in this one can ask for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final


class Turn:
    """What one worker counted since the end of the loop's last turn."""

    __slots__ = ("_failed", "_loop", "_more")

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        """`failed` is told why a counter could not be written: its file is gone, or has no room."""
        self._failed: Final = failed
        self._more: Final[dict[Any, int]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def count(self, counter: Any) -> None:
        """One more of a `Counter` without labels, or with those that it has. Where no loop runs, at once."""
        more = self._more
        more[counter] = more.get(counter, 0) + 1
        if self._loop is not None and self._loop.is_running():
            return
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self.carry_over()
        else:
            self._loop.call_soon(self.carry_over)

    def carry_over(self) -> None:
        """Write what was counted."""
        self._loop = None
        more = dict(self._more)
        self._more.clear()
        for counter, number in more.items():
            try:
                counter.inc(number)
            except (OSError, IndexError) as error:  # the library's file, after one that could not grow
                self._failed(error)
