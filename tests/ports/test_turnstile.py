"""The turnstile: no caller fills a worker, none goes on faster than it may, and nobody pays for another (OPS-04)."""

from __future__ import annotations

from collections import Counter
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.contract.passage import Identity
from gateway.contract.refusals import Refusal, Refused
from gateway.settings.bounds import Limits
from gateway.turnstile import LONGEST_WAIT_S, Turnstile

ALICE, BOB = Identity("https://a", "alice"), Identity("https://a", "bob")


class Clock:
    """Seconds, moved by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def refusal(turnstile: Turnstile, identity: Identity) -> Refused | None:
    """Why it does not turn; one that turns is left again at once."""
    try:
        turnstile.enter(identity)()
    except Refused as refused:
        return refused
    return None


def test_a_caller_is_a_subject_of_an_issuer() -> None:
    """Other clients, tenants and tokens of one subject share its places; the same `sub` elsewhere has its own."""
    turnstile = Turnstile(2)
    leave = [turnstile.enter(ALICE), turnstile.enter(Identity("https://a", "alice", "other", "tenant"))]
    busy = refusal(turnstile, ALICE)
    assert busy is not None
    assert busy.refusal is Refusal.CALLER_BUSY
    assert refusal(turnstile, Identity("https://b", "alice")) is None
    assert refusal(turnstile, BOB) is None
    assert turnstile.busiest == 2
    leave[0]()
    assert refusal(turnstile, ALICE) is None
    leave[1]()
    assert turnstile.busiest == 0


def test_who_is_too_fast_is_told_when_to_come_again() -> None:
    """The burst at once, then one each 1/rate seconds; `Retry-After` is long enough and no longer."""
    clock = Clock()
    turnstile = Turnstile(9, 0.5, 3, clock=clock)
    assert [refusal(turnstile, ALICE) for _ in range(3)] == [None] * 3
    fast = refusal(turnstile, ALICE)
    assert fast is not None
    assert (fast.refusal, fast.retry_after_s) == (Refusal.RATE_LIMITED, 2)
    assert refusal(turnstile, BOB) is None
    clock.now += fast.retry_after_s
    assert refusal(turnstile, ALICE) is None
    assert refusal(turnstile, ALICE) is not None
    clock.now += 1e9
    assert [refusal(turnstile, ALICE) is None for _ in range(4)] == [True] * 3 + [False]
    slow = Turnstile(9, 1e-9, 1, clock=clock)
    assert refusal(slow, ALICE) is None
    never = refusal(slow, ALICE)
    assert never is not None
    assert never.retry_after_s == LONGEST_WAIT_S


def test_one_that_found_no_place_has_spent_nothing() -> None:
    """A caller that is refused for its places does not lose its rate as well."""
    clock = Clock()
    turnstile = Turnstile(1, 1.0, 2, clock=clock)
    leave = turnstile.enter(ALICE)
    assert {found.refusal for _ in range(9) if (found := refusal(turnstile, ALICE))} == {Refusal.CALLER_BUSY}
    leave()
    assert refusal(turnstile, ALICE) is None


@given(
    st.sampled_from([0.25, 1.0, 3.0]),
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 0.25, 1.0, 7.0])), max_size=60),
)
def test_in_no_time_does_more_pass_than_may(per_s: float, burst: int, asked: list[tuple[str, float]]) -> None:
    """Of each caller, between any two moments: the burst and what the rate brought; who asks slower always passes."""
    clock = Clock()
    turnstile = Turnstile(9, per_s, burst, clock=clock)
    passed: dict[str, list[float]] = {name: [] for name in "abc"}
    last: dict[str, float] = {}
    for name, later in asked:
        clock.now += later
        refused = refusal(turnstile, Identity("https://a", name))
        assert not (refused and clock.now - last.get(name, 0.0) >= 1 / per_s)
        if refused is None:
            passed[name].append(clock.now)
        last[name] = clock.now
    for times in passed.values():
        for first, start in enumerate(times):
            for end in range(first, len(times)):
                assert end - first + 1 <= floor(burst + (times[end] - start) * per_s + 1e-6)


def test_what_is_remembered_is_bounded() -> None:
    """Ten callers where four are remembered: the quietest is forgotten, who asks all the time is not."""
    clock = Clock()
    turnstile = Turnstile(9, 0.001, 1, most=4, clock=clock)
    passed: Counter[str] = Counter()
    for _ in range(5):
        for number in range(10):
            for name in ("always", f"now and then {number}"):
                passed[name] += refusal(turnstile, Identity("https://a", name)) is None
    assert passed["always"] == 1
    assert passed["now and then 3"] == 5
    assert len(turnstile._buckets) == 4
    assert turnstile.busiest == 0


@pytest.mark.parametrize(("said", "at_once"), [({}, 500), ({"concurrent": 1}, 1), ({"concurrent_per_subject": 9}, 9)])
def test_half_of_all_is_one_subjects_where_nothing_is_said(said: dict[str, int], at_once: int) -> None:
    """The defaults let 200 concurrent requests of one subject pass, and no subject fill a worker."""
    limits = Limits.model_validate(said)
    assert limits.at_once_per_subject == at_once
    assert Limits().at_once_per_subject >= 200
    assert Limits().requests_per_subject == 0


def test_a_limit_of_one_subject_above_that_of_all_is_refused() -> None:
    """It would hold nobody back: the error names the setting."""
    assert Limits(concurrent=9, concurrent_per_subject=9).at_once_per_subject == 9
    with pytest.raises(ValidationError, match="concurrent_per_subject"):
        Limits(concurrent=9, concurrent_per_subject=10)
