"""The classes `wire` and `authorization`: good calls, refused ones, and one that a person approves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from gateway.evidence.probes import PROBES, Probe
from gateway.evidence.site import NotHere
from gateway.evidence.taking.notebook import Notebook


async def take_probes(book: Notebook) -> None:
    """Each probe between two good calls, some side by side."""
    room = asyncio.Semaphore(8)

    async def take(probe: Probe) -> None:
        async with room:
            transcript = book.transcript(probe.file)
            try:
                await transcript.ask("good", book.site.read())
                await transcript.ask("spoiled", probe.spoil(book.site))
                await transcript.ask("good again", book.site.read())
            except NotHere as missing:
                book.broke_off[f"{probe.group}/{probe.name}"] = str(missing)

    await asyncio.gather(*map(take, PROBES))


async def take_good(book: Notebook) -> None:
    """What a client does first: it asks who is there and what there is, and calls."""
    transcript = book.transcript("wire/good.json")
    for step, request in (
        ("discover", book.site.discovery()),
        ("list", book.site.listing()),
        ("call", book.site.read()),
    ):
        await transcript.ask(step, request)


async def take_failure(book: Notebook) -> None:
    """Arguments that fit the schema, and that the tool's handler fails on."""
    transcript = book.transcript("wire/handler_failure.json")
    await transcript.ask("good", book.site.read())
    await transcript.ask("failing", book.site.read(book.site.plan.failing))


async def take_cancellation(book: Notebook) -> None:
    """Go away while a call runs; the next one is answered."""
    transcript = book.transcript("wire/cancellation.json")
    await transcript.ask("good", book.site.read())
    await transcript.ask(
        "left", book.site.slow(), leave_after=b"notifications/progress", leave_s=book.site.plan.leave_s
    )
    await transcript.ask("good again", book.site.read())


async def take_expiry(book: Notebook) -> None:
    """A list, and the same list once it is no longer fresh."""
    transcript = book.transcript("wire/cache_expiry.json")
    first = await transcript.ask("list", book.site.listing())
    fresh_ms = _ttl(first)
    if fresh_ms > book.site.plan.expiry_s * 1000:
        raise NotHere(f"the list stays fresh for {fresh_ms} ms, the plan's expiry_s waits for less")
    await asyncio.sleep(fresh_ms / 1000 + 0.05)
    await transcript.ask("list again", book.site.listing())


def _ttl(told: Mapping[str, Any]) -> float:
    """The `ttlMs` of a list's answer. Raises `NotHere`."""
    answer = told["answer"] or {"body": ""}
    for line in reversed(str(answer["body"]).splitlines()):
        try:
            return float(json.loads(line.removeprefix("data:"))["result"]["ttlMs"])
        except (ValueError, LookupError, TypeError):
            continue
    raise NotHere("the list carries no ttlMs")


async def take_approval(book: Notebook) -> None:
    """Held, not approved by who asked, approved by another, run once, held again, denied."""
    site = book.site
    transcript = book.transcript("authorization/approved_call.json")
    held = await transcript.ask("held", site.gated())
    ticket = _ticket(held)
    await transcript.ask("own approval", site.review("requester", ticket, "approve"))
    await transcript.ask("seen", site.review("approver", ticket))
    await transcript.ask("approved", site.review("approver", ticket, "approve"))
    await transcript.ask("changed", site.gated(arguments=site.plan.changed))
    await transcript.ask("run", site.gated())
    again = await transcript.ask("again", site.gated())
    await transcript.ask("used", site.review("approver", ticket))
    await transcript.ask("denied", site.review("approver", _ticket(again), "deny"))
    await transcript.ask("after the no", site.gated())


def _ticket(told: Mapping[str, Any]) -> str:
    """The ticket of a held call. Raises `NotHere`."""
    try:
        return str(json.loads(told["answer"]["body"])["error"]["data"]["ticket"]["id"])
    except (ValueError, LookupError, TypeError):
        raise NotHere("the gated call was not held: it names no ticket") from None
