"""A deployment of two gateways, and another of one that asks OPA, with all that an alert can be about.

A real Prometheus watches them with the shipped rules, in which every time is `SHORTER` times shorter.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.rows.conftest import furnish, opened, settings_of
from tests.rows.stage import SECOND, House, Server, Stage, listed
from tests.signals.files import shortened
from tests.signals.watching import make_jwks
from tests.support.certificates import Authority
from tests.support.disk import Ext4
from tests.support.issuer import JwksServer
from tests.support.opa import Opa
from tests.support.otlp import Receiver
from tests.support.prometheus import Prometheus
from tests.support.registry import record
from tests.support.stack import ISSUER, Stack
from tests.support.upstream import Exchange, ScriptedUpstream, http

DAY_S = 86_400.0
FAULTY = """
import os
from gateway.turnstile import Turnstile
whole = Turnstile.enter
def enter(self, identity):
    if os.path.exists(os.environ["FAULT"]):
        raise TypeError("planted")
    return whole(self, identity)
Turnstile.enter = enter
"""
"""A room with a programming error in it, while the file is there (as `sitecustomize.py`)."""

PUBLISHED = "com.example/weather"


@dataclass
class Piped(Stack):
    """One whose log goes through a pipe, as a collector's would; `reader` is who takes it."""

    reader: subprocess.Popen[bytes] | None = field(default=None)

    async def spawn(self) -> asyncio.subprocess.Process:
        """Its standard output is `reader`'s input."""
        if self.reader is not None:
            self.reader.wait()
        with (self.folder / "gateway.log").open("ab") as log:
            self.reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=log)  # noqa: ASYNC220 - at once
        assert self.reader.stdin is not None
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway.cli", "serve", "--config", str(self.config),
            "--workers", str(self.workers),
            stdout=self.reader.stdin, stderr=subprocess.STDOUT,
            env={**os.environ, **self.secrets, **self.environment},
        )  # fmt: skip
        self.reader.stdin.close()
        return self.process


@dataclass
class Deployment:
    """`one` (two workers, its record on `disk`) and `two` are alike; `opa` is another deployment."""

    stage: Stage
    houses: dict[str, House]
    behind: dict[str, Server]
    jwks: JwksServer
    hook_answers: list[bytes | None]
    otlp: Receiver
    opa: Opa
    disk: Ext4
    authority: Authority
    prometheus: Prometheus

    def folder(self, house: str) -> Path:
        """Where its files are."""
        return self.houses[house].stack.folder

    def pids(self, house: str) -> list[int]:
        """Its workers, the supervisor's view."""
        return [one["pid"] for one in self.houses[house].readiness()[1]["workers"] if one["pid"]]

    def supervisor(self, house: str) -> int:
        """Its first process."""
        process = self.houses[house].stack.process
        assert process is not None
        return process.pid

    @property
    def fault(self) -> Path:
        """While it is there, the gateway `opa` has a defect."""
        return Path(self.houses["opa"].stack.environment["FAULT"])

    def certify(self, house: str, days: float) -> None:
        """The certificate that it shows to a server ends in so many days."""
        self.authority.sign("ostiary", lives_s=days * DAY_S).write(self.folder(house), "client")


def _sections(folder: Path, hook: int, jwks: str, otlp: Receiver) -> dict[str, Any]:
    issuers = [
        {"issuer": ISSUER, "jwks_file": "jwks.json", "algorithms": ["ES256"]},
        {"issuer": SECOND, "jwks_uri": f"{jwks}/jwks", "algorithms": ["ES256"]},
    ]
    return {
        "identity": {"issuers": issuers},
        "approvals": {
            "database": "sqlite:///ostiary.db",
            "webhooks": [{"url": f"http://127.0.0.1:{hook}/hook", "secret_env": "HOOK"}],
        },
        "audit": {
            "file": str(folder / "audit.jsonl"),
            "otlp": {"endpoint": otlp.url},
            "checkpoints": {"file": "elsewhere/checkpoints", "every_s": 1},
        },
        "telemetry": {"traces": {"endpoint": otlp.traces_url}},
        "registry": {"interval_s": 1},
        "seals": {"since": "2024-01-01"},
    }


_OF_SERVERS: dict[str, dict[str, Any]] = {
    "narrow": {"load": {"concurrent": 1, "queue": 2, "queue_s": 30}, "deadlines": {"tools/call": 60}},
    "pinned": {"pins": "enforce"},
    "published": {"registry": {"record": "record.json"}},
    "walled": {"tls": {"ca": "ca.pem", "cert": "client.pem", "key": "client.key"}},
}


def publish(folder: Path, url: str, **more: Any) -> None:
    """What `published` is said to be."""
    said = record(PUBLISHED, "7", remotes=[{"type": "streamable-http", "url": url}], **more)
    (folder / "record.json").write_text(json.dumps(said))


