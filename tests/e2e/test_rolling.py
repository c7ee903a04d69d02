"""OPS-01 behind nginx: every process is restarted while clients call, and no call of theirs is lost or made twice."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.issuer import Issuer
from tests.support.nginx import balanced
from tests.support.ports import free_port
from tests.support.postgres import Postgres
from tests.support.processes import eventually
from tests.support.replicas import Behind
from tests.support.stack import ISSUER, body, call, headers_of, secrets_for

DATA = {
    "methods": {"tools/list": {}, "subscriptions/listen": {}},
    "tools": {"read": {"effect": "read"}},
}
CALLERS = 24
LISTENERS = 6


@dataclass(frozen=True)
class Size:
    """Of a run: calls a second, restarts of each gateway, and the least seconds in all. How long who is told to end
    serves on: a gateway, a server. After how long nginx lets go of idle connections, and asks a gateway again that
    refused one."""

    rate: int
    rounds: int
    least_s: float
    drain_s: float
    server_drain_s: float
    idle: str
    forgiven_s: int

    @property
    def pause_s(self) -> float:
        """Between two restarts, so that they are spread over the whole."""
        return self.least_s / 8


SMALL = Size(40, 1, least_s=0, drain_s=1.5, server_drain_s=0.3, idle="500ms", forgiven_s=1)
WHOLE = Size(200, 2, least_s=300, drain_s=5.0, server_drain_s=1.5, idle="3s", forgiven_s=2)


@dataclass
class Replica:
    """One server of the ledger, and those before it that have not ended yet."""

    port: int
    book: Path
    drain_s: float
    process: asyncio.subprocess.Process | None = None
    before: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def start(self) -> None:
        """Until it listens."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.ledger",
            str(self.port),
            str(self.book),
            str(self.drain_s),
            stdout=asyncio.subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert await self.process.stdout.readline()

    async def restart(self) -> None:
        """As an orchestrator does it: told to end, and another one in its place once it takes nobody any more."""
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.terminate()
        assert await self.process.stdout.readline() == b"closed\n"
        self.before.append(self.process)
        await self.start()

    async def stop(self) -> None:
        """All of them, decently."""
        assert self.process is not None
        self.process.terminate()
        for process in (*self.before, self.process):
            assert await asyncio.wait_for(process.wait(), 60) == 0


@dataclass
class Traffic:
    """Clients of one address. `answers` by status, `strange` what was no 200, `ends` of subscriptions by kind."""

    port: int
    token: str
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    answers: Counter[int] = field(default_factory=Counter)
    strange: list[str] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def request(self, message: dict[str, object]) -> bytes:
        """As bytes."""
        content = json.dumps(message).encode()
        lines = {"Host": f"127.0.0.1:{self.port}", **headers_of(message, self.token), "Content-Length": len(content)}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return b"POST /main/mcp HTTP/1.1\r\n" + head.encode() + b"\r\n" + content

    async def call_on(self, every_s: float) -> None:
        """One client on a kept connection, a call every so often, whatever the one before took."""
        pair: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        due = time.monotonic()
        while not self.done.is_set():
            due += every_s
            number = next(self.numbers)
            if pair is None:
                pair = await asyncio.open_connection("127.0.0.1", self.port)
            pair[1].write(self.request(call("read", {"n": number}, number)))
            try:
                head = (await pair[0].readuntil(b"\r\n\r\n")).lower()
                at = head.index(b"content-length:")
                content = await pair[0].readexactly(int(head[at + 15 :].split(b"\r\n", 1)[0]))
                status = int(head[9:12])
            except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
                status, head, content = 0, b"connection: close", repr(error).encode()
            self.answers[status] += 1
            if status == 200:
                self.answered.append(number)
            else:
                self.strange.append(f"{number}: {status} {content[:300]!r}")
            if b"connection: close" in head:
                pair[1].close()
                pair = None
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        if pair is not None:
            pair[1].close()

    async def listen_on(self, request_id: int) -> None:
        """One client with a subscription, and another one whenever it ends."""
        message = body("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, request_id)
        while not self.done.is_set():
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(self.request(message))
            data = b""
            with contextlib.suppress(ConnectionError):
                while not self.done.is_set() and not data.endswith(b"\r\n0\r\n\r\n"):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.2):
                            piece = await reader.read(65_536)
                            data += piece
                            if not piece:
                                break
                    if b"\r\n\r\n" in data and not data.startswith(b"HTTP/1.1 200"):
                        break
            writer.close()
            if not data.startswith(b"HTTP/1.1 200"):
                self.ends["refused"] += 1  # a gateway that stops takes no further one: the client comes again
                await asyncio.sleep(0.2)
            else:
                graceful = b'"resultType":"complete"' in data and data.endswith(b"\r\n0\r\n\r\n")
                self.ends["graceful" if graceful else "left" if self.done.is_set() else "broken"] += 1


