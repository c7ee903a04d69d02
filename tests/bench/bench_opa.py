"""An allowed call whose policy is asked of an OPA server over HTTP on this machine; 32 connections, one worker.

    python -m tests.bench.bench_opa [--rounds N] [--seconds S] [--spy FILE]

OPA has the load's core, which it inherits: Go sees one processor. Beside it stands what wrk gets from that OPA alone
for the same question, so that what OPA itself can answer is told from what asking costs.
"""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from typing import Any

import orjson

from policies.opa import DECISION_PATH
from tests.bench.load import Sample, sample, script
from tests.bench.machine import cores
from tests.bench.stand import BENCH_DATA, Contender, Stand
from tests.bench.table import Options, Row, number, part
from tests.support.opa import Opa
from tests.support.stack import write_bundle

QUESTION: dict[str, Any] = {
    "phase": "call",
    "server": {"name": "bench", "resource": "https://gateway.example/bench/mcp", "environment": "test"},
    "subject": {
        "issuer": "https://bench.issuer.test", "id": "alice", "client_id": "agent", "tenant": "",
        "scopes": ["mcp:use", "files:read"],
        "claims": {"iss": "https://bench.issuer.test", "sub": "alice", "client_id": "agent"},
    },
    "request": {
        "method": "tools/call", "kind": "tool", "name": "read_file", "leg": 0,
        "arguments": {"path": "reports/2026/NUMBER.txt", "limit": 20},
    },
    "tool": {"annotations": {"readOnlyHint": True}, "digest": "0" * 64, "pinned": False},
    "candidates": [],
}  # fmt: skip


def measure(options: Options) -> list[Row]:
    """OPA alone, and the gateway that asks it, round by round."""
    with Stand() as stand:
        bundle = write_bundle(stand.folder, {"bench": BENCH_DATA})
        opa = Opa(Path(str(shutil.which("opa"))), bundle, stand.folder / "opa.log")
        with opa:
            assert opa.process is not None
            gateway = stand.gateway([stand.upstream()], policy={"engine": "opa", "url": opa.url})
            alone = Contender("OPA", opa.url + DECISION_PATH, opa.process.pid)
            question = orjson.dumps({"input": QUESTION}).decode()
            contenders = {
                "gateway": (gateway, script(stand.folder, "call", token=gateway.token())),
                "opa": (alone, script(stand.folder, "ask", question, {"Content-Type": "application/json"})),
            }
            seen: dict[str, list[Sample]] = {name: [] for name in contenders}
            for nth in range(options.rounds + 1):
                for name, (contender, call) in contenders.items():
                    looking = options.spy if (name, nth) == ("gateway", options.rounds) else None
                    found = sample(contender, call, 32, options.seconds if nth else 1, spy=looking)
                    seen[name] += [found] if nth else []
    asked = number(statistics.median(one.rps for one in seen["opa"]))
    core, load = cores()
    beside = f"OPA alone, the same question: {asked}; gateway: core {core}; load, upstream, OPA: core {load}"
    rps, cpu = (tuple(getattr(one, member) for one in seen["gateway"]) for member in ("rps", "cpu_us"))
    alone_us = tuple(one.cpu_us for one in seen["opa"])
    return [
        Row("opa.rps", "allowed `tools/call`, OPA over HTTP", rps, "requests/s", "≥ 2,000", beside),
        Row("opa.cpu", "… CPU of the gateway", cpu, "µs/request"),
        Row("opa.engine_cpu", "… CPU of OPA, asked alone", alone_us, "µs/question"),
    ]


if __name__ == "__main__":
    raise SystemExit(part(measure, __doc__, "wrk", "opa"))
