"""Start to first call, and the idle memory of one worker.

    python -m tests.bench.bench_start [--rounds N]

From the start of `ostiary serve` to the whole answer of the first allowed call, on a folder that an earlier start has
used (its database is there, Python's bytecode is compiled); the gateway has one core. Memory is read two seconds
after a second of calls. RSS is what `ps` says; PSS counts once what processes share.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

from tests.bench.load import BODY, HEADERS, ask, cpu_by_process, family, kind_of, script, wrk
from tests.bench.stand import Gateway, Stand
from tests.bench.table import Options, Row, number, part

STARTS = 5
"""At least: the first ones of a machine that was idle are slower."""


def memory(pid: int) -> dict[str, float]:
    """MB (10^6 bytes) of a process: `Rss`, `Pss` and the other lines of its `smaps_rollup`."""
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return {name.rstrip(":"): int(size) * 1024 / 1e6 for name, size, *_ in lines}


def measure(options: Options) -> list[Row]:
    """A start a round, the bare proxy's beside it; memory in the last."""
    starts, costs, bare = [], [], []
    with Stand() as stand:
        upstream = stand.upstream()
        gateway = stand.gateway([upstream])
        headers = {**HEADERS, "Authorization": f"Bearer {gateway.token()}"}
        for _ in range(max(options.rounds, STARTS)):
            stand.end(gateway.pid)
            began = time.perf_counter()
            gateway = stand.again(gateway, wait=False)
            starts.append(_first_answer(gateway.url, headers, began))
            costs.append(sum(cpu_by_process(gateway.pid).values()))
            began = time.perf_counter()
            proxy = stand.bare_proxy(upstream, wait=False)
            bare.append(_first_answer(proxy.url, HEADERS, began))
            stand.end(proxy.pid)
        wrk(gateway.url, script(stand.folder, "some", token=gateway.token()), 8, 1)
        time.sleep(2)
        beside = (
            f"{number(sorted(costs)[len(costs) // 2])} s of CPU; bare proxy {number(sorted(bare)[len(bare) // 2])} s"
        )
        start = Row("start", "start to first call", tuple(starts), "s", "≤ 1.0", beside)
        return [start, *_memory(gateway)]


def _first_answer(url: str, headers: Mapping[str, str], began: float) -> float:
    status, answer = 0, b""
    while status != 200:
        if time.perf_counter() - began > 30:
            raise TimeoutError(f"{url} did not answer: {status} {answer[:300]!r}")
        with contextlib.suppress(OSError):
            status, answer = ask(url, BODY, headers)
        time.sleep(0.002)
    return time.perf_counter() - began


def _memory(gateway: Gateway) -> list[Row]:
    found = [(kind_of(pid), memory(pid)) for pid in family(gateway.pid)]
    (worker,) = (one for kind, one in found if kind == "worker")
    beside = "; ".join(f"{kind} RSS {number(one['Rss'])}, PSS {number(one['Pss'])}" for kind, one in found)
    supervisor = next(one["Pss"] for kind, one in found if kind == "supervisor")
    whole = sum(one["Pss"] for _, one in found)
    return [
        Row("memory.worker", "idle memory of one worker (RSS)", (worker["Rss"],), "MB", "≤ 90", beside),
        Row("memory.supervisor", "… of its supervisor (PSS)", (supervisor,), "MB"),
        Row("memory.gateway", "… of the whole gateway, one worker (PSS)", (whole,), "MB"),
    ]


if __name__ == "__main__":
    raise SystemExit(part(measure, __doc__))
