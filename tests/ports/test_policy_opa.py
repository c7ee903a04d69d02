"""The OPA adapter against an OPA that is away, slow, broken or somebody else: never an allow, and back at once."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import shutil
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from policies import opa as opa_module
from policies import wire as wire_module
from policies.breaker import Breaker, Pace
from policies.opa import OpaPolicy, OpaTls
from policies.verdict import UNVERSIONED, Effect, PolicyUnavailable, Verdict
from policies.wire import Wire
from tests.ports.test_bundle import write_bundle
from tests.ports.test_policy import HOSTILE_NAMES, RULES, ask, timed
from tests.support.impostor import (
    ALLOW,
    PROVENANCE,
    Behaviour,
    Impostor,
    cuts,
    drips,
    floods,
    hangs,
    hangs_up,
    head,
    says,
)
from tests.support.opa import Opa
from tests.support.ports import free_port
from tests.support.processes import eventually

SHIPPED = Path(__file__).parents[2] / "policies" / "bundle"
QUESTION = ask("allow")


@asynccontextmanager
async def policy_of(url: str, **options: Any) -> AsyncIterator[OpaPolicy]:
    policy = OpaPolicy(url, **{"deadline_s": 0.5, **options})
    await policy.start()
    try:
        yield policy
    finally:
        await policy.close()


async def two_lengths(writer: asyncio.StreamWriter) -> None:
    writer.write(head(len(ALLOW), more="Content-Length: 5\r\n") + ALLOW)


PROBING = 1  # the connection of the gateway's own questions
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def answer(result: bytes, provenance: bytes = PROVENANCE) -> bytes:
    return b'{"result":' + result + b"," + provenance + b"}"


BROKEN: dict[str, tuple[Behaviour, str]] = {
    "hangs": (hangs, "longer than"),
    "drips": (drips, "longer than"),
    "cut": (cuts, "can't be asked"),
    "hangs up": (hangs_up, "can't be asked"),
    "floods": (floods, "longer than"),
    "longer than is read": (says(b" " * (4 << 20) + ALLOW), "longer than"),
    "undefined": (says(b"{" + PROVENANCE + b"}"), "undefined"),
    "nothing": (says(b""), "not JSON"),
    "half": (says(ALLOW[:-1]), "not JSON"),
    "two answers": (says(ALLOW + ALLOW), "not JSON"),
    "two results": (says(b'{"result":{"effect":"deny"},' + ALLOW[1:]), "not JSON"),
    "NaN": (says(answer(b'{"effect":"allow","limits":NaN}')), "not JSON"),
    "deep": (says(b"[" * 200_000), "not JSON"),
    "half a surrogate pair": (
        says(answer(b'{"effect":"approve","approval":{"approvers":["user:\\ud800"]}}')),
        "not JSON",
    ),
    "no UTF-8": (says(ALLOW.decode().encode("utf-16-le")), "not JSON"),
    "a surrogate in bytes": (says(answer(b'{"effect":"allow","visible":["\xed\xa0\x80"]}')), "not JSON"),
    "a list of one verdict": (says(answer(b'[{"effect":"allow"}]')), "malformed"),
    "half of its chunks": (
        lambda writer: _write(writer, CHUNKED + b"5\r\n" + ALLOW[:5] + b"\r\n"),
        "longer than",
    ),
    "a chunk of another length": (lambda writer: _write(writer, CHUNKED + b"ffz\r\n" + ALLOW), "can't be asked"),
    "no object": (says(b'["allow"]'), "not an object"),
    "a word": (says(answer(b'"deny"')), "malformed"),
    "another word": (says(answer(b'"allow"')), "malformed"),
    "true": (says(answer(b"true")), "malformed"),
    "null": (says(answer(b"null")), "malformed"),
    "unknown member": (says(answer(b'{"effect":"allow","obligations":[]}')), "unknown member"),
    "the verdict alone": (says(b'{"effect":"allow"}'), "undefined"),
    "revisions of another form": (says(answer(b'{"effect":"allow"}', b'"provenance":{"bundles":[]}')), "provenance"),
    "a revision in two lines": (
        says(answer(b'{"effect":"allow"}', b'"provenance":{"bundles":{"b":{"revision":"a\\nb"}}}')),
        "visible",
    ),
    "HTML": (says(ALLOW, kind="text/html"), "not application/json"),
    "no type": (says(ALLOW, kind=""), "not application/json"),
    "compressed": (says(gzip.compress(ALLOW), more="Content-Encoding: gzip\r\n"), "compressed"),
    "no HTTP": (lambda writer: _write(writer, b"allow\r\n\r\n"), "can't be asked"),
    "two lengths": (two_lengths, "can't be asked"),
    "a head without end": (lambda writer: _write(writer, b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000), "can't"),
    "204": (says(ALLOW, "204 No Content"), "status 204"),
    "an interim answer": (says(b"", "103 Early Hints"), "status 103"),
    "an upgrade": (
        says(ALLOW, "101 Switching Protocols", more="Upgrade: h2c\r\nConnection: upgrade\r\n"),
        "status 101",
    ),
    "two types": (says(ALLOW, more="Content-Type: application/json\r\n"), "two of content-type"),
    "a length and chunks": (says(ALLOW, more="Transfer-Encoding: chunked\r\n"), "can't be asked"),
    "another coding": (
        lambda writer: _write(writer, CHUNKED.replace(b"chunked", b"gzip, chunked") + b"0\r\n\r\n"),
        "can't be asked",
    ),
    "an error, and behind it a head of no error": (
        lambda writer: _write(writer, head(len(ALLOW)).replace(b"200 OK", b"500 Oh") + ALLOW + head(0)),
        "status 500",
    ),
    "302": (says(ALLOW, "302 Found", more="Location: /v1/data/allow\r\n"), "status 302"),
    "307": (says(ALLOW, "307 Temporary Redirect", more="Location: http://127.0.0.1:9/\r\n"), "status 307"),
    "400": (says(b'{"code":"invalid_parameter","message":"secret"}', "400 Bad Request"), "400 .invalid_parameter"),
    "401": (says(ALLOW, "401 Unauthorized"), "status 401"),
    "404": (says(ALLOW, "404 Not Found"), "status 404"),
    "500": (says(ALLOW, "500 Internal Server Error"), "status 500"),
    "503": (says(ALLOW, "503 Service Unavailable", more="Retry-After: 100\r\n"), "status 503"),
}


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)


@pytest.mark.parametrize("case", BROKEN)
async def test_whatever_opa_does_but_answer_is_a_failure(case: str) -> None:
    """AZ-01, G6: within a second, and never an allow; the text of the failure quotes nothing; then it works again."""
    behaviour, words = BROKEN[case]
    async with Impostor(says(ALLOW)) as opa, policy_of(opa.url) as policy:
        assert (await policy.judge(QUESTION)).effect is Effect.ALLOW
        opa.behaviour = behaviour
        took, failure = await timed(policy.judge(QUESTION))
        assert isinstance(failure, PolicyUnavailable), failure
        assert words.replace(".", "(") in str(failure)
        assert "secret" not in str(failure)
        assert took < 1
        opa.behaviour = says(ALLOW)
        assert (await policy.judge(QUESTION)).effect is Effect.ALLOW


async def test_names_are_never_part_of_the_address() -> None:
    """AZ-03: every question goes to one constant path, by one constant head, whatever it is about."""
    async with Impostor(says(ALLOW)) as opa, policy_of(opa.url, token="t0ken") as policy:
        for name in HOSTILE_NAMES:
            assert (await policy.judge(ask(name))).effect is Effect.ALLOW
        heads = {
            b"\r\n".join(one for one in lines.split(b"\r\n") if b"Content-Length" not in one) for lines in opa.heard
        }
        assert len(opa.heard) > len(HOSTILE_NAMES)
        assert len(heads) == 1
        lines = heads.pop().split(b"\r\n")
        path, _, query = lines[0].split()[1].partition(b"?")
        assert path == b"/v1/data/mcp/authz/decision"
        assert sorted(query.split(b"&")) == [b"provenance=true", b"strict-builtin-errors=true"]
        assert b"Authorization: Bearer t0ken" in lines


async def test_a_redirect_takes_the_token_nowhere() -> None:
    """Who answers is who was configured: another address is neither asked nor given the token."""
    async with Impostor(says(ALLOW)) as elsewhere, Impostor(says(ALLOW)) as opa:
        async with policy_of(opa.url, token="t0ken") as policy:
            opa.behaviour = says(b"", "308 Permanent Redirect", more=f"Location: {elsewhere.url}/v1/data\r\n")
            with pytest.raises(PolicyUnavailable, match="308"):
                await policy.judge(QUESTION)
        assert elsewhere.heard == []


async def test_connections_are_used_again_and_bounded() -> None:
    """A hundred questions in turn take one connection, hundreds at once a bounded number; more are refused."""

    async def slowly(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.01)
        writer.write(head(len(ALLOW)) + ALLOW)

    async with Impostor(says(ALLOW)) as opa, policy_of(opa.url, deadline_s=20) as policy:
        for _ in range(100):
            await policy.judge(QUESTION)
        assert opa.connections == 1 + PROBING
        opa.behaviour = slowly
        results = await asyncio.gather(*(policy.judge(QUESTION) for _ in range(1500)), return_exceptions=True)
        refused = [str(one) for one in results if isinstance(one, PolicyUnavailable)]
        assert opa.most <= 64 + PROBING
        assert 1000 < 1500 - len(refused) < 1200
        assert all("overloaded" in why for why in refused)


async def test_a_connection_that_was_closed_meanwhile_costs_nobody_his_answer() -> None:
    """OPA may close a connection that is kept: the question is asked once more, on another one."""
    asked = 0

    async def closes_every_other(writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        if asked % 2:
            writer.close()
        else:
            writer.write(head(len(ALLOW)) + ALLOW)

    async with Impostor(says(ALLOW)) as opa, policy_of(opa.url) as policy:
        opa.behaviour = closes_every_other
        for _ in range(20):
            assert (await policy.judge(QUESTION)).effect is Effect.ALLOW


async def test_callers_who_leave_disturb_nobody() -> None:
    """A question given up takes its connection along, never another's answer."""

    async def by_and_by(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        writer.write(head(len(ALLOW)) + ALLOW)

    async with Impostor(says(ALLOW)) as opa, policy_of(opa.url, deadline_s=5) as policy:
        opa.behaviour = by_and_by
        leaving = [asyncio.ensure_future(policy.judge(QUESTION)) for _ in range(20)]
        await asyncio.sleep(0.02)
        for one in leaving:
            one.cancel()
        verdicts = await asyncio.gather(*(policy.judge(QUESTION) for _ in range(20)))
        assert {verdict.effect for verdict in verdicts} == {Effect.ALLOW}
        await asyncio.gather(*leaving, return_exceptions=True)


@pytest.mark.parametrize("late_s", [0.0, 0.02])
async def test_what_nobody_asked_for_is_nobodys_answer(late_s: float) -> None:
    """G6: a second answer on a connection that is kept is never that of the next question, which gets its own."""
    deny = answer(b'{"effect":"deny"}')

    async def twice(writer: asyncio.StreamWriter) -> None:
        writer.write(head(len(deny)) + deny)
        await writer.drain()
        await asyncio.sleep(late_s)
        writer.write(head(len(ALLOW)) + ALLOW)

    async with Impostor(twice) as opa, policy_of(opa.url) as policy:
        assert (await policy.judge(QUESTION)).effect is Effect.DENY
        for _ in range(5):
            await asyncio.sleep(late_s * 5)
            assert (await policy.judge(QUESTION)).effect is Effect.DENY
        opa.behaviour = says(ALLOW)
        await asyncio.sleep(late_s * 5)
        assert (await policy.judge(QUESTION)).effect is Effect.ALLOW


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    """HTTP/1.0: what the end of the connection ends is an answer; an end that is no end of a text is none."""

    async def ends(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    body = ALLOW
    async with Impostor(ends) as opa, policy_of(opa.url) as policy:
        for _ in range(3):
            assert (await policy.judge(QUESTION)).effect is Effect.ALLOW
        body = ALLOW[:-1]
        with pytest.raises(PolicyUnavailable, match="not JSON"):
            await policy.judge(QUESTION)
        assert opa.connections >= 4, "none was used again"


async def test_an_answer_to_half_a_question_is_its_connections_last() -> None:
    """What is left of a long question is never the beginning of the next one."""
    longest, connections = 8 << 20, 0

    async def at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                lines = await reader.readuntil(b"\r\n\r\n")
                length = int(lines.split(b"Content-Length: ")[1].split(b"\r\n")[0])
                if length < longest:
                    await reader.readexactly(length)
                writer.write(head(len(ALLOW)) + ALLOW)
                if length >= longest:
                    await over.wait()
                    break
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        ended.release()

    over, ended = asyncio.Event(), asyncio.Semaphore(0)
    server = await asyncio.start_server(at_once, "127.0.0.1", 0)
    async with policy_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", deadline_s=5) as policy:
        for _ in range(2):
            assert (await policy.judge(QUESTION)).effect is Effect.ALLOW
        assert connections == 1 + PROBING
        assert (await policy.judge(ask("x" * longest))).effect is Effect.ALLOW
        assert (await policy.judge(QUESTION)).effect is Effect.ALLOW
        assert connections == 2 + PROBING
        over.set()
    for _ in range(connections):
        await ended.acquire()
    server.close()
    await server.wait_closed()


async def test_a_connection_that_nobody_uses_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections have an end of their own, and the next question makes a new one."""
    monkeypatch.setattr(wire_module, "_IDLE_S", 0.2)
    async with Impostor(says(ALLOW)) as opa, policy_of(opa.url, pace=Pace(idle_s=60)) as policy:
        await policy.judge(QUESTION)
        await eventually("all are closed", lambda: opa._open == 0)
        assert (await policy.judge(QUESTION)).effect is Effect.ALLOW
        assert opa.connections == 2 + PROBING


async def test_those_who_wait_and_leave_leave_nothing_behind() -> None:
    """Callers who give up while every connection is taken make no queue that grows."""
    async with Impostor(says(ALLOW)) as opa, policy_of(opa.url, deadline_s=30) as policy:
        opa.behaviour = hangs
        holding = [asyncio.ensure_future(policy.judge(QUESTION)) for _ in range(64)]
        await eventually("all are taken", lambda: len(opa.heard) >= 64 + PROBING)
        wire = policy._client
        assert wire is not None
        for _ in range(3):
            leaving = [asyncio.ensure_future(policy.judge(QUESTION)) for _ in range(50)]
            await eventually("they wait", lambda: len(wire._waiting) == 50)
            for one in leaving:
                one.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)
            assert (len(wire._waiting), wire.asked) == (0, 64)
        for one in holding:
            one.cancel()
        await asyncio.gather(*holding, return_exceptions=True)
        assert wire.asked == 0
        opa.behaviour = says(ALLOW)
        assert (await policy.judge(QUESTION)).effect is Effect.ALLOW


async def test_a_name_is_looked_up_once_and_a_resolver_that_hangs_costs_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many questions want a connection: one look-up at a time, believed for seconds; the deadline counts."""
    found, asked = asyncio.Event(), 0
    async with Impostor(says(ALLOW)) as opa:

        async def getaddrinfo(*_: object, **__: object) -> list[Any]:
            nonlocal asked
            asked += 1
            await found.wait()
            # The first address is nobody's: the next one is tried.
            return [(0, 0, 0, "", (address, opa.port)) for address in ("127.0.0.7", "127.0.0.1")]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        url = opa.url.replace("127.0.0.1", "opa.internal")
        wire = Wire(url, "/", token=None, context=None, connections=8, deadline_s=0.3, most=9999)
        for _ in range(2):
            ends = await asyncio.gather(*(wire.post(b"{}") for _ in range(20)), return_exceptions=True)
            assert all(isinstance(end, PolicyUnavailable) for end in ends)
            assert asked == 1
        found.set()
        assert await asyncio.gather(*(wire.post(b"{}") for _ in range(20))) == [ALLOW] * 20
        assert asked == 1
        await wire.close()
        with pytest.raises(PolicyUnavailable, match="closed"):
            await wire.post(b"{}")


async def test_a_connection_that_ended_as_soon_as_it_was_made_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes a connection and leaves costs no question its deadline; one that always does is away."""
    loop = asyncio.get_running_loop()
    connect, short = loop.create_connection, 1

    async def create_connection(*where: Any, **how: Any) -> Any:
        nonlocal short
        made = await connect(*where, **how)
        if short:
            short -= 1
            made[0].abort()
            for _ in range(3):  # until the protocol has heard of it
                await asyncio.sleep(0)
        return made

    async with Impostor(says(ALLOW)) as opa:
        monkeypatch.setattr(loop, "create_connection", create_connection)
        wire = Wire(opa.url, "/", token=None, context=None, connections=8, deadline_s=30, most=9999)
        assert await wire.post(b"{}") == ALLOW
        short = 3
        await wire.close()
        wire = Wire(opa.url, "/", token=None, context=None, connections=8, deadline_s=30, most=9999)
        with pytest.raises(PolicyUnavailable, match="ended before the answer"):
            await wire.post(b"{}")
        assert short == 1, "asked once more, and no oftener"
        await wire.close()


async def test_a_token_that_would_be_more_than_one_line_is_refused() -> None:
    """What stands behind the token's header is the gateway's own."""
    for token in ("a\r\nHost: elsewhere", "", "a b", "\u00fc"):
        with pytest.raises(PolicyUnavailable, match="visible ASCII"):
            await OpaPolicy("http://127.0.0.1:1", token=token).start()


async def test_a_close_refuses_what_is_asked_and_what_waits() -> None:
    """Questions on their way, and those that wait for a connection, end as every other failure does, at once."""
    async with Impostor(says(ALLOW)) as opa, policy_of(opa.url, deadline_s=60) as policy:
        assert (await policy.judge(QUESTION)).effect is Effect.ALLOW
        opa.behaviour = hangs
        asked = [asyncio.ensure_future(policy.judge(QUESTION)) for _ in range(100)]
        await eventually("asked", lambda: len(opa.heard) >= 60)
        await policy.close()
        ends = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 5)
        assert {str(end) for end in ends} == {"the policy engine was closed"}
        assert all(isinstance(end, PolicyUnavailable) for end in ends)


# ------------------------------------------------------------------ revisions


@pytest.mark.parametrize(
    ("provenance", "revision"),
    [
        (b'{"bundles":{"b":{"revision":"r1"}}}', "r1"),
        (b'{"bundles":{"rules":{"revision":"r1"},"data":{"revision":"d7"}}}', "data=d7,rules=r1"),
        (b'{"bundles":{"rules":{"revision":"r1"},"data":{}}}', "rules=r1"),
        (b'{"bundles":{"b":{"revision":""}}}', UNVERSIONED),
        (b'{"version":"1.0.0"}', UNVERSIONED),
    ],
)
async def test_the_revision_is_that_of_the_very_evaluation(provenance: bytes, revision: str) -> None:
    """What OPA says of its bundles becomes one name; a policy that came in none is called so."""
    body = answer(b'{"effect":"allow"}', b'"provenance":' + provenance)
    async with Impostor(says(body)) as opa, policy_of(opa.url) as policy:
        assert (await policy.judge(QUESTION)).revision == revision == policy.revision
        assert policy.digest == hashlib.sha256(revision.encode()).hexdigest(), "all that is known of it"
    assert policy.digest == ""


async def test_readings_are_remembered_and_decisions_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """OPA is asked every time and its newest answer counts, its revision too; what is broken is broken each time."""
    read: list[bytes] = []
    reader = opa_module._read

    def watched(text: bytes) -> Verdict:
        read.append(text)
        return reader(text)

    monkeypatch.setattr(opa_module, "_read", watched)
    deny, newer = answer(b'{"effect":"deny"}'), ALLOW.replace(b'"r1"', b'"r2"')
    async with Impostor(says(ALLOW)) as opa, policy_of(opa.url, pace=Pace(trips=50, idle_s=60)) as policy:
        read.clear()
        heard = len(opa.heard)
        for body in (ALLOW, deny, ALLOW, newer, deny, newer, ALLOW):
            opa.behaviour = says(body)
            verdict = await policy.judge(QUESTION)
            assert verdict.effect is (Effect.DENY if body == deny else Effect.ALLOW)
            assert verdict.revision == policy.revision == ("r2" if body == newer else "r1")
        assert len(opa.heard) - heard == 7
        assert read == [deny, newer], "the probes had read the first"
        opa.behaviour = says(ALLOW[:-1])
        for _ in range(2):
            with pytest.raises(PolicyUnavailable, match="not JSON"):
                await policy.judge(QUESTION)
        assert read[2:] == [ALLOW[:-1]] * 2


async def test_what_is_remembered_of_answers_is_bounded_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that are all different, or long, take no more memory; with `close` all of it ends."""
    monkeypatch.setattr(opa_module, "_REMEMBERED", 4)
    async with Impostor(says(ALLOW)) as opa, policy_of(opa.url) as policy:
        most = 0
        for number in range(20):
            opa.behaviour = says(ALLOW[:-1] + b',"decision_id":"%d"}' % number)
            assert (await policy.judge(QUESTION)).effect is Effect.ALLOW
            most = max(most, len(policy._read))
        assert most == 4
        kept = set(policy._read)
        opa.behaviour = says(ALLOW + b" " * 4096)
        assert (await policy.judge(QUESTION)).effect is Effect.ALLOW
        assert set(policy._read) == kept
        await policy.close()
        assert not policy._read


# ------------------------------------------------------------------ the circuit


async def test_down_is_said_at_once_and_over_within_five_seconds() -> None:
    """AZ-01, OPS-06: with OPA gone callers are refused at once, and it is left in peace; back, they are served."""
    said: list[str] = []
    async with Impostor(says(ALLOW)) as opa, policy_of(opa.url, moved=said.append) as policy:
        assert policy.ready
        opa.behaviour = hangs
        await asyncio.gather(*(policy.judge(QUESTION) for _ in range(20)), return_exceptions=True)
        await eventually("the circuit is open", lambda: not policy.ready)
        heard, late = len(opa.heard), 0
        for _ in range(200):
            took, failure = await timed(policy.judge(QUESTION))
            assert isinstance(failure, PolicyUnavailable)
            late += took >= 0.1
        assert late <= 4, "at once: who asks OPA waits for half a second, and a busy machine delays a few"
        assert len(opa.heard) - heard <= 2, "one plain question at a time looks whether it is back"
        opa.behaviour = says(ALLOW)
        assert await eventually("OPA is asked again", lambda: policy.ready) < 5
        assert (await policy.judge(QUESTION)).effect is Effect.ALLOW
        assert [bool(why) for why in said] == [True, False]


async def test_an_opa_that_dies_while_nobody_asks_is_noticed() -> None:
    """Readiness follows OPA, not the traffic."""
    pace = Pace(idle_s=0.2)
    async with Impostor(says(ALLOW)) as opa, policy_of(opa.url, pace=pace) as policy:
        opa.behaviour = hangs_up
        await eventually("not ready", lambda: not policy.ready)
        opa.behaviour = says(ALLOW)
        await eventually("ready", lambda: policy.ready)


async def test_one_callers_arguments_never_open_the_circuit() -> None:
    """Failures of questions raise a suspicion; as long as a plain question is answered, everyone is judged."""

    async def fails_for_some(writer: asyncio.StreamWriter) -> None:
        body = ALLOW if b"Content-Length: 1" not in opa.heard[-1] else b"{}"
        writer.write(head(len(body)) + body)

    async with Impostor(says(ALLOW)) as opa, policy_of(opa.url, pace=Pace(idle_s=0.05)) as policy:
        poison = ask("x" * 1000)
        opa.behaviour = fails_for_some
        assert 1000 <= len(poison) + 10 < 2000
        for _ in range(200):
            with pytest.raises(PolicyUnavailable, match="undefined"):
                await policy.judge(poison)
            await asyncio.sleep(0.002)
        assert policy.ready
        assert (await policy.judge(ask("y" * 3000))).effect is Effect.ALLOW


async def test_callers_who_hold_every_connection_never_open_the_circuit() -> None:
    """Questions that take long are no sign that OPA is away: readiness is not a stranger's to take."""
    told: list[str] = []

    async def slow_for_some(writer: asyncio.StreamWriter) -> None:
        if any(b"Content-Length: 1" in line for line in opa.heard[-1].splitlines()):
            await hangs(writer)
        writer.write(head(len(ALLOW)) + ALLOW)

    async with (
        Impostor(says(ALLOW)) as opa,
        policy_of(opa.url, deadline_s=0.5, pace=Pace(idle_s=0.05), moved=told.append) as policy,
    ):
        poison = ask("x" * 1000)
        assert 1000 <= len(poison) + 10 < 2000
        opa.behaviour = slow_for_some

        async def insist() -> None:
            for _ in range(4):
                with pytest.raises(PolicyUnavailable, match="longer than"):
                    await policy.judge(poison)

        await asyncio.gather(*(insist() for _ in range(130)))
        assert policy.ready
        assert told == []
        assert (await policy.judge(ask("y" * 3000))).effect is Effect.ALLOW


async def test_an_opa_that_is_away_at_the_start_is_waited_for() -> None:
    """The start does not wait for OPA: not ready, every question refused, until it is there."""
    port = free_port()
    async with policy_of(f"http://127.0.0.1:{port}") as policy:
        assert not policy.ready
        assert "can't be asked" in policy.why
        with pytest.raises(PolicyUnavailable, match="not asked at present"):
            await policy.judge(QUESTION)
    async with Impostor(hangs_up) as opa, policy_of(opa.url) as policy:
        assert not policy.ready
        opa.behaviour = says(ALLOW)
        assert await eventually("ready", lambda: policy.ready) < 5


async def test_probes_are_spread() -> None:
    """Many workers that lost one OPA do not come back to it together: their waits differ."""
    times: list[list[float]] = []

    async def keep(own: list[float]) -> None:
        async def probe() -> None:
            own.append(asyncio.get_running_loop().time())
            raise PolicyUnavailable("gone")

        breaker = Breaker(probe, lambda _: None, Pace(shortest_s=0.05, longest_s=0.1))
        await breaker.start()
        await eventually("some probes", lambda: len(own) > 5)
        await breaker.close()

    for _ in range(8):
        times.append([])
    await asyncio.gather(*map(keep, times))
    waits = {round(after - before, 4) for own in times for before, after in pairwise(own)}
    assert len(waits) > 20
    assert min(waits) >= 0.025


# ------------------------------------------------------------------ TLS

openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes the certificates")


def make_certificate(folder: Path, name: str, authority: str | None) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key, signed by `authority` or by itself."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    signed = (
        []
        if authority is None
        else ["-CA", str(folder / f"{authority}.pem"), "-CAkey", str(folder / f"{authority}.key")]
    )
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert),
            *signed,
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


