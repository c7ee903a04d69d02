"""When a replica is out of service, for how long, and how it comes back: the rules alone, with the test's times."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.upstream.health import COOLING_S, JITTER, LEAST_SHARE, LONGEST_S, PROBES, TRIAL_S, Health, HealthRules
from gateway.upstream.replicas import Replica
from gateway.upstream.retries import PAUSE_S, RESERVE, Budget
from gateway.upstream.ring import Ring, ServerRules
from gateway.upstream.target import UpstreamLimits, check_replica_url

START = 1000.0


def a_health(**rules: float | str) -> Health:
    return Health(HealthRules(**rules), chance=lambda: 0.0)  # type: ignore[arg-type]


def a_ring(replicas: int, rules: ServerRules | None = None) -> Ring:
    rules = rules or ServerRules()
    made = [
        Replica(check_replica_url(f"http://10.0.0.{number}:80/"), b"", None, UpstreamLimits(), rules=rules.health)
        for number in range(1, replicas + 1)
    ]
    return Ring("demo", tuple(made), rules)


def turns(ring: Ring, number: int, now: float) -> list[int]:
    """Which replicas so many calls go to, one after the other."""
    found = []
    for _ in range(number):
        replica = ring.take(now)
        assert replica is not None
        found.append(ring.replicas.index(replica))
        ring.leave(replica)
    return found


def test_the_page_says_the_numbers() -> None:
    """docs/upstream.md gives reasons for these numbers: they are the ones of the sources."""
    page = " ".join((Path(__file__).parents[2] / "docs/upstream.md").read_text().split())
    rules = HealthRules()
    assert (COOLING_S[0], COOLING_S[-1]) == (0.25, 8)
    assert "for 0.25 s, doubled with each further one to 8 s" in page
    assert (rules.faults, rules.ejected_s, LONGEST_S, JITTER, PROBES) == (5, 5, 60, 0.1, 3)
    assert "five faults in a row" in page
    assert "For 5 s (`ejected_s`), doubled each further time up to 60 s, and by chance up to a tenth longer" in page
    assert "three probes in a row" in page
    assert (TRIAL_S, LEAST_SHARE) == (5, 0.1)
    assert "another may after 5 s" in page
    assert "gets a tenth of its turns" in page
    assert (ServerRules().retry_share, RESERVE, PAUSE_S, ServerRules().concurrent) == (0.2, 10, 0.05, 500)
    assert "each such call brings a fifth of a retry (`retries.share`), and at most ten are saved up" in page
    assert "after up to 50 ms by chance" in page


def test_faults_count_only_in_a_row() -> None:
    """Four of five, then one that went well, then four: in service; the fifth in a row puts it out."""
    health = a_health()
    for _ in range(4):
        assert not health.fault(START, tried=False, may_go=True)
    health.well(START, tried=False)
    for _ in range(4):
        assert not health.fault(START, tried=False, may_go=True)
    assert health.fault(START, tried=False, may_go=True)
    assert (health.out, health.why, health.until) == (True, "faults", START + 5)


def test_it_stays_out_for_longer_each_time_and_never_longer_than_the_longest() -> None:
    """5, 10, 20, 40, 60, 60 s; after a minute in service the next time is a first time again."""
    health, now = a_health(faults=1), START
    for lasts_s in (5, 10, 20, 40, LONGEST_S, LONGEST_S):
        assert health.fault(now, tried=False, may_go=True)
        assert health.until == now + lasts_s
        now = health.until
        assert health.is_due(now)
        health.begin_trial(now)
        assert health.well(now, tried=True)
    now += LONGEST_S + 1
    assert health.fault(now, tried=False, may_go=True)
    assert health.until == now + 5


def test_a_replica_that_fails_for_days_is_still_only_out() -> None:
    """Where all are out every call tries one: however many of them failed, the next one is counted like the first."""
    health, now = a_health(faults=1), START
    assert health.fault(now, tried=False, may_go=True)
    for _ in range(5000):
        now = health.until
        health.begin_trial(now)
        assert not health.fault(now, tried=True, may_go=False)
        assert now < health.until <= now + LONGEST_S
    health.begin_trial(health.until)
    assert health.well(health.until, tried=True)


def test_workers_do_not_try_it_at_the_same_moment() -> None:
    """By chance an ejection lasts up to a tenth longer."""
    health = Health(HealthRules(faults=1), chance=lambda: 1.0)
    health.fault(START, tried=False, may_go=True)
    assert health.until == pytest.approx(START + 5 * (1 + JITTER))


def test_one_call_at_a_time_tries_it_and_one_that_hangs_keeps_nobody_for_long() -> None:
    """Half open: the next try comes when the first has ended, or after 5 s."""
    health = a_health(faults=1)
    health.fault(START, tried=False, may_go=True)
    now = health.until
    assert not health.is_due(now - 0.001)
    assert health.is_due(now)
    health.begin_trial(now)
    assert health.is_trying(now)
    assert not health.is_due(now)
    assert health.is_due(now + TRIAL_S)
    health.begin_trial(now)
    assert not health.fault(now, tried=True, may_go=True)
    assert (health.is_trying(now), health.until) == (False, now + 10)


def test_what_was_under_way_before_says_nothing_new() -> None:
    """A call from before the ejection that goes well brings nobody back, and one that fails makes it no longer."""
    health = a_health(faults=1)
    health.fault(START, tried=False, may_go=True)
    until = health.until
    assert not health.well(until, tried=False)
    assert not health.fault(until, tried=False, may_go=True)
    assert (health.out, health.until) == (True, until)
    assert health.well(until, tried=True)


def test_a_refused_connection_is_enough_and_a_connection_brings_it_back() -> None:
    """0.25 s, doubled to 8 s; nothing was sent, so that trying again costs nothing."""
    health, now = a_health(), START
    assert health.refuse(now)
    for lasts_s in COOLING_S[1:]:
        assert health.until > now
        now = health.until
        assert not health.refuse(now), "it is out already: nobody is told a second time"
        assert health.until == now + lasts_s
    assert health.connect(now)
    assert not health.out


def test_a_connection_does_not_clear_faults() -> None:
    """A server that takes connections and answers 500 to everything is still out."""
    health = a_health(faults=1)
    health.fault(START, tried=False, may_go=True)
    assert not health.connect(START + 100)
    assert health.out


def test_a_probe_decides_where_there_is_one() -> None:
    """Three that fail put it out; then no call tries it, and one that goes well after its time brings it back."""
    health = a_health(probe="tcp", faults=1)
    for _ in range(PROBES - 1):
        assert not health.probe(START, well=False)
    assert health.probe(START, well=False)
    assert (health.why, health.is_due(START + 1000)) == ("probe", False)
    assert health.probe(START, well=True)
    health.fault(START, tried=False, may_go=True)
    assert not health.is_due(START + 1000)
    assert not health.probe(START + 1, well=True), "not before its time"
    assert health.probe(START + 1000, well=True)


@pytest.mark.parametrize(
    ("replicas", "share", "most"),
    [
        (1, 0.5, 0),
        (1, 1.0, 0),
        (2, 0.5, 1),
        (2, 0.1, 1),
        (2, 1.0, 1),
        (3, 0.5, 1),
        (4, 0.5, 2),
        (10, 0.9, 9),
        (5, 0, 0),
    ],
)
def test_faults_never_put_out_more_than_their_share(replicas: int, share: float, most: int) -> None:
    """Of several always one may go, and never the last."""
    ring = a_ring(replicas, ServerRules(HealthRules(faults=1, ejected_share=share)))
    for replica in ring.replicas:
        ring.faulted(replica, START, tried=False)
    assert sum(replica.health.out for replica in ring.replicas) == most


def test_a_replica_that_is_back_gets_its_share_slowly() -> None:
    """A tenth of its turns at first, half of them after half of the time, all after the whole; nothing is lost."""
    ring = a_ring(2, ServerRules(HealthRules(faults=1, slow_start_s=10)))
    first = ring.replicas[0]
    ring.faulted(first, START, tried=False)
    assert set(turns(ring, 10, START)) == {1}
    now = first.health.until
    assert 0 in turns(ring, 2, now), "one call tries it"
    ring.answered(first, now, tried=True)
    assert turns(ring, 200, now).count(0) == pytest.approx(200 / 2 * LEAST_SHARE, abs=1)
    assert turns(ring, 200, now + 5).count(0) == pytest.approx(200 / 2 * 0.5, abs=1)
    assert turns(ring, 200, now + 10).count(0) == 100
    assert first.health.plain


def test_with_all_out_all_are_tried_the_soonest_first() -> None:
    """A gateway that is wrong about all of them must not be the outage."""
    ring = a_ring(3)
    for number, replica in enumerate(ring.replicas):
        ring.refused(replica, START - number)
    assert turns(ring, 3, START - 3) == [2, 2, 2]
    assert ring.take(START, ring.replicas) is None


def test_a_call_that_a_person_approved_tries_nobody_out() -> None:
    """It can't be repeated for nothing; others do, and with all out it goes as well."""
    ring = a_ring(2, ServerRules(HealthRules(faults=1)))
    ring.faulted(ring.replicas[0], START, tried=False)
    now = START + 100
    for _ in range(6):
        assert ring.take(now, dear=True) is ring.replicas[1]
    ring.refused(ring.replicas[1], now)
    ring.replicas[0].health.begin_trial(now)
    assert ring.take(now, dear=True) is ring.replicas[0]


def test_a_second_attempt_goes_to_one_that_is_well() -> None:
    """A retry tries nobody out while another replica is in service."""
    ring = a_ring(3, ServerRules(HealthRules(faults=1, slow_start_s=0)))
    ill, failed, well = ring.replicas
    ring.faulted(ill, START, tried=False)
    now = ill.health.until
    for _ in range(6):
        assert ring.take(now, [failed]) is well
    assert {ring.take(now) for _ in range(3)} == {ill, failed, well}


def test_retries_have_a_budget_that_calls_fill() -> None:
    """Ten at once, then one for five calls: where all fails, a server gets a fifth more and not twice as many."""
    budget, spent = Budget(0.2), 0
    for _ in range(1000):
        budget.earn()
        spent += budget.spend()
    assert spent == RESERVE + 1000 * 0.2 - 1, "the first call finds the bucket full"
    assert not any(Budget(0.0).spend() for _ in range(3))
    assert PAUSE_S < 0.1
