"""Streams through real processes: many, quiet, slow, broken off and stopped (rows OPS-01, 02, 03, 05 and JWT-13).

Small here; `make soak` runs each row at its whole size. The figures are printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from approvals.sqlite_database import READERS
from tests.contract.sse import whatwg
from tests.support.processes import eventually
from tests.support.stack import Stack, body, call, headers_of

TOOLS = ("read", "wait", "flood", "hang", "stand", "line", "many", "count")
DATA = {
    "methods": {"tools/list": {}, "subscriptions/listen": {}},
    "tools": {name: {"effect": "read"} for name in TOOLS},
}
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
AT_ONCE = 32


@pytest.fixture
async def replica() -> AsyncIterator[str]:
    """A server of streams in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.streaming", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    yield f"http://127.0.0.1:{int(await process.stdout.readline())}/mcp"
    process.terminate()
    await process.wait()


@pytest.fixture
def stack(tmp_path: Path, replica: str) -> Stack:
    """A gateway in front of it, not yet started."""
    return Stack(tmp_path, {"main": [replica]}, data=DATA)


@dataclass
class Listening:
    """One stream on a socket of its own: what came, and when."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    data: bytes = b""
    at: list[float] = field(default_factory=list)

    async def until(self, mark: bytes) -> None:
        """Read until `mark` has come."""
        while mark not in self.data:
            assert await self.more(), self.data
        assert self.data.startswith(b"HTTP/1.1 200 "), self.data

    async def more(self) -> bool:
        """Read what comes next; whether anything did."""
        piece = await self.reader.read(65_536)
        self.data += piece
        self.at.append(time.monotonic())
        return bool(piece)

    async def leave(self) -> None:
        """Break it off."""
        self.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    async def rest(self) -> list[Any]:
        """Read to the end -> all messages."""
        while await self.more():
            pass
        await self.leave()
        return self.messages()

    def messages(self) -> list[Any]:
        """What a client has read up to now."""
        chunks, stream = self.data.partition(b"\r\n\r\n")[2], b""
        while chunks:
            size, _, chunks = chunks.partition(b"\r\n")
            stream += chunks[: int(size, 16)]
            chunks = chunks[int(size, 16) + 2 :]
        return [orjson.loads(data) for _, data, _ in whatwg(stream)]


def request(stack: Stack, message: Mapping[str, Any], token: str) -> bytes:
    """A request as bytes."""
    content = json.dumps(message).encode()
    lines = {"Host": f"127.0.0.1:{stack.port}", **headers_of(message, token), "Content-Length": str(len(content))}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return b"POST /main/mcp HTTP/1.1\r\n" + head.encode() + b"\r\n" + content


async def send(stack: Stack, data: bytes) -> Listening:
    """Bytes on a connection of their own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(data)
    return Listening(reader, writer)


