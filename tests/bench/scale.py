"""What N replicas carry: the tables of docs/scale.md, calculated from measured figures.

    python -m tests.bench.scale [--figures FILE]

FILE is what `make bench` writes (`.bench/figures.json`); without it, the figures that are kept in the repository. A
kind of call that was not measured is left out. A test holds the page to what this prints for the kept figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.queueing import busiest, quantile, sojourns
from tests.bench.table import kept, number

KEPT = Path(__file__).parent / "figures.json"
KINDS = {
    "an allowed call": "allowed.32.cpu",
    "an allowed call whose arguments the policy reads": "judged.32.cpu",
    "a gated call, tickets in PostgreSQL": "gated.postgresql.approved.cpu",
    "a gated call, tickets in SQLite": "gated.sqlite.approved.cpu",
    "an allowed call, OPA over HTTP": "opa.cpu",
    "a filtered list of 200 tools": "list.many.cpu",
    "refused: a header that contradicts the body": "refused.header.cpu",
    "refused: a bad signature": "refused.signature.cpu",
    "refused: no token": "refused.none.cpu",
}
GATED = "gated.postgresql.approved.cpu"
MIX = {
    "allowed.32.cpu": 0.90,
    "list.many.cpu": 0.05,
    "refused.header.cpu": 0.03,
    GATED: 0.02,
}
"""Of all requests. Clients keep lists while their `ttlMs` lasts, and few calls wait for people."""
TARGET = 0.6
"""Of a worker's time, before another is added."""
WORKERS = 2
"""Of a replica, as in the chart."""
PER_MINUTE = (10_000, 100_000, 300_000, 1_000_000)
DATABASE_CONNECTIONS = 8
"""At most, of a worker (docs/operations.md)."""
DAY_S = 86_400


@dataclass(frozen=True)
class Figures:
    """Measured figures by key."""

    by_key: Mapping[str, float]

    def __getitem__(self, key: str) -> float:
        return self.by_key[key]

    def cost(self) -> float:
        """µs of CPU of a request of the mix; kinds that were not measured count as an allowed call."""
        return sum(share * self.by_key.get(key, self["allowed.32.cpu"]) for key, share in MIX.items())

    def worker_share(self) -> float:
        """Of that, what is the worker's own process: one core is all that it can use."""
        return self["allowed.32.cpu_worker"] / self["allowed.32.cpu"]

    def memory(self, workers: int) -> float:
        """MB of a gateway without calls (PSS)."""
        alone = self["memory.supervisor"]
        return alone + workers * (self["memory.gateway"] - alone)

    def per_worker(self) -> float:
        """Requests/s of the mix that a worker carries when its process is always busy and evaluators have cores."""
        return 1e6 / (self.cost() * self.worker_share())


def read(file: Path) -> Figures:
    """Figures of a run."""
    return Figures({row.key: row.figure for row in kept(file)})


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def cores(figures: Figures) -> str:
    """Cores per 1,000 requests a second, by kind."""
    rows = []
    for kind, key in KINDS.items():
        if key in figures.by_key:
            cost = figures[key]
            rows.append([kind, number(cost), f"{cost / 1000:.2f}", f"{1e6 / cost:,.0f}"])
    return _table(["kind of request", "µs of CPU", "cores for 1,000 a second", "a second on one core"], rows)


