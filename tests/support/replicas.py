"""Two gateways that share a store and their keys, behind one address whose connections go to each in turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.support.issuer import Issuer
from tests.support.ports import free_port
from tests.support.stack import ISSUER, Stack, secrets_for


class RoundRobin:
    """A TCP relay: connection n goes to backend n modulo their number, or to the next one that takes it.

    It reads nothing of what it carries. `taken` says how many connections each backend had.
    """

    def __init__(self, backends: Sequence[int]) -> None:
        self._backends = list(backends)
        self._next = 0
        self._carrying: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.taken = dict.fromkeys(self._backends, 0)

    async def start(self, port: int) -> None:
        """Listen on loopback."""
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", port)

    def forget(self, backend: int) -> None:
        """Send no further connection there; those that are open stay, as behind a Service of Kubernetes."""
        self._backends.remove(backend)

    async def close(self) -> None:
        """Stop, and drop what is open."""
        if self._server is not None:
            self._server.close()
        for task in set(self._carrying):
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # the relay is closed: nobody else cancels
                await self._relay(reader, writer)
        finally:
            self._carrying.discard(task)
            await _close(writer)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in self._backends:
            port = self._backends[self._next % len(self._backends)]
            self._next += 1
            with contextlib.suppress(OSError):
                theirs, ours = await asyncio.open_connection("127.0.0.1", port)
                break
        else:
            return
        self.taken[port] += 1
        there, back = asyncio.create_task(_pump(reader, ours)), asyncio.create_task(_pump(theirs, writer))
        try:
            # Either side's end is the connection's: a client that leaves must be seen to leave.
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            there.cancel()
            back.cancel()
            ours.close()  # first: the relay may be closed while it waits below
            await asyncio.gather(there, back, return_exceptions=True)
            await _close(ours)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await asyncio.shield(writer.wait_closed())


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()


@dataclass
class Behind(Stack):
    """A gateway whose clients know another address than the one that it listens on."""

    front: int = 0

    @property
    def url(self) -> str:
        """`public_url`."""
        return f"http://127.0.0.1:{self.front}"


@dataclass
class Pair:
    """Both gateways, and what stands before them."""

    gateways: list[Behind]
    relay: RoundRobin
    http: httpx.AsyncClient = field(default_factory=lambda: httpx.AsyncClient(trust_env=False, timeout=60))

    @property
    def one(self) -> Behind:
        """Either of them, for what they share: addresses and tokens."""
        return self.gateways[0]

    def records(self) -> list[dict[str, Any]]:
        """What both wrote down, one after the other."""
        return [record for gateway in self.gateways for record in gateway.records()]

    async def api(self, verb: str, path: str, token: str = "", **body: Any) -> httpx.Response:
        """The approvals API as bob, over a connection of its own."""
        headers = {"Authorization": f"Bearer {token or self.one.person()}", "Connection": "close"}
        return await self.http.request(verb, f"{self.one.url}/approvals{path}", headers=headers, json=body or None)

    async def act(self, verb: str, ticket: str, token: str = "") -> None:
        """A person's word, whichever gateway takes it."""
        answer = await self.api("POST", f"/{ticket}/{verb}", token, comment="e2e")
        assert answer.status_code == 200, answer.text


@contextlib.asynccontextmanager
async def two_gateways(
    folder: Path,
    servers: Mapping[str, Sequence[str]],
    *,
    data: Mapping[str, Any],
    database: str = "",
    settings: Mapping[str, Any] | None = None,
    approvals: Mapping[str, Any] | None = None,
    **changes: Any,
) -> AsyncIterator[Pair]:
    """Both as real processes on one database (default: one SQLite file), ready to serve.

    `settings` are of every server, `approvals` more of that group, `changes` other whole groups.
    """
    front, issuer, secrets = free_port(), Issuer(ISSUER), secrets_for()
    shared = {"database": database or f"sqlite:///{folder / 'shared.db'}", **(approvals or {})}
    gateways = []
    for name in ("one", "two"):
        place = folder / name
        place.mkdir()
        port = free_port()
        here = {"public_url": f"http://127.0.0.1:{front}", "listen": {"port": port}, "approvals": shared, **changes}
        gateways.append(
            Behind(
                place, servers, data=data, changes=here, settings=settings or {}, issuer=issuer, port=port,
                secrets=secrets, front=front,
            )
        )  # fmt: skip
    relay = RoundRobin([gateway.port for gateway in gateways])
    async with contextlib.AsyncExitStack() as stack:
        for gateway in gateways:
            stack.push_async_exit(gateway.__aexit__)
        async with asyncio.TaskGroup() as starting:
            for gateway in gateways:
                starting.create_task(gateway.start())
        await relay.start(front)
        stack.push_async_callback(relay.close)
        pair = Pair(gateways, relay)
        stack.push_async_callback(pair.http.aclose)
        yield pair
