"""Replicas that fail, fill up, hang and come back, over real sockets: exactly what each of them received."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from approvals.ticket import Claimed
from gateway.contract.passage import Admitted
from gateway.upstream.figures import counts, gauges
from gateway.upstream.health import PROBES, HealthRules
from gateway.upstream.http import HttpUpstream
from gateway.upstream.port import (
    Answer,
    UpstreamFault,
    UpstreamFull,
    UpstreamInvalid,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from gateway.upstream.probes import Probes
from gateway.upstream.retries import RESERVE
from gateway.upstream.ring import ServerRules
from gateway.upstream.target import UpstreamLimits, UpstreamTarget, check_replica_url
from tests.support.upstream import (
    SERVER,
    SSE_HEAD,
    Exchange,
    Script,
    ScriptedUpstream,
    a_call,
    an_admitted,
    answer,
    chunk,
    eventually,
    http,
    result_of,
)

ERROR = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no"}}'
SHORT = UpstreamLimits(answer_s=0.4, quiet_s=0.4)
"""For replicas that hang, and whose time the test waits for."""


def says(*pieces: bytes, then: str = "") -> Script:
    """A script that sends these bytes, and then nothing, or ends the connection."""

    async def script(exchange: Exchange) -> None:
        for piece in pieces:
            await exchange.send(piece)
        if then == "close":
            exchange.writer.close()
        elif then == "reset":
            exchange.reset()
        elif then == "wait":
            await exchange.gone()

    return script


ILL: dict[str, Script] = {
    "closed": says(then="close"),
    "reset": says(then="reset"),
    "hangs": says(then="wait"),
    "500 with a page": says(http(500, b"<html>", kind="text/html")),
    "500 with an error": says(http(500, ERROR)),
    "503 with nothing": says(http(503)),
    "200 with a page": says(http(200, b"<html>", kind="text/html")),
    "302": says(http(302)),
    "cut short": says(http(200, result_of(1))[:-1], then="close"),
    "a stream that stands still": says(SSE_HEAD + chunk(b": hello\n\n"), then="wait"),
    "a stream that breaks": says(SSE_HEAD + chunk(b": hello\n\n"), then="reset"),
}
HANGING = {"hangs", "a stream that stands still"}
WELL: dict[str, Script] = {
    "400 with an error": says(http(400, ERROR)),
    "404 with a page": says(http(404, b"<html>", kind="text/html")),
    "401": says(http(401, ERROR)),
    "429 with nothing": says(http(429)),
    "200 with an error": says(http(200, ERROR)),
}

Make = Callable[..., HttpUpstream]


@pytest.fixture
async def pair() -> AsyncIterator[tuple[ScriptedUpstream, ScriptedUpstream]]:
    async with ScriptedUpstream() as one, ScriptedUpstream() as two:
        yield one, two


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Upstreams that are closed when the test is over."""
    made: list[HttpUpstream] = []

    def build(*scripted: ScriptedUpstream | str, limits: UpstreamLimits | None = None, **rules: Any) -> HttpUpstream:
        urls = [one if isinstance(one, str) else one.url for one in scripted]
        target = UpstreamTarget(tuple(check_replica_url(url) for url in urls))
        made.append(
            HttpUpstream({SERVER.name: target}, limits, {SERVER.name: ServerRules(**rules)}, chance=lambda: 0.0)
        )
        return made[-1]

    yield build
    for upstream in made:
        await upstream.close()


def listing(**changes: Any) -> Admitted:
    """A list, which changes nothing and may be repeated."""
    call = a_call(method="tools/list", kind="list")
    return replace(an_admitted(call), repeatable=True, **changes)


async def read(found: Answer) -> bytes:
    try:
        return b"".join([piece async for piece in found.chunks()])
    finally:
        await found.close()


async def ask(upstream: HttpUpstream, admitted: Admitted | None = None) -> str:
    """One call -> the replica that answered it, or an empty text for a fault."""
    try:
        found = await upstream.forward(admitted or an_admitted())
        await read(found)
    except UpstreamFault:
        return ""
    return found.replica


def figure(upstream: HttpUpstream, name: str) -> float:
    return gauges(upstream, asyncio.get_running_loop().time())[name][SERVER.name]


def counted(upstream: HttpUpstream) -> dict[tuple[str, ...], int]:
    """Counters that are not nought."""
    return {(name, *labels[1:]): number for name, labels, number in counts(upstream) if number}


# Health