def accept_pins(house: House) -> None:
    """What its servers offer now is what is accepted."""
    look = json.loads(house.ostiary("pins", "show", "--json", "--config", str(house.stack.config)).stdout)
    done = house.ostiary("pins", "accept", "--seen", look["seen"], "--config", str(house.stack.config))
    assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def deployed(
    stage: Stage, opa_program: Path, prometheus_program: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """Started together; the issuer of some tokens is not there yet."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("one", "two", "opa")}
    with contextlib.ExitStack() as open_:
        disk = open_.enter_context(Ext4(tmp_path_factory.mktemp("record"), "1g"))
        otlp, jwks, authority = Receiver(), stage.run(make_jwks()), Authority("tests")
        open_.callback(otlp.close)
        answers: list[bytes | None] = [http(200)]

        async def hear(exchange: Exchange) -> None:
            await (asyncio.sleep(3600) if answers[0] is None else exchange.send(answers[0]))

        hook = ScriptedUpstream(hear)
        stage.run(hook.start())
        open_.callback(lambda: stage.run(hook.stop()))
        stage.run(jwks.listen())
        stage.run(jwks.stop())
        open_.callback(lambda: stage.run(jwks.stop()))
        names = ("plain", "away", "flappy", "narrow", "pinned", "published", "walled")
        behind = {name: Server(listed(read={}, write={}), name=PUBLISHED) for name in names}
        open_.enter_context(opened(stage, behind.values()))
        stacks = {name: (Piped if name == "one" else Stack)(folder, {}) for name, folder in folders.items()}
        stacks["one"].workers = 2
        secrets = {"HOOK": f"whsec_{base64.b64encode(bytes(32)).decode()}"}
        secrets["OSTIARY_CHECKPOINT_KEY"] = base64.urlsafe_b64encode(os.urandom(32)).decode()
        houses = {
            name: House(stage, stack, {n: [one] for n, one in behind.items()}) for name, stack in stacks.items()
        }
        jwks.routes["/jwks"] = houses["one"].second.jwks()
        stacks["two"].secrets = stacks["one"].secrets
        opa = Opa(opa_program, folders["opa"] / "bundle", folders["opa"] / "opa.log")
        servers = settings_of({name: [one] for name, one in behind.items()}, **_OF_SERVERS)
        servers["walled"]["replicas"] = [servers["walled"]["replicas"][0].replace("http:", "https:")]
        for name in ("one", "two"):
            folder, stack = folders[name], stacks[name]
            authority.write(folder)
            authority.sign("ostiary", lives_s=10 * DAY_S).write(folder, "client")
            (folder / "elsewhere").mkdir()
            publish(folder, "https://elsewhere.example.com/mcp")
            stack.environment = secrets
            furnish(stack, servers, **_sections(disk.folder if name == "one" else folder, hook.port, jwks.url, otlp))
        furnish(
            stacks["opa"], settings_of({"plain": [behind["plain"]]}), policy={"engine": "opa", "url": opa.url}
        )  # fmt: skip
        fault = tmp_path_factory.mktemp("fault")
        (fault / "sitecustomize.py").write_text(FAULTY)
        stacks["opa"].environment = {"PYTHONPATH": f"{fault}:{Path.cwd()}", "FAULT": str(fault / "is-there")}
        open_.callback(opa.kill)
        opa.start()
        for name in ("one", "two"):
            accept_pins(houses[name])
        open_.callback(lambda: stage.run(_stop_all([*stacks.values()])))
        stage.run(_start_all(stacks))
        place = tmp_path_factory.mktemp("prometheus")
        (place / "alerts.yaml").write_text(shortened())
        targets = {
            ("asking/opa" if name == "opa" else f"main/{name}"): f"127.0.0.1:{stack.admin_port}"
            for name, stack in stacks.items()
        }
        prometheus = open_.enter_context(Prometheus(prometheus_program, place, targets, place / "alerts.yaml"))
        for house in houses.values():
            open_.enter_context(house.http)
        yield Deployment(stage, houses, behind, jwks, answers, otlp, opa, disk, authority, prometheus)


async def _start_all(stacks: dict[str, Stack]) -> None:
    await asyncio.gather(stacks["one"].spawn(), stacks["two"].spawn(), stacks["opa"].launch())


async def _stop_all(stacks: Sequence[Stack]) -> None:
    for stack in stacks:
        if isinstance(stack, Piped) and stack.reader is not None:
            stack.reader.send_signal(signal.SIGCONT)
    await asyncio.gather(*(stack.__aexit__(None, None, None) for stack in stacks))
    for stack in stacks:
        if isinstance(stack, Piped) and stack.reader is not None:
            stack.reader.wait(10)