async def listen(stack: Stack, token: str, request_id: Any = 1) -> Listening:
    """A subscription that was acknowledged."""
    message = body("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, request_id)
    listening = await send(stack, request(stack, message, token))
    await listening.until(b"acknowledged")
    return listening


async def listen_to_many(stack: Stack, token: str, count: int) -> list[Listening]:
    """That many subscriptions, some being opened at a time."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> Listening:
        async with room:
            return await listen(stack, token, number)

    return await asyncio.gather(*[one(number) for number in range(count)])


def memory(pid: int) -> int:
    """Resident bytes of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024


def peak(pid: int) -> int:
    """The most that it has held since its peak was last reset."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def forget_peak(pid: int) -> None:
    """Measure from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def descriptors(pid: int) -> tuple[int, int]:
    """Open descriptors of a process -> (all but its approvals' database, that database)."""
    names = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            names.append(link.readlink().name)
    of_database = sum(name in {"ostiary.db", "ostiary.db-wal"} for name in names)
    return len(names) - of_database, of_database


async def figures(stack: Stack) -> dict[str, float]:
    """The gauges that have to come back to where they were."""
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        text = (await client.get(f"{stack.admin}/metrics")).text
    series = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    names = ("requests_in_flight", "connections", 'streams_open{kind="subscription"}', 'streams_open{kind="call"}')
    return {name: float(series[f"ostiary_{name}"]) for name in names}


async def ask_count(stack: Stack, client: httpx.AsyncClient) -> dict[str, int]:
    """What the server says of its connections and floods."""
    answer = await stack.post("main", call("count"), client=client)
    return answer.json()["result"]["structuredContent"]  # type: ignore[no-any-return]


async def p99_of_calls(stack: Stack, client: httpx.AsyncClient, count: int = 400) -> float:
    """The 99th percentile of one call after the other, in milliseconds."""
    token, times = stack.token("main"), []
    for _ in range(count):
        began = time.perf_counter()
        assert (await stack.post("main", call("read"), token, client)).status_code == 200
        times.append(time.perf_counter() - began)
    return sorted(times)[int(0.99 * count)] * 1000


def use_all_descriptors() -> None:
    """This process holds the clients' ends."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@pytest.mark.parametrize(("listening", "calling"), [(40, 10), pytest.param(200, 50, marks=pytest.mark.soak)])
async def test_sigterm_ends_every_subscription_gracefully(
    stack: Stack, replica: str, listening: int, calling: int
) -> None:
    """OPS-01: not ready at once, each listen stream gets its result with its id and closes, calls finish, exit 0."""
    async with stack:
        token = stack.token("main")
        assert stack.process is not None
        streams = await listen_to_many(stack, token, listening)
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            waiting = [
                asyncio.create_task(stack.post("main", call("wait", request_id=number), token, client))
                for number in range(calling)
            ]

            async def all_wait() -> bool:
                return (await figures(stack))["requests_in_flight"] == calling

            await eventually("all calls are at work", all_wait)
            began = time.monotonic()
            stack.process.send_signal(signal.SIGTERM)
            async with httpx.AsyncClient(trust_env=False) as operator:
                answer = await operator.get(f"{stack.admin}/readyz")
                assert (answer.status_code, answer.json()["ready"]) == (503, False)
            for number, messages in enumerate(await asyncio.gather(*[stream.rest() for stream in streams])):
                assert [message.get("method") for message in messages] == [
                    "notifications/subscriptions/acknowledged",
                    None,
                ]
                assert messages[1] == {
                    "jsonrpc": "2.0",
                    "id": number,
                    "result": {"resultType": "complete", "_meta": {SUBSCRIPTION_ID: number}},
                }
            assert not any(one.done() for one in waiting)
            assert (await client.post(replica, json=call("go"))).status_code == 200
            assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}
        assert await stack.stop() == 0
        assert time.monotonic() - began < 25
    records = [record for record in stack.records() if record["method"] == "subscriptions/listen"]
    ends = [(one["outcome"], one["reasons"]) for one in records if one["kind"] == "outcome"]
    assert ends == [("executed", ["draining"])] * listening


async def test_a_subscription_ends_with_its_token(stack: Stack) -> None:
    """JWT-13: within 30 s of `exp` the stream gets its graceful result, and its server is let go."""
    async with stack, httpx.AsyncClient(trust_env=False, timeout=30) as client:
        before = (await ask_count(stack, client))["subscribed"]
        expires_at = int(time.time()) + 4
        stream = await listen(stack, stack.token("main", exp=expires_at), "s")
        stays = await listen(stack, stack.token("main"), "t")
        messages = await asyncio.wait_for(_one_more(stream), 34)
        assert 0 <= time.time() - expires_at < 30
        assert messages[1:] == [
            {"jsonrpc": "2.0", "id": "s", "result": {"resultType": "complete", "_meta": {SUBSCRIPTION_ID: "s"}}}
        ]

        async def let_go() -> bool:
            return (await ask_count(stack, client))["subscribed"] == before + 1

        await eventually("its server was let go, and the other one's was not", let_go)
        assert len(stays.messages()) == 1
        await stream.leave()
        await stays.leave()


async def _one_more(stream: Listening) -> list[Any]:
    while len(messages := stream.messages()) < 2:
        assert await stream.more()
    return messages


@pytest.mark.parametrize(("count", "keep_alive_s"), [(250, 2.0), pytest.param(9_000, 10.0, marks=pytest.mark.soak)])
async def test_many_idle_streams(stack: Stack, count: int, keep_alive_s: float) -> None:
    """OPS-02: at most 64 KiB each, opened quickly, kept alive while nothing happens; calls stay quick."""
    whole = count > 1000
    use_all_descriptors()
    stack.changes = {"limits": {"keep_alive_s": keep_alive_s, "subscriptions_per_subject": 10_000}}
    async with stack, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        (pid,) = await stack.worker_pids()
        token = stack.token("main")
        warm = await listen_to_many(stack, token, AT_ONCE)
        alone = await p99_of_calls(stack, client)
        before, began = memory(pid), time.monotonic()
        streams = await listen_to_many(stack, token, count)
        rate = count / (time.monotonic() - began)
        beats = [asyncio.create_task(_read_for(stream, 3.2 * keep_alive_s)) for stream in streams]
        crowded = await p99_of_calls(stack, client)
        gaps = await asyncio.gather(*beats)
        each = (memory(pid) - before) / count
        print(  # noqa: T201 - the row's figures
            f"\nOPS-02: {count} streams at {rate:.0f}/s, {each / 1024:.1f} KiB each, "
            f"silent for {max(gaps):.1f} s at most; p99 of calls {alone:.1f} -> {crowded:.1f} ms"
        )
        assert (await figures(stack))['streams_open{kind="subscription"}'] == count + len(warm)
        assert each <= 64 * 1024
        assert max(gaps) <= (15 if whole else keep_alive_s + 5)
        assert all(len(stream.messages()) == 1 for stream in streams)
        if whole:
            assert rate >= 300
            assert crowded <= 2 * alone
        for stream in (*warm, *streams):
            await stream.leave()

        async def all_left() -> bool:
            return (await figures(stack))['streams_open{kind="subscription"}'] == 0

        await eventually("all have left", all_left, 60)


async def _read_for(stream: Listening, seconds: float) -> float:
    """The longest that it was silent."""
    began = time.monotonic()
    stream.at = [began]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while await stream.more():
                pass
    moments = [*stream.at, time.monotonic()]
    return max(later - earlier for earlier, later in itertools.pairwise(moments))


@pytest.mark.parametrize("size", [1 << 28, pytest.param(1 << 30, marks=pytest.mark.soak)])
async def test_readers_that_stop_hold_little_and_disturb_nobody(stack: Stack, size: int) -> None:
    """OPS-03: a stream whose client stops reading holds at most 1 MiB here, and its server waits."""
    stopped = 12
    async with stack, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        (pid,) = await stack.worker_pids()
        token = stack.token("main")
        whole = await send(stack, request(stack, call("flood", {"bytes": 1 << 22}), token))
        await whole.until(b'"result"')
        await whole.leave()
        alone = await p99_of_calls(stack, client)
        before = memory(pid)
        slow = [await send(stack, request(stack, call("flood", {"bytes": size}), token)) for _ in range(stopped)]
        for stream in slow:
            await stream.until(b"com.example/notifications/note")
        last = -1
        while (written := (await ask_count(stack, client))["written"]) != last:
            last = written
            await asyncio.sleep(0.5)
        each = (memory(pid) - before) / stopped
        beside = await p99_of_calls(stack, client)
        print(  # noqa: T201 - the row's figures
            f"\nOPS-03: {stopped} streams of {size >> 20} MiB stopped after {written / stopped / (1 << 20):.1f} MiB "
            f"(sockets' buffers included), {each / 1024:.0f} KiB each in the gateway; "
            f"p99 beside them {alone:.1f} -> {beside:.1f} ms"
        )
        assert written < stopped * size / 2
        assert each <= 1 << 20
        # Whoever had to wait behind a reader that stopped would wait for the deadline of its stream.
        assert beside <= (2 * alone + 5 if size > 1 << 28 else 5_000)
        for stream in slow:
            await stream.leave()

        async def all_left() -> bool:
            return (await figures(stack))['streams_open{kind="call"}'] == 0

        await eventually("all have left", all_left)


@pytest.mark.parametrize(
    "bomb", [call("line", {"bytes": 100_000_000}), call("many", {"events": 1_000_000})], ids=["line", "many"]
)
async def test_a_bomb_costs_little_and_ends_in_an_error(stack: Stack, bomb: dict[str, Any]) -> None:
    """UPS-07: one line of 100 MB, or a million small events, cost less than 16 MiB, and the caller gets an error."""
    async with stack:
        (pid,) = await stack.worker_pids()
        token = stack.token("main")
        good = await send(stack, request(stack, call("flood", {"bytes": 1 << 22}), token))
        await good.until(b'"result"')
        await good.leave()
        forget_peak(pid)
        before = peak(pid)
        stream = await send(stack, request(stack, bomb, token))
        while not stream.data.endswith(b"\r\n0\r\n\r\n"):  # the connection itself stays open for another request
            assert await stream.more()
            assert b'"result"' not in stream.data
            stream.data = stream.data[-4096:]  # a million events are no use to anybody
        await stream.leave()
        assert b'"code":50202' in stream.data
        assert f'"id":{bomb["id"]}'.encode() in stream.data
        grown = peak(pid) - before
        print(f"\nUPS-07: {bomb['params']['name']}: {grown / (1 << 20):.1f} MiB")  # noqa: T201 - the row's figure
        assert grown < 16 << 20


def approvals(stack: Stack, token: str) -> bytes:
    """A look at the approvals, as bytes."""
    lines = {"Host": f"127.0.0.1:{stack.port}", "Authorization": f"Bearer {token}"}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return b"GET /approvals HTTP/1.1\r\n" + head.encode() + b"\r\n"


Stage = Callable[[Stack, str], tuple[bytes, bytes]]
STAGES: dict[str, Stage] = {
    # what is sent -> what is waited for before the connection is broken off
    "connected": lambda *_: (b"", b""),
    "in the head": lambda stack, token: (request(stack, call("read"), token)[:90], b""),
    "before the body": lambda stack, token: (request(stack, call("read"), token).partition(b"{")[0], b""),
    "in the body": lambda stack, token: (request(stack, call("read"), token)[:-10], b""),
    "at once": lambda stack, token: (request(stack, call("read"), token), b""),
    "answered": lambda stack, token: (request(stack, call("read"), token), b"result"),
    "refused": lambda stack, token: (request(stack, call("read"), token + "x"), b"40102"),
    "in a call": lambda stack, token: (request(stack, call("hang"), token), b""),
    "in a stream": lambda stack, token: (request(stack, call("stand"), token), b"event-stream"),
    "in a flood": lambda stack, token: (request(stack, call("flood", {"bytes": 1 << 24}), token), b"event-stream"),
    "at the approvals": lambda stack, token: (approvals(stack, token), b""),
    "in a subscription": lambda stack, token: (
        request(stack, body("subscriptions/listen", {"notifications": {"toolsListChanged": True}}), token),
        b"acknowledged",
    ),
}


@pytest.mark.parametrize("cycles", [30, pytest.param(50_000 // len(STAGES), marks=pytest.mark.soak)])
async def test_connecting_and_breaking_off_leaks_nothing(stack: Stack, cycles: int) -> None:
    """OPS-05: whatever the stage, descriptors and gauges come back to where they were; so does memory, to 5 %."""
    whole = cycles > 1000
    async with stack:
        (pid,) = await stack.worker_pids()
        token, person = stack.token("main"), stack.person()
        room = asyncio.Semaphore(AT_ONCE)

        async def cycle(name: str) -> None:
            async with room:
                data, mark = STAGES[name](stack, person if name == "at the approvals" else token)
                one = await send(stack, data)
                while mark not in one.data:
                    assert await one.more(), one.data
                await one.leave()

        async def round_(count: int) -> None:
            for name in STAGES:
                for start in range(0, count, 500):
                    await asyncio.gather(*[cycle(name) for _ in range(min(500, count - start))])

        async def all_left() -> bool:
            now = await figures(stack)
            others, of_database = descriptors(pid)
            # The database's connections stay open, as many as were ever wanted at once: two files each.
            return not any(now.values()) and others <= quiet and of_database <= 2 * (READERS + 1)

        await round_(10 if not whole else 200)
        quiet = 10_000
        await eventually("the warm-up has ended", all_left, 60)
        await asyncio.sleep(5)  # idle connections to the server are closed after 4 s
        (quiet, _), before = descriptors(pid), memory(pid)
        await round_(cycles)
        await eventually("everything came back", all_left, 60)
        after = memory(pid)
        print(  # noqa: T201 - the row's figures
            f"\nOPS-05: {cycles * len(STAGES)} cycles: descriptors {quiet} -> {descriptors(pid)[0]}, "
            f"memory {before >> 10} -> {after >> 10} KiB ({100 * (after - before) / before:+.1f} %)"
        )
        if whole:
            assert abs(after - before) <= 0.05 * before
