"""What a worker counts: bounded labels, counters that outlive the worker, gauges that do not (row AUD-08)."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import SupportsBytes

import orjson
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from gateway.contract.record import outcome_record, refusal_record
from gateway.contract.refusals import Refusal
from gateway.logs import Outlet, RequestLog
from gateway.serving.admin import Admin
from gateway.serving.roster import STALE_S, Roster, Worker
from gateway.serving.status import Resigned, Status, read_line, sum_up
from gateway.streams import Streams
from gateway.telemetry import TRANSITIONS, CountedPolicy, Telemetry
from policies.verdict import PolicyUnavailable, Verdict
from tests.contract.walked import ALLOW, REDACTOR, ended, malformed, transition, turned_away, walked


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(f"ostiary_{name}", labels) or 0.0


def test_each_end_is_counted_and_timed_once() -> None:
    """A forwarded call and a refusal are one count each, under configured names and the tables' words."""
    registry = CollectorRegistry()
    telemetry = Telemetry(registry)
    good, bad = ended(walked()), turned_away(Refusal.TOKEN_MISSING)
    telemetry.concluded(good, outcome_record(good, REDACTOR))
    telemetry.concluded(bad, refusal_record(bad, REDACTOR))
    labels = {"server": "readonly", "method": "tools/call", "verdict": "allow", "reason": "executed"}
    assert value(registry, "requests_total", **labels) == 1
    labels = {"server": "readonly", "method": "other", "verdict": "none", "reason": "token_missing"}
    assert value(registry, "requests_total", **labels) == 1
    for _ in range(2):  # times are counted in memory, and none of them twice
        telemetry.carry_over(Sink(), CountedPolicy(Oracle(), telemetry), Visits(), Streams())
        assert value(registry, "request_seconds_count", server="readonly") == 2
    assert value(registry, "request_seconds_sum", server="readonly") == good.latency_s + bad.latency_s
    assert value(registry, "request_seconds_bucket", server="readonly", le="0.01") == 1
    assert value(registry, "request_seconds_bucket", server="readonly", le="0.025") == 2


def test_what_goes_to_an_older_server_is_counted() -> None:
    """Each request that was decided to be sent to one, and no refusal."""
    registry = CollectorRegistry()
    telemetry = Telemetry(registry)
    for past, committed in (("2025-06-18", True), ("2025-06-18", False), ("", True)):
        passage = ended(walked())
        assert passage.server is not None
        passage.server, passage.committed = replace(passage.server, past=past), committed
        telemetry.concluded(passage, outcome_record(passage, REDACTOR))
    labels = {"server": "readonly", "revision": "2025-06-18"}
    assert value(registry, "upstream_legacy_requests_total", **labels) == 1
    series = [sample.name for family in registry.collect() for sample in family.samples]
    assert series.count("ostiary_upstream_legacy_requests_total") == 1


def test_made_up_methods_are_other() -> None:
    """AUD-08: a thousand made-up methods and transitions are one series each."""
    registry = CollectorRegistry()
    telemetry = Telemetry(registry)
    for n in range(1000):
        passage = ended(walked())
        assert passage.call is not None
        passage.call = replace(passage.call, method=f"made/up{n}")
        telemetry.concluded(passage, outcome_record(passage, REDACTOR))
        telemetry.moved(transition(verb=f"verb{n}"))
    series = [sample for family in registry.collect() for sample in family.samples]
    assert len([one for one in series if one.name == "ostiary_requests_total"]) == 1
    assert value(registry, "approval_transitions_total", transition="other") == 1000


def test_every_move_of_a_ticket_has_a_series_from_the_start() -> None:
    """A rate over moves that have not happened yet is zero, not absent."""
    registry = CollectorRegistry()
    Telemetry(registry).moved(transition(verb="approve"))
    for verb in (
        "request",
        "approve",
        "deny",
        "revoke",
        "withdraw",
        "expire",
        "claim",
        "continue",
        "waiting",
        "restore",
        "resolve",
    ):
        assert verb in TRANSITIONS
        found = registry.get_sample_value("ostiary_approval_transitions_total", {"transition": verb})
        assert found == (1 if verb == "approve" else 0)


