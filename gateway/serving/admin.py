"""The operators' listener: `/livez`, `/readyz` and `/metrics`, answered by the supervisor over all workers.

It checks no Host and no token and is bound to loopback unless configured otherwise. Gauges come from what living
workers said last, counters and histograms from files that outlive a worker; docs/operations.md explains each.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import orjson
import uvicorn
from prometheus_client import CollectorRegistry, exposition, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from gateway.asgi import Scope, Send
from gateway.door.quiet import QuietServer
from gateway.serving.roster import Roster, Worker


@dataclass(frozen=True, slots=True)
class Shown:
    """How a gauge of the status lines is shown: its text, its label if it has one, and how several become one.

    Where it has two labels, a space is between their names, and between their values.
    """

    text: str
    combine: Callable[[Iterable[float]], float]
    label: str = ""


GAUGES: Mapping[str, Shown] = {
    "requests_in_flight": Shown("Requests in the corridor.", sum),
    "busiest_subject_requests": Shown("The most requests that one subject has at once at one worker.", max),
    "calls_waiting": Shown("Calls that are kept until a person decides.", sum),
    "held_tasks_running": Shown("Held calls that run now, apart from any connection.", sum),
    "streams_open": Shown("Event streams that are being relayed.", sum, "kind"),
    "connections": Shown("Open connections of clients.", sum),
    "loop_lag_seconds": Shown("The longest that an event loop stood still lately.", max),
    "policy_evaluators": Shown("Processes that evaluate the policy.", sum),
    "policy_current": Shown("1 while the bundle that lies there is the one that judges.", min),
    "shadow_healthy": Shown("1 while the candidate answers, or there is none.", min),
    "audit_healthy": Shown("1 while the last commit succeeded and none is overdue.", min),
    "audit_lag_seconds": Shown("How long the oldest record has been waiting for its commit.", max),
    "audit_export_waiting": Shown("Records that the OpenTelemetry receiver does not have yet.", sum),
    "audit_export_lost": Shown("Records that found no room on their way there, since the workers' start.", sum),
    "audit_checkpoint_age_seconds": Shown("Since every second place had all checkpoints; 0 without one.", max),
    "spans_waiting": Shown("Spans that the receiver of traces does not have yet.", sum),
    "seal_key_age_seconds": Shown("Since the key that seals was first seen here.", max),
    "tickets": Shown("Live tickets by state, and uses whose end nobody knows.", max, "state"),
    "approvals_healthy": Shown("1 while the approvals' database can be read and written.", min),
    "idempotency_keys": Shown("Idempotency keys that are remembered, by all who share the database.", max),
    "idempotency_bytes": Shown("Bytes of outcomes that are kept under them.", max),
    "webhooks_waiting": Shown("Messages to a webhook that were not taken yet.", max, "webhook"),
    "keys_healthy": Shown("1 while an issuer's keys were had when last asked for.", min, "issuer"),
    "keys_age_seconds": Shown("Since an issuer's keys were last confirmed.", max, "issuer"),
    "pins_healthy": Shown("1 while the file of pins that lies there is the one in force.", min),
    "tools_quarantined": Shown("Tools that are neither listed nor callable.", max, "server"),
    "registry_drift": Shown("Differences between a server and its published record.", max, "server"),
    "registry_age_seconds": Shown("Since a server was compared with its published record.", max, "server"),
    "replicas": Shown("Configured replicas.", max, "server"),
    "replicas_unreachable": Shown("Replicas that were not reached when last tried.", max, "server"),
    "replicas_ejected": Shown("Replicas that are out of service.", max, "server"),
    "replicas_half_open": Shown("Replicas out of service that a call is trying now.", sum, "server"),
    "replicas_warming": Shown("Replicas that are back and do not take all of their turns yet.", max, "server"),
    "replica_out": Shown("1 while a replica is out of service.", max, "server replica"),
    "replica_calls": Shown("Calls that have a place at a replica.", sum, "server replica"),
    "upstream_waiting": Shown("Calls that wait for a place at a replica.", sum, "server"),
    "list_changes_heard": Shown("1 while a server in use would tell of changes of its lists.", min, "server"),
    "certificates_current": Shown("1 while the files that lie there are those in force.", min, "setting"),
    "certificate_expires_seconds": Shown("Until the certificate that is shown expires.", min, "setting"),
    "upstream_sessions": Shown("Sessions at servers of earlier revisions.", sum, "server"),
}


class WorkforceCollector:
    """What the supervisor knows of its workers, as metrics. `roster` is a copy that nobody changes meanwhile."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def collect(self) -> Iterator[Metric]:
        """Everything but what workers count themselves."""
        roster = self._roster
        workers = dict(sorted(roster.workers.items()))
        yield _gauge("ready", "1 while traffic should be sent here.", roster.ready)
        yield _gauge("workers_wanted", "Workers that are configured.", roster.wanted)
        yield _gauge("workers_ready", "Workers that are ready.", sum(one.is_ready for one in workers.values()))
        yield CounterMetricFamily("ostiary_worker_restarts", "Workers replaced after they ended.", roster.restarts)
        missing = Counter(part for one in roster.describe()["workers"] for part in one["missing"])
        yield _labelled("missing", "Workers that lack this part and so are not ready.", "part", missing)
        yield from _configuration(roster)
        yield from self._gauges([worker for worker in (*workers.values(), *roster.besides) if worker.is_fresh])
        yield from _processes(workers)
        build = GaugeMetricFamily("ostiary_build_info", "What runs.", labels=("version", "python"))
        build.add_metric(_build(), 1)
        yield build

    def _gauges(self, workers: list[Worker]) -> Iterator[Metric]:
        said = [worker.status for worker in workers if worker.status is not None]
        degraded = {name: 1.0 for status in said for name in status.degraded}
        yield _labelled("degraded", "1 for each shared dependency that fails.", "dependency", degraded)
        loaded = Counter(f"{part} {digest}" for status in said for part, digest in status.loaded.items())
        yield _labelled("loaded_info", "Workers by the SHA-256 of what they serve by.", "part digest", loaded)
        revisions = {status.revision: 1.0 for status in said if status.revision}
        yield _labelled("policy_info", "The policy bundle's revision.", "revision", revisions)
        for name, shown in GAUGES.items():
            found = [status.gauges[name] for status in said if name in status.gauges]
            if shown.label:
                tables = [figure for figure in found if isinstance(figure, Mapping)]
                keys = sorted({key for table in tables for key in table})
                figures = {key: shown.combine(table[key] for table in tables if key in table) for key in keys}
                yield _labelled(name, shown.text, shown.label, figures)
            elif numbers := [figure for figure in found if not isinstance(figure, Mapping)]:
                yield _gauge(name, shown.text, shown.combine(numbers))


