"""The embedded engine: regorus in child processes behind the port `policies.port.Policy`.

An evaluation can always be ended, because its process can; the event loop only writes and reads. Why this engine and
why processes: docs/policy-engine.md.
"""

from __future__ import annotations

import asyncio
import os

import orjson

from policies.bundles import load_bundle
from policies.generation import Bounds, Generation
from policies.plain import SELF_CHECK
from policies.verdict import PolicyUnavailable, Verdict, read_verdict

# Policies answer with few different texts: reading each once is enough. Reading is pure: no decision is cached.
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
    ) -> None:
        self._path = path
        self._bounds = Bounds(deadline_s=deadline_s, evaluators=evaluators, memory_bytes=memory_bytes)
        self._generation: Generation | None = None
        self._read: dict[tuple[str, bytes], Verdict] = {}
        self.evaluations = 0
        """How often the policy was asked, answered or not."""

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
    def pids(self) -> list[int]:
        """The evaluators' process ids, for operators and tests."""
        return self._generation.pids if self._generation is not None else []

    async def start(self) -> None:
        """Load the bundle, start the evaluators, ask the self-check. Raises `PolicyUnavailable` naming the file."""
        bundle = await asyncio.to_thread(load_bundle, self._path)
        generation = Generation(bundle, self._bounds, SELF_CHECK)
        try:
            await generation.start()
        except PolicyUnavailable as error:
            raise PolicyUnavailable(f"{os.fspath(self._path)}: {error}") from error
        self._generation = generation

    async def judge(self, question: bytes) -> Verdict:
        """The input document as JSON text -> `Verdict`. Raises `PolicyUnavailable` for everything else."""
        generation = self._generation
        if generation is None:
            raise PolicyUnavailable("no bundle is loaded")
        self.evaluations += 1
        answer = await generation.ask(question)
        known = self._read.get((generation.revision, answer))
        if known is not None:
            return known
        try:
            decoded = orjson.loads(answer)
        except ValueError as error:
            raise PolicyUnavailable("the policy's answer is not JSON") from error
        verdict = read_verdict(decoded, generation.revision)
        if len(answer) <= _REMEMBERED_BYTES:
            if len(self._read) >= _REMEMBERED:
                self._read.clear()
            self._read[generation.revision, answer] = verdict
        return verdict

    async def close(self) -> None:
        """End the evaluators. Questions that wait are refused."""
        generation, self._generation = self._generation, None
        if generation is not None:
            await generation.close()