class Oracle:
    """A policy that answers when told to."""

    revision, ready, answers, remembered = "r", True, True, 0

    async def start(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def judge(self, _question: SupportsBytes) -> Verdict:
        """The one verdict."""
        if not self.answers:
            raise PolicyUnavailable("canary")
        return ALLOW


async def test_policy_failures_are_counted_apart() -> None:
    """An unanswered question is an evaluation and a failure; the time spent waiting is carried over."""
    registry = CollectorRegistry()
    telemetry, oracle = Telemetry(registry), Oracle()
    policy = CountedPolicy(oracle, telemetry)
    assert await policy.judge(b"{}") is ALLOW
    oracle.answers = False
    with pytest.raises(PolicyUnavailable):
        await policy.judge(b"{}")
    assert value(registry, "policy_evaluations_total") == 2
    assert value(registry, "policy_failures_total") == 1
    oracle.remembered = 7
    telemetry.carry_over(Sink(), policy, Visits(), Streams())
    assert value(registry, "policy_remembered_total") == 7
    assert value(registry, "policy_seconds_total") == pytest.approx(policy.seconds)


def test_what_refusals_share_is_one_line_and_each_is_counted(tmp_path: Path) -> None:
    """A flood drowns nobody's log: one line with the record's count; the metrics know every single one."""
    registry = CollectorRegistry()
    with (tmp_path / "log").open("w+b") as out:
        telemetry = Telemetry(registry, RequestLog(Outlet(out.fileno())))
        passage = malformed()
        for _ in range(500):
            telemetry.counted(passage, dict)
        record = refusal_record(passage, REDACTOR)
        telemetry.told(record)
        telemetry.told({**record, "count": 499, "first": "10:00", "last": "10:01"})
        out.seek(0)
        alone, shared = map(orjson.loads, out.read().splitlines())
    labels = {"server": "readonly", "method": "other", "verdict": "none", "reason": "header_mismatch"}
    assert value(registry, "requests_total", **labels) == 500
    telemetry.carry_over(Sink(), CountedPolicy(Oracle(), telemetry), Visits(), Streams())
    assert value(registry, "request_seconds_count", server="readonly") == 500
    assert "count" not in alone
    assert (shared["count"], shared["first"], shared["last"]) == (499, "10:00", "10:01")
    assert (shared["subject"], shared["reasons"]) == ("alice", ["header_mismatch"])


class Sink:
    """An audit sink's figures."""

    commits, failures, lost, folded = 10, 3, 2, 1


class Visits:
    """The figures of sessions at old servers."""

    opened, lost = 7, 4


async def test_what_rooms_count_themselves_is_carried_over_once() -> None:
    """Looking often adds nothing; only what is new since the last look is added."""
    registry = CollectorRegistry()
    telemetry, sink, visits = Telemetry(registry), Sink(), Visits()
    policy = CountedPolicy(Oracle(), telemetry)
    streams = Streams()
    streams.dropped = 5
    for _ in range(3):
        telemetry.carry_over(sink, policy, visits, streams)
    assert value(registry, "audit_commits_total") == 10
    sink.commits = 12
    telemetry.carry_over(sink, policy, visits, streams)
    assert value(registry, "audit_commits_total") == 12
    assert value(registry, "audit_failures_total") == 3
    assert value(registry, "audit_records_lost_total") == 2
    assert value(registry, "audit_refusals_folded_total") == 1
    assert value(registry, "upstream_sessions_opened_total") == 7
    assert value(registry, "upstream_sessions_lost_total") == 4
    assert value(registry, "notifications_dropped_total") == 5


COUNT_ONCE = """
from gateway.telemetry import Telemetry, count_in_seat
from tests.contract.walked import transition
count_in_seat({slot})
Telemetry().moved(transition(verb="approve"))
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_counters_outlive_their_worker_and_files_stay_few(tmp_path: Path) -> None:
    """A worker that is killed leaves its counts to the next one of its slot; the number of files is the slots'."""
    for slot in (0, 0, 0, 1):
        subprocess.run(
            [sys.executable, "-c", COUNT_ONCE.format(slot=slot)], check=False,
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        )  # fmt: skip
    text = Admin(Roster(2), tmp_path).metrics(Roster(2)).decode()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    moves = {s.labels["transition"]: s.value for s in found["ostiary_approval_transitions"].samples}
    assert moves["approve"] == 4
    assert len(list(tmp_path.iterdir())) <= 2 * 2


NO_ROOM = """
import os, resource, shutil, signal
from dataclasses import replace
from gateway.contract.record import outcome_record
from gateway.telemetry import Telemetry, count_in_seat
from tests.contract.walked import REDACTOR, ended, walked
count_in_seat(0)
telemetry = Telemetry()
shutil.rmtree(os.environ["PROMETHEUS_MULTIPROC_DIR"])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
for n in range(1000):
    passage = ended(walked())
    passage.server = replace(passage.server, name=f"{n}")
    telemetry.concluded(passage, outcome_record(passage, REDACTOR))
"""


def test_a_request_is_no_worse_for_metrics_that_can_not_be_written(tmp_path: Path) -> None:
    """No room for a new series, in a folder that went with its supervisor: a call is concluded, and not counted."""
    folder = tmp_path / "metrics"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", NO_ROOM], check=False, capture_output=True, text=True,
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "metrics_not_written" in done.stdout + done.stderr


def a_worker(status: Status) -> Worker:
    worker = Worker(os.getpid())
    worker.hear(status)
    return worker


def shown(roster: Roster, folder: Path) -> dict[str, float]:
    text = Admin(roster, folder).metrics(roster).decode()
    families = text_string_to_metric_families(text)
    return {
        sample.name + "".join(f"|{label}" for label in sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_gauges_of_several_workers_become_one(tmp_path: Path) -> None:
    """What adds up is added, what is bad in one is bad in all; labels keep apart."""
    one = Status(True, revision="r1", gauges={"connections": 3, "audit_healthy": 1, "keys_age_seconds": {"a": 5.0}})
    two = Status(
        False, ("audit",), ("approvals",), "r2",
        {"connections": 4, "audit_healthy": 0, "keys_age_seconds": {"a": 7.0, "b": 1.0}},
    )  # fmt: skip
    found = shown(Roster(3, {0: a_worker(one), 2: a_worker(two)}), tmp_path)
    assert found["ostiary_connections"] == 7
    assert found["ostiary_audit_healthy"] == 0
    assert found["ostiary_keys_age_seconds|a"] == 7
    assert found["ostiary_keys_age_seconds|b"] == 1
    assert found["ostiary_degraded|approvals"] == 1
    assert found["ostiary_policy_info|r1"] == found["ostiary_policy_info|r2"] == 1
    assert (found["ostiary_workers_wanted"], found["ostiary_workers_ready"], found["ostiary_ready"]) == (3, 1, 1)
    assert found["ostiary_worker_memory_bytes|0"] > 1_000_000


def test_what_workers_serve_by_is_told_part_by_part(tmp_path: Path) -> None:
    """One digest over all where they agree, `mixed` where they do not, and which part; nothing before one speaks."""
    roster = Roster(2, {0: Worker(os.getpid())})
    assert roster.describe()["loaded"] == {"digest": "", "parts": {}}
    parts = {"configuration": "c", "policy": "p", "pins": ""}
    roster.workers = {slot: a_worker(Status(True, loaded=parts)) for slot in range(2)}
    told = roster.describe()
    assert told["loaded"] == {"digest": sum_up(parts), "parts": parts}
    assert [(one["configuration"], one["loaded"]) for one in told["workers"]] == [("c", sum_up(parts))] * 2
    assert shown(roster, tmp_path)["ostiary_loaded_info|p|policy"] == 2
    other = {**parts, "policy": "q"}
    roster.workers[1].hear(Status(True, loaded=other))
    told = roster.describe()
    assert told["loaded"] == {"digest": "mixed", "parts": {**parts, "policy": "mixed"}}
    assert [one["loaded"] for one in told["workers"]] == [sum_up(parts), sum_up(other)]
    found = shown(roster, tmp_path)
    assert (found["ostiary_loaded_info|p|policy"], found["ostiary_loaded_info|q|policy"]) == (1, 1)
    assert (found["ostiary_loaded_info||pins"], found["ostiary_loaded_info|c|configuration"]) == (2, 2)


def test_a_dead_or_silent_workers_gauges_vanish(tmp_path: Path) -> None:
    """Gauges are of those who speak; the readiness of a silent worker is not believed either."""
    worker = a_worker(Status(True, gauges={"connections": 3}, revision="r1"))
    roster = Roster(1, {0: worker})
    assert shown(roster, tmp_path)["ostiary_connections"] == 3
    worker.heard_at -= STALE_S
    found = shown(roster, tmp_path)
    assert "ostiary_connections" not in found
    assert found["ostiary_ready"] == 0
    assert roster.describe()["workers"][0]["missing"] == ["heartbeat"]


def test_a_status_survives_its_pipe() -> None:
    """What is encoded is read as what it was."""
    status = Status(True, ("a",), ("b",), "r", {"connections": 1, "replicas": {"x": 2}}, {"policy": "d", "pins": ""})
    assert read_line(status.encode()) == status
    assert read_line(Resigned("why").encode()) == Resigned("why")


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"null", b"7", b"{}", b'{"ready":true}', b'"why"'])
def test_anything_else_is_no_status(line: bytes) -> None:
    """A torn or foreign line raises; it makes nobody ready."""
    with pytest.raises(ValueError, match=r".*"):
        read_line(line)
