"""The class `audit`: canaries, health, a policy that breaks and is taken back, a gateway that drains."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from gateway.evidence.pack import Draft
from gateway.evidence.seen import metric
from gateway.evidence.site import NotHere
from gateway.evidence.taking.notebook import Notebook

CANARIES: Final = ("argument", "metadata", "cookie", "query", "token")
"""Where canaries are planted."""

_WATCHED: Final = "ostiary_policy_"


def _planted(draft: Draft, where: str) -> str:
    canary = f"canary-{secrets.token_hex(16)}"
    draft.scrubber.know(f"canary {where}", canary)
    return canary


async def take_canaries(book: Notebook) -> None:
    """Calls with a text of their own in each place that could leak it."""
    site = book.site
    sown = {where: _planted(book.draft, where) for where in CANARIES}
    transcript = book.transcript("audit/canaries.json")
    failing = {
        name: sown["argument"] if isinstance(value, str) else value for name, value in site.plan.failing.items()
    }
    await transcript.ask("argument", site.read(failing))
    await transcript.ask("cookie", site.read().with_headers(Cookie=f"session={sown['cookie']}"))
    good = site.read()
    document = good.document()
    document["params"]["_meta"]["example.com/evidence"] = sown["metadata"]
    await transcript.ask("metadata", good.with_body(json.dumps(document).encode()))
    await transcript.ask("query", site.read().with_query(f"access_token={sown['query']}"))
    await transcript.ask("token", site.read().with_headers(Authorization=f"Bearer {sown['token']}"))


async def take_health(book: Notebook) -> None:
    """What the admin listener says."""
    transcript = book.transcript("audit/health.json")
    await transcript.ask("livez", book.site.admin("/livez"))
    await transcript.ask("readyz", book.site.admin("/readyz"))


async def take_metrics(book: Notebook) -> None:
    """All metrics, as they are at the end."""
    told = await book.client.send(book.site.admin("/metrics"))
    book.draft.add("audit/metrics.txt", _text(told).encode())


async def take_rollback(book: Notebook) -> None:
    """A bundle that breaks, another one in its place, and the first one back."""
    site, transcript = book.site, book.transcript("audit/rollback.json")

    async def policy() -> str:
        text = _text(await book.client.send(site.admin("/metrics")))
        return "".join(f"{line}\n" for line in text.splitlines() if line.startswith(_WATCHED))

    async def look(step: str) -> set[str]:
        told = await policy()
        transcript.add(step, {**await book.client.send(site.read()), "metrics": told})
        return _revisions(told)

    def judged_by(current: bool, revisions: set[str], same: bool) -> Callable[[], Awaitable[bool]]:
        async def is_so() -> bool:
            told = await policy()
            here = {value for _, value in metric(told, "ostiary_policy_current")}
            return here == {float(current)} and (_revisions(told) == revisions) is same

        return is_so

    site.require("break_policy", "change_policy", "restore_policy")
    first = await look("before")
    try:
        for act, step, current in (("break_policy", "broken", False), ("change_policy", "changed", True)):
            await site.act(act)
            await book.until(judged_by(current, first, not current), act)
            await look(step)
    finally:
        await site.act("restore_policy")
    await book.until(judged_by(True, first, True), "restore_policy")
    await look("rolled back")


def _revisions(text: str) -> set[str]:
    return {labels.get("revision", "") for labels, _ in metric(text, "ostiary_policy_info")}


async def take_drain(book: Notebook) -> None:
    """A gateway is told to stop while a call runs in it; then it is there again."""
    site, transcript = book.site, book.transcript("audit/drain.json")
    site.require("drain", "start")
    await transcript.ask("ready", site.admin("/readyz"))
    begun = asyncio.Event()
    running = asyncio.create_task(book.client.send(site.slow(), begun=begun))
    with contextlib.suppress(TimeoutError):  # one that streams nothing was sent long ago by then
        await asyncio.wait_for(begun.wait(), 1.0)
    try:
        await asyncio.gather(_watch(book, transcript.add), site.act("drain"))
        transcript.add("call", await running)
    finally:
        await site.act("start")
    await transcript.ask("ready again", site.admin("/readyz"))
    await transcript.ask("next", site.read())


async def _watch(book: Notebook, add: Callable[[str, Mapping[str, Any]], None]) -> None:
    """Keep the first answer that says it is not ready. Raises `NotHere` where none does."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        told = await book.client.send(book.site.admin("/readyz"))
        if told["answer"] is None or told["answer"]["status"] != 200:
            add("draining", told)
            return
        await asyncio.sleep(0.02)
    raise NotHere("it was never told to be not ready")


def _text(told: Mapping[str, Any]) -> str:
    """The body of an answer. Raises `NotHere`."""
    body = (told["answer"] or {}).get("body")
    if not isinstance(body, str):
        raise NotHere("the admin listener gave no answer that could be kept")
    return body
