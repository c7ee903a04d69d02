"""Addresses of names, asked for apart from everything else: a resolver that hangs costs one thread a name.

The event loop's own look-ups share a few threads with whatever else leaves the loop (the store, keys, bundles): a
receiver whose name servers are silent would keep them all. Here whoever asks for a name that is being looked up waits
for the same answer, and no thread outlives the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any

Found = list[tuple[Any, ...]]


class Lookups:
    """One for each owner of a bounded number of names."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[str, int], asyncio.Future[Found]] = {}

    async def find(self, host: str, port: int) -> Found:
        """What `socket.getaddrinfo` finds for streams. Raises `OSError`, `UnicodeError`."""
        key = (host, port)
        answer = self._under_way.get(key)
        if answer is None:
            answer = self._under_way[key] = asyncio.get_running_loop().create_future()
            answer.add_done_callback(lambda done: self._ended(key, done))
            threading.Thread(target=_look_up, args=(host, port, answer), name="lookup", daemon=True).start()
        return await asyncio.shield(answer)

    def _ended(self, key: tuple[str, int], answer: asyncio.Future[Found]) -> None:
        del self._under_way[key]
        if not answer.cancelled():
            answer.exception()  # whoever asked may be gone


def _look_up(host: str, port: int, answer: asyncio.Future[Found]) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as fault:
        _tell(answer, fault)
    else:
        _tell(answer, found)


def _tell(answer: asyncio.Future[Found], told: Found | Exception) -> None:
    def settle() -> None:
        if answer.done():
            return
        if isinstance(told, Exception):
            answer.set_exception(told)
        else:
            answer.set_result(told)

    with contextlib.suppress(RuntimeError):  # the loop has ended, and whoever asked with it
        answer.get_loop().call_soon_threadsafe(settle)
