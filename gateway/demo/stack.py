"""Starts the whole demo as real processes and ends every one of them, whatever happens to this one.

The replicas of a place's servers, the development issuer, and `ostiary serve`, on loopback, below a directory that
goes away afterwards. A leash, a few lines of shell, waits on a pipe from here: when this process dies, even by
kill -9, the pipe closes and the leash ends what was started.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from gateway.demo.bank import Books
from gateway.demo.house import House, Ports
from gateway.demo.place import BANK, Place

READY_S = 60.0
GRACE_S = 5.0
LEASH = """while read -r line; do set -- "$@" "$line"; done
folder=$1; shift
for group in "$@"; do kill -s TERM -- "-$group" 2>/dev/null; done
[ $# -gt 0 ] && sleep 2
for group in "$@"; do kill -s KILL -- "-$group" 2>/dev/null; done
[ -n "$folder" ] && rm -rf -- "$folder"
"""


class StackFailed(Exception):  # noqa: N818 - says what did not start
    """A part of the demo did not come up; the text names it and shows the end of its log."""


@dataclass(slots=True)
class Part:
    """One started process, the leader of its own group, and where its output goes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def tail(self, lines: int = 15) -> str:
        """The end of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def end(self, grace_s: float) -> None:
        """Stop it and everything in its group: politely, then for certain."""
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace_s)
        self.signal(signal.SIGKILL)
        self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


@dataclass(slots=True)
class Stack:
    """The running demo. A context manager: entering it starts everything, leaving it ends everything.

    `workers`, `settings` (further keys of its configuration) and `environment` are the gateway's; `replicas` takes
    the place of the bank's servers. `keep` leaves the directory behind, for a look afterwards; with
    `servers_only` nothing stands in front of the replicas.
    """

    ports: Ports = field(default_factory=Ports.free)
    workers: int = 1
    replicas: tuple[str, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    keep: bool = False
    place: Place = BANK
    servers_only: bool = False
    house: House = field(init=False)
    parts: dict[str, Part] = field(init=False, default_factory=dict)
    http: httpx.Client = field(init=False, default_factory=lambda: httpx.Client(trust_env=False, timeout=10.0))
    _generation: int = field(init=False, default=0)
    _leash: subprocess.Popen[bytes] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        directory = Path(tempfile.mkdtemp(prefix="ostiary-demo-"))
        self.house = House(directory, self.ports, self.replicas, dict(self.settings), self.place)

    def __enter__(self) -> Self:
        try:
            self._leash = subprocess.Popen(  # noqa: S603 - our own few lines
                ["/bin/sh", "-c", LEASH, "leash"], stdin=subprocess.PIPE, start_new_session=True
            )
            self._put_on_leash("" if self.keep else str(self.house.directory))
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def books(self) -> Books:
        """The ground truth: what reached the bank, and what it did."""
        return Books(self.house.books)

    def start(self) -> None:
        """Furnish the house and start everything; returns when all of it answers. Raises `StackFailed`."""
        self.house.furnish()
        deadline = time.monotonic() + READY_S
        if self.servers_only:
            self._launch_replicas()
            self._await_replicas(deadline)
            return
        # All at once: the issuer, which starts quickest, has its keys ready before the gateway asks for them.
        known = ("--client", self.house.registration)
        self._launch("issuer", "gateway.demo.issuer", "--port", str(self.ports.issuer), *known)
        self._launch_gateway()
        self._launch_replicas()
        self._await("issuer", f"{self.house.issuer_url}/jwks", deadline, 200)
        self._await_replicas(deadline)
        self._await("gateway", f"{self.house.admin_url}/readyz", deadline, 200)

    def replace_replicas(self) -> None:
        """End every replica and start new ones in their places, which know of the old ones only what is on disk."""
        for name in [name for name in self.parts if name.startswith("replica-")]:
            self.parts.pop(name).end(GRACE_S)
        self._generation += 1
        self._launch_replicas()
        self._await_replicas(time.monotonic() + READY_S)

    def revive_replicas(self) -> None:
        """Start those replicas again that ended by themselves. Raises `StackFailed`."""
        deadline = time.monotonic() + READY_S
        for number, port in () if self.replicas else enumerate(self.ports.replicas, start=1):
            if not self._is_there(f"replica-{number}", port, deadline):
                self._launch_replica(number)
        self._await_replicas(deadline)

    def restart_gateway(self) -> None:
        """kill -9 the gateway and start it again on its files; returns when it is ready. Raises `StackFailed`."""
        self.kill_gateway()
        self.start_gateway()

    def start_gateway(self) -> None:
        """Start the gateway on its files; returns when it is ready. Raises `StackFailed`."""
        self._launch_gateway()
        self._await("gateway", f"{self.house.admin_url}/readyz", time.monotonic() + READY_S, 200)

    def kill_gateway(self) -> None:
        """kill -9 the gateway, its supervisor and all its workers at once."""
        workers = self.workers_alive()
        self.parts.pop("gateway").end(0)
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def workers_alive(self) -> list[int]:
        """The process ids of the gateway's workers that are ready, by the word of its admin listener."""
        answer = self.http.get(f"{self.house.admin_url}/readyz")
        return [worker["pid"] for worker in answer.json()["workers"] if worker["ready"]]

    def mint(self, person: str, server: str, scope: str, lifetime_s: int = 3600) -> str:
        """A token for a person. `server` names one of the servers, `approvals`, or is an audience as it is."""
        audience = {name: self.house.endpoint(name) for name in self.place.servers}
        audience["approvals"] = self.house.approvals_url
        form = {"person": person, "resource": audience.get(server, server), "scope": scope}
        answer = self.http.post(f"{self.house.issuer_url}/token", data=form | {"lifetime_s": str(lifetime_s)})
        answer.raise_for_status()
        return str(answer.json()["access_token"])

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `ostiary ARGUMENTS` beside the running gateway, with the same secrets."""
        command = [sys.executable, "-m", "gateway.cli", *arguments]
        return subprocess.run(  # noqa: S603 - our own command
            command, env=self._environment(), capture_output=True, text=True, timeout=60, check=False
        )

    def audit_records(self) -> list[dict[str, Any]]:
        """Every whole line of every writer's audit file, decoded."""
        records: list[dict[str, Any]] = []
        for path in sorted(self.house.directory.glob(f"{self.house.audit_file.name}*")):
            if path.suffix == ".jsonl" or path.suffix.removeprefix(".").isdigit():
                lines = path.read_bytes().splitlines(keepends=True)
                records += [json.loads(line) for line in lines if line.endswith(b"\n")]
        return records

    def await_records(self, decision_id: str, *kinds: str) -> list[dict[str, Any]]:
        """One decision's records of these kinds; waits up to two seconds, for outcomes and refusals join a commit."""
        deadline = time.monotonic() + 2
        while True:
            records = self.audit_records()
            found = [line for line in records if line.get("decision_id") == decision_id and line["kind"] in kinds]
            if len(found) >= len(kinds) or time.monotonic() > deadline:
                return found
            time.sleep(0.05)

    def watch(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait until a part ends by itself. Raises `StackFailed` naming it; a signal ends the wait.

        `meanwhile` is called twice a second, and may take its time.
        """
        while True:
            meanwhile()
            for part in self.parts.values():
                if (code := part.process.poll()) is not None:
                    raise StackFailed(f"{part.name} ended with {code}:\n{part.tail()}")
            time.sleep(0.5)

    def stop(self) -> None:
        """End everything and remove the directory. Safe to call twice."""
        self.http.close()
        for part in self.parts.values():
            part.signal(signal.SIGTERM)
        for part in self.parts.values():
            part.end(GRACE_S)
        self.parts.clear()
        if self._leash is not None:
            self._leash.kill()
            self._leash.wait()
            if self._leash.stdin is not None:
                self._leash.stdin.close()
            self._leash = None
        if not self.keep:
            shutil.rmtree(self.house.directory, ignore_errors=True)

    def _environment(self) -> dict[str, str]:
        # Settings in the environment win over the file: those of a real gateway must not lead the demo to its record
        # and tickets, nor off loopback.
        inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith("OSTIARY_")}
        return inherited | self.house.secrets

    def _launch_gateway(self) -> None:
        options = ["--config", str(self.house.config_file), "--workers", str(self.workers)]
        self._launch("gateway", "gateway.cli", "serve", *options, environment=self.environment)

    def _launch_replicas(self) -> None:
        for number in () if self.replicas else range(1, len(self.ports.replicas) + 1):
            self._launch_replica(number)

    def _launch_replica(self, number: int) -> None:
        name = f"replica-{number}"
        # The first ones go by their part's name; who takes a place later is told apart by a prime.
        shown = name + "'" * self._generation
        options = [
            "--port",
            str(self.ports.replicas[number - 1]),
            "--replica",
            shown,
            "--books",
            str(self.house.books),
        ]
        self._launch(name, self.place.module, *options, *self.place.options)

    def _is_there(self, name: str, port: int, deadline: float) -> bool:
        """Whether a replica serves. One that is about to end has closed its port before that is seen."""
        process = self.parts[name].process
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                self.http.get(f"http://127.0.0.1:{port}/", timeout=2.0)
                return True
            time.sleep(0.05)
        return False

    def _await_replicas(self, deadline: float) -> None:
        for number, port in () if self.replicas else enumerate(self.ports.replicas, start=1):
            self._await(f"replica-{number}", f"http://127.0.0.1:{port}/", deadline, 404)

    def _launch(self, name: str, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        log = self.house.directory / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603 - our own modules
                [sys.executable, "-m", module, *arguments],
                env=self._environment() | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.parts[name] = Part(name, process, log)
        self._put_on_leash(str(process.pid))

    def _put_on_leash(self, line: str) -> None:
        if self._leash is not None and self._leash.stdin is not None:
            self._leash.stdin.write(f"{line}\n".encode())
            self._leash.stdin.flush()

    def _await(self, name: str, url: str, deadline: float, expected: int) -> None:
        part = self.parts[name]
        status = 0
        while time.monotonic() < deadline:
            if part.process.poll() is not None:
                raise StackFailed(f"{name} ended with {part.process.returncode}:\n{part.tail()}")
            with contextlib.suppress(httpx.TransportError):
                status = self.http.get(url, timeout=2.0).status_code
                if status == expected:
                    return
            time.sleep(0.05)
        raise StackFailed(f"{name} was not ready in time ({url} said {status or 'nothing'}):\n{part.tail()}")