@pytest.mark.parametrize("name", ILL)
async def test_five_faults_in_a_row_are_the_last_that_a_replica_gets(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make, name: str
) -> None:
    """Whatever kind they are, each was somebody's call and none is sent anew; from then on the other one serves."""
    ill, well = pair
    ill.script = ILL[name]
    upstream = make(ill, well, limits=SHORT if name in HANGING else None)
    first = 10 if name in HANGING else 0  # at once: five hang together, and are waited for as long as one
    answered = list(await asyncio.gather(*[ask(upstream) for _ in range(first)]))
    answered += [await ask(upstream) for _ in range(30 - first)]
    lost = 0 if name == "500 with an error" else 5  # that one is an answer, and passed on
    assert answered.count("") == lost
    assert (len(ill.seen), len(well.seen)) == (5, 25)
    assert figure(upstream, "replicas_ejected") == 1
    assert counted(upstream)["ejections", ill.url.split("/")[2], "faults"] == 1


@pytest.mark.parametrize("name", WELL)
async def test_what_a_caller_did_wrong_is_no_fault_of_the_replica(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make, name: str
) -> None:
    """4xx, or an error in a 200: nobody is put out by asking for nonsense."""
    odd, well = pair
    odd.script = WELL[name]
    upstream = make(odd, well)
    for _ in range(30):
        await ask(upstream)
    assert (len(odd.seen), len(well.seen)) == (15, 15)
    assert figure(upstream, "replicas_ejected") == 0


async def test_a_call_that_its_client_gave_up_says_nothing(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make
) -> None:
    """Clients that leave put no replica out."""
    slow, well = pair
    slow.script = says(then="wait")
    upstream = make(slow, well, limits=UpstreamLimits())
    for _ in range(20):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ask(upstream), 0.05)
    assert len(slow.seen) == 10
    assert counted(upstream)["requests", slow.url.split("/")[2], "given_up"] == 10
    assert figure(upstream, "replicas_ejected") == 0


@pytest.mark.parametrize("replicas", [1, 2])
async def test_the_last_replica_is_never_put_out_by_faults(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make, replicas: int
) -> None:
    """A caller who can make all of them fail gets them all answered on, and so does everybody else."""
    for one in pair:
        one.script = ILL["503 with nothing"]
    upstream = make(*pair[:replicas])
    for _ in range(40):
        assert not await ask(upstream)
    assert figure(upstream, "replicas_ejected") == replicas - 1
    for one in pair:
        one.script = answer
    assert await ask(upstream)


async def test_one_call_tries_a_replica_that_was_out_and_brings_it_back(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make
) -> None:
    """Half open: while one call tries it no other goes there; one that is approved does not try; then it is back."""
    ill, well = pair
    ill.script = ILL["503 with nothing"]
    upstream = make(ill, well, health=HealthRules(faults=1, ejected_s=0.2, slow_start_s=0), limits=UpstreamLimits())
    for _ in range(4):
        await ask(upstream)
    assert len(ill.seen) == 1
    going = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await going.wait()
        await answer(exchange)

    ill.script = slow
    await asyncio.sleep(0.3)
    approved = replace(an_admitted(), use=Claimed("ticket", "use"))
    for _ in range(4):
        assert await ask(upstream, approved) == well.url
    both = [asyncio.create_task(ask(upstream)) for _ in range(2)]
    await eventually(lambda: len(ill.seen) == 2)
    assert figure(upstream, "replicas_half_open") == 1
    assert {await ask(upstream) for _ in range(6)} == {well.url}
    assert len(ill.seen) == 2
    going.set()
    assert set(await asyncio.gather(*both)) == {ill.url, well.url}
    assert figure(upstream, "replicas_ejected") == 0
    assert {await ask(upstream) for _ in range(2)} == {ill.url, well.url}


# Places


