"""Where contenders stand: their processes, pinned to one core; the load and its upstream have the other.

    with Stand() as stand:
        up = stand.upstream()
        gateway = stand.gateway([up])
        seen = sample(gateway, script(stand.folder, "call", token=gateway.token()), connections=32, seconds=3)

Everything is on in `gateway`: ES256 tokens, the header contract, arguments held to schemas, Rego, the durable record.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.bench.machine import cores
from tests.support.issuer import Issuer
from tests.support.ports import free_port
from tests.support.stack import DATA, secrets_for, write_config

BENCH_DATA: Mapping[str, Any] = {**DATA, "tools": {"read_file": {"effect": "read", "scopes": ["files:read"]}}}


@dataclass(frozen=True)
class Contender:
    """Who is measured. `pid` 0: nobody's CPU is counted."""

    name: str
    url: str
    pid: int = 0


@dataclass(frozen=True)
class Gateway(Contender):
    """The gateway with one server, `bench`."""

    port: int = 0
    admin: int = 0
    log: Path = field(default_factory=Path)
    issuer: Issuer = field(default_factory=Issuer)
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def token(self, scope: str = "mcp:use files:read", **claims: Any) -> str:
        """A good token for it; `claims` replace others."""
        return self.issuer.mint(self.url, scope=scope, **claims)

    def file(self, name: str) -> Path:
        """A file beside its configuration."""
        return Path(self.command[self.command.index("--config") + 1]).parent / name

    def ready(self) -> Mapping[str, Any]:
        """What its `/readyz` says."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/readyz", timeout=1) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found


class Stand:
    """A folder and processes that end with it, their logs told on an error. Whoever opens it runs beside the load."""

    def __init__(self) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="ostiary-bench-")
        self.folder = Path(self._place.name)
        self.core, self.load_core = cores()
        os.sched_setaffinity(0, {self.load_core})
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # whoever stops a benchmark stops its processes too
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for log in sorted(self.folder.rglob("*.log")):
                error.add_note(f"{log.name}: {log.read_text(errors='replace')[-2000:]}")
        for pid in list(reversed(self._children)):
            self.end(pid)
        self._place.cleanup()

    def spawn(
        self, name: str, command: Sequence[str], core: int | None = None, **environment: str
    ) -> subprocess.Popen[bytes]:
        """A child pinned to a core, the contender's unless another is given; its output is `NAME.log`."""
        pinned = ["taskset", "-c", str(self.core if core is None else core), *command]
        with (self.folder / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                pinned, env={**os.environ, **environment}, stdout=log, stderr=log, start_new_session=True
            )
        self._children[child.pid] = child
        return child

    def end(self, pid: int, number: int = signal.SIGTERM) -> None:
        """Ask a child to end, and wait; after ten seconds it is killed."""
        child = self._children.pop(pid)
        if child.poll() is None:
            child.send_signal(number)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def until_listening(self, port: int, child: subprocess.Popen[bytes], deadline_s: float = 20) -> None:
        """Until something listens on the port; an error when the child ends before."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end and child.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.02)
        raise TimeoutError(f"nothing listens on port {port}: {child.args!r}")

    def upstream(self, *command: str) -> str:
        """The URL of an upstream on the load's core: the free one (and options), or another command of that shape."""
        port = free_port()
        chosen = command if command and not command[0].startswith("-") else (*_FREE, *command)
        child = self.spawn(f"upstream-{port}", [*chosen, "--port", str(port)], self.load_core)
        self.until_listening(port, child)
        return f"http://127.0.0.1:{port}/mcp"

    def nginx(self, upstream: str, location: str = "", http: str = "") -> Contender:
        """nginx `proxy_pass` with one worker, keep-alive towards the upstream, no log; more lines where given."""
        port, folder = free_port(), self.folder / f"nginx-{len(self._children)}"
        folder.mkdir()
        host = upstream.split("/")[2]
        (folder / "nginx.conf").write_text(_NGINX.format(**locals()))
        child = self.spawn("nginx", ["nginx", "-c", f"{folder}/nginx.conf", "-e", f"{folder}/error.log"])
        self.until_listening(port, child)
        return Contender("nginx `proxy_pass`", f"http://127.0.0.1:{port}/mcp", child.pid)

    def bare_proxy(self, upstream: str, *, wait: bool = True) -> Contender:
        """A hand-written FastAPI + httpx proxy without any checks, under uvicorn."""
        application = "tests.bench.bare_proxy:app"
        return self._asgi("bare FastAPI + httpx proxy", application, wait, BARE_PROXY_UPSTREAM=upstream)

    def empty_application(self) -> Contender:
        """An ASGI application that reads the body and answers at once: what uvicorn costs by itself."""
        return self._asgi("empty ASGI application", "tests.bench.empty_application:app", True)

    def _asgi(self, name: str, application: str, wait: bool, **environment: str) -> Contender:
        port = free_port()
        command = [sys.executable, "-m", "uvicorn", application, "--port", str(port), "--no-access-log"]
        child = self.spawn(application.partition(":")[0], [*command, "--log-level", "warning"], None, **environment)
        if wait:
            self.until_listening(port, child)
        return Contender(name, f"http://127.0.0.1:{port}/mcp", child.pid)

    def gateway(
        self,
        replicas: Sequence[str],
        *,
        workers: int = 1,
        core: int | None = None,
        data: Mapping[str, Any] = BENCH_DATA,
        settings: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        **sections: Any,
    ) -> Gateway:
        """The gateway, ready. `settings` are more of its server's, `sections` replace whole ones of its file."""
        port, admin = free_port(), free_port()
        folder = self.folder / f"gateway-{port}"
        folder.mkdir()
        issuer = Issuer("https://bench.issuer.test")
        config = write_config(
            folder, issuer, {"bench": replicas},
            port=port, admin_port=admin, data=data, settings=settings, **sections,
        )  # fmt: skip
        command = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(config), "--workers", str(workers)]
        variables = {**secrets_for(), **(environment or {})}
        url, log = f"http://127.0.0.1:{port}/bench/mcp", self.folder / f"gateway-{port}.log"
        gateway = Gateway("**Ostiary**", url, 0, port, admin, log, issuer, tuple(command), variables)
        return self.again(gateway, core)

    def again(self, gateway: Gateway, core: int | None = None, *, wait: bool = True) -> Gateway:
        """Start a gateway that was ended, on the folder that it left."""
        child = self.spawn(gateway.log.stem, gateway.command, core, **gateway.environment)
        started = dataclasses.replace(gateway, pid=child.pid)
        if wait:
            self._until_ready(started, child)
        return started

    def _until_ready(self, gateway: Gateway, child: subprocess.Popen[bytes], deadline_s: float = 30) -> None:
        end = time.monotonic() + deadline_s
        while time.monotonic() < end and child.poll() is None:
            try:
                said = gateway.ready()
                if said["ready"] and all(worker["ready"] for worker in said["workers"]):
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise TimeoutError("the gateway did not become ready")


_FREE = (sys.executable, "-m", "tests.support.upstream")
_NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 100000000;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  {http}
  upstream mcp {{ server {host}; keepalive 64; keepalive_requests 100000000; }}
  server {{ listen 127.0.0.1:{port}; location / {{
    proxy_pass http://mcp; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Authorization "";
    {location}
  }} }}
}}"""
