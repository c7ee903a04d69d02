"""Load by wrk, and what a contender's processes spent on it."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.machine import cores
from tests.bench.stand import Contender, Gateway

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
BODY = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
            },
            "name": "read_file",
            "arguments": {"path": "reports/2026/NUMBER.txt", "limit": 20},
        },
    },
    separators=(",", ":"),
)
"""A small call. Every one has a number of its own in its arguments: no answer is remembered."""
HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
    "Mcp-Name": "read_file",
}

BUSY = frozenset({"policy_unavailable"})
"""What a gateway without time refuses with, though nothing is wrong with it."""


@dataclass(frozen=True)
class Sample:
    """One measurement of one contender."""

    rps: float
    p50_ms: float
    p99_ms: float
    requests: int
    refused: int
    """Answers that were neither 2xx nor 3xx."""
    cpu_us: float = 0.0
    """User and system time of all its processes, per request."""
    by_process: Mapping[str, float] = field(default_factory=dict)
    """The same per kind of process: worker, evaluators, supervisor."""


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        children += [int(child) for child in (task / "children").read_text().split()]
    return [pid, *(member for child in children for member in family(child))]


def cpu_by_process(pid: int) -> dict[int, float]:
    """User and system time of a process and each of its descendants, in seconds (to 10 ms)."""
    spent = {}
    for member in family(pid):
        fields = Path(f"/proc/{member}/stat").read_text().rsplit(")", 1)[1].split()
        spent[member] = (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
    return spent


def kind_of(pid: int) -> str:
    """What a process of the gateway is."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    if any("evaluator" in word for word in words):
        return "evaluators"
    return "worker" if "worker" in words else "supervisor" if "serve" in words else "process"


def script(
    folder: Path,
    name: str,
    body: str = BODY,
    headers: Mapping[str, str] = HEADERS,
    token: str | Sequence[str] = (),
) -> Path:
    """A request as a wrk script. `NUMBER` in the body becomes another number each time; several tokens take turns."""
    tokens = [token] if isinstance(token, str) else list(token)
    before, found, after = body.partition("NUMBER")
    text = f"[==[{before}]==] .. number .. [==[{after}]==]" if found else f"[==[{body}]==]"
    lines = ['wrk.method = "POST"']
    lines += [f'wrk.headers["{key}"] = "{value}"' for key, value in headers.items()]
    lines += [f'wrk.headers["Authorization"] = "Bearer {only}"' for only in tokens[:1]]
    lines += ["local bearers = {" + ", ".join(f'"Bearer {each}"' for each in tokens) + "}"]
    turn = f'wrk.headers["Authorization"] = bearers[number % {len(tokens)} + 1]; ' if len(tokens) > 1 else ""
    lines += [
        "local number = 100000000",
        f"function request() number = number + 1; {turn}return wrk.format(nil, nil, nil, {text}) end",
    ]
    file = folder / f"{name}.lua"
    file.write_text("\n".join(lines))
    return file


def ask(url: str, body: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """One request, to see that what is measured is what is meant -> status and body."""
    connection = http.client.HTTPConnection(url.split("/")[2], timeout=10)
    try:
        connection.request("POST", "/" + url.split("/", 3)[3], body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def wrk(url: str, call: Path, connections: int, seconds: int) -> Sample:
    """Run wrk on the load's core. Raises where a connection broke."""
    command = ["taskset", "-c", str(cores()[1]), "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency"]
    out = subprocess.run([*command, "-s", str(call), url], check=True, capture_output=True, text=True).stdout
    if "Socket errors" in out:
        raise RuntimeError(f"{url}: connections broke:\n{out}")

    def found(pattern: str) -> re.Match[str]:
        match = re.search(pattern, out, re.MULTILINE)
        assert match, out
        return match

    def milliseconds(label: str) -> float:
        match = found(rf"^\s+{label}\s+([\d.]+)(us|ms|s)\s*$")
        return float(match[1]) * {"us": 0.001, "ms": 1, "s": 1000}[match[2]]

    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", out)
    return Sample(
        float(found(r"Requests/sec:\s+([\d.]+)")[1]),
        milliseconds("50%"),
        milliseconds("99%"),
        int(found(r"(\d+) requests in")[1]),
        int(refused[1]) if refused else 0,
    )


def sample(
    contender: Contender,
    call: Path,
    connections: int,
    seconds: int,
    *,
    refused: bool = False,
    spy: Path | None = None,
) -> Sample:
    """Load a contender and read its processes' time. Raises unless all answers were good (or all refusals)."""
    before = cpu_by_process(contender.pid) if contender.pid else {}
    log = contender.log if isinstance(contender, Gateway) else None
    begun = log.stat().st_size if log is not None else 0
    looking = _spying(contender, seconds, spy) if spy else None
    seen = wrk(contender.url, call, connections, seconds)
    after = cpu_by_process(contender.pid) if contender.pid else {}
    if looking is not None:
        looking.wait(60)
    if seen.refused != (seen.requests if refused else 0):
        why = "" if log is None else tell_refusals(log, begun)
        raise RuntimeError(f"{contender.name}: {seen.refused} of {seen.requests} answers were refusals{why}")
    spent: dict[str, float] = {}
    for pid, total in after.items():
        kind = kind_of(pid)
        spent[kind] = spent.get(kind, 0) + (total - before.get(pid, 0)) / seen.requests * 1e6
    return Sample(
        seen.rps, seen.p50_ms, seen.p99_ms, seen.requests, seen.refused, cpu_us=sum(spent.values()), by_process=spent
    )


def tell_refusals(log: Path, begun: int = 0) -> str:
    """What a gateway's log says of its refusals behind its first `begun` bytes: which, how often, what to do."""
    with log.open("rb") as lines:
        lines.seek(begun)
        said = [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}\n")]
    refused = Counter(line["reasons"][0] for line in said if line.get("kind") == "refusal" and line.get("reasons"))
    if not refused:
        return ""
    told = ": " + ", ".join(f"{reason} {number}" for reason, number in refused.most_common())
    if BUSY & refused.keys():
        told += "; a question's 0.5 s were over, as happens where the machine is busy: measure on idle cores"
    return told


def _spying(contender: Contender, seconds: int, file: Path) -> subprocess.Popen[bytes]:
    """py-spy on the busiest kind of process: the gateway's worker, or the contender itself."""
    worker = next((pid for pid in family(contender.pid) if kind_of(pid) == "worker"), contender.pid)
    program = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        raise RuntimeError("py-spy is not installed here: pip install py-spy")
    command = [program, "record", "-p", str(worker), "-d", str(max(1, seconds - 1)), "-r", "400", "--gil"]
    return subprocess.Popen(
        [*command, "-f", "raw", "-o", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
