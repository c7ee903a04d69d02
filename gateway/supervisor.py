"""One supervisor, N worker processes, and the operators' listener.

The supervisor binds the data plane's socket once and hands it to every worker, so that a worker that dies takes only
its own connections along; it is seen, counted, logged and replaced. `/livez`, `/readyz` and `/metrics` are answered
here, over all workers. A worker that loses its supervisor stops: nothing serves unobserved.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import structlog
import uvicorn
from prometheus_client import CollectorRegistry, Gauge, exposition, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

CANNOT_START = 3
"""A worker's exit code when its configuration or its bundle can't be used: replacing it would not help."""
STATUS_EVERY_S = 1.0
STATUS_STALE_S = 5.0
BACKLOG = 2048
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
STEADY_AFTER_S = 10.0

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Posts:
    """Where to listen and whom to start. `command` is the worker's argv; port and descriptors are appended to it."""

    host: str
    port: int
    admin_host: str
    admin_port: int
    workers: int
    command: tuple[str, ...]
    grace_s: float


@dataclass(slots=True)
class Worker:
    """One worker as the supervisor sees it. `heard_at` is monotonic; `degraded` names failing shared dependencies."""

    process: asyncio.subprocess.Process
    born_at: float
    ready: bool = False
    degraded: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    heard_at: float = field(default_factory=time.monotonic)
    listening: asyncio.Task[None] | None = None

    @property
    def counts_as_ready(self) -> bool:
        """Ready by its own word, and that word is fresh: a worker that hangs is not ready."""
        return self.ready and time.monotonic() - self.heard_at < STATUS_STALE_S


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises `OSError` naming the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"{error.strerror}: {host}:{port}") from error
    listener.set_inheritable(True)
    return listener


class QuietServer(uvicorn.Server):
    """uvicorn without its own signal handlers: the supervisor and the worker each have one place for signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's handlers alone."""
        yield


