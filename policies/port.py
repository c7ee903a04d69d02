"""The port: one question, one verdict. Adapters: `embedded.py` (regorus in child processes), `opa.py` (a server)."""

from __future__ import annotations

from typing import Protocol

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

    async def start(self) -> None:
        """Load the bundle and be able to judge. Raises `PolicyUnavailable` naming the bad file."""
        ...

    async def judge(self, question: bytes) -> Verdict:
        """The input document as JSON text -> the verdict of `data.mcp.authz.decision`.

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
    def pids(self) -> list[int]:
        """The engine's own processes; none where it is asked over the network."""
        ...
