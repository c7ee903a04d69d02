"""The benchmark's own arithmetic: aims, the gate's judgement, the simulated queue, the pages' tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import gate, publish, scale
from tests.bench.load import tell_refusals
from tests.bench.queueing import busiest, quantile, sojourns
from tests.bench.rooms import grouped
from tests.bench.run import PARTS
from tests.bench.table import Row, aims, keep, kept, lacking, parts, table

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("aim", "figure", "met"),
    [("≥ 5,000", 5000.0, True), ("≥ 5,000", 4999.0, False), ("≤ 0.5", 0.5, True), ("≤ 0.5", 0.51, False)],
)
def test_a_row_says_whether_its_aim_is_met(aim: str, figure: float, met: bool) -> None:
    """What is at its aim has reached it, in either direction; what misses it by a little is not ticked."""
    row = Row("k", "what", (figure,), "u", aim)
    assert row.reached is not None
    assert (row.reached >= 1) is met
    assert ("✓" in table([row])) is met


def test_rows_come_back_as_they_were_kept(tmp_path: Path) -> None:
    """The cost model reads what the benchmark wrote."""
    rows = [Row("a", "what", (1.0, 3.0, 2.0), "ms", "≤ 3", "beside"), Row("b", "else", (1.5,), "s")]
    keep(tmp_path / "figures.json", rows, machine={"processor": "one"})
    assert kept(tmp_path / "figures.json") == rows
    assert rows[0].figure == 2.0


def test_an_aim_is_named_whole_and_with_its_command() -> None:
    """A row that goes on from the one above it is told by its name; one without an aim stands in its part's table."""
    rows = [
        Row("a", "a call", (2.0,), "/s", part="calls"),
        Row("b", "… CPU", (1.0,), "µs", "≤ 3", part="calls"),
        Row("c", "a start", (9.0,), "s", "≤ 1.0", part="start"),
    ]
    assert aims(rows).splitlines()[2:] == [
        "| a call: CPU | ≤ 3 µs | 1 µs | 3.00 ✓ | – | `python -m tests.bench.bench_calls` |",
        "| a start | ≤ 1.0 s | 9 s | 0.11 | – | `python -m tests.bench.bench_start` |",
    ]
    each = parts(rows)
    assert (
        each.index("bench_calls") < each.index("| a call |") < each.index("bench_start") < each.index("| a start |")
    )


def test_every_kept_figure_has_a_command() -> None:
    """Whoever doubts a figure can measure it again by itself."""
    found = {row.part for row in kept(scale.KEPT)}
    assert found
    assert found <= set(PARTS)


def test_an_aborted_run_says_why_it_was_refused(tmp_path: Path) -> None:
    """Of the log's lines those of this run count; a machine without time is named as what it is, nothing else is."""
    before = b'{"kind": "refusal", "reasons": ["scope_missing"]}\n'
    late = b'{"kind": "refusal", "reasons": ["policy_unavailable"]}\n{"kind": "outcome", "reasons": []}\nplain\n{"hal'
    log = tmp_path / "gateway.log"
    log.write_bytes(before + late)
    assert tell_refusals(log, len(before)).startswith(": policy_unavailable 1; ")
    assert "idle cores" in tell_refusals(log, len(before))
    log.write_bytes(before)
    assert tell_refusals(log) == ": scope_missing 1"
    assert not tell_refusals(log, len(before))


def test_the_gate_judges_at_its_edge() -> None:
    """What costs as much as is allowed passes, what costs more is told with both figures."""
    assert gate.judge(0.4 + 0.05, kept=0.4, allowed=0.05) == ""
    assert "0.460" in gate.judge(0.46, kept=0.4, allowed=0.05)


def test_a_queue_that_shares_its_worker_waits_as_the_theory_says() -> None:
    """Processor sharing: the mean time in the system is cost ÷ (1 − load), whatever the costs' spread."""
    for load in (0.3, 0.6, 0.8):
        spans = sojourns(load, cost_ms=2.0)
        mean = sum(spans) / len(spans)
        assert mean == pytest.approx(2.0 / (1 - load), rel=0.06)
        assert quantile(spans, 0.99) > quantile(spans, 0.5) >= 2.0 - 1e-9


def test_chance_deals_few_connections_less_evenly_than_many() -> None:
    """The busiest worker is never below the mean, and nearer to it the more connections there are."""
    assert 1 <= busiest(2000, 4) < busiest(20, 4)


def test_a_sample_belongs_to_the_innermost_room() -> None:
    """What a library does for a room is that room's; what nobody of the house called is the event loop's."""
    stack = "worker (gateway/cli.py:201);run (uvloop/__init__.py:92);app (gateway/edge.py:1);"
    raw = f"{stack}sign (gateway/contract/chain.py:3);dumps (orjson/__init__.py:1) 5\nrun (uvloop/__init__.py:92) 2\n"
    assert dict(grouped(raw)) == {
        "audit: records, redaction, chain, commits, file": 5,
        "event loop and interpreter": 2,
    }


@pytest.mark.parametrize("page", ["performance.md", "scale.md"])
def test_the_pages_say_what_was_measured(page: str) -> None:
    """Every table of the two pages is what the programs print for the kept figures: nothing was typed."""
    text = (DOCS / page).read_text()
    assert "<!-- end -->" in text
    assert publish.filled(text, publish.tables()) == text


def test_a_page_with_another_figure_is_seen() -> None:
    """The twin of the rule above: a table that was changed by hand differs."""
    assert publish.filled("<!-- a -->\n| 2 |\n<!-- end -->\n", {"a": "| 1 |"}) != "<!-- a -->\n| 2 |\n<!-- end -->\n"


@pytest.mark.soak
@pytest.mark.skipif(bool(lacking("wrk")), reason="wrk or a second core is missing")
def test_the_gate_sees_100_us_more_in_each_call() -> None:
    """Python that takes 100 µs in every call fails the gate that passes without it."""
    command = [sys.executable, "-m", "tests.bench.gate"]
    plain = subprocess.run(command, check=False, capture_output=True, text=True, env=dict(os.environ))
    assert plain.returncode == 0, plain.stdout + plain.stderr
    planted = subprocess.run([*command, "--planted"], check=False, capture_output=True, text=True)
    assert planted.returncode == 1, planted.stdout + planted.stderr


def test_kept_figures_name_their_machine() -> None:
    """A figure without the interpreter, the processor and the disk that it was measured on says nothing."""
    machine = json.loads(scale.KEPT.read_text())["machine"]
    assert {"interpreter", "processor", "disk", "programs"} <= machine.keys()
