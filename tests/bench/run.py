"""`make bench`: the cost of being governed, side by side in one run.

The gateway (or what is compared with it) has one core; the load (wrk) and a free upstream share the other. Measured
at 1, 8 and 32 connections: the upstream itself, nginx `proxy_pass`, a bare FastAPI + httpx proxy, and the gateway,
everything on (ES256 token, header contract, Rego, durable audit). Rounds alternate; medians are printed.
Needs Linux, two cores, nginx and wrk.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.issuer import Issuer
from tests.support.stack import DATA, secrets_for, write_config

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
BENCH_DATA = {**DATA, "tools": {"read_file": {"effect": "read", "scopes": ["files:read"]}}}
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
HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
    "Mcp-Name": "read_file",
}


@dataclass
class Figure:
    """One contender at one number of connections; a value per round."""

    rps: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, deadline_s: float = 20) -> None:
    """Until something listens on the port."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port}")


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        children += [int(child) for child in (task / "children").read_text().split()]
    return [pid, *(member for child in children for member in family(child))]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its descendants, in seconds."""
    total = 0
    for member in family(pid):
        fields = Path(f"/proc/{member}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / CLOCK_TICKS


def wrk(url: str, connections: int, seconds: float, script: Path) -> tuple[float, float, float]:
    """Run wrk on the second core -> requests/s, p50 and p99 in ms. Raises when an answer was not a 2xx."""
    command = [
        "taskset",
        "-c",
        "1",
        "wrk",
        "-t1",
        f"-c{connections}",
        f"-d{seconds:g}s",
        "--latency",
        "-s",
        str(script),
        url,
    ]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in out or "Socket errors" in out:
        raise RuntimeError(f"{url}: answers were not all good:\n{out}")

    def milliseconds(label: str) -> float:
        match = re.search(rf"^\s+{label}\s+([\d.]+)(us|ms|s)\s*$", out, re.MULTILINE)
        assert match, out
        return float(match[1]) * {"us": 0.001, "ms": 1, "s": 1000}[match[2]]

    rate = re.search(r"Requests/sec:\s+([\d.]+)", out)
    assert rate, out
    return float(rate[1]), milliseconds("50%"), milliseconds("99%")


def start(command: list[str], core: int, **env: str) -> subprocess.Popen[bytes]:
    """A pinned child in its own process group."""
    return subprocess.Popen(
        ["taskset", "-c", str(core), *command],
        env={**os.environ, **env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def write_script(folder: Path, name: str, token: str) -> Path:
    """The request as a wrk script. Every call has arguments of its own: no answer is remembered."""
    headers = {**HEADERS, "Authorization": f"Bearer {token}"} if token else HEADERS
    before, after = BODY.split("NUMBER")
    lines = ['wrk.method = "POST"']
    lines += [f'wrk.headers["{key}"] = "{value}"' for key, value in headers.items()]
    lines += [
        "local number = 100000",
        "request = function()",
        "  number = number + 1",
        f"  return wrk.format(nil, nil, nil, [==[{before}]==] .. number .. [==[{after}]==])",
        "end",
    ]
    script = folder / f"{name}.lua"
    script.write_text("\n".join(lines))
    return script


def nginx_config(folder: Path, port: int, upstream: int) -> str:
    """One worker, keep-alive to the upstream, no log."""
    return f"""
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.err;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 100000000;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream mcp {{ server 127.0.0.1:{upstream}; keepalive 64; keepalive_requests 100000000; }}
  server {{ listen 127.0.0.1:{port}; location / {{
    proxy_pass http://mcp; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Authorization "";
  }} }}
}}"""


def measure(folder: Path, rounds: int, seconds: float, connections: list[int]) -> dict[str, dict[int, Figure]]:
    """All contenders, round by round."""
    children: list[subprocess.Popen[bytes]] = []
    up, ng, bare, gate, admin = (free_port() for _ in range(5))
    try:
        children.append(start([sys.executable, "-m", "tests.support.upstream", "--port", str(up)], 1))
        (folder / "nginx.conf").write_text(nginx_config(folder, ng, up))
        nginx = start(["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "nginx.err")], 0)
        proxy = start(
            [sys.executable, "-m", "uvicorn", "tests.bench.bare_proxy:app", "--port", str(bare), "--no-access-log",
             "--log-level", "warning"],
            0, BARE_PROXY_UPSTREAM=f"http://127.0.0.1:{up}/mcp",
        )  # fmt: skip
        issuer = Issuer("https://bench.issuer.test")
        config = write_config(
            folder, issuer, {"bench": [f"http://127.0.0.1:{up}/mcp"]}, port=gate, admin_port=admin, data=BENCH_DATA
        )
        gateway = start([sys.executable, "-m", "gateway.cli", "serve", "--config", str(config)], 0, **secrets_for())
        children += [nginx, proxy, gateway]
        for port in (up, ng, bare, gate):
            wait_for(port)
        wait_ready(admin)
        token = issuer.mint(f"http://127.0.0.1:{gate}/bench/mcp", scope="mcp:use files:read")
        plain, bearer = write_script(folder, "plain", ""), write_script(folder, "bearer", token)
        contenders = {
            "upstream": (f"http://127.0.0.1:{up}/mcp", plain, None),
            "nginx": (f"http://127.0.0.1:{ng}/mcp", plain, nginx),
            "bare proxy": (f"http://127.0.0.1:{bare}/mcp", plain, proxy),
            "ostiary": (f"http://127.0.0.1:{gate}/bench/mcp", bearer, gateway),
        }
        figures = {name: {count: Figure() for count in connections} for name in contenders}
        for url, script, _ in contenders.values():
            wrk(url, 8, 1, script)
        for _ in range(rounds):
            for count in connections:
                for name, (url, script, child) in contenders.items():
                    before = cpu_seconds(child.pid) if child else 0.0
                    rps, p50, p99 = wrk(url, count, seconds, script)
                    spent = cpu_seconds(child.pid) - before if child else 0.0
                    figure = figures[name][count]
                    figure.rps.append(rps)
                    figure.p50_ms.append(p50)
                    figure.p99_ms.append(p99)
                    figure.cpu_us.append(spent / (rps * seconds) * 1e6)
        return figures
    finally:
        for running in reversed(children):
            with_group(running, signal.SIGTERM)
        for running in children:
            try:
                running.wait(10)
            except subprocess.TimeoutExpired:
                with_group(running, signal.SIGKILL)
                running.wait()


def with_group(child: subprocess.Popen[bytes], number: int) -> None:
    """Signal a child; its own children follow it."""
    if child.poll() is None:
        os.kill(child.pid, number)


def wait_ready(admin: int, deadline_s: float = 20) -> None:
    """Until the gateway says that it is ready."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise TimeoutError("the gateway did not become ready")