async def test_no_replica_has_more_calls_than_its_places_and_those_who_wait_come_in_order(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make
) -> None:
    """Two places each and two to wait in: four run, two wait, the seventh is refused, and nothing of it was sent."""
    running, most, going = dict.fromkeys((one.port for one in pair), 0), 0, asyncio.Event()

    def counting(one: ScriptedUpstream) -> Script:
        async def script(exchange: Exchange) -> None:
            nonlocal most
            running[one.port] += 1
            most = max(most, *running.values())
            await going.wait()
            running[one.port] -= 1
            await answer(exchange)

        return script

    for one in pair:
        one.script = counting(one)
    upstream = make(*pair, limits=UpstreamLimits(), concurrent=2, queue=2, queue_s=30.0)
    done: list[int] = []

    async def call(number: int) -> None:
        await read(await upstream.forward(an_admitted(a_call(number))))
        done.append(number)

    calls = [asyncio.create_task(call(number)) for number in range(4)]
    await eventually(lambda: sum(running.values()) == 4)
    assert upstream.has_room(SERVER.name)
    calls += [asyncio.create_task(call(number)) for number in (4, 5)]
    await eventually(lambda: figure(upstream, "upstream_waiting") == 2)
    assert not upstream.has_room(SERVER.name)
    began = time.monotonic()
    with pytest.raises(UpstreamFull) as caught:
        await upstream.forward(an_admitted())
    assert caught.value.sent is False
    assert time.monotonic() - began < 5.0
    assert sum(len(one.seen) for one in pair) == 4
    going.set()
    await asyncio.gather(*calls)
    assert (most, sorted(done), done.index(4) < done.index(5)) == (2, [0, 1, 2, 3, 4, 5], True)
    assert sum(len(one.seen) for one in pair) == 6
    assert all(not replica.running for replica in upstream.rings[SERVER.name].replicas)


async def test_who_waited_for_a_place_in_vain_was_not_sent(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make
) -> None:
    """The wait is bounded; who leaves takes no place along, and one that was just given to him goes to the next."""
    slow, _ = pair
    slow.script = says(then="wait")
    upstream = make(slow, limits=UpstreamLimits(), concurrent=1, queue=10, queue_s=0.2)
    first = asyncio.create_task(ask(upstream))
    await eventually(lambda: len(slow.seen) == 1)
    with pytest.raises(UpstreamFull) as caught:
        await upstream.forward(an_admitted())
    assert (caught.value.sent, len(slow.seen)) == (False, 1)
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    ring = upstream.rings[SERVER.name]
    replica = ring.take(asyncio.get_running_loop().time())
    assert replica is not None
    leaver, stayer = (asyncio.create_task(ring.wait(float("inf"))) for _ in range(2))
    await asyncio.sleep(0)
    ring.leave(replica)
    leaver.cancel()  # in the moment in which the place is his
    assert await stayer is replica
    with contextlib.suppress(asyncio.CancelledError):
        await leaver
    assert (replica.running, ring.waiting) == (1, 0)
    ring.leave(replica)


async def test_who_waits_is_served_when_all_replicas_are_out(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make
) -> None:
    """With all of them out all are tried: whoever has waited gets a place at once, before whoever comes then."""
    upstream = make(*pair, limits=UpstreamLimits(), concurrent=1, queue=10, queue_s=30.0)
    ring, now = upstream.rings[SERVER.name], asyncio.get_running_loop().time()
    full, empty = ring.replicas
    full.running = 1
    for _ in range(PROBES):
        ring.probed(empty, now, well=False)
    waiting = asyncio.create_task(ring.wait(float("inf")))
    await asyncio.sleep(0)
    assert (empty.health.out, ring.waiting) == (True, 1)
    for _ in range(PROBES):
        ring.probed(full, now, well=False)
    assert ring.waiting == 0
    assert await waiting is empty
    assert (full.running, empty.running) == (1, 1)


async def test_subscriptions_and_the_houses_questions_take_no_place(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make
) -> None:
    """A stream of days is no call, and a server that is full can still be asked for its tools."""
    one, _ = pair

    async def script(exchange: Exchange) -> None:
        if b"subscriptions/listen" in exchange.seen.body:
            await exchange.send(SSE_HEAD + chunk(b": hello\n\n"))
            await exchange.gone(30)
        elif b"ostiary" in exchange.seen.body:
            await answer(exchange)
        else:
            await exchange.gone(30)

    one.script = script
    upstream = make(one, limits=UpstreamLimits(), concurrent=1, queue=0)
    streams = [
        await upstream.forward(an_admitted(a_call(method="subscriptions/listen", kind="subscription")))
        for _ in range(3)
    ]
    call = asyncio.create_task(ask(upstream))
    await eventually(lambda: len(one.seen) == 4)
    assert not upstream.has_room(SERVER.name)
    assert await upstream.inquire(SERVER, "tools/list", {})
    call.cancel()
    for stream in streams:
        await stream.close()


# Retries


