"""The class `registry`: the published record and the pins as they are, and what `ostiary` says of them.

The live side is what the server itself said in `wire/good.json`; nothing of the record is asked or believed.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.evidence.site import NotHere
from gateway.evidence.taking.notebook import Notebook

MOVED: Final = "https://moved.example.com/mcp"
"""Where a record says that the server is, and it is not."""


async def take_registry(book: Notebook) -> None:
    """The record, the pins, and the product's own comparison: of this record, and of one that says another place."""
    published = book.site.published
    if published is None:
        raise NotHere("the plan names no record")
    record = await asyncio.to_thread(published.record.read_bytes)
    book.draft.add("registry/server.json", record)
    book.draft.add_json("registry/asked.json", published.described())
    with tempfile.TemporaryDirectory() as folder:
        moved = Path(folder) / "moved.json"
        moved.write_bytes(_moved(record))
        compare = ("registry", "drift", "--config", str(published.config), "--json", "--record")
        asked = {
            "drift": (*compare, str(published.record), published.server),
            "moved": (*compare, str(moved), published.server),
            "pins": ("pins", "show", "--config", str(published.config), "--server", published.server, "--json"),
        }
        runs = dict(zip(asked, await asyncio.gather(*map(published.run, asked.values())), strict=True))
    told = {name: _told(book, words, runs[name]) for name, words in asked.items()}
    book.draft.add_json("registry/runs.json", told)
    book.draft.add("registry/pins.json", await asyncio.to_thread(published.pins.read_bytes))


def _told(book: Notebook, words: tuple[str, ...], ran: tuple[int, str]) -> Mapping[str, Any]:
    code, output = ran
    return {"command": ["ostiary", *words], "exit": code, "output": book.draft.scrubber.clean(output)}


def _moved(record: bytes) -> bytes:
    """The record with its remotes elsewhere. Raises `NotHere` where it has none."""
    try:
        document = orjson.loads(record)
        for remote in document["remotes"]:
            remote["url"] = MOVED
    except (ValueError, LookupError, TypeError):
        raise NotHere("the record names no remote") from None
    return orjson.dumps(document)