def _configuration(roster: Roster) -> Iterator[Metric]:
    """Which configuration serves, and how the attempts to give it another one ended."""
    settled = roster.configuration
    yield _gauge("configuration_current", "1 while what was asked for last was taken.", settled.current)
    reloads = CounterMetricFamily("ostiary_configuration_reloads", "Reloads by how they ended.", labels=("result",))
    for result, times in settled.results.items():
        reloads.add_metric((result,), times)
    yield reloads
    said = [one.status.configuration for one in (*roster.workers.values(), *roster.besides) if one.status is not None]
    yield _labelled("configuration_info", "Workers by their configuration's SHA-256.", "digest", Counter(said))


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"ostiary_{name}", text, value)


def _labelled(name: str, text: str, label: str, figures: Mapping[str, float]) -> Metric:
    labels = label.split()
    family = GaugeMetricFamily(f"ostiary_{name}", text, labels=labels)
    for value, figure in figures.items():
        family.add_metric(value.split(" ", 1) if len(labels) > 1 else (value,), figure)
    return family


@cache
def _build() -> tuple[str, str]:
    return version("ostiary"), platform.python_version()


def _processes(workers: Mapping[int, Worker]) -> Iterator[Metric]:
    """What the system says of the workers' processes, by slot (Linux)."""
    memory = GaugeMetricFamily("ostiary_worker_memory_bytes", "Resident memory.", labels=("slot",))
    files = GaugeMetricFamily("ostiary_worker_open_files", "Open descriptors.", labels=("slot",))
    spent = CounterMetricFamily("ostiary_worker_cpu_seconds", "Processor time of this process.", labels=("slot",))
    for slot, worker in workers.items():
        folder = Path("/proc") / str(worker.pid)
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = int((folder / "statm").read_text().split()[1])
            times = (folder / "stat").read_text().rpartition(")")[2].split()
            memory.add_metric((str(slot),), pages * os.sysconf("SC_PAGE_SIZE"))
            spent.add_metric((str(slot),), (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK"))
            files.add_metric((str(slot),), len(os.listdir(folder / "fd")))  # noqa: PTH208 - only counted
    yield from (memory, files, spent)


class Admin:
    """The listener as a plain ASGI application. `metrics_folder` holds the workers' files."""

    def __init__(self, roster: Roster, metrics_folder: Path) -> None:
        self._roster = roster
        self._folder = metrics_folder

    def metrics(self, roster: Roster) -> bytes:
        """All metrics in Prometheus' text format. Reads files: not on the loop, so `roster` is a copy."""
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=str(self._folder))  # type: ignore[no-untyped-call]
        registry.register(WorkforceCollector(roster))
        return generate_latest(registry)

    async def __call__(self, scope: Scope, _receive: object, send: Send) -> None:
        """Answer one request."""
        path, known = scope["path"], {"/livez", "/readyz", "/metrics"}
        status, media, body = 200, b"application/json", b'{"live":true}'
        if path not in known:
            status, body = 404, b'{"error":"not found"}'
        elif scope["method"] not in {"GET", "HEAD"}:
            status, body = 405, b'{"error":"GET only"}'
        elif path == "/readyz":
            answer = self._roster.describe()
            status, body = (200 if answer["ready"] else 503), orjson.dumps(answer)
        elif path == "/metrics":
            still = self._roster.copy()
            media, body = exposition.CONTENT_TYPE_LATEST.encode(), await asyncio.to_thread(self.metrics, still)
        headers = [
            (b"content-type", media), (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")
        ]  # fmt: skip
        if status == 405:
            headers.append((b"allow", b"GET, HEAD"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def server(self) -> QuietServer:
        """uvicorn for this listener alone."""
        config = uvicorn.Config(
            self, interface="asgi3", http="h11", ws="none", lifespan="off", log_config=None, access_log=False,
            server_header=False, proxy_headers=False, limit_concurrency=100, timeout_keep_alive=15,
            timeout_graceful_shutdown=2,
        )  # fmt: skip
        return QuietServer(config)