@pytest.mark.parametrize("name", [name for name in ILL if "stream" not in name and name != "302"])
async def test_a_list_is_asked_for_once_more_at_another_replica(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make, name: str
) -> None:
    """UPS-08: a list may be retried once, a call is sent once, whatever breaks: one request for each replica."""
    ill, well = pair
    ill.script = ILL[name]
    limits, deadlines = UpstreamLimits(answer_s=1.5), {"tools/call": SHORT.answer_s}
    upstream = make(well, ill, limits=limits, deadlines=deadlines)  # the first turn is the second's
    before = await upstream.forward(listing())
    whole = await read(before)
    if name == "500 with an error":  # an answer, and it would be the same again
        assert (before.status, before.retries, len(ill.seen), len(well.seen)) == (500, 0, 1, 0)
        return
    assert whole == result_of(1)
    assert (before.replica, before.retries) == (well.url, 1)
    assert (len(ill.seen), len(well.seen)) == (1, 1)
    assert [await ask(upstream) for _ in range(2)] == [well.url, ""]
    assert (len(ill.seen), len(well.seen)) == (2, 2)


async def test_a_retry_is_no_turn(pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make) -> None:
    """Of two replicas, the one that breaks is asked first by every second list, and not by each of them."""
    ill, well = pair
    ill.script = ILL["closed"]
    upstream = make(well, ill, health=HealthRules(faults=0))
    for _ in range(8):
        assert await ask(upstream, listing()) == well.url
    assert (len(ill.seen), len(well.seen)) == (4, 8)


@pytest.mark.parametrize("name", ["closed", "503 with nothing", "cut short"])
async def test_where_both_attempts_fail_there_is_no_third(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make, name: str
) -> None:
    """One retry, at the same replica where it is the only one; the fault says that it was sent, and sent again."""
    for replicas in (1, 2):
        for one in pair:
            one.script, one.seen = ILL[name], []
        upstream = make(*pair[:replicas])
        with pytest.raises(UpstreamFault) as caught:
            await read(await upstream.forward(listing()))
        assert (caught.value.sent, caught.value.retries) == (True, 1)
        assert [len(one.seen) for one in pair[:replicas]] == ([2] if replicas == 1 else [1, 1])


@pytest.mark.parametrize("name", WELL)
async def test_an_answer_is_not_asked_for_again(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make, name: str
) -> None:
    """A server that took the request for a bad one would do so again."""
    for one in pair:
        one.script = WELL[name]
    await ask(make(*pair), listing())
    assert sum(len(one.seen) for one in pair) == 1


async def test_a_server_that_says_that_it_can_not_now_is_asked_again(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make
) -> None:
    """503 with an error of its own: the other replica's answer counts; where that is the same, it is passed on."""
    ill, well = pair
    ill.script = says(http(503, ERROR))
    found = await make(well, ill).forward(listing())
    assert (await read(found), found.retries) == (result_of(1), 1)
    well.script = ill.script
    found = await make(well, ill).forward(listing())
    assert (found.status, await read(found), found.retries) == (503, ERROR, 1)


async def test_servers_that_all_fail_get_a_fifth_more_and_not_twice_as_many(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make
) -> None:
    """The budget: 100 lists that fail are 100 requests, the ten that were saved up, and one for each five."""
    for one in pair:
        one.script = ILL["503 with nothing"]
    for share, more in ((0.2, RESERVE + 100 * 0.2 - 1), (0.0, 0)):
        for one in pair:
            one.seen = []
        upstream = make(*pair, retry_share=share)
        for _ in range(100):
            await ask(upstream, listing())
        assert sum(len(one.seen) for one in pair) == pytest.approx(100 + more, abs=1)
        retries = {result: number for (name, result, *_), number in counted(upstream).items() if name == "retries"}
        assert sum(retries.values()) == 100
        assert retries["no_budget"] == pytest.approx(100 - more, abs=1)


@pytest.mark.parametrize("name", ["closed", "hangs", "503 with nothing", "cut short"])
async def test_the_houses_own_question_is_asked_once_more(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make, name: str
) -> None:
    """UPS-08: a replica that breaks costs nobody the list of tools; an answer that says no is not asked for again."""
    ill, well = pair
    ill.script = ILL[name]
    upstream = make(well, ill, limits=UpstreamLimits(inquire_s=1.5))
    for _ in range(2):
        assert await upstream.inquire(SERVER, "tools/list", {})
    assert (len(ill.seen), len(well.seen)) == (1, 2)

    async def refuses(exchange: Exchange) -> None:
        await exchange.send(http(200, ERROR.replace(b'"id":1', b'"id":"%s"' % str(exchange.id).encode())))

    ill.script = well.script = refuses
    with pytest.raises(UpstreamInvalid):
        await upstream.inquire(SERVER, "tools/list", {})
    assert len(ill.seen) + len(well.seen) == 4


