"""Two workers beside one, on a machine that has two cores in all, of which the load needs its share.

    python -m tests.bench.bench_workers [--rounds N] [--seconds S]

Two workers with a core each would leave none for the load, so each is given less: the gateway's processes live in a
group of the kernel's CPU controller with a quota of 0.5 cores a worker (of each 100 ms), on both cores; load and
upstream take of the rest. One worker with half a core and two with a whole one then differ as they would with one and
two cores: in all that they share (listener, supervisor, database, disk, caches of the two cores). What can't be seen
here is a machine with more cores. Where there is no such controller (it needs root), the ratio is worked out from two
workers running freely on both cores: 2 × one's CPU per request ÷ two's × how busy the cores were.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.bench.load import CLOCK_TICKS, Sample, family, sample, script
from tests.bench.machine import cores
from tests.bench.stand import Stand
from tests.bench.table import Options, Row, number, part

SHARE = 0.5
"""Of a core, to each worker with its evaluators."""
CONNECTIONS = 64
PERIOD_US = 100_000
ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))


@contextmanager
def budget(pid: int, share: float) -> Iterator[bool]:
    """Hold a process and its descendants to so many cores -> whether the kernel lets us."""
    for root in ROOTS:
        group = root / f"ostiary-bench-{pid}"
        try:
            group.mkdir()
        except OSError:
            continue
        quota = int(share * PERIOD_US)
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        elif (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            group.rmdir()
            continue
        for member in family(pid):
            (group / "cgroup.procs").write_text(str(member))
        try:
            yield True
        finally:
            for member in family(pid):
                (root / "cgroup.procs").write_text(str(member))
            group.rmdir()
        return
    yield False


def measure(options: Options) -> list[Row]:
    """One worker, two workers, round by round; held to a budget, and freely on both cores."""
    with Stand() as stand:
        upstream = stand.upstream()
        gateways = {count: stand.gateway([upstream], workers=count) for count in (1, 2)}
        for gateway in gateways.values():
            spread_over_both_cores(gateway.pid)
        calls = {
            count: script(stand.folder, f"call-{count}", token=gateway.token()) for count, gateway in gateways.items()
        }
        held: dict[int, list[Sample]] = {1: [], 2: []}
        free: dict[int, list[Sample]] = {1: [], 2: []}
        busy: list[float] = []
        for nth in range(options.rounds + 1):
            seconds = options.seconds if nth else 1  # the first ones only warm up
            for count, gateway in gateways.items():
                with budget(gateway.pid, SHARE * count) as held_to_it:
                    if held_to_it:
                        held[count] += [sample(gateway, calls[count], CONNECTIONS, seconds)]
                idle = idle_seconds()
                free[count] += [sample(gateway, calls[count], CONNECTIONS, seconds)]
                busy += [1 - (idle_seconds() - idle) / (2 * seconds)] if count == 2 else []
        for samples in (*held.values(), *free.values()):
            del samples[:1]
        del busy[:1]
        return _rows(held if held[1] else {}, free, busy)


def spread_over_both_cores(pid: int) -> None:
    """A process and its descendants may run on any core again."""
    for member in family(pid):
        for task in Path(f"/proc/{member}/task").iterdir():
            os.sched_setaffinity(int(task.name), set(cores()))


def idle_seconds() -> float:
    """How long all cores together have been idle, waiting for disks included."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(fields[4]) + int(fields[5])) / CLOCK_TICKS


def _rows(held: Mapping[int, list[Sample]], free: Mapping[int, list[Sample]], busy: Sequence[float]) -> list[Row]:
    costs = {count: [each.cpu_us for each in free[count]] for count in free}
    computed = tuple(
        2 * alone / both * share for alone, both, share in zip(costs[1], costs[2], busy, strict=True)
    )  # fmt: skip
    one, two = (number(statistics.median(costs[count])) for count in (1, 2))
    worked_out = f"CPU {one} µs a call with one, {two} with two"
    if not held:
        what = "two workers over one, worked out from CPU per call"
        return [Row("workers", what, computed, "×", "≥ 1.8", worked_out)]
    ratio = tuple(both.rps / alone.rps for alone, both in zip(held[1], held[2], strict=True))
    rates = [number(statistics.median(each.rps for each in held[count])) for count in (1, 2)]
    beside = f"{rates[0]} and {rates[1]} requests/s with {SHARE} cores a worker"
    return [
        Row("workers", "two workers over one", ratio, "×", "≥ 1.8", beside),
        Row("workers.computed", "… worked out from CPU per call, both cores free", computed, "×", beside=worked_out),
    ]


if __name__ == "__main__":
    raise SystemExit(part(measure, __doc__, "wrk"))
