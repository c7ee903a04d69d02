"""What a megabyte costs, beside nginx: as an argument, as a result, as a stream of 250 events, as one event.

Each of them as text of which a part is not ASCII, and in ASCII, which is read in a third of the time. nginx keeps
bodies in memory, which is nginx at its best: by default it writes large ones to files. Then 100 MB pass in one
stream to a client that reads as fast as it can, and 20 MB to one that rests. Of memory it is told by how much the
gateway's processes grew in the last round, when everything was warm.

    python -m tests.bench.bench_bodies [--rounds N] [--seconds S] [--spy FILE]
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.large_upstream import ASCII, CASES, KINDS, LONG, TOOLS_DATA, call_of
from tests.bench.load import HEADERS, Sample, family, sample, script, wrk
from tests.bench.stand import Gateway, Stand
from tests.bench.table import Options, Row, number, part

CONNECTIONS = 4
AIM = "≥ 0.667"  # nginx's own throughput over 1.5
IN_MEMORY = (
    "client_max_body_size 8m; client_body_buffer_size 2m; proxy_buffer_size 128k; proxy_buffers 16 128k;"
    "proxy_busy_buffers_size 512k; proxy_max_temp_file_size 0;"
)
WHAT = {
    "argument": "1 MB argument",
    "result": "1 MB result",
    "stream": "1 MB in a stream of 250 events",
    "event": "1 MB in one event",
}
WHAT |= {kind + ASCII: f"{WHAT[kind]}, ASCII" for kind in KINDS}
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def resident_mib(pid: int) -> float:
    """Resident memory of a process and its descendants."""
    pages = 0
    for member in family(pid):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            pages += int(Path(f"/proc/{member}/statm").read_text().split()[1])
    return pages * PAGE_MIB


@contextlib.contextmanager
def growing(pid: int) -> Iterator[list[float]]:
    """Look at memory every 20 ms; at the end, one figure: by how many MiB the highest is above the first."""
    over, seen, told = threading.Event(), [resident_mib(pid)], list[float]()

    def look() -> None:
        while not over.wait(0.02):
            seen.append(resident_mib(pid))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield told
    finally:
        over.set()
        thread.join()
        told.append(max(seen) - seen[0])


def measure(options: Options) -> list[Row]:
    """Both contenders, case by case, round by round; then the long streams."""
    with Stand() as stand:
        upstream = stand.upstream(sys.executable, "-m", "tests.bench.large_upstream")
        gateway = stand.gateway([upstream], data=TOOLS_DATA)
        contenders = {"nginx": (stand.nginx(upstream, IN_MEMORY), ""), "ostiary": (gateway, gateway.token())}
        calls = {
            (name, case): script(
                stand.folder,
                f"{name}-{case}",
                body=call_of(case),
                headers={**HEADERS, "Mcp-Name": case},
                token=token or (),
            )
            for case in CASES
            for name, (_, token) in contenders.items()
        }
        seen: dict[tuple[str, str], list[Sample]] = {}
        grown: dict[str, float] = {}
        for (name, _), call in calls.items():
            wrk(contenders[name][0].url, call, CONNECTIONS, 1)
        for nth in range(options.rounds):
            for (name, case), call in calls.items():
                last = (name, nth) == ("ostiary", options.rounds - 1)
                contender = contenders[name][0]
                spied = options.spy.with_suffix(f".{case}.txt") if options.spy and last else None
                with growing(contender.pid) as more:
                    found = sample(contender, call, CONNECTIONS, options.seconds, spy=spied)
                seen.setdefault((name, case), []).append(found)
                if name == "ostiary":
                    grown[case] = more[0]
        rows = [row for case in CASES for row in _rows(case, seen["ostiary", case], seen["nginx", case], grown[case])]
        return [*rows, _long(gateway, stand.load_core, "long", 0.0), _long(gateway, stand.load_core, "slow", 0.01)]


def _rows(case: str, ours: list[Sample], nginx: list[Sample], grown: float) -> Iterator[Row]:
    middle = statistics.median
    key, beside = f"bodies.{case}", f"nginx {number(middle(one.rps for one in nginx))} MB/s"
    ratios = tuple(mine.rps / theirs.rps for mine, theirs in zip(ours, nginx, strict=True))
    split = ", ".join(
        f"{kind} {number(middle(one.by_process.get(kind, 0.0) for one in ours) / 1e3)}" for kind in ours[0].by_process
    )
    cheaper = f"{split}; nginx {number(middle(one.cpu_us for one in nginx) / 1e3)}"
    yield Row(f"{key}.mb_s", WHAT[case], tuple(one.rps for one in ours), "MB/s", "", beside)
    yield Row(f"{key}.nginx", "… of nginx's throughput", ratios, "×", AIM)
    yield Row(f"{key}.cpu", "… CPU", tuple(one.cpu_us / 1e3 for one in ours), "ms/MB", "", cheaper)
    yield Row(f"{key}.memory", "… memory grows by", (grown,), "MiB", "≤ 8")


def _long(gateway: Gateway, core: int, tool: str, rest_s: float) -> Row:
    """One long stream."""
    os.sched_setaffinity(0, {core})
    with growing(gateway.pid) as more:
        read, took = _read(gateway, tool, rest_s)
    what = f"{LONG[tool]} MB in one stream, the client {'rests' if rest_s else 'reads on'}: memory grows by"
    return Row(f"bodies.{tool}.memory", what, (more[0],), "MiB", "≤ 8", f"{number(read / took / 1e6)} MB/s")


def _read(gateway: Gateway, tool: str, rest_s: float) -> tuple[int, float]:
    """Read a stream to its end, resting after each read -> its bytes, seconds."""
    text = call_of(tool).replace("NUMBER", "1").encode()
    lines = {
        **HEADERS, "Mcp-Name": tool, "Authorization": f"Bearer {gateway.token()}", "Connection": "close",
        "Host": f"127.0.0.1:{gateway.port}", "Content-Length": str(len(text)),
    }  # fmt: skip
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    size, tail, began = 0, b"", time.perf_counter()
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=30) as client:
        client.sendall(f"POST /bench/mcp HTTP/1.1\r\n{head}\r\n".encode() + text)
        while piece := client.recv(1 << 18):
            size, tail = size + len(piece), (tail + piece)[-5:]
            time.sleep(rest_s)
    took = time.perf_counter() - began
    if size < LONG[tool] * 1e6 or tail != b"0\r\n\r\n":
        raise RuntimeError(f"{tool}: the stream broke after {size} bytes")
    return size, took


if __name__ == "__main__":
    raise SystemExit(part(measure, __doc__, "wrk", "nginx"))