# Deadlines


async def test_a_methods_deadline_holds_for_both_attempts_together(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make
) -> None:
    """A replica that hangs costs a list half of its time where there is another; a call gets no second attempt."""
    ill, well = pair
    ill.script = ILL["hangs"]
    rules = {"deadlines": {"tools/list": 1.0, "tools/call": 0.3}, "health": HealthRules(faults=0)}
    upstream = make(well, ill, limits=UpstreamLimits(), **rules)
    began = time.monotonic()
    assert await ask(upstream, listing()) == well.url
    assert 0.45 < time.monotonic() - began < 1.0
    well.script = ill.script
    began = time.monotonic()
    with pytest.raises(UpstreamTimeout) as caught:
        await upstream.forward(listing())
    assert 0.9 < time.monotonic() - began < 5.0
    assert caught.value.retries == 1
    seen = len(ill.seen) + len(well.seen)
    began = time.monotonic()
    with pytest.raises(UpstreamTimeout):
        await upstream.forward(an_admitted())
    assert 0.25 < time.monotonic() - began < 5.0
    assert len(ill.seen) + len(well.seen) == seen + 1


async def test_a_body_that_drips_in_has_no_more_time_than_the_answer(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make
) -> None:
    """The deadline is the whole answer's: a head in time wins none for the body."""
    one, _ = pair

    async def drips(exchange: Exchange) -> None:
        await asyncio.sleep(0.2)
        await exchange.send(http(200, result_of(1))[:-20])
        for _ in range(100):
            await asyncio.sleep(0.05)
            await exchange.send(b"x")

    one.script = drips
    upstream = make(one, deadlines={"tools/call": 0.4}, limits=UpstreamLimits())
    began = time.monotonic()
    with pytest.raises(UpstreamTimeout):
        await read(await upstream.forward(an_admitted()))
    assert time.monotonic() - began < 3.0


async def test_a_deadline_that_passes_before_there_is_a_connection_sent_nothing(make: Make) -> None:
    """A replica that drops packets may not keep a call for longer than its method has; the use goes back."""
    with socket.socket() as full, contextlib.ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # fill the backlog, so that further handshakes are not answered
            other = waiting.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}/mcp"
        upstream = make(url, limits=UpstreamLimits(connect_s=20.0), deadlines={"tools/call": 0.3})
        began = time.monotonic()
        with pytest.raises(UpstreamTimeout) as caught:
            await upstream.forward(an_admitted())
        assert caught.value.sent is False
        assert time.monotonic() - began < 10
        assert figure(upstream, "replicas_ejected") == 0, "the call had no time; of the replica that says nothing"
        assert upstream.rings[SERVER.name].replicas[0].running == 0


# Names