@openssl
async def test_who_opa_is_and_who_we_are_is_verified(tmp_path: Path) -> None:
    """TLS: an authority of one's own, a client certificate; without either, or with another's, nobody is asked."""
    ca, _ = make_certificate(tmp_path, "ca", None)
    server = make_certificate(tmp_path, "server", "ca")
    client = make_certificate(tmp_path, "client", "ca")
    stranger, stranger_key = make_certificate(tmp_path, "stranger", None)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
    context.load_cert_chain(*server)
    context.verify_mode = ssl.CERT_REQUIRED
    good = OpaTls(ca, *client)
    async with Impostor(says(ALLOW), context) as opa:
        async with policy_of(opa.url, tls=good, deadline_s=5) as policy:
            assert policy.ready, policy.why
            assert (await policy.judge(QUESTION)).effect is Effect.ALLOW
        heard = len(opa.heard)
        for tls in (OpaTls(ca), OpaTls(None, *client), OpaTls(stranger, *client), OpaTls(ca, stranger, stranger_key)):
            async with policy_of(opa.url, tls=tls, deadline_s=5) as policy:
                assert not policy.ready
        async with policy_of(opa.url.replace("127.0.0.1", "localhost"), tls=good, deadline_s=5) as policy:
            assert not policy.ready, "the certificate is another name's"
        assert len(opa.heard) == heard
    for tls in (OpaTls(tmp_path / "none.pem"), OpaTls(ca, client[0], server[1])):
        with pytest.raises(PolicyUnavailable, match=r"policy\.tls\."):
            await OpaPolicy("https://127.0.0.1:1", tls=tls).start()


