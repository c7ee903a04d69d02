"""Every alert at gateways that run: each is provoked by breaking what it is about, seen to fire, and to be over.

`AT_PROMTOOL` are those that can't be: docs/operations.md names them, with the reasons.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.house.test_operations import PAGE, rows
from tests.rows.stage import Stage
from tests.signals.deployment import Deployment, deployed
from tests.signals.files import alerts
from tests.signals.troubles import Names, Step, Trouble, Troubles

AT_PROMTOOL = {"OstiaryKeysOld"}


@dataclass
class Seen:
    """Seconds from breaking to firing, and from mending to the end, of each alert."""

    fired: dict[str, float] = field(default_factory=dict)
    over: dict[str, float] = field(default_factory=dict)

    def last(self, names: Names) -> str:
        """Of these alone."""
        return ", ".join(f"{name} {self.fired[name]:.1f} s, {self.over[name]:.1f} s" for name in sorted(names))

    def table(self) -> str:
        """One line an alert."""
        lines = [f"{'alert':34}{'fires after':>12}{'over after':>12}"]
        for name in (alert.name for alert in alerts()):
            when = [f"{times[name]:10.1f} s" if name in times else f"{'–':>12}" for times in (self.fired, self.over)]
            lines.append(f"{name:34}{when[0]}{when[1]}" + ("  by promtool alone" if name in AT_PROMTOOL else ""))
        return "\n".join(lines)


@pytest.fixture(scope="module")
def deployment(
    stage: Stage, opa_program: Path, prometheus_program: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """Two gateways of one deployment, one of another."""
    with deployed(stage, opa_program, prometheus_program, tmp_path_factory) as made:
        yield made


def run_through(made: Deployment, trouble: Trouble, seen: Seen) -> None:
    """Break, see each of its alerts fire, mend, see each be over."""
    names = trouble.alerts

    def firing() -> Names:
        return names & {name for name, _ in made.prometheus.firing()}

    def wait(what: str, times: dict[str, float], done: Callable[[Names], Names], step: Step) -> None:
        began = time.monotonic()
        while (left := names - times.keys()) or not done(names) >= names:
            for name in done(left):
                times[name] = time.monotonic() - began
            assert time.monotonic() < began + trouble.patience_s, f"{what}: {sorted(left)}\n{seen.table()}"
            step()
            time.sleep(0.1)

    mended = False
    fired: dict[str, float] = {}
    over: dict[str, float] = {}
    assert trouble.harm is bool or not firing(), "before it is broken"
    try:
        trouble.harm()
        wait("fires", fired, lambda left: left & (firing() | fired.keys()), trouble.go_on)
        mended = True
        trouble.mend()
        wait("is over", over, lambda left: left - firing(), trouble.until_over)
    finally:
        if not mended:
            trouble.mend()
    seen.fired |= fired
    seen.over |= over


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not here")
def test_every_alert_fires_at_a_running_stack_and_is_over(deployment: Deployment, tmp_path: Path) -> None:
    """OPS-06: what each is about is broken, it fires; it is mended, and it is over. The table says after how long.

    `ALERTS=slowly,files`: these alone.
    """
    troubles, seen = Troubles(deployment, tmp_path), Seen()
    everything = "keys,servers,policy,telling,files,processes,keeping,slowly"
    picked = os.environ.get("ALERTS", everything).split(",")
    if picked[0] != "keys":
        troubles.find_keys()
    try:
        for name in picked:
            for trouble in getattr(troubles, name)():
                run_through(deployment, trouble, seen)
                sys.stdout.write(f"{name}: {seen.last(trouble.alerts)}\n")
                sys.stdout.flush()
    finally:
        sys.stdout.write(seen.table())
    if picked == everything.split(","):
        assert {alert.name for alert in alerts()} - seen.over.keys() == AT_PROMTOOL


def test_the_page_says_which_alerts_were_fired_and_which_only_by_promtool() -> None:
    """docs/operations.md has every alert once, in the table or in the list beside it: as the test above has them."""
    told = re.search(r"By promtool alone: (.*)\n", PAGE)
    assert told is not None
    assert set(re.findall(r"`(Ostiary\w+)`", told[1])) == AT_PROMTOOL
    fired = [name for _, names in rows("`make soak` breaks two gateways") for name in re.findall(r"`(\w+)`", names)]
    assert sorted([*fired, *AT_PROMTOOL]) == sorted(alert.name for alert in alerts())