class Supervisor:
    """Starts, watches, replaces and stops the workers; answers the operators."""

    def __init__(self, posts: Posts) -> None:
        self.posts = posts
        self.workers: dict[int, Worker] = {}
        self.draining = asyncio.Event()
        self.exit_code = 0
        self._log = structlog.get_logger("supervisor")
        self._metrics_dir = tempfile.mkdtemp(prefix="ostiary-metrics-")
        self._restarts = 0
        self._failures = 0

    async def run(self) -> int:
        """Serve until told to stop -> exit code. Raises `OSError` where an address can't be bound."""
        with (
            bind(self.posts.host, self.posts.port) as door,
            bind(self.posts.admin_host, self.posts.admin_port) as desk,
        ):
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.draining.set)
            admin = QuietServer(
                uvicorn.Config(
                    self._answer, interface="asgi3", http="h11", ws="none", lifespan="off", log_config=None, access_log=False,
                    server_header=False, proxy_headers=False, timeout_graceful_shutdown=2,
                )
            )  # fmt: skip
            serving = asyncio.create_task(admin.serve(sockets=[desk]))
            host, port = door.getsockname()[:2]
            self._log.info("listening", host=host, port=port, admin_port=desk.getsockname()[1], pid=os.getpid())
            try:
                async with asyncio.TaskGroup() as keepers:
                    for slot in range(self.posts.workers):
                        keepers.create_task(self._keep(slot, door))
            finally:
                admin.should_exit = True
                await serving
                shutil.rmtree(self._metrics_dir, ignore_errors=True)
        return self.exit_code

    async def _keep(self, slot: int, door: socket.socket) -> None:
        """Keep one slot filled until draining; then stop its worker within the grace time."""
        while not self.draining.is_set():
            worker = await self._start(slot, door)
            stop = asyncio.create_task(self.draining.wait())
            gone = asyncio.create_task(worker.process.wait())
            await asyncio.wait({stop, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not gone.done():
                await self._stop(worker, gone)
            stop.cancel()
            self.workers.pop(slot, None)
            code = worker.process.returncode
            mark_process_dead(worker.process.pid, self._metrics_dir)  # type: ignore[no-untyped-call]
            if self.draining.is_set():
                break
            if code == CANNOT_START:
                self._log.error("worker_cannot_start", slot=slot)
                self.exit_code = 1
                self.draining.set()
                break
            self._restarts += 1
            steady = time.monotonic() - worker.born_at > STEADY_AFTER_S
            self._failures = 0 if steady else self._failures + 1
            pause = BACKOFF_S[min(self._failures, len(BACKOFF_S) - 1)]
            self._log.error("worker_died", slot=slot, pid=worker.process.pid, code=code, restart_in_s=pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.draining.wait(), pause)

    async def _start(self, slot: int, door: socket.socket) -> Worker:
        readable, writable = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *self.posts.command, "--port", str(door.getsockname()[1]), "--fd", str(door.fileno()), "--status-fd", str(writable),
                pass_fds=(door.fileno(), writable), stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": self._metrics_dir},
                start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(writable)
        worker = self.workers[slot] = Worker(process, time.monotonic())
        reader = asyncio.StreamReader(limit=65536)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(readable, "rb", 0)
        )
        worker.listening = asyncio.create_task(self._listen(worker, reader))
        self._log.info("worker_started", slot=slot, pid=process.pid)
        return worker

    @staticmethod
    async def _listen(worker: Worker, reader: asyncio.StreamReader) -> None:
        """Take in the worker's status lines until its pipe closes."""
        while line := await reader.readline():
            status = orjson.loads(line)
            worker.ready = status["ready"]
            worker.degraded = tuple(status["degraded"])
            worker.missing = tuple(status["missing"])
            worker.heard_at = time.monotonic()
        worker.ready = False

    async def _stop(self, worker: Worker, gone: asyncio.Task[int]) -> None:
        worker.process.terminate()
        try:
            await asyncio.wait_for(asyncio.shield(gone), self.posts.grace_s + 5)
        except TimeoutError:
            self._log.error("worker_killed", pid=worker.process.pid)
            worker.process.kill()
            await gone
            self.exit_code = 1

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether to send traffic here, and what an operator wants to know about why not."""
        workers = [self.workers.get(slot) for slot in range(self.posts.workers)]
        ready = not self.draining.is_set() and any(
            worker is not None and worker.counts_as_ready for worker in workers
        )
        return ready, {
            "ready": ready,
            "draining": self.draining.is_set(),
            "workers": [
                {"pid": worker.process.pid, "ready": worker.counts_as_ready, "missing": list(worker.missing)}
                if worker is not None
                else {"pid": None, "ready": False, "missing": ["process"]}
                for worker in workers
            ],
            "degraded": sorted({name for worker in workers if worker is not None for name in worker.degraded}),
        }

    def metrics(self) -> bytes:
        """All workers' metrics and the supervisor's own, in Prometheus' text format."""
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=self._metrics_dir)  # type: ignore[no-untyped-call]
        own = CollectorRegistry()
        ready = sum(worker.counts_as_ready for worker in self.workers.values())
        Gauge("ostiary_workers_ready", "Workers that are ready.", registry=own).set(ready)
        Gauge("ostiary_workers_wanted", "Workers that are configured.", registry=own).set(self.posts.workers)
        Gauge("ostiary_worker_restarts", "Workers replaced after they died.", registry=own).set(self._restarts)
        return generate_latest(registry) + generate_latest(own)

    async def _answer(self, scope: Scope, _receive: object, send: Send) -> None:
        """The admin listener, as a plain ASGI application."""
        path, known = scope["path"], {"/livez", "/readyz", "/metrics"}
        status, media, body = 200, b"application/json", b'{"live":true}'
        if path not in known:
            status, body = 404, b'{"error":"not found"}'
        elif scope["method"] not in {"GET", "HEAD"}:
            status, body = 405, b'{"error":"GET only"}'
        elif path == "/readyz":
            ready, answer = self.readiness()
            status, body = (200 if ready else 503), orjson.dumps(answer)
        elif path == "/metrics":
            media, body = exposition.CONTENT_TYPE_LATEST.encode(), await asyncio.to_thread(self.metrics)
        headers = [
            (b"content-type", media), (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")
        ]  # fmt: skip
        if status == 405:
            headers.append((b"allow", b"GET, HEAD"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def worker_command(config: Path, host: str) -> tuple[str, ...]:
    """The argv that starts a worker on `config`; the supervisor appends the port and the descriptors."""
    options = ("--config", str(config), "--host", host)
    return (sys.executable, "-m", "gateway.cli", "worker", *options)
