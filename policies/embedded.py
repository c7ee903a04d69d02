"""The embedded engine: regorus in child processes behind the port `policies.port.Policy`.

An evaluation can always be ended, because its process can; the event loop only writes and reads. Why this engine and
why processes: docs/policy-engine.md.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import SupportsBytes

import orjson

from policies.bundles import Bundle
from policies.generation import Bounds, Generation
from policies.plain import SELF_CHECK
from policies.question import Question
from policies.reloading import LOOK_EVERY_S, Folder, Replaced, compare, prove, tell
from policies.verdict import PolicyUnavailable, Verdict, read_verdict

# Policies answer with few different texts: reading each once is enough. Reading is pure: what is remembered of
# decisions is another matter (memory.py).
_REMEMBERED = 1024
_REMEMBERED_BYTES = 4096


class EmbeddedPolicy:
    """`policies.port.Policy` on the bundle at `path`. Constructing it does nothing; `start` loads and may raise."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        deadline_s: float = 0.5,
        evaluators: int = 2,
        memory_bytes: int = 1 << 30,
        replaced: Callable[[Replaced], None] | None = None,
        look_every_s: float = LOOK_EVERY_S,
        background: bool = False,
    ) -> None:
        """`replaced` hears what became of every bundle that comes to lie there; without it none is looked for."""
        self._path = path
        self._bounds = Bounds(
            deadline_s=deadline_s, evaluators=evaluators, memory_bytes=memory_bytes, background=background
        )
        self._folder = Folder(path)
        self._replaced = replaced
        self._look_every_s = look_every_s
        self._generation: Generation | None = None
        self._watching: asyncio.Task[None] | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._read: dict[tuple[str, bytes], Verdict] = {}
        self._fault = ""
        self._digest = ""
        self.evaluations = 0
        """How often the policy was asked, answered or not."""
        self.remembered = 0
        """How many of these questions were answered by what was decided before."""

    @property
    def revision(self) -> str:
        """The bundle's revision (`.manifest`), `""` before `start` and after `close`."""
        return self._generation.revision if self._generation is not None else ""

    @property
    def ready(self) -> bool:
        """Whether an evaluator that holds the bundle is alive."""
        return self._generation is not None and self._generation.ready

    @property
    def why(self) -> str:
        """Why it is not ready, `""` when it is."""
        return "" if self.ready else "no evaluator holds the bundle"

    @property
    def fault(self) -> str:
        """Why the bundle that lies at `path` is not the one that judges, `""` if it is."""
        if self._watching is not None and self._watching.done() and self._generation is not None:
            return "nobody looks for another bundle: a defect"
        return self._fault

    @property
    def digest(self) -> str:
        """Of the bundle that judges, `""` before `start` and after `close`."""
        return self._digest if self._generation is not None else ""

    @property
    def pids(self) -> list[int]:
        """The evaluators' process ids, for operators and tests."""
        return self._generation.pids if self._generation is not None else []

    async def start(self) -> None:
        """Load the bundle, start the evaluators, ask the self-check. Raises `PolicyUnavailable` naming the file."""
        bundle = await asyncio.to_thread(self._folder.load)
        self._digest = await asyncio.to_thread(bundle.digest)
        self._generation = await self._begin(bundle)
        if self._replaced is not None:
            self._watching = asyncio.create_task(self._watch(bundle, self._replaced))

    async def _begin(self, bundle: Bundle) -> Generation:
        generation = Generation(bundle, self._bounds, SELF_CHECK)
        try:
            await generation.start()
        except PolicyUnavailable as error:
            raise PolicyUnavailable(f"{os.fspath(self._path)}: {error}") from error
        except BaseException:
            await generation.close()
            raise
        return generation

    async def _watch(self, live: Bundle, replaced: Callable[[Replaced], None]) -> None:
        """Replace the bundle by every other one that comes to lie at the path and may judge."""
        while True:
            await asyncio.sleep(self._look_every_s)
            after = ""
            try:
                found = await asyncio.to_thread(self._folder.load_if_changed)
                if found is None:
                    continue
                after = found.revision
                if compare(live, found):
                    await self._replace(found)
                    before, live = live, found
                    replaced(Replaced(before.revision, after))
                self._fault = ""
            except (PolicyUnavailable, OSError) as error:
                why = tell(error)
                if self._fault != why:  # once, though it is tried again: its tests may just have been too slow
                    self._fault = why
                    replaced(Replaced(live.revision, after, self._fault))
                self._folder.try_again_later()

    async def _replace(self, bundle: Bundle) -> None:
        """Everything that can fail, then one assignment: who asked before it is judged by the old bundle, whole."""
        await asyncio.to_thread(prove, bundle, lambda: self._generation is None)
        digest = await asyncio.to_thread(bundle.digest)
        generation = await self._begin(bundle)
        old, self._generation, self._digest = self._generation, generation, digest
        self._read.clear()
        if old is not None:
            retiring = asyncio.create_task(old.retire())
            self._retiring.add(retiring)
            retiring.add_done_callback(self._retiring.discard)

    async def judge(self, question: SupportsBytes) -> Verdict:
        """See the port."""
        generation = self._generation
        if generation is None:
            raise PolicyUnavailable("no bundle is loaded")
        self.evaluations += 1
        if not isinstance(question, Question):
            return self._read_answer(generation.revision, await generation.ask(bytes(question)))
        if (verdict := generation.memory.recall(question)) is not None:
            self.remembered += 1
            return verdict
        verdict = self._read_answer(generation.revision, await generation.ask(bytes(question)))
        generation.memory.keep(question, verdict)
        return verdict

    def _read_answer(self, revision: str, answer: bytes) -> Verdict:
        known = self._read.get((revision, answer))
        if known is not None:
            return known
        try:
            decoded = orjson.loads(answer)
        except ValueError as error:
            raise PolicyUnavailable("the policy's answer is not JSON") from error
        verdict = read_verdict(decoded, revision)
        if len(answer) <= _REMEMBERED_BYTES:
            if len(self._read) >= _REMEMBERED:
                self._read.clear()
            self._read[revision, answer] = verdict
        return verdict

    async def close(self) -> None:
        """End the evaluators. Questions that wait are refused."""
        generation, self._generation = self._generation, None
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        if generation is not None:
            await generation.close()
        await asyncio.gather(*self._retiring)
