"""What a judgement costs: round trip and the gateway's own CPU, one after another and 32 at a time, on one core.

`python -m tests.bench.bench_policy` prints one line per case: microseconds per judgement on the clock, of the
gateway's CPU and of the evaluators' CPU. All share one core. On a busy machine only the CPU columns mean anything.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from policies.embedded import EmbeddedPolicy

ROOT = Path(__file__).parents[2]
DATA = {
    "servers": {
        "files": {
            "environments": ["production"],
            "tools": {f"tool_{n}": {"effect": "read", "scopes": ["files:read"]} for n in range(50)},
        }
    }
}


def _question(arguments: object) -> bytes:
    return json.dumps(
        {
            "phase": "call",
            "server": {"name": "files", "resource": "https://gw.example/files/mcp", "environment": "production"},
            "subject": {
                "issuer": "https://idp.example.com",
                "id": "7f3a0c52",
                "client_id": "agent",
                "tenant": "",
                "scopes": ["files:read"],
                "claims": {"iss": "https://idp.example.com", "sub": "7f3a0c52", "groups": ["a", "b"]},
            },
            "request": {"method": "tools/call", "kind": "tool", "name": "tool_7", "arguments": arguments, "leg": 0},
            "tool": {"annotations": {"readOnlyHint": True}, "digest": "0" * 64, "pinned": False},
            "candidates": [],
        }
    ).encode()


CASES = {
    "small": (_question({"path": "/srv/public/readme.txt"}), 2000),
    "40 KB of structure": (_question({f"k{n}": {"list": [1, 2, n], "text": "y" * 30} for n in range(620)}), 100),
    "1 MB of text": (_question({"text": "x" * 1_000_000}), 30),
}


def _on_cpu(pids: list[int]) -> float:
    """Seconds that these processes have run (Linux)."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9


async def _measure(policy: EmbeddedPolicy, question: bytes, count: int, at_once: int) -> tuple[float, float, float]:
    async def one() -> None:
        for _ in range(count // at_once or 1):
            await policy.judge(question)

    wall, cpu, evaluating, pids = time.perf_counter(), time.process_time(), _on_cpu(policy.pids), policy.pids
    await asyncio.gather(*(one() for _ in range(at_once)))
    judged = (count // at_once or 1) * at_once
    spent = (time.perf_counter() - wall, time.process_time() - cpu, _on_cpu(pids) - evaluating)
    return spent[0] / judged * 1e6, spent[1] / judged * 1e6, spent[2] / judged * 1e6


async def _run(bundle: Path) -> None:
    policy = EmbeddedPolicy(bundle, deadline_s=30)
    await policy.start()
    try:
        for name, (question, count) in CASES.items():
            for at_once in (1, 32):
                rounds = [await _measure(policy, question, count, at_once) for _ in range(5)]
                wall, cpu, evaluating = (min(column) for column in zip(*rounds, strict=True))
                sys.stdout.write(
                    f"{name:20}{at_once:3} at once {wall:9.1f} us, gateway {cpu:7.1f}, evaluator {evaluating:8.1f}\n"
                )
    finally:
        await policy.close()


def main() -> None:
    """Measure and print."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        shutil.copytree(ROOT / "policies" / "bundle", bundle)
        (bundle / "mcp/authz/data.json").write_text(json.dumps(DATA))
        uvloop.run(_run(bundle))


if __name__ == "__main__":
    main()