@contextlib.asynccontextmanager
async def under(traffic: Traffic, rate: int) -> AsyncIterator[None]:
    """Calls at `rate` a second, and subscriptions, until the end of the block."""
    clients = [asyncio.create_task(traffic.call_on(CALLERS / rate)) for _ in range(CALLERS)]
    clients += [asyncio.create_task(traffic.listen_on(number)) for number in range(LISTENERS)]
    try:
        yield
    finally:
        traffic.done.set()
        await asyncio.gather(*clients)


async def restart(gateway: Behind) -> None:
    """As an orchestrator does it: told to end, waited for, started again, used once it is ready."""
    assert await gateway.stop() == 0
    await gateway.launch()


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(SMALL, id="small"),
        pytest.param(WHOLE, id="whole", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
async def test_rolling_restarts_behind_nginx(tmp_path: Path, postgres: Postgres, size: Size) -> None:
    """OPS-01: two gateways and three replicas, each restarted under load: no call fails, none is made twice, every
    subscription ends with its result."""
    front, issuer, secrets, database = free_port(), Issuer(ISSUER), secrets_for(), postgres.create()
    book = tmp_path / "book"
    replicas = [Replica(free_port(), book, size.server_drain_s) for _ in range(3)]
    urls = [f"http://127.0.0.1:{replica.port}/mcp" for replica in replicas]
    gateways = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        port = free_port()
        here = {
            "public_url": f"http://127.0.0.1:{front}", "listen": {"port": port},
            "approvals": {"database": database}, "limits": {"drain_s": size.drain_s},
        }  # fmt: skip
        gateways.append(
            Behind(
                tmp_path / name, {"main": urls}, data=DATA, changes=here, issuer=issuer, port=port, secrets=secrets,
                front=front,
            )
        )  # fmt: skip
    traffic = Traffic(front, gateways[0].token("main", scope="mcp:use", exp=int(time.time()) + 3600))

    async def end() -> None:
        """Whoever holds connections first: nobody waits for them then."""
        await asyncio.gather(*[gateway.stop() for gateway in gateways if gateway.process is not None])
        await asyncio.gather(*[replica.stop() for replica in replicas if replica.process is not None])

    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(end)
        begun = await asyncio.gather(
            *[replica.start() for replica in replicas],
            *[gateway.start() for gateway in gateways],
            return_exceptions=True,
        )
        assert not [one for one in begun if isinstance(one, BaseException)], begun
        errors = await stack.enter_async_context(
            balanced(tmp_path / "nginx", front, [gateway.port for gateway in gateways], size.idle, size.forgiven_s)
        )
        began = time.monotonic()
        async with under(traffic, size.rate):
            await eventually("calls are served", lambda: traffic.answers[200] > size.rate, 60)
            await one_after_the_other([restart_of(gateway) for gateway in gateways] * size.rounds, replicas, size)
            await asyncio.sleep(max(0.0, began + size.least_s - time.monotonic()))
        took = time.monotonic() - began
    made = Counter(map(int, book.read_text().split()))
    total, rate_had = traffic.answers.total(), traffic.answers.total() / took
    print(f"\n{total} calls in {took:.0f} s, {rate_had:.0f}/s; {dict(traffic.ends)}")  # noqa: T201 - the row's figures
    refusals = [line for gateway in gateways for line in gateway.log().splitlines() if "upstream_unreachable" in line]
    assert not traffic.strange, (traffic.strange[:10], refusals[:10], errors.read_text()[-2000:])
    assert max(made.values()) == 1, "a call was made twice"
    assert set(traffic.answered) == set(made)
    assert traffic.ends["broken"] == 0
    assert traffic.ends["graceful"] >= LISTENERS


def restart_of(gateway: Behind) -> Callable[[], Awaitable[None]]:
    return lambda: restart(gateway)


async def one_after_the_other(
    gateways: list[Callable[[], Awaitable[None]]], replicas: list[Replica], size: Size
) -> None:
    """The gateways' restarts in a row, and beside them the replicas'."""

    async def all_gateways() -> None:
        for left, begin in zip(range(len(gateways) - 1, -1, -1), gateways, strict=True):
            await begin()
            if left:
                # Ready is not yet asked again: with the other one gone before that, nginx would know nobody to ask.
                # It counts whole seconds.
                await asyncio.sleep(max(size.pause_s, size.forgiven_s + 1.5))

    async def all_replicas() -> None:
        for replica in replicas:
            await replica.restart()
            await asyncio.sleep(1 + size.pause_s)  # its place is found again before the next one goes

    async with asyncio.TaskGroup() as going:
        going.create_task(all_gateways())
        going.create_task(all_replicas())
