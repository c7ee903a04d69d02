"""What decides the absolute figures: the interpreter, the processor, the disk. Printed above every table."""

from __future__ import annotations

import functools
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from importlib.metadata import version
from pathlib import Path


@functools.cache
def cores() -> tuple[int, int]:
    """The contender's core, and the one for load and upstream."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


def disk(folder: Path, times: int = 300) -> tuple[float, float]:
    """Median and p99 of appending 1 KiB and fdatasync, in milliseconds: told beside what includes one."""
    spans = []
    with tempfile.NamedTemporaryFile(dir=folder, buffering=0) as probe:
        for _ in range(times):
            began = time.perf_counter()
            probe.write(b"x" * 1024)
            os.fdatasync(probe.fileno())
            spans.append((time.perf_counter() - began) * 1000)
    return statistics.median(spans), statistics.quantiles(spans, n=100)[98]


def mark(rounds: int = 15) -> float:
    """Milliseconds of a fixed piece of plain Python, the best of many: it tells builds and machines apart.

    Optimised builds (Debian's, python.org's images) and those without (pyenv's default) differ by about 1.6 here.
    """

    def once() -> float:
        began, text = time.perf_counter(), ""
        table: dict[str, int] = {}
        for number in range(20_000):
            name = f"member-{number % 97}"
            table[name] = table.get(name, 0) + number
            text = name if len(name) > len(text) else text
        assert sum(table.values())
        return (time.perf_counter() - began) * 1000

    return min(once() for _ in range(rounds))


def facts(folder: Path) -> dict[str, str]:
    """What was measured on, by name."""
    flags = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    told = [flag for flag in ("--enable-optimizations", "--with-lto") if flag in flags]
    median, slow = disk(folder)
    return {
        "interpreter": f"{platform.python_implementation()} {sys.version.split(' [')[0]}; "
        f"configured {' '.join(told) or 'without --enable-optimizations (Debian optimises all the same)'}; "
        f"mark {mark():.2f} ms",
        "processor": f"{os.cpu_count()} × {_processor()}, Linux {platform.release()}",
        "disk": f"append of 1 KiB and fdatasync: median {median:.2f} ms, p99 {slow:.2f} ms",
        "programs": f"uvicorn {version('uvicorn')}, uvloop {version('uvloop')}, httptools {version('httptools')}, "
        f"{_version('nginx', '-v')}, {_version('wrk', '-v')}",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(program: str, option: str) -> str:
    done = subprocess.run([program, option], check=False, capture_output=True, text=True)
    words = (done.stdout + done.stderr).replace("nginx version: nginx/", "nginx ").split()
    return " ".join(words[:2])
