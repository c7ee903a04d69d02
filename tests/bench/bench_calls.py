"""Allowed calls at 1, 8 and 32 connections: throughput, added latency, CPU.

Beside the upstream itself, nginx, an empty ASGI application under uvicorn, and a bare FastAPI + httpx proxy. Rounds
alternate between the contenders.

    python -m tests.bench.bench_calls [--rounds N] [--seconds S] [--spy FILE]
"""

from __future__ import annotations

import statistics
import urllib.request

from tests.bench.load import Sample, sample, script, wrk
from tests.bench.machine import disk
from tests.bench.stand import BENCH_DATA, Gateway, Stand
from tests.bench.table import Options, Row, number, part

CONNECTIONS = (1, 8, 32)
JUDGED = {
    "read_file": {**BENCH_DATA["tools"]["read_file"], "arguments": {"/limit": {"at_least": 1, "at_most": 1000}}}
}
"""The policy reads the arguments of each call: no decision is remembered."""


def measure(options: Options) -> list[Row]:
    """All contenders, round by round."""
    with Stand() as stand:
        upstream = stand.upstream()
        gateway = stand.gateway([upstream])
        judging = stand.gateway([upstream], data={**BENCH_DATA, "tools": JUDGED})
        plain, bearer = script(stand.folder, "plain"), script(stand.folder, "bearer", token=gateway.token())
        contenders = {
            "nginx": (stand.nginx(upstream), plain),
            "empty": (stand.empty_application(), plain),
            "bare": (stand.bare_proxy(upstream), plain),
            "ostiary": (gateway, bearer),
            "judged": (judging, script(stand.folder, "judged", token=judging.token())),
        }
        seen: dict[tuple[str, int], list[Sample]] = {}
        for contender, call in contenders.values():
            wrk(contender.url, call, 8, 1)
        for nth in range(options.rounds):
            for connections in CONNECTIONS:
                seen.setdefault(("upstream", connections), []).append(
                    wrk(upstream, plain, connections, options.seconds)
                )
                for name, (contender, call) in contenders.items():
                    if name == "judged" and connections != 32:
                        continue
                    looking = options.spy if (name, connections, nth) == ("ostiary", 32, options.rounds - 1) else None
                    found = sample(contender, call, connections, options.seconds, spy=looking)
                    seen.setdefault((name, connections), []).append(found)
        rows = [row for connections in CONNECTIONS for row in _throughput(seen, connections)]
        calls = sum(each.requests for (name, _), samples in seen.items() if name == "ostiary" for each in samples)
        rates, costs = (tuple(getattr(each, member) for each in seen["judged", 32]) for member in ("rps", "cpu_us"))
        rows += [
            Row(
                "judged.32.rps",
                "allowed `tools/call` whose arguments the policy reads, 32 connections",
                rates,
                "requests/s",
            ),
            Row("judged.32.cpu", "… CPU", costs, "µs/request"),
        ]
        return rows + _latency(seen, *disk(stand.folder)) + _left(gateway, calls)


def _throughput(seen: dict[tuple[str, int], list[Sample]], connections: int) -> list[Row]:
    ours, bare, nginx, empty, upstream = (
        seen[name, connections] for name in ("ostiary", "bare", "nginx", "empty", "upstream")
    )
    aimed = connections == 32

    def median(samples: list[Sample], member: str) -> float:
        return float(statistics.median(getattr(each, member) for each in samples))

    def ratio(member: str, other: list[Sample], *, over: bool = False) -> tuple[float, ...]:
        pairs = ((getattr(a, member), getattr(b, member)) for a, b in zip(ours, other, strict=True))
        return tuple(theirs / mine if over else mine / theirs for mine, theirs in pairs)

    at = f"allowed `tools/call`, {connections} connection{'s' if connections > 1 else ''}"
    others = "; ".join(
        f"{name} {number(median(samples, 'rps'))}"
        for name, samples in (
            ("upstream", upstream), ("nginx", nginx), ("empty ASGI application", empty), ("bare proxy", bare),
        )
    )  # fmt: skip
    split = ", ".join(
        f"{kind} {number(statistics.median(each.by_process[kind] for each in ours))}" for kind in ours[0].by_process
    )
    costs = "; ".join(
        f"{name} {number(median(samples, 'cpu_us'))}"
        for name, samples in (("nginx", nginx), ("empty ASGI application", empty), ("bare proxy", bare))
    )
    worker = tuple(each.by_process["worker"] for each in ours)
    key, middle = f"allowed.{connections}", median(ours, "p50_ms")
    return [
        Row(f"{key}.rps", at, tuple(each.rps for each in ours), "requests/s", "≥ 5,000" if aimed else "", others),
        Row(f"{key}.bare", "… over the bare proxy", ratio("rps", bare), "×", "≥ 15" if aimed else ""),
        Row(f"{key}.cpu", "… CPU", tuple(each.cpu_us for each in ours), "µs/request", "", f"{split}; {costs}"),
        Row(f"{key}.cpu_worker", "… of that, the worker", worker, "µs/request"),
        Row(f"{key}.cpu_nginx", "… CPU over nginx's", ratio("cpu_us", nginx), "×", "≤ 6" if aimed else ""),
        Row(f"{key}.cpu_bare", "… CPU over the bare proxy's", ratio("cpu_us", bare), "×"),
        Row(f"{key}.p99", "… p99", tuple(each.p99_ms for each in ours), "ms", beside=f"p50 {number(middle)}"),
    ]  # fmt: skip


def _latency(seen: dict[tuple[str, int], list[Sample]], fsync: float, slow: float) -> list[Row]:
    rows = [
        Row("disk.p50", "the disk's own append of 1 KiB and fdatasync, p50", (fsync,), "ms"),
        Row("disk.p99", "… p99", (slow,), "ms"),
    ]
    for member, label, aim, own in (("p50_ms", "p50", "≤ 0.5", fsync), ("p99_ms", "p99", "≤ 3", slow)):
        ours, direct, nginx = (
            [getattr(each, member) for each in seen[name, 1]] for name in ("ostiary", "upstream", "nginx")
        )
        added = tuple(mine - straight for mine, straight in zip(ours, direct, strict=True))
        beside = (
            f"direct call {number(statistics.median(direct))}; through nginx {number(statistics.median(nginx))}; "
            f"the disk's own append and fdatasync {number(own)}, for one of which a call waits"
        )
        rows.append(Row(f"latency.{label}", f"added latency, 1 connection, {label}", added, "ms", aim, beside))
    return rows


def _left(gateway: Gateway, calls: int) -> list[Row]:
    """What calls leave behind: bytes of the record and of the log, and the series that Prometheus reads."""
    record, log = gateway.file("audit.jsonl").stat().st_size, gateway.log.stat().st_size
    with urllib.request.urlopen(f"http://127.0.0.1:{gateway.admin}/metrics", timeout=5) as answer:
        series = sum(not line.startswith(b"#") for line in answer.read().splitlines())
    return [
        Row("record.bytes", "record of a call (decision and outcome)", (record / calls,), "bytes"),
        Row("log.bytes", "log of a call", (log / calls,), "bytes"),
        Row("metrics.series", "series of one gateway with one server", (float(series),), ""),
    ]


if __name__ == "__main__":
    raise SystemExit(part(measure, __doc__, "wrk", "nginx"))
