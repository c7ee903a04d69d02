"""Where takings write down what they asked and what came: transcripts of named steps, in the pack that is made."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.evidence.pack import Draft
from gateway.evidence.site import NotHere, Site
from gateway.evidence.wire import Client, Request

DEADLINE_S: Final = 60.0
_LOOK_AGAIN_S: Final = 0.1


@dataclass(slots=True)
class Transcript:
    """One file: its steps in order. It is in the pack from its first step on, whatever breaks off later."""

    draft: Draft
    client: Client
    file: str
    steps: list[dict[str, Any]] = field(default_factory=list)

    async def ask(
        self, step: str, request: Request, *, leave_after: bytes = b"", leave_s: float = 0
    ) -> dict[str, Any]:
        """Send it, and keep what happened."""
        told = await self.client.send(request, leave_after=leave_after, leave_s=leave_s)
        self.add(step, told)
        return told

    def add(self, step: str, told: Mapping[str, Any]) -> None:
        """Keep a step."""
        self.steps.append({"step": step, **told})
        self.draft.add_json(self.file, {"steps": self.steps})


@dataclass(slots=True)
class Notebook:
    """The site, the client that asks it, and the draft. `broke_off` says which takings could not be made, and why."""

    site: Site
    client: Client
    draft: Draft
    broke_off: dict[str, str] = field(default_factory=dict)

    def transcript(self, file: str) -> Transcript:
        """A new transcript."""
        return Transcript(self.draft, self.client, file)

    async def until(self, look: Callable[[], Awaitable[bool]], what: str) -> None:
        """Look until it is so. Raises `NotHere` after a minute."""
        end = time.monotonic() + DEADLINE_S
        while not await look():
            if time.monotonic() > end:
                raise NotHere(f"{what}: not within {DEADLINE_S:.0f} s")
            await asyncio.sleep(_LOOK_AGAIN_S)


Taking = Callable[[Notebook], Awaitable[None]]
