"""Microseconds per room: what py-spy saw of a worker, grouped by the room that was running.

    python -m tests.bench.bench_calls --rounds 1 --spy /tmp/spy.txt
    python -m tests.bench.rooms /tmp/spy.txt 312        # 312: the worker's CPU per request, in µs, as that run told

A sample belongs to the innermost frame of the house that it has; what libraries do for a room is that room's. Samples
without any are the event loop's, the server's or the interpreter's own.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

ROOMS = (
    ("the policy: asking, hearing, snapshots of decisions", r"policies/|gateway/(engines|budgets)"),
    ("audit: records, redaction, chain, commits, file", r"gateway/audit/|gateway/contract/(record|redaction|chain)"),
    ("upstream: adapter, replicas, wire", r"gateway/upstream/"),
    ("the contract: envelope, headers, question, admission, guard, reply", r"gateway/contract/"),
    (
        "the door: connection, framing, edge, application",
        r"gateway/(door/|edge|app|media|origins|reception|lobbies|receiving)",
    ),
    (
        "pipeline, delivery, answers, catalogue",
        r"gateway/(pipeline|delivery|answers|catalog|snapshots|legs|grants|relay|streams)",
    ),
    ("metrics, log line, spans", r"gateway/(telemetry|logs|signals/)"),
    ("tokens", r"gateway/(tokens|keys|signatures|turns|lookups)"),
    ("the rest of the house", r"gateway/|approvals/"),
    ("uvicorn", r"uvicorn/"),
)
"""The first that fits a frame's file has it."""


def room(stack: str) -> str:
    """Whose a sample is. Frames run from the outermost to the innermost, as py-spy's raw format has them."""
    frames = re.findall(r"\(([^():]+):\d+\)", stack)
    house = [frame for frame in frames if frame.startswith(("gateway/", "policies/", "approvals/"))]
    inner = [frame for frame in house if frame != "gateway/cli.py"] or [
        frame for frame in frames if frame.startswith("uvicorn/")
    ]
    if not inner:
        return "event loop and interpreter"
    return next(name for name, pattern in ROOMS if re.match(pattern, inner[-1]))


def grouped(raw: str) -> Counter[str]:
    """Samples per room."""
    found: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        found[room(stack)] += int(count)
    return found


def main(arguments: list[str]) -> int:
    """Print the table -> exit code."""
    if len(arguments) != 2:
        print(__doc__)
        return 2
    found, whole = grouped(Path(arguments[0]).read_text()), float(arguments[1])
    total = sum(found.values())
    print("| room | µs per call | share |\n|---|---|---|")
    for name, count in found.most_common():
        print(f"| {name} | {count / total * whole:.0f} | {count / total:.0%} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
