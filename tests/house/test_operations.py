"""docs/operations.md under test: what operators can see is explained there, and what is explained can be seen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry

from gateway import telemetry
from gateway.serving import crew, employment
from gateway.serving.admin import GAUGES, WorkforceCollector
from gateway.serving.roster import STALE_S, Roster, Worker
from gateway.serving.status import Status

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operations.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the table rows below the heading (or the sentence) that `heading` begins."""
    table = PAGE[PAGE.index(heading) :].partition("\n| ")[2].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()[2:]]


def families() -> Iterator[tuple[str, str, set[str]]]:
    """(name, kind, labels) of every metric that a gateway can expose."""
    registry = CollectorRegistry()
    telemetry.Telemetry(registry)
    for collector in list(registry._collector_to_names):
        for family in collector.collect():
            yield family.name, family.type, set(getattr(collector, "_labelnames", ()))
    worker = Worker(1)
    figures = {name: {"x y": 1.0} if shown.label else 1.0 for name, shown in GAUGES.items()}
    worker.hear(Status(True, ("x",), ("x",), "r", figures, {"x": "y"}))
    for family in WorkforceCollector(Roster(1, {0: worker})).collect():
        labels = {label for sample in family.samples for label in sample.labels}
        by_slot = {"slot"} if family.name.startswith("ostiary_worker_") else set()
        yield family.name, family.type, labels or by_slot


def test_every_metric_is_explained_once_with_its_kind_and_labels() -> None:
    """The page's list and what /metrics can show are equal, in names, kinds and labels."""
    explained = {}
    for name, kind, means, worry in rows("## Metrics"):
        assert name not in explained
        assert means
        assert worry
        explained[name.strip("`")] = (kind.split(",")[0], set(re.findall(r"`(\w+)`", kind)))
    seen = {name: (kind, labels) for name, kind, labels in families()}
    seen["ostiary_worker_restarts"] = ("counter", set())
    assert explained == seen


def test_everything_that_can_be_missing_is_explained() -> None:
    """What the sources put into `missing` has a row, and the reverse."""
    source = "".join((ROOT / f"gateway/serving/{name}.py").read_text() for name in ("roster", "worker"))
    said = set(re.findall(r'missing(?: = |"?: |\.append\()[^\n]*?"(\w+)"', source)) | {"starting"}
    own = re.search(r"own = \{(.*)\}", (ROOT / "gateway/app.py").read_text())
    assert own is not None
    said |= set(re.findall(r'"(\w+)":', own[1]))
    assert {name.strip("`") for name, *_ in rows("`missing` is what keeps")} == said


def test_every_event_of_the_log_is_explained() -> None:
    """Each event that the sources log has a place in the list, and the reverse."""
    pattern = re.compile(r'(?:log|get_logger\([^)]*\))\.(?:info|warning|error)\(\s*"(\w+)"')
    sources = [path for room in ("gateway", "approvals", "policies") for path in (ROOT / room).rglob("*.py")]
    said = {event for path in sources if "demo" not in path.parts for event in pattern.findall(path.read_text())}
    said |= {"worker_left", "worker_died", "log_lines_lost", "request"}
    explained = {event for names, *_ in rows("## Logs") for event in re.findall(r"`(\w+)`", names)}
    assert explained == said


def test_the_numbers_are_the_codes() -> None:
    """Times that the page promises are those of the sources."""
    assert STALE_S == 4
    assert "not ready after 4 s, killed and replaced after 30 s" in PAGE
    assert employment.SILENCE_S == 30
    assert (crew.BACKOFF_S[0], crew.BACKOFF_S[-1]) == (0.1, 30.0)
    assert employment.CLOSING_S == 10