# ------------------------------------------------------------------ the real one


async def test_the_real_opa_killed_and_back_under_load(opa_program: Path, tmp_path: Path) -> None:
    """AZ-01, OPS-06: kill -9 under load, three times: 0 wrong answers, errors end within 5 s of its return."""
    bundle = write_bundle(tmp_path / "bundle", RULES)
    with Opa(opa_program, bundle, tmp_path / "opa.log") as opa:
        async with policy_of(opa.url, deadline_s=0.9) as policy:
            wrong: list[Any] = []
            counts = {"answered": 0, "failed": 0}
            back_at, last_error, stop = 0.0, 0.0, False

            async def caller(n: int) -> None:
                nonlocal last_error
                while not stop:
                    n += 1
                    began = time.monotonic()
                    try:
                        allowed = await policy.judge(ask("echo", {"n": n}))
                        denied = await policy.judge(ask("deny"))
                    except PolicyUnavailable:
                        counts["failed"] += 1
                        last_error = began
                        await asyncio.sleep(0.01)
                        continue
                    if (allowed.reasons, allowed.revision, denied.effect) != ((f"n{n}",), "r1", Effect.DENY):
                        wrong.append((n, allowed, denied))
                    counts["answered"] += 1

            callers = [asyncio.ensure_future(caller(k * 1_000_000)) for k in range(8)]
            for _ in range(3):
                before = counts["answered"]
                await eventually("callers are answered", lambda: counts["answered"] > before + 50)  # noqa: B023
                opa.kill()
                await eventually("it is not asked any more", lambda: not policy.ready)
                await opa.started()
                back_at = time.monotonic()
                await eventually("it is asked again", lambda: policy.ready, 5)
                before = counts["answered"]
                await eventually("callers are answered again", lambda: counts["answered"] > before + 50)  # noqa: B023
                assert last_error - back_at < 5
            stop = True
            await asyncio.gather(*callers)
            assert wrong == []
            assert counts["failed"] > 0


