"""The class `scale`: many calls at once, a stream that breaks, a replica that dies with a call in its hands."""

from __future__ import annotations

import asyncio
import secrets

import orjson

from gateway.evidence.site import lines_of
from gateway.evidence.taking.notebook import Notebook


async def take_burst(book: Notebook) -> None:
    """So many calls at the same moment, each on a connection of its own."""
    burst = await asyncio.gather(*(book.client.send(book.site.slow()) for _ in range(book.site.plan.burst)))
    steps = [{"step": f"call {at}", **told} for at, told in enumerate(burst, start=1)]
    book.draft.add_json("scale/burst.json", {"steps": steps})


async def take_broken_stream(book: Notebook) -> None:
    """A stream that breaks off; the client makes the call anew."""
    transcript = book.transcript("scale/broken_stream.json")
    book.site.require("break_stream", "mend_replicas")
    try:
        await book.site.act("break_stream")
        await transcript.ask("broken", book.site.slow())
        await transcript.ask("retried", book.site.slow())
    finally:
        await book.site.act("mend_replicas")


async def take_repeated(book: Notebook) -> None:
    """A call under a key, the same once more, and another one under that key."""
    transcript = book.transcript("scale/repeated.json")
    key = secrets.token_hex(16)
    await transcript.ask("first", book.site.read().with_headers(Idempotency_Key=key))
    await transcript.ask("again", book.site.read().with_headers(Idempotency_Key=key))
    await transcript.ask("other", book.site.read(book.site.plan.failing).with_headers(Idempotency_Key=key))


async def take_lost_replica(book: Notebook) -> None:
    """A replica that dies once it has the call; what arrived at the replicas is asked of them, not of the gateway."""
    transcript = book.transcript("scale/sent_once.json")
    book.site.require("lose_replica", "mend_replicas", "arrivals")
    await transcript.ask("good", book.site.read())
    try:
        await book.site.act("lose_replica")
        keyed = book.site.read().with_headers(Idempotency_Key=secrets.token_hex(16))
        lost = await transcript.ask("lost", keyed)
        await transcript.ask("next", book.site.read())
        again = await transcript.ask("again", keyed)
    finally:
        await book.site.act("mend_replicas")
    ours = {lost["trace"], again["trace"]}
    arrived = [line for line in lines_of(await book.site.act("arrivals")) if line.get("trace") in ours]
    book.draft.add("scale/arrivals.jsonl", b"".join(orjson.dumps(line) + b"\n" for line in arrived))
