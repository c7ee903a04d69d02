"""A candidate beside the policy that judges: asked the same questions afterwards, never deciding anything.

A question waits in a bounded queue until the candidate is free, and is dropped, and counted, where there is no room:
whatever the candidate does, no caller waits for it, and no verdict is its own.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, SupportsBytes

from policies.around import Around
from policies.port import Engine, Policy
from policies.verdict import Effect, PolicyUnavailable, Verdict

WAITING: Final = 1024
WAITING_BYTES: Final = 16 * 1024 * 1024
LARGEST: Final = 256 * 1024  # larger questions are not asked: what is told of one is read on the event loop
AT_ONCE: Final = 4
START_AGAIN_S: Final = 30.0

_EFFECTS = tuple(f"{one.value}_to_{other.value}" for one in Effect for other in Effect if one is not other)
_MEMBERS = ("scopes", "approval", "visible", "disclose", "mask", "clear", "limits", "reasons")
DIFFERENCES: Final = (*_EFFECTS, *_MEMBERS, "failed")
"""How two verdicts can differ; the first that holds is told. `failed`: the candidate has none."""

DECISION: Final[ContextVar[str]] = ContextVar("DECISION", default="")
"""Under which id the request that is being judged is recorded: with it a difference can be looked up."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What the candidate would have made of a question. `candidate` is `None` where it failed, and `why` says how."""

    kind: str
    question: bytes
    live: Verdict
    candidate: Verdict | None
    why: str = ""
    decision: str = ""


def tell_apart(live: Verdict, candidate: Verdict) -> str:
    """The first difference in order of `DIFFERENCES`, `""` where there is none. The revisions may differ."""
    if live.effect is not candidate.effect:
        return f"{live.effect.value}_to_{candidate.effect.value}"
    for member in _MEMBERS:
        one, other = getattr(live, member), getattr(candidate, member)
        # What these list has no order; that of `visible` and of approvers is told to people, and counts.
        if member in {"scopes", "mask", "clear"}:
            one, other = set(one), set(other)
        if one != other:
            return member
    return ""


class Shadow:
    """Asks the candidate, and tells of every difference. Started once, closed once; in between it bothers nobody."""

    def __init__(
        self,
        candidate: Engine,
        differs: Callable[[Difference], None],
        moved: Callable[[str], None] = lambda _: None,
        *,
        sample: float = 1.0,
    ) -> None:
        """`sample`: the share of questions that are asked, up to 1. `moved` hears why the candidate can't start."""
        self._candidate = candidate
        self._differs = differs
        self._moved = moved
        self._sample = sample
        self._waiting: deque[tuple[bytes, Verdict, str]] = deque()
        self._waiting_bytes = 0
        self._something = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.judged = 0
        """Questions that the candidate was asked."""
        self.dropped = 0
        """Questions that found no room or no candidate, or were too large."""

    @property
    def ready(self) -> bool:
        """Whether the candidate answers."""
        return bool(self._tasks) and not any(task.done() for task in self._tasks) and self._candidate.ready

    def offer(self, question: SupportsBytes, verdict: Verdict) -> None:
        """A question that was judged. Costs the caller one append, and its text where that was not made yet."""
        if self._sample < 1.0 and random.random() >= self._sample:  # noqa: S311 - a sample, not a secret
            return
        text = bytes(question)
        size = len(text)
        if size > LARGEST or len(self._waiting) >= WAITING or self._waiting_bytes + size > WAITING_BYTES:
            self.dropped += 1
            return
        self._waiting.append((text, verdict, DECISION.get()))
        self._waiting_bytes += size
        self._something.set()

    def start(self) -> None:
        """Start the candidate, in the background and again where it can't be started yet."""
        self._tasks = [asyncio.create_task(self._run())]

    async def close(self) -> None:
        """End the candidate; what waits is not asked any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._candidate.close()

    async def _run(self) -> None:
        while True:
            try:
                await self._candidate.start()
            except PolicyUnavailable as error:
                self._moved(str(error))
                await asyncio.sleep(START_AGAIN_S)
            else:
                break
        self._moved("")
        async with asyncio.TaskGroup() as asking:
            for _ in range(AT_ONCE):
                asking.create_task(self._ask())

    async def _ask(self) -> None:
        while True:
            while not self._waiting:
                self._something.clear()
                await self._something.wait()
            question, live, decision = self._waiting.popleft()
            self._waiting_bytes -= len(question)
            if not self._candidate.ready:
                self.dropped += 1
                continue
            self.judged += 1
            try:
                found = await self._candidate.judge(question)
            except PolicyUnavailable as failure:
                self._differs(Difference("failed", question, live, None, str(failure), decision))
                continue
            if kind := tell_apart(live, found):
                self._differs(Difference(kind, question, live, found, decision=decision))


class ShadowedPolicy(Around):
    """`policies.port.Policy`: the one that judges, whose verdicts a shadow gets to see."""

    def __init__(self, policy: Policy, shadow: Shadow) -> None:
        super().__init__(policy)
        self._shadow = shadow

    async def judge(self, question: SupportsBytes) -> Verdict:
        """See the port."""
        verdict = await self._policy.judge(question)
        self._shadow.offer(question, verdict)
        return verdict