async def test_the_shipped_folder_is_a_bundle_for_the_real_opa(opa_program: Path, tmp_path: Path) -> None:
    """`opa run --bundle` takes the very folder that the embedded engine reads; what is listed nowhere is denied."""
    with Opa(opa_program, SHIPPED, tmp_path / "opa.log") as opa:
        async with policy_of(opa.url, deadline_s=5) as policy:
            assert policy.revision == "default-4"
            verdict = await policy.judge(ask("x", server={"name": "nowhere"}))
            assert (verdict.effect, verdict.reasons) == (Effect.DENY, ("server_not_listed",))


def write_served(folder: Path, program: Path, revision: str) -> Callable[[], bytes]:
    """`opa build` of a bundle in which everything is allowed, for the reason `revision`."""
    rules = f'package mcp.authz\n\ndecision := {{"effect": "allow", "reasons": ["{revision}"]}}\n'
    bundle = write_bundle(folder / revision, rules, manifest=f'{{"revision": "{revision}", "roots": ["mcp/authz"]}}')
    packed = folder / f"{revision}.tar.gz"
    subprocess.run([program, "build", "--bundle", bundle, "--output", packed], check=True, capture_output=True)
    return packed.read_bytes


async def test_bundles_come_by_opas_own_bundle_service(opa_program: Path, tmp_path: Path) -> None:
    """AZ-08: OPA fetches a new bundle under load: 0 failed questions, and each is judged by the revision it names."""
    bundles = {name: write_served(tmp_path, opa_program, name)() for name in ("r1", "r2")}
    served = "r1"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = await reader.readuntil(b"\r\n\r\n")
        assert lines.startswith(b"GET /bundles/mcp.tar.gz ")
        body, tag = bundles[served], f"ETag: {served}\r\nConnection: close\r\n"
        writer.write(head(len(body), kind="application/gzip", more=tag) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = tmp_path / "opa.yaml"
    config.write_text(
        f"services: {{store: {{url: 'http://127.0.0.1:{port}'}}}}\n"
        "bundles: {mcp: {service: store, resource: bundles/mcp.tar.gz, "
        "polling: {min_delay_seconds: 1, max_delay_seconds: 1}}}\n"
    )
    opa = Opa(opa_program, None, tmp_path / "opa.log", ("--config-file", str(config)))
    try:
        await opa.started()
        async with policy_of(opa.url, deadline_s=0.9) as policy:
            seen: list[str] = []
            served = "r2"

            async def both() -> bool:
                for verdict in await asyncio.gather(*(policy.judge(QUESTION) for _ in range(8))):
                    assert verdict.reasons == (verdict.revision,)
                    seen.append(verdict.revision)
                return seen[-1] == "r2"

            await eventually("the new bundle judges", both)
            assert set(seen) == {"r1", "r2"}
    finally:
        opa.kill()
        server.close()