def replicas(figures: Figures) -> str:
    """What a rate of the mix takes."""
    rows = []
    for minute in PER_MINUTE:
        rate = minute / 60
        workers = max(2 * WORKERS, -(-rate // (figures.per_worker() * TARGET)))
        count = int(-(-workers // WORKERS)) + 1
        rows.append([
            f"{minute:,}", f"{rate:,.0f}", f"{rate * figures.cost() / 1e6:.1f}", f"{count} × {WORKERS}",
            f"{count * WORKERS * DATABASE_CONNECTIONS}", f"{rate * figures['record.bytes'] * DAY_S / 1e9:,.0f}",
            f"{rate * figures['log.bytes'] * DAY_S / 1e9:,.0f}", f"{rate * MIX[GATED]:,.0f}",
            f"{count * figures.memory(WORKERS) / 1000:.1f}",
        ])  # fmt: skip
    head = [
        "requests/minute", "requests/s", "cores busy", "replicas × workers", "database connections, at most",
        "record, GB a day", "log, GB a day", "gated calls/s", "memory idle, GB",
    ]  # fmt: skip
    return _table(head, rows)


def waiting(figures: Figures) -> str:
    """How long calls take in the gateway, by how busy its workers are."""
    cost = figures["allowed.32.cpu"] / 1000
    rows = []
    for load in (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95):
        spans = sojourns(load, cost)
        rate = load * 1000 / cost
        told = [quantile(spans, share) + figures["disk.p50"] for share in (0.5, 0.99)]
        rows.append([f"{load:.0%}", f"{rate:,.0f}", f"{told[0]:.2f}", f"{told[1]:.1f}"])
    return _table(["a worker is busy", "calls/s of a worker on one core", "p50 ms", "p99 ms"], rows)


def failing(figures: Figures) -> str:
    """What the others have when one replica of N is gone."""
    cost = figures["allowed.32.cpu"] / 1000
    rows = []
    for count in (2, 3, 4, 6, 10, 20):
        cells = [str(count)]
        for load in (0.5, TARGET, 0.7):
            after = load * count / (count - 1)
            slow = quantile(sojourns(after, cost), 0.99) + figures["disk.p50"] if after < 0.99 else None
            cells.append(f"{after:.0%}, p99 {slow:.1f} ms" if slow is not None else f"{after:.0%}: refuses")
        rows.append(cells)
    return _table(["replicas", "50 % before", f"{TARGET:.0%} before", "70 % before"], rows)


def uneven(figures: Figures) -> str:
    """How much more than the mean the busiest worker has, where chance deals the connections."""
    del figures
    rows = [
        [f"{each}", *(f"{busiest(each * workers, workers):.2f}" for workers in (4, 12, 40))]
        for each in (5, 20, 100, 500)
    ]
    return _table(["connections per worker", "4 workers", "12 workers", "40 workers"], rows)


def in_flight(figures: Figures) -> str:
    """Calls that a worker holds at its target, by how long the servers take (Little's law)."""
    rate = TARGET * 1e6 / figures["allowed.32.cpu"]
    rows = []
    for answer_s in (0.02, 0.2, 1.0, 5.0):
        held = rate * answer_s
        rows.append([f"{answer_s:g} s", f"{held:,.0f}", f"{2 * held:,.0f}", f"{held * 2 * 10e3 / 1e6:,.0f}"])
    return _table(
        ["a server answers within", "in flight", "`limits.concurrent` for it", "MB, bodies of 10 KB each way"], rows
    )


def scaling(figures: Figures) -> str:
    """Cores that a replica uses when its workers are at the target: what `targetCPUPercent` has to say."""
    rows = []
    for workers in (1, 2, 4):
        full = workers / figures.worker_share()
        rows.append([
            str(workers), f"{full:.1f}", f"{full * TARGET:.2f}",
            *(f"{full * TARGET / request:.0%}" for request in (1.0, workers * 1.0, full)),
        ])  # fmt: skip
    head = [
        "workers", "cores at most", f"cores at {TARGET:.0%}", "target with `requests.cpu` 1",
        "… as many as workers", "… as many as it can use",
    ]  # fmt: skip
    return _table(head, rows)


TABLES = {
    "cores": cores, "replicas": replicas, "waiting": waiting, "failing": failing, "uneven": uneven,
    "in flight": in_flight, "scaling": scaling,
}  # fmt: skip


def main() -> int:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, default=KEPT)
    figures = read(parser.parse_args().figures)
    for name, made in TABLES.items():
        print(f"{name}\n\n{made(figures)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
