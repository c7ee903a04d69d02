"""The port: one question, one verdict. Adapters: `embedded.py` (regorus in child processes), `opa.py` (a server)."""

from __future__ import annotations

from typing import Protocol, SupportsBytes

from policies.verdict import Verdict


class Policy(Protocol):
    """An engine that can be asked. Every decision uses exactly one revision of the bundle, named in the verdict."""

    @property
    def revision(self) -> str:
        """The revision of the bundle that would judge now, as far as is known; `""` while there is none."""
        ...

    @property
    def ready(self) -> bool:
        """Whether a bundle is loaded and the engine answers."""
        ...

    @property
    def remembered(self) -> int:
        """How many questions were answered by what was decided before, since the start."""
        ...

    async def start(self) -> None:
        """Load the bundle and be able to judge. Raises `PolicyUnavailable` naming the bad file."""
        ...

    async def judge(self, question: SupportsBytes) -> Verdict:
        """The input document, whose `bytes` are JSON text -> the verdict of `data.mcp.authz.decision`.

        One that comes as a `policies.question.Question` may be answered by what its bundle decided before, where the
        bundle itself says that the decision holds for any arguments (policies/memory.py).

        Never blocks the event loop, never takes longer than the engine's deadline (default 500 ms).
        Raises `PolicyUnavailable` for everything but a well-formed verdict.
        """
        ...

    async def close(self) -> None:
        """Stop judging and free what is held."""
        ...


class Engine(Policy, Protocol):
    """What an adapter says of itself besides, for operators."""

    @property
    def why(self) -> str:
        """Why it is not ready, `""` when it is. For operators; never told to a caller."""
        ...

    @property
    def fault(self) -> str:
        """Why the newest bundle is not the one that judges, `""` if it is, as far as this engine knows."""
        ...

    @property
    def digest(self) -> str:
        """SHA-256 of what judges, as far as this engine knows it; `""` while there is none."""
        ...

    @property
    def pids(self) -> list[int]:
        """The engine's own processes; none where it is asked over the network."""
        ...