async def test_a_resolver_that_hangs_keeps_nobody_elses_calls(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty calls to a name without an answer cost one thread; other names and other look-ups go on, and it ends."""
    good, _ = pair
    hanging, real = threading.Event(), socket.getaddrinfo

    def look_up(host: Any, *more: Any, **named: Any) -> Any:
        if host == "silent.example":
            hanging.wait(30)
            raise socket.gaierror("no")
        return real(host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    limits = UpstreamLimits(connect_s=1.0)
    target = UpstreamTarget((check_replica_url("http://silent.example:1/mcp"),))
    named = UpstreamTarget((check_replica_url(f"http://localhost:{good.port}/mcp"),))
    upstream = HttpUpstream({"silent": target, SERVER.name: named}, limits)
    silent = replace(an_admitted(), server=replace(SERVER, name="silent"))
    before = threading.active_count()
    calls = [asyncio.create_task(upstream.forward(silent)) for _ in range(50)]
    await asyncio.sleep(0.1)
    assert threading.active_count() - before <= 1
    began = time.monotonic()
    assert await ask(upstream) == f"http://localhost:{good.port}/mcp"
    assert await asyncio.get_running_loop().run_in_executor(None, lambda: "served") == "served"
    assert time.monotonic() - began < 0.5, "while all fifty wait"
    faults = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(fault, UpstreamUnreachable) and not fault.sent for fault in faults)
    hanging.set()
    await upstream.close()


@pytest.mark.parametrize(
    ("addresses", "reached"),
    [
        (["127.0.0.1"], True),
        (["127.0.0.9", "127.0.0.1"], True),
        (["127.0.0.1", "169.254.169.254"], False),
        (["127.0.0.1", "10.0.0.1", "10.0.0.2", "169.254.169.254"], True),
    ],
)
async def test_a_names_addresses_are_judged_before_any_of_them_is_reached(
    make: Make, monkeypatch: pytest.MonkeyPatch, addresses: list[str], reached: bool
) -> None:
    """UPS-02: the next one is tried where one refuses; one forbidden among the three that count, and none is."""
    async with ScriptedUpstream() as good:
        real = socket.getaddrinfo

        def look_up(host: Any, port: Any, *more: Any, **named: Any) -> Any:
            if host != "localhost":
                return real(host, port, *more, **named)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, good.port)) for address in addresses]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        upstream = make(f"http://localhost:{good.port}/mcp", limits=UpstreamLimits(connect_s=1.0))
        assert bool(await ask(upstream)) is reached
        assert good.connections == reached


# Probes


@pytest.mark.parametrize("probe", ["tcp", "discover", "/healthz"])
async def test_a_probe_takes_a_replica_out_and_brings_it_back(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make, probe: str
) -> None:
    """No call is lost to find out: three probes that fail, and the other replica serves alone until one goes well."""
    ill, well = pair
    upstream = make(ill, well, health=HealthRules(probe=probe, probe_s=0.02, slow_start_s=0))

    async def healthy(exchange: Exchange) -> None:
        if exchange.seen.line.startswith("GET"):
            assert exchange.seen.line == "GET /healthz HTTP/1.1"
            await exchange.send(http(200, b"fine", kind="text/plain"))
        else:
            await answer(exchange)

    async def unhealthy(exchange: Exchange) -> None:
        await exchange.send(http(500, b"no", kind="text/plain"))

    ill.script = well.script = healthy
    probes = Probes(upstream, chance=lambda: 0.0)
    probes.start()
    try:
        at_least = 7  # more than it takes faults to put one out
        await eventually(lambda: min(max(len(one.seen), one.connections) for one in pair) >= at_least)
        assert figure(upstream, "replicas_ejected") == 0
        if probe == "tcp":
            await ill.stop()
        else:
            ill.script = unhealthy
        await eventually(lambda: figure(upstream, "replicas_ejected") == 1)
        if probe != "tcp":
            assert sum("POST" in one.line or "GET" in one.line for one in ill.seen) >= PROBES
        assert {await ask(upstream) for _ in range(6)} == {well.url}
        if probe == "tcp":
            await ill.start()
        ill.script = healthy
        await eventually(lambda: figure(upstream, "replicas_ejected") == 0)
        assert {await ask(upstream) for _ in range(2)} == {ill.url, well.url}
    finally:
        await probes.close()


async def test_a_replica_that_is_full_is_not_taken_for_dead(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make
) -> None:
    """A probe takes no place of a call's."""
    one, _ = pair

    async def busy(exchange: Exchange) -> None:
        if b"server/discover" in exchange.seen.body:
            await answer(exchange)
        else:
            await exchange.gone(30)

    one.script = busy
    health = HealthRules(probe="discover", probe_s=0.02)
    upstream = make(one, limits=UpstreamLimits(), concurrent=1, queue=0, health=health)
    call = asyncio.create_task(ask(upstream))
    await eventually(lambda: len(one.seen) == 1)
    probes = Probes(upstream, chance=lambda: 0.0)
    probes.start()
    await eventually(lambda: len(one.seen) >= 2 + PROBES)
    assert figure(upstream, "replicas_ejected") == 0
    await probes.close()
    call.cancel()


async def test_a_defect_in_judging_a_replica_costs_no_place_and_hangs_no_call(
    pair: tuple[ScriptedUpstream, ScriptedUpstream], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever breaks while an ended call is counted: whoever waits for it is told, and its place is free again."""
    one, _ = pair
    upstream = make(one, concurrent=1, queue=0)
    one.script = ILL["500 with a page"]

    async def ask() -> None:
        with pytest.raises((UpstreamFault, RuntimeError)):
            await asyncio.wait_for(upstream.forward(an_admitted(a_call())), 5)

    await ask()

    def break_(*_: Any, **__: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("gateway.upstream.ring.Ring.faulted", break_)
    for _ in range(3):
        await ask()
