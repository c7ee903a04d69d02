"""Refusals: what a stranger's bad requests cost, 32 connections, one worker.

    python -m tests.bench.bench_refusals [--rounds N] [--seconds S] [--spy FILE]

A header that contradicts the body, an expired token, a bad signature, no token, a server that does not exist. Each
kind is first shown to be refused for that very reason. At this rate records are folded beyond the stated rate.
The tokens with a bad signature take turns, more of them than are remembered: a remembered one is not checked.
At last, what a flood of these leaves to callers whose token is known.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.bench.load import BODY, HEADERS, Sample, ask, sample, script, wrk
from tests.bench.stand import Gateway, Stand
from tests.bench.table import Options, Row, number, part


@dataclasses.dataclass(frozen=True)
class Bad:
    """One kind of bad request, and the code of its refusal."""

    key: str
    what: str
    code: str
    status: int
    tokens: Sequence[str] = ()
    headers: Mapping[str, str] = dataclasses.field(default_factory=lambda: HEADERS)
    path: str = "/bench/mcp"


def kinds(gateway: Gateway) -> list[Bad]:
    """All that are measured."""
    past = int(time.time()) - 7200
    head, payload, signature = gateway.token().split(".")
    forged = [f"{head}.{payload}.{n:06d}{signature[6:]}" for n in range(2000)]
    wrong = {**HEADERS, "Mcp-Name": "write_file"}
    return [
        Bad("header", "a header that contradicts the body", "header_mismatch", 400, [gateway.token()], wrong),
        Bad("expired", "an expired token", "token_invalid", 401, [gateway.token(iat=past, exp=past + 600)]),
        Bad("signature", "a bad signature", "token_invalid", 401, forged),
        Bad("none", "no token", "token_missing", 401),
        Bad("server", "a server that does not exist", "server_unknown", 404, [gateway.token()], path="/other/mcp"),
    ]


def measure(options: Options) -> list[Row]:
    """All kinds, round by round."""
    with Stand() as stand:
        upstream = stand.upstream()
        gateway = stand.gateway([upstream])
        bad = kinds(gateway)
        seen: dict[str, list[Sample]] = {kind.key: [] for kind in bad}
        status, answer = ask(gateway.url, BODY, {**HEADERS, "Authorization": f"Bearer {gateway.token()}"})
        assert status == 200, answer  # whatever is refused below would be answered otherwise
        for nth in range(options.rounds):
            for kind in bad:
                whom = dataclasses.replace(gateway, url=gateway.url.replace("/bench/mcp", kind.path))
                if nth == 0:
                    _prove(whom, kind)
                call = script(stand.folder, kind.key, BODY, kind.headers, token=kind.tokens)
                looking = options.spy if (kind.key, nth) == ("header", options.rounds - 1) else None
                found = sample(whom, call, 32, options.seconds, refused=True, spy=looking)
                seen[kind.key].append(found)
        rows = [row for kind in bad for row in _rows(kind, seen[kind.key])]
        forged = next(kind for kind in bad if kind.key == "signature")
        return rows + _beside(stand, gateway, forged, options)


def _prove(whom: Gateway, kind: Bad) -> None:
    """It is refused, and for this reason: the gateway's own log says so."""
    headers = {**kind.headers, **({"Authorization": f"Bearer {kind.tokens[0]}"} if kind.tokens else {})}
    told = len(whom.log.read_text())
    status, answer = ask(whom.url, BODY, headers)
    assert status == kind.status, (kind.what, status, answer)
    end = time.monotonic() + 5
    while f'"reasons":["{kind.code}"]' not in whom.log.read_text()[told:]:
        assert time.monotonic() < end, (kind.what, kind.code, whom.log.read_text()[told:])
        time.sleep(0.05)


def _rows(kind: Bad, seen: Sequence[Sample]) -> list[Row]:
    rates, costs = tuple(each.rps for each in seen), tuple(each.cpu_us for each in seen)
    beside = f"{number(statistics.median(costs))} µs of CPU each"
    return [
        Row(f"refused.{kind.key}.rps", f"refused: {kind.what}", rates, "requests/s", "≥ 10,000", beside),
        Row(f"refused.{kind.key}.cpu", "… CPU", costs, "µs/request"),
    ]


def _beside(stand: Stand, gateway: Gateway, forged: Bad, options: Options) -> list[Row]:
    """Allowed calls of a known token on 8 connections, alone and beside a flood of forged tokens on 256."""
    calls = script(stand.folder, "known", token=gateway.token())
    flood = script(stand.folder, "flood", BODY, forged.headers, token=forged.tokens)
    alone, beside, floods = list[Sample](), list[Sample](), list[Sample]()
    for _ in range(options.rounds):
        alone.append(wrk(gateway.url, calls, 8, options.seconds))
        with ThreadPoolExecutor(1) as others:
            flooding = others.submit(wrk, gateway.url, flood, 256, options.seconds + 1)
            time.sleep(0.5)
            beside.append(wrk(gateway.url, calls, 8, options.seconds))
            floods.append(flooding.result())
    assert not any(each.refused for each in alone + beside), "somebody who is known was refused"
    told = (
        number(statistics.median(each.rps for each in alone)),
        number(statistics.median(each.rps for each in floods)),
    )
    what = "allowed `tools/call`, 8 connections, beside a flood of bad signatures on 256"
    return [
        Row(
            "flooded.rps",
            what,
            tuple(each.rps for each in beside),
            "requests/s",
            "",
            f"alone {told[0]}; flood {told[1]}",
        ),
        Row("flooded.p99", "… p99", tuple(each.p99_ms for each in beside), "ms"),
    ]


if __name__ == "__main__":
    raise SystemExit(part(measure, __doc__, "wrk"))
