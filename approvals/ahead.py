"""Asking ahead of a call, from a shell: what is asked for, waiting for the answer, and what to do then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, BinaryIO

from approvals.printing import plain
from approvals.reading import Unreadable, read_text

MOST_BYTES = 1 << 20
POLL_S = (1.0, 1.5, 2.0, 3.0, 5.0)
"""Pauses between two looks; the last one is kept."""

WRONG: Mapping[str, str] = {
    "not_json": "not JSON",
    "not_an_object": "not a JSON object",
    "too_deep": "nested too deeply",
    "ambiguous": "a member stands twice in an object, or a number is beyond 64 bits",
    "too_long": f"more than {MOST_BYTES} bytes",
}


def read_file(file: BinaryIO | None, option: str) -> dict[str, Any] | None:
    """The object in a file, or `None` without one. Raises `ValueError`, which names the option."""
    if file is None:
        return None
    text = file.read(MOST_BYTES + 1)
    try:
        if len(text) > MOST_BYTES:
            raise Unreadable("too_long")
        return read_text(text)
    except Unreadable as fault:
        raise ValueError(f"{option}: {WRONG[str(fault)]}") from None


async def wait_for(
    ticket: Mapping[str, Any],
    show: Callable[[str], Awaitable[Mapping[str, Any]]],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Mapping[str, Any]:
    """The ticket once somebody decided, or its time was over. Raises what `show` raises."""
    looks = 0
    while ticket["state"] == "pending":
        await sleep(POLL_S[min(looks, len(POLL_S) - 1)])
        looks += 1
        ticket = await show(ticket["id"])
    return ticket


def what_next(ticket: Mapping[str, Any]) -> str:
    """What whoever asked can do now, in a sentence or two."""
    calls = "a call whose arguments fit" if "vary" in ticket else "the identical call, as the same client"
    if ticket["state"] == "pending":
        told = (
            f"A person decides this at {ticket['page']} until {ticket['expiresAt']}. Look with `ostiary approvals "
            f"show {ticket['id']}`; once it is approved, make {calls}."
        )
    elif ticket["state"] == "approved":
        times = f"{ticket['uses_left']} time" + ("" if ticket["uses_left"] == 1 else "s")
        told = f"It is approved: make {calls}, {times}, until {ticket['expiresAt']}."
    else:
        told = f"It is {ticket['state']}: nothing runs under it."
    return plain(told)
