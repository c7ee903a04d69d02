"""AZ-08 through the whole gateway: another bundle under load fails no request, and a broken one changes nothing."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.test_workers import metrics, readiness
from tests.rows.stage import Server, listed
from tests.support.processes import eventually
from tests.support.stack import Stack, call, headers_of

RULES = """package mcp.authz

import rego.v1

decision := {"effect": "allow", "reasons": ["REVISION", data.mcp.authz.word], "visible": ["read"]}
"""
TESTS = """package mcp.authz_test

import rego.v1

test_it_allows if data.mcp.authz.decision.effect == "allow" with input as {"phase": "call"}
"""


def put(link: Path, revision: str, **files: str) -> None:
    """At `link`, at once, a bundle of which everything says its revision."""
    folder = link.with_name(f"{link.name}.{revision}")
    home = folder / "mcp/authz"
    home.mkdir(parents=True)
    (home / "authz.rego").write_text(files.get("rules", RULES.replace("REVISION", revision)))
    (home / "authz_test.rego").write_text(files.get("tests", TESTS))
    (home / "data.json").write_text(json.dumps({"word": revision}))
    (folder / ".manifest").write_text(json.dumps({"revision": revision}))
    draft = link.with_name("draft")
    draft.symlink_to(folder.name)
    draft.rename(link)


async def callers(stack: Stack, rate: float, stop: asyncio.Event) -> Counter[int]:
    """`rate` calls a second until `stop`, each whether or not those before it are answered -> statuses."""
    token, loop = stack.token("files"), asyncio.get_running_loop()
    statuses: Counter[int] = Counter()
    numbers = itertools.count()

    async def one(session: aiohttp.ClientSession) -> None:
        message = call("read", {"n": next(numbers)}, next(numbers))
        async with session.post(stack.endpoint("files"), json=message, headers=headers_of(message, token)) as answer:
            await answer.read()
            statuses[answer.status] += 1

    # Connections are ended by us, never by the gateway while a call is on its way to it.
    connector = aiohttp.TCPConnector(limit=64, keepalive_timeout=2)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as calls:
        begun = loop.time()
        for number in itertools.count():
            if stop.is_set():
                break
            await asyncio.sleep(max(0.0, begun + number / rate - loop.time()))
            calls.create_task(one(session))
    return statuses


@pytest.mark.parametrize(
    ("rate", "bundles", "calm_s"),
    [(60, 3, 0.2), pytest.param(500, 12, 4.0, marks=pytest.mark.soak)],
    ids=["small", "whole"],
)
async def test_a_bundle_is_replaced_under_load(tmp_path: Path, rate: float, bundles: int, calm_s: float) -> None:
    """AZ-08: 0 failed requests; each record names one revision, and rules and data are of that very one.
    `/readyz` tells the digest of the bundle that judges, and only that part becomes another."""
    server = Server(listed(read={}))
    await server.wire.start()
    stack = Stack(tmp_path, {"files": [server.url]}, workers=2)
    stack.configure()
    shutil.rmtree(tmp_path / "bundle")
    put(tmp_path / "bundle", "r0")
    try:
        await stack.launch()
        loaded = [(await readiness(stack))[1]["loaded"]["parts"]]
        stop = asyncio.Event()
        load = asyncio.ensure_future(callers(stack, rate, stop))
        for number in range(1, bundles + 1):
            put(tmp_path / "bundle", f"r{number}")
            await eventually(f"r{number} judges everywhere", lambda: judges(stack, f"r{number}"), 60)  # noqa: B023
            loaded.append((await readiness(stack))[1]["loaded"]["parts"])
            await asyncio.sleep(calm_s)

        put(tmp_path / "bundle", "broken", tests=TESTS.replace('"allow"', '"deny"'))
        await eventually("it is told", lambda: is_degraded(stack), 60)
        assert await judges(stack, f"r{bundles}")
        assert (await readiness(stack))[1]["loaded"]["parts"] == loaded[-1], (
            "the broken one is not the one that judges"
        )
        assert len({parts.pop("policy") for parts in loaded}) == bundles + 1
        assert loaded == [loaded[0]] * (bundles + 1)
        assert (await readiness(stack))[0] == 200
        await asyncio.sleep(calm_s)
        stop.set()
        statuses = await load
        assert set(statuses) == {200}
        assert statuses[200] > rate * bundles * calm_s / 2
    finally:
        await stack.stop()
        await server.wire.stop()

    records = [record for writer in range(2) for record in stack.records(writer)]
    decisions = [record for record in records if record["kind"] == "decision" and record["method"] == "tools/call"]
    assert len(decisions) == statuses[200]
    assert {tuple(record["reasons"]) == (record["policy_revision"],) * 2 for record in decisions} == {True}
    assert {record["policy_revision"] for record in decisions} == {f"r{number}" for number in range(bundles + 1)}
    told = [(record["act"], record["facts"]) for record in records if record.get("act", "").startswith("policy_")]
    assert acts(told, "policy_replaced") == Counter(
        {(f"r{number}", f"r{number + 1}"): 2 for number in range(bundles)}
    ), "once per worker"
    assert acts(told, "policy_not_replaced") == Counter({(f"r{bundles}", "broken"): 2})
    assert all("test_it_allows does not hold" in facts["why"] for act, facts in told if act == "policy_not_replaced")


def acts(told: list[tuple[str, dict[str, Any]]], act: str) -> Counter[tuple[str, str]]:
    return Counter((facts["before"], facts["after"]) for one, facts in told if one == act)


async def judges(stack: Stack, revision: str) -> bool:
    series = [name for name in await metrics(stack) if name.startswith("ostiary_policy_info")]
    return series == [f'ostiary_policy_info{{revision="{revision}"}}']


async def is_degraded(stack: Stack) -> bool:
    found = await metrics(stack)
    refused = found.get('ostiary_policy_bundles_total{result="refused"}', 0)
    told = (await readiness(stack))[1]["degraded"] == ["policy"] and found["ostiary_policy_current"] == 0
    return told and refused == 2
