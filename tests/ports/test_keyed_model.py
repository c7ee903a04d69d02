"""An idempotency key against a model of it: random histories of two gateways, time and crashes, on both databases.

The one rule above all: while a key is remembered, no leg of its call is handed out for sending twice, unless whoever
had it said that not one byte was sent.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from approvals.keyed import KeyedCalls
from approvals.keyed_call import Found, Outcome, Stage, Taken, Wanted
from approvals.store import Store
from tests.support.approvals import KEY, Clock

LEASE, KEEP = 100.0, 1000.0
ENDS = {
    Stage.KEPT: Outcome("executed", "", 200, text=b"{}"),
    Stage.ENDED: Outcome("executed", "", 200, why="too_large"),
    Stage.ASKED: Outcome("input_required", ""),
    Stage.UNKNOWN: Outcome("unknown", ""),
}


@dataclass(frozen=True)
class Row:
    """What the design says of a key that was used. `over`: when it is new again, if nothing else happens."""

    stage: Stage
    request: str
    leg: int
    decision: str
    lease: float
    over: float
    holder: int


class Keys(RuleBasedStateMachine):
    """Two keys, two requests of up to three legs, two gateways that take, end, die and come back."""

    runner: asyncio.Runner
    stores: Sequence[Store]
    clock: Clock

    def __init__(self) -> None:
        super().__init__()
        self.party = ("https://i", secrets.token_hex(8))
        self.names = ["", ""]
        self.workers: list[KeyedCalls] = [self.worker(0), self.worker(1)]
        self.model: dict[str, Row] = {}
        self.before: dict[str, Row] = {}
        self.taken: dict[str, tuple[int, str, Taken]] = {}
        self.sent: dict[str, list[tuple[str, int]]] = {"a": [], "b": []}
        self.decisions = 0

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    def worker(self, number: int) -> KeyedCalls:
        self.names[number] = secrets.token_hex(8)
        return KeyedCalls(
            self.stores[number], [KEY], owner=self.names[number], clock=self.clock, keep_s=KEEP, lease_s=LEASE
        )

    def standing(self, key: str) -> Row | None:
        """The model's row as of now."""
        row, now = self.model.get(key), self.clock.now
        if row is None:
            return None
        if row.stage is Stage.RUNNING and row.lease <= now:
            row = replace(row, stage=Stage.UNKNOWN)
        if row.over <= now:
            del self.model[key]
            self.sent[key] = []
            return None
        self.model[key] = row
        return row

    def wanted(self, key: str, request: str, leg: int) -> Wanted:
        return Wanted(self.party, ("server",), key, request, f"{request} {leg}", leg)

    def expected(self, key: str, request: str, leg: int) -> Found | None:
        row = self.standing(key)
        if row is None or (row.stage is Stage.ASKED and row.request == request and leg == row.leg + 1):
            return None
        is_open = row.stage in {Stage.RUNNING, Stage.ASKED, Stage.UNKNOWN}
        same = row.request == request and (leg == row.leg or (is_open and leg < row.leg))
        outcome = replace(ENDS[row.stage], decision=row.decision) if same and not is_open else None
        return Found(row.stage, same, row.decision, outcome)

    @rule(who=st.integers(0, 1), key=st.sampled_from("ab"), request=st.sampled_from("xy"), leg=st.integers(0, 2))
    def look(self, who: int, key: str, request: str, leg: int) -> None:
        """What is found is what the model says."""
        found = self.run(self.workers[who].look(self.wanted(key, request, leg)))
        assert found == self.expected(key, request, leg)

    @rule(who=st.integers(0, 1), key=st.sampled_from("ab"), request=st.sampled_from("xy"), leg=st.integers(0, 2))
    def take(self, who: int, key: str, request: str, leg: int) -> None:
        """Taken exactly where the model has it free."""
        expected, self.decisions = self.expected(key, request, leg), self.decisions + 1
        decision = f"d-{self.decisions}"
        found = self.run(self.workers[who].take(self.wanted(key, request, leg), decision))
        if expected is not None:
            assert found == expected
            return
        assert isinstance(found, Taken)
        if key in self.model:
            self.before[decision] = self.model[key]
        lease = self.clock.now + LEASE
        self.model[key] = Row(Stage.RUNNING, request, leg, decision, lease, lease + KEEP, who)
        self.taken[decision] = (who, key, found)
        assert (request, leg) not in self.sent[key]
        self.sent[key].append((request, leg))

    def held(self, decision: str) -> Row | None:
        """The row, if it is still this decision's."""
        row = self.standing(self.taken[decision][1])
        mine = row is not None and row.decision == decision and row.stage in {Stage.RUNNING, Stage.UNKNOWN}
        return row if mine else None

    @rule(pick=st.integers(0, 99), stage=st.sampled_from(list(ENDS)))
    def end(self, pick: int, stage: Stage) -> None:
        """Somebody that took a key says how it ended, in time, late, or a second time."""
        if not self.taken:
            return
        decision = sorted(self.taken)[pick % len(self.taken)]
        who, key, taken = self.taken[decision]
        row = self.held(decision)
        there = self.run(self.workers[who].end(taken, stage, replace(ENDS[stage], decision=decision)))
        assert there == (row is not None)
        if row is not None:
            self.model[key] = replace(row, stage=stage, over=self.clock.now + KEEP)

    @rule(pick=st.integers(0, 99))
    def free(self, pick: int) -> None:
        """Not one byte was sent: it is as it was before."""
        if not self.taken:
            return
        decision = sorted(self.taken)[pick % len(self.taken)]
        who, key, taken = self.taken[decision]
        row = self.held(decision)
        self.run(self.workers[who].free(taken))
        if row is None:
            return
        self.sent[key].remove((row.request, row.leg))
        if decision in self.before:
            self.model[key] = replace(self.before[decision], over=self.clock.now + KEEP)
        else:
            del self.model[key]

    @rule(seconds=st.sampled_from([1.0, 60.0, 99.0, 500.0]))
    def later(self, seconds: float) -> None:
        """Time goes on."""
        self.clock.now += seconds
        for key in "ab":
            self.standing(key)

    @rule(who=st.integers(0, 1))
    def renew(self, who: int) -> None:
        """A worker holds what it runs longer, as long as it is its own: a lease that lapsed is not lost to others."""
        self.run(self.workers[who].renew())
        held = {key for holder, key, _ in self.taken.values() if holder == who}
        for key in held:
            row, now = self.model.get(key), self.clock.now
            if row is not None and row.holder == who and row.stage is Stage.RUNNING and row.lease > now:
                self.model[key] = replace(row, lease=now + LEASE, over=now + LEASE + KEEP)

    @rule(who=st.integers(0, 1))
    def die(self, who: int) -> None:
        """kill -9 and a restart in the same place: what it ran is unknown."""
        old, self.workers[who] = self.names[who], self.worker(who)
        self.run(self.workers[who].reconcile(old))
        for key in "ab":
            row = self.standing(key)
            if row is not None and row.holder == who and row.stage is Stage.RUNNING:
                self.model[key] = replace(row, stage=Stage.UNKNOWN)
        self.taken = {one: held for one, held in self.taken.items() if held[0] != who}

    @rule(who=st.integers(0, 1))
    def sweep(self, who: int) -> None:
        """At any time, by anybody: nothing that still counts changes."""
        self.run(self.workers[who].sweep())

    @invariant()
    def no_leg_was_handed_out_twice(self) -> None:
        """Whatever happened."""
        for sent in self.sent.values():
            assert len(sent) == len(set(sent))


@pytest.mark.parametrize("examples", [12, pytest.param(400, marks=pytest.mark.soak)])
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_key_is_what_the_model_says(
    database: str, examples: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Over random histories each look and each take answers as the model, and no leg is ever sent twice."""
    url = f"sqlite:///{tmp_path / 'k.db'}" if database == "sqlite" else request.getfixturevalue("tables")
    clock = Clock()
    stores = [Store(url, [KEY], clock=clock, limit_s=60) for _ in range(2)]
    with asyncio.Runner() as runner:
        for store in stores:
            runner.run(store.start())
        machine = type("Here", (Keys,), {"runner": runner, "stores": stores, "clock": clock})
        try:
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=25,
                    deadline=None,
                    phases=(Phase.explicit, Phase.generate),  # on a loaded disk a history is not worth shrinking
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            for store in stores:
                runner.run(store.close())