def fsync_ms(folder: Path, times: int = 200) -> float:
    """The disk's own median fdatasync of 1 KiB, in milliseconds: reported beside what includes it."""
    spans = []
    with (folder / "probe").open("wb", buffering=0) as probe:
        for _ in range(times):
            probe.write(b"x" * 1024)
            began = time.perf_counter()
            os.fdatasync(probe.fileno())
            spans.append(time.perf_counter() - began)
    return statistics.median(spans) * 1000


def report(figures: dict[str, dict[int, Figure]]) -> str:
    """A Markdown table of medians, each beside its ratio to the bare proxy and to nginx."""
    lines = [
        "| contender | connections | requests/s | × bare proxy | ÷ nginx | p50 ms | p99 ms | CPU µs/request |",
        "|---|---|---|---|---|---|---|---|",
    ]
    middle = statistics.median
    for name, by_count in figures.items():
        for count, figure in by_count.items():
            rps = middle(figure.rps)
            bare, nginx = middle(figures["bare proxy"][count].rps), middle(figures["nginx"][count].rps)
            cpu = f"{middle(figure.cpu_us):.0f}" if any(figure.cpu_us) else "–"
            lines.append(
                f"| {name} | {count} | {rps:,.0f} | {rps / bare:.2f} | {nginx / rps:.2f} "
                f"| {middle(figure.p50_ms):.2f} | {middle(figure.p99_ms):.2f} | {cpu} |"
            )
    return "\n".join(lines)


def main() -> int:
    """Exit 0 with the table, 2 where it can't be measured here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--connections", type=int, nargs="*", default=[1, 8, 32])
    arguments = parser.parse_args()
    lacking = [tool for tool in ("wrk", "nginx", "taskset") if shutil.which(tool) is None]
    if lacking or (os.cpu_count() or 1) < 2:
        print(
            f"The benchmark needs Linux, two cores, nginx, wrk and taskset; missing: {', '.join(lacking) or 'a core'}"
        )
        return 2
    with tempfile.TemporaryDirectory(prefix="ostiary-bench-") as name:
        folder = Path(name)
        figures = measure(folder, arguments.rounds, arguments.seconds, arguments.connections)
        print(report(figures))
        print(f"\nfdatasync of 1 KiB on this disk: {fsync_ms(folder):.2f} ms (median of 200)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
