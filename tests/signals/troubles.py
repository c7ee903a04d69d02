"""What can go wrong around gateways, each for the alerts that are about it: how it is broken and how it is mended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.bench.load import script, wrk
from tests.rows.asking import tool
from tests.rows.stage import SECOND, listed
from tests.signals.deployment import Deployment, publish
from tests.signals.watching import Lock, serves, until
from tests.support.issuer import Issuer, signing_key
from tests.support.stack import headers_of
from tests.support.upstream import Exchange, http

PATIENCE_S = 120.0
LONG_S = 420.0

Step = Callable[[], object]
Names = frozenset[str]


@dataclass
class Trouble:
    """What is broken, how it is mended, and which alerts tell of it. `go_on` is done while it is waited for."""

    alerts: Names
    harm: Step
    mend: Step
    go_on: Step = bool
    patience_s: float = PATIENCE_S
    until_over: Step = bool
    """Done while it is waited for that it is over."""


def kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def every(pause_s: float, step: Step) -> tuple[Step, Step]:
    """(begin, end) of doing a step again and again beside all else."""
    over = threading.Event()
    threads: list[threading.Thread] = []

    def work() -> None:
        while not over.wait(pause_s):
            with contextlib.suppress(OSError, httpx.HTTPError, AssertionError):
                step()

    def begin() -> None:
        over.clear()
        threads.append(threading.Thread(target=work, daemon=True))
        threads[-1].start()

    def end() -> None:
        over.set()
        for thread in threads:
            thread.join(60)

    return begin, end


async def hang(exchange: Exchange) -> None:
    """Takes a call and says nothing."""
    del exchange
    await asyncio.sleep(3600)


async def fail(exchange: Exchange) -> None:
    """Not what was asked for."""
    await exchange.send(http(500))


class Troubles:
    """Each by its name; `made` is what they happen to."""

    def __init__(self, made: Deployment, folder: Path) -> None:
        self.made, self.run, self.scratch = made, made.stage.run, folder
        self.one, self.two, self.asking = (made.houses[name] for name in ("one", "two", "opa"))

    def call(self, house: str, server: str = "plain", token: str = "") -> int:
        """The status of a read."""
        one = self.made.houses[house]
        return one.ask(one.good(tool("read"), server, token or one.token(server))).status

    def flood(self, house: str, server: str = "plain", token: str = "") -> Step:
        """Some thousand calls."""
        one = self.made.houses[house]
        message = tool("read")
        call = script(
            self.scratch, f"flood-{house}-{bool(token)}", json.dumps(message), headers_of(message),
            token or one.token(server),
        )  # fmt: skip
        return lambda: wrk(one.stack.endpoint(server), call, 32, 2)

    # Keys

    def find_keys(self) -> None:
        """Both deployments' gateways serve: before the first time, they take no other configuration."""
        self.run(self.made.jwks.listen())
        for house in (self.one, self.two):
            until("it has all keys", lambda house=house: serves(house))  # type: ignore[misc]

    def keys(self) -> Iterator[Trouble]:
        """They are away at the start, and again later."""
        jwks = self.made.jwks
        yield Trouble(frozenset({"OstiaryKeysMissing", "OstiaryNotReady"}), bool, lambda: self.run(jwks.listen()))
        strange = Issuer(SECOND, [signing_key(number=77)])
        audience = self.two.stack.endpoint("plain")
        token = strange.mint(audience, sub="alice", scope="mcp:use files:read", client_id="tests")
        good = self.two.second.mint(audience, sub="alice", scope="mcp:use files:read", client_id="tests")
        assert self.call("two", token=good) == 200

        def away() -> None:
            self.run(jwks.stop())

        def ask() -> None:  # an unknown key has them fetched, once a minute
            self.call("two", token=token)

        yield Trouble(
            frozenset({"OstiaryKeysNotRefreshed"}), away, lambda: self.run(jwks.listen()), ask, until_over=ask
        )

    # Servers

    def servers(self) -> Iterator[Trouble]:
        """They fail, are away, come and go, are full."""
        plain, away, narrow = (self.made.behind[name] for name in ("plain", "away", "narrow"))

        def well() -> None:
            self.call("one")

        yield Trouble(
            frozenset({"OstiaryErrors"}), lambda: setattr(plain, "script", fail),
            lambda: setattr(plain, "script", None), well, until_over=well,
        )  # fmt: skip

        def reach() -> None:
            self.call("one", "away")

        yield Trouble(
            frozenset({"OstiaryServerUnreachable", "OstiaryReplicaOut"}), lambda: self.run(away.wire.stop()),
            lambda: self.run(away.wire.start()), reach, until_over=reach,
        )  # fmt: skip
        flappy = self.made.behind["flappy"]
        there = [True]

        def flap() -> None:
            self.run(flappy.wire.stop() if there[0] else flappy.wire.start())
            there[0] = not there[0]
            end = time.monotonic() + 4
            while self.call("one", "flappy") != (200 if there[0] else 502) and time.monotonic() < end:
                time.sleep(0.05)

        def settle() -> None:
            if not there[0]:
                flap()

        yield Trouble(frozenset({"OstiaryReplicaFlaps"}), bool, settle, flap)
        calls = [every(0.1, lambda: self.call("two", "narrow")) for _ in range(5)]

        def crowd() -> None:
            narrow.script = hang
            for begin, _ in calls:
                begin()

        def disperse() -> None:
            narrow.script = None
            self.run(narrow.wire.stop())
            self.run(narrow.wire.start())
            for _, end in calls:
                end()

        yield Trouble(frozenset({"OstiaryReplicasFull", "OstiaryOverloaded"}), crowd, disperse)

    # Policy

    def policy(self) -> Iterator[Trouble]:
        """OPA is away; a bundle is broken; a bundle is another one."""
        opa = self.made.opa
        yield Trouble(
            frozenset({"OstiaryPolicyMissing", "OstiaryPolicyFails"}), opa.kill, opa.start,
            lambda: self.call("opa"), until_over=lambda: self.call("opa"),
        )  # fmt: skip
        bundle = self.made.folder("two") / "bundle"
        rules, manifest = bundle / "mcp/authz/authz.rego", bundle / ".manifest"
        texts = rules.read_text(), manifest.read_text()

        def other(text: str, revision: str) -> Step:
            def put() -> None:
                rules.write_text(text)
                manifest.write_text(re.sub(r'"revision": *"[^"]*"', f'"revision": "{revision}"', texts[1]))

            return put

        def back() -> None:
            rules.write_text(texts[0])
            manifest.write_text(texts[1])

        yield Trouble(frozenset({"OstiaryPolicyNotCurrent"}), other("package", "broken"), back)
        yield Trouble(frozenset({"OstiaryPolicyRevisions", "OstiaryGatewaysDiffer"}), other(texts[0], "other"), back)

    # What is kept

    def keeping(self) -> Iterator[Trouble]:
        """The approvals' file is locked, the record's disk stutters, hangs, and loses; checkpoints find no place."""
        lock = Lock(self.made.folder("two") / "ostiary.db")
        writes = iter(range(10_000))

        def write() -> None:
            self.two.ask(self.two.good(tool("write", number=next(writes)), "plain"))

        yield Trouble(frozenset({"OstiaryApprovalsDown"}), lock.take, lock.release, write, until_over=write)
        disk = self.made.disk

        def stutter() -> None:
            disk.freeze()
            time.sleep(0.8)
            disk.thaw()
            time.sleep(0.1)

        begin, end = every(0.05, lambda: self.call("one"))
        yield Trouble(frozenset({"OstiarySlow"}), begin, end, stutter, until_over=lambda: self.call("one"))
        refused = self.flood("one", token=self.one.token("plain", scope="mcp:use"))
        yield Trouble(
            frozenset({"OstiaryAuditDown", "OstiaryAuditSlow", "OstiaryAuditRecordsLost"}), disk.freeze, disk.thaw,
            refused, until_over=lambda: self.call("one"),
        )  # fmt: skip
        elsewhere = self.made.folder("one") / "elsewhere"
        gone = elsewhere.with_name("gone")
        yield Trouble(
            frozenset({"OstiaryCheckpointsOld"}), lambda: elsewhere.rename(gone), lambda: gone.rename(elsewhere),
            lambda: self.call("one"), until_over=lambda: self.call("one"),
        )  # fmt: skip

    # Who is told

    def telling(self) -> Iterator[Trouble]:
        """Receivers of webhooks, records, spans and lines take nothing."""
        answers, otlp, reader = self.made.hook_answers, self.made.otlp, self.one.stack.reader  # type: ignore[attr-defined]
        numbers = iter(range(20_000, 30_000))

        def hold(answer: bytes | None) -> Step:
            def put() -> None:
                answers[0] = answer
                self.one.held("plain", tool("write", number=next(numbers)))

            return put

        yield Trouble(frozenset({"OstiaryWebhookBehind"}), hold(http(503)), lambda: answers.__setitem__(0, http(200)))
        yield Trouble(frozenset({"OstiaryWebhookGaveUp"}), hold(http(410)), lambda: answers.__setitem__(0, http(200)))

        def deaf() -> None:
            otlp.status = 400
            kill(reader.pid, signal.SIGSTOP)

        def hearing() -> None:
            kill(reader.pid, signal.SIGCONT)
            otlp.status = 200

        yield Trouble(
            frozenset({"OstiaryExportBehind", "OstiaryExportLost", "OstiaryLogLinesLost"}), deaf, hearing,
            self.flood("one"),
        )  # fmt: skip

    # Definitions, certificates

    def files(self) -> Iterator[Trouble]:
        """A tool changes; pins and certificates can't be read."""
        pinned, pins = self.made.behind["pinned"], self.made.folder("two") / "pins.json"
        good, text = pinned.tools, pins.read_text()

        def listing() -> None:
            self.call("two", "pinned")

        yield Trouble(
            frozenset({"OstiaryToolsQuarantined"}),
            lambda: setattr(pinned, "tools", listed(read={"description": "another"}, write={})),
            lambda: setattr(pinned, "tools", good), listing, until_over=listing,
        )  # fmt: skip
        yield Trouble(
            frozenset({"OstiaryPinsUnreadable"}), lambda: pins.write_text("{"), lambda: pins.write_text(text)
        )
        broken = self.made.folder("two") / "client.pem"
        yield Trouble(
            frozenset({"OstiaryCertificatesNotCurrent"}), lambda: broken.write_text("no certificate"),
            lambda: self.made.certify("two", 90),
        )  # fmt: skip

    # Processes

    def processes(self) -> Iterator[Trouble]:
        """Workers stand still, block, have a defect, die; supervisors stand still; a deployment is gone."""
        stopped: list[int] = []

        def stop_worker() -> None:
            stopped[:] = self.made.pids("one")[:1]
            kill(stopped[0], signal.SIGSTOP)

        yield Trouble(frozenset({"OstiaryWorkersMissing"}), stop_worker, lambda: kill(stopped[0], signal.SIGCONT))
        (worker,) = self.made.pids("two")

        def block() -> None:
            kill(worker, signal.SIGSTOP)
            time.sleep(0.8)
            kill(worker, signal.SIGCONT)
            time.sleep(0.3)

        yield Trouble(frozenset({"OstiaryLoopBlocked"}), bool, bool, block)
        supervisor = self.made.supervisor("two")
        yield Trouble(
            frozenset({"OstiaryUnreachable"}), lambda: kill(supervisor, signal.SIGSTOP),
            lambda: kill(supervisor, signal.SIGCONT),
        )  # fmt: skip
        fault = self.made.fault
        yield Trouble(
            frozenset({"OstiaryDefect"}), fault.touch, fault.unlink, self.flawed, until_over=lambda: self.call("opa")
        )  # fmt: skip
        yield from self.deaths()
        asking = self.asking.stack
        yield Trouble(
            frozenset({"OstiaryAbsent"}), lambda: self.run(asking.stop()), lambda: self.run(asking.launch())
        )

    def flawed(self) -> None:
        """A call meets the defect: it is refused."""
        assert self.call("opa") == 500

    def deaths(self) -> Iterator[Trouble]:
        """Workers die, an approved call in one of them: nobody knows whether it happened."""
        plain, message = self.made.behind["plain"], tool("write", number=31_000)
        ticket = self.one.approved("plain", message)
        caller = threading.Thread(target=self._lost, args=(message,))

        def die() -> None:
            plain.script = hang
            caller.start()
            end = time.monotonic() + 20
            while not any(b"31000" in seen.body for seen in plain.forwarded):
                assert time.monotonic() < end
                time.sleep(0.05)

        def again() -> None:
            for pid in self.made.pids("one"):
                kill(pid, signal.SIGKILL)
            time.sleep(0.5)

        def known() -> None:
            plain.script = None
            end = time.monotonic() + 60
            while not (serves(self.one) and len(self.made.pids("one")) == 2):
                assert time.monotonic() < end
                time.sleep(0.2)
            assert self.one.act("resolve", ticket).status_code == 200

        yield Trouble(frozenset({"OstiaryWorkersRestart"}), die, bool, again)
        yield Trouble(frozenset({"OstiaryUsesUnclear"}), bool, known)

    def _lost(self, message: dict[str, object]) -> None:
        with contextlib.suppress(OSError, EOFError, AssertionError, ValueError):
            self.one.ask(self.one.good(message, "plain"))

    # What takes long

    def slowly(self) -> Iterator[Trouble]:
        """Keys that seal and certificates that are old, a record that is another, a server that can't be compared,
        people who do not decide: all at once."""
        two, folder = self.two, self.made.folder("two")

        def renew() -> None:
            text = two.stack.config.read_text()
            today = time.strftime("%Y-%m-%d", time.gmtime())
            two.stack.config.write_text(re.sub(r"since: .*", f"since: '{today}'", text))
            one = self.one.stack.config
            one.write_text(re.sub(r"since: .*", f"since: '{today}'", one.read_text()))
            for name in ("one", "two"):
                self.made.certify(name, 90)
                publish(self.made.folder(name), f"{self.made.houses[name].stack.endpoint('published')}")
                kill(self.made.supervisor(name), signal.SIGHUP)

        yield Trouble(
            frozenset({"OstiarySealKeyOld", "OstiaryCertificateExpires", "OstiaryRegistryDrift"}), bool, renew
        )
        published = self.made.behind["published"]
        ticket = two.held("plain", tool("write", number=32_000))
        assert folder.exists()

        def mend() -> None:
            self.run(published.wire.start())
            for number in (32_001, 32_002):
                two.held("plain", tool("write", number=number))
            for name in ("one", "two"):
                house = self.made.houses[name]
                for each in house.api("GET", "?state=pending").json()["tickets"]:
                    house.act("deny", each["id"])

        # Nobody may have decided for long already, where tickets of what was broken before still wait.
        assert "OstiaryRegistryNotCompared" not in {name for name, _ in self.made.prometheus.firing()}
        self.run(published.wire.stop())
        yield Trouble(
            frozenset({"OstiaryRegistryNotCompared", "OstiaryNobodyDecides"}), bool, mend, patience_s=LONG_S
        )
        assert ticket
