"""docs/operations.md, "At a glance", at gateways that run: each dependency is broken and mended in the first way that
the table names; test_ways.py has the others.
"""

from __future__ import annotations

import re
from functools import partial

from tests.rows.asking import tool
from tests.signals.files import alerts, metrics_of, queries, variables
from tests.signals.watching import SOAKED, TABLE, Lock, Watched, restarted, serves, until
from tests.support.disk import fill
from tests.support.upstream import http


def test_each_broken_dependency_looks_as_the_table_says(watched: Watched) -> None:
    """OPS-06, UPS-08, AUD-07: callers, metric, log, readiness and alert of each row, while it is so and after it.

    Before that, while nothing but an issuer's keys is away: every panel of the dashboard has data.
    """
    run, disk = watched.stage.run, watched.houses["disk"]
    look_at_the_dashboard(watched)

    with watched.broken({"keys": "disk"}, lambda: run(watched.jwks.listen())) as (row,):
        until("it serves without them", lambda: serves(disk, "keys"))
        theirs = disk.second.mint(disk.stack.endpoint("plain"), sub="alice", scope="mcp:use files:read")
        assert watched.ask("disk", tool("read"), token=theirs) == (row.status, row.code)
    assert watched.ask("disk", tool("read"), token=theirs)[0] == 200

    def mend_all() -> None:
        watched.opa.start()
        run(restarted(watched.gone))
        watched.hook_answers[0] = http(410)  # the message is given up
        watched.otlp.status = 200

    watched.hook_answers[0] = http(503, extra="Retry-After: 1\r\n")
    watched.otlp.status = 400
    several = {"OPA": "opa", **dict.fromkeys(("replica", "webhook", "OTLP receiver"), "disk")}
    with watched.broken(several, mend_all) as (policy, replica, *quiet):
        assert watched.ask("opa", tool("read"))[0] == 200
        watched.opa.kill()
        assert watched.ask("opa", tool("read")) == (policy.status, policy.code)
        assert watched.ask("disk", tool("read"), "gone")[0] == 200
        run(watched.gone.wire.stop())
        assert watched.ask("disk", tool("read"), "gone") == (replica.status, replica.code)
        ticket = disk.held("plain", tool("write", number=1))
        for _ in range(60):
            assert watched.ask("disk", tool("read"))[0] == 200
        assert [row.status for row in quiet] == [0, 0]
    watched.hook_answers[0] = http(200)
    assert watched.ask("disk", tool("read"), "gone")[0] == 200
    assert watched.ask("opa", tool("read"))[0] == 200
    assert len(watched.otlp.records) > 120
    assert len(watched.otlp.spans) > 120

    assert disk.act("approve", ticket["id"]).status_code == 200
    both = {"PostgreSQL: approvals": "disk", "PostgreSQL: audit": "opa"}
    with watched.broken(both, watched.postgres.start) as (approvals, audit):
        assert watched.ask("opa", tool("read"))[0] == 200
        watched.postgres.stop()
        assert watched.ask("disk", tool("write", number=1)) == (approvals.status, approvals.code)
        assert watched.ask("disk", tool("read"))[0] == 200
        assert watched.ask("opa", tool("read")) == (audit.status, audit.code)
    assert watched.ask("disk", tool("write", number=1))[0] == 200
    assert watched.ask("opa", tool("read"))[0] == 200

    lock = Lock(watched.houses["opa"].stack.folder / "ostiary.db")

    def make_room() -> None:
        (watched.disk / "filler").unlink()
        lock.release()

    def look_on() -> None:
        assert watched.houses["opa"].api("GET", "").status_code == 200, "what is locked can be read"

    last = {"audit disk": "disk", "SQLite: approvals": "opa"}
    with watched.broken(last, make_room, ask=look_on) as (audit, file):
        lock.take()
        fill(watched.disk)
        until("no room is left", lambda: watched.ask("disk", tool("read")) == (audit.status, audit.code))
        assert watched.ask("opa", tool("write", number=3)) == (file.status, file.code)
    assert watched.ask("disk", tool("read"))[0] == 200
    assert watched.tried == {(name, row.ways[0]) for name, row in TABLE.items() if name not in SOAKED}


FIRST_WHEN_IT_HAPPENS = {"ostiary_defects_total", "ostiary_replica_ejections_total"}
"""What has no series before there is one to count."""


def look_at_the_dashboard(watched: Watched) -> None:
    """Each query parses, and has numbers of gateways at work; what rules and panels name is in /metrics.

    Its variables offer what there is, and one gateway's panels are about that one alone.
    """
    for house in watched.houses.values():
        until("it is up", lambda house=house: serves(house) or serves(house, "keys"))  # type: ignore[misc]
        house.held("plain", tool("write", number=2))
    asked = [*(one.expr for one in alerts()), *(expr for _, expr in queries())]
    named = {name for expr in asked for name in metrics_of(expr)}

    def unseen() -> set[str]:
        told = "".join(house.metrics() for house in watched.houses.values())
        return named - set(re.findall(r"^# TYPE (\w+)", told, re.MULTILINE))

    until("every metric is exposed", lambda: unseen() <= FIRST_WHEN_IT_HAPPENS)

    def has_numbers(expr: str) -> bool:
        for house in watched.houses:
            assert watched.ask(house, tool("read"))[0] == 200
        return any(sample["value"][1] != "NaN" for sample in watched.prometheus.ask(expr))

    for title, expr in queries():
        until(f"{title}: {expr}", partial(has_numbers, expr))
    offered = {
        name: {sample["metric"][label] for sample in watched.prometheus.ask(f"group by ({label}) ({metric})")}
        for name, (metric, label) in variables().items()
    }
    assert offered == {"instance": set(watched.houses), "server": {"plain", "gone"}}
    for name in watched.houses:
        for title, expr in queries(instance=name, server="plain"):
            found = watched.prometheus.instances(expr)
            assert found <= {name, ""}, (title, expr, found)
