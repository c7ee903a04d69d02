"""Filtered `tools/list`: a server with 200 tools, of which the caller sees 120; 32 connections, one worker.

    python -m tests.bench.bench_lists [--rounds N] [--seconds S] [--spy FILE]

60 tools are not in the policy's data and 40 belong to two tenants, so that who asks decides what is seen. Measured
with one caller, and with 50 callers of two tenants that take turns: what is remembered for one may not serve another.
nginx and the bare proxy carry the whole list unfiltered.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence

from tests.bench.load import Sample, ask, sample, script
from tests.bench.stand import Gateway, Stand
from tests.bench.table import Options, Row, number, part
from tests.support.stack import body, headers_of

TOOLS, SEEN = 200, 120
READ = {"effect": "read", "scopes": ["files:read"]}
DATA = {
    "methods": {"tools/list": {}, "server/discover": {}},
    "tools": {
        f"search_{n}": {**READ, "tenants": ["north" if n % 2 else "south"]} if n < 40 else READ for n in range(140)
    },
}
MESSAGE = body("tools/list")
TEXT = json.dumps(MESSAGE, separators=(",", ":"))


def measure(options: Options) -> list[Row]:
    """One caller, many callers, nginx and the bare proxy, round by round."""
    with Stand() as stand:
        upstream = stand.upstream("--tools", str(TOOLS))
        gateway = stand.gateway([upstream], data=DATA, identity=_identity())
        one = [gateway.token(tid="north")]
        many = [gateway.token(tid=("north", "south")[n % 2], sub=f"caller-{n}") for n in range(50)]
        for token in (one[0], *many[:2]):
            _prove(gateway, token)
        contenders = {
            "one": (gateway, one), "many": (gateway, many),
            "nginx": (stand.nginx(upstream), []), "bare": (stand.bare_proxy(upstream), []),
        }  # fmt: skip
        seen: dict[str, list[Sample]] = {name: [] for name in contenders}
        for nth in range(options.rounds + 1):
            for name, (contender, tokens) in contenders.items():
                call = script(stand.folder, name, TEXT, headers_of(MESSAGE), token=tokens)
                looking = options.spy if (name, nth) == ("one", options.rounds) else None
                found = sample(contender, call, 32, options.seconds if nth else 1, spy=looking)
                seen[name] += [found] if nth else []
        return _rows(seen)


def _identity() -> dict[str, object]:
    issuer = {"issuer": "https://bench.issuer.test", "jwks_file": "jwks.json", "algorithms": ["ES256"]}
    return {"issuers": [{**issuer, "tenant_claim": "tid"}]}


def _prove(gateway: Gateway, token: str) -> None:
    """What is measured is a list that was filtered."""
    status, answer = ask(gateway.url, TEXT, headers_of(MESSAGE, token))
    assert status == 200, answer
    assert len(json.loads(answer)["result"]["tools"]) == SEEN, answer[:300]


def _rows(seen: dict[str, list[Sample]]) -> list[Row]:
    def column(name: str, member: str) -> tuple[float, ...]:
        return tuple(float(getattr(each, member)) for each in seen[name])

    def others(member: str, names: Sequence[str] = ("nginx", "bare")) -> str:
        told = {"nginx": "nginx", "bare": "bare proxy"}
        return "; ".join(
            f"{told[name]}, unfiltered: {number(statistics.median(column(name, member)))}" for name in names
        )

    rows = []
    for name, who, aim in (("one", "one caller", "≥ 1,500"), ("many", "50 callers of two tenants", "≥ 1,500")):
        what = f"filtered `tools/list`, {SEEN} of {TOOLS} tools, {who}"
        rows += [
            Row(f"list.{name}.rps", what, column(name, "rps"), "requests/s", aim, others("rps")),
            Row(f"list.{name}.cpu", "… CPU", column(name, "cpu_us"), "µs/request", beside=others("cpu_us")),
        ]
    return rows


if __name__ == "__main__":
    raise SystemExit(part(measure, __doc__, "wrk", "nginx"))
