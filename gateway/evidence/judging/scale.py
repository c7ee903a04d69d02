"""The checks of the class `scale`: which replica served what is the record's word, what arrived the replicas'."""

from __future__ import annotations

from collections import Counter
from typing import Final

from gateway.contract.refusals import Refusal
from gateway.evidence.checks import Check
from gateway.evidence.seen import RECORD, Exchange, Seen, need
from gateway.evidence.site import lines_of

AT_ONCE: Final = 100
_OPEN: Final = frozenset({"failed", "unknown"})


def _burst(seen: Seen) -> str:
    calls = list(seen.steps("scale/burst.json").values())
    served = Counter(str(seen.passed(call).get("replica")) for call in calls)
    need(len({call.decision for call in calls}) == len(calls), "two answers of one decision")
    most = _most_at_once(calls)
    need(len(calls) >= AT_ONCE and most >= AT_ONCE, f"{len(calls)} calls, {most} at once")
    need(len(served) >= 2 and "None" not in served, f"all of them by {', '.join(served)}")
    shares = ", ".join(f"{replica}: {count}" for replica, count in sorted(served.items()))
    return f"{len(calls)} calls, {most} of them at once, each with its replica in the record ({shares})"


def _most_at_once(calls: list[Exchange]) -> int:
    """How many had been sent whole and were not answered yet, at most."""
    moments = sorted(
        [(call.told["sent_ms"], 1) for call in calls] + [(call.told["ended_ms"], -1) for call in calls],
    )
    open_, most = 0, 0
    for _, change in moments:
        open_ += change
        most = max(most, open_)
    return most


def _broken(seen: Seen) -> str:
    steps = seen.steps("scale/broken_stream.json")
    broken = steps["broken"]
    need(broken.status == 200 and broken.events, f"{broken.short}: no stream that had begun")
    need(not broken.result, f"{broken.short}: a result came nevertheless")
    need(broken.told["fault"] or broken.error.get("code"), "it ended as if it were whole")
    outcomes = [record for record in seen.records(broken) if record["kind"] == "outcome"]
    told = [record.get("outcome") for record in outcomes]
    need(len(told) == 1 and told[0] in _OPEN, f"{broken.short}, and the outcomes {told}")
    ended = seen.passed(steps["retried"])
    began = f"broke after {len(broken.events)} events at {outcomes[0].get('replica')} (outcome {told[0]})"
    return f"{began}; the client's own retry was executed at {ended.get('replica')}"


def _once(seen: Seen) -> str:
    steps = seen.steps("scale/sent_once.json")
    seen.passed(steps["good"])
    lost = steps["lost"]
    row = Refusal.UPSTREAM_UNREACHABLE.value
    need((lost.status, lost.error.get("code")) == (row.status, row.code), lost.short)
    kinds = sorted(record["kind"] for record in seen.records(lost))
    need(kinds == ["decision", "outcome"], f"{lost.short}, and the records {kinds}")
    ended = next(record for record in seen.records(lost) if record["kind"] == "outcome")
    need(ended.get("outcome") == "unknown", f"{lost.short}, and the outcome {ended.get('outcome')}")
    again = steps["again"]
    seen.refused(again, Refusal.IDEMPOTENCY_UNKNOWN)
    ours = {lost.trace, again.trace}
    arrived = [line for line in lines_of(seen.raw("scale/arrivals.jsonl")) if line.get("trace") in ours]
    need(len(arrived) == 1, f"it arrived {len(arrived)} times at the replicas")
    told = f"{lost.short}, outcome unknown, and asked again {again.short}"
    return f"{told}; it arrived once, at {arrived[0].get('replica')}"


def _repeated(seen: Seen) -> str:
    steps = seen.steps("scale/repeated.json")
    first, again = steps["first"], steps["again"]
    seen.passed(first)
    need(again.status == 200 and again.result == first.result, f"{again.short}, another answer")
    told = again.headers.get("ostiary-replay-of")
    need(told == first.decision != again.decision, f"told as the outcome of {told}")
    sent = [line for line in seen.records(again) if line["kind"] == "outcome" and line.get("replica")]
    need(not sent, f"it was sent to {[line['replica'] for line in sent]}")
    seen.refused(steps["other"], Refusal.IDEMPOTENCY_CONFLICT)
    return f"the first answer again, sent nowhere; with other arguments {steps['other'].short}"


def _goes_on(seen: Seen) -> str:
    steps = seen.steps("scale/sent_once.json")
    lost = [record.get("replica") for record in seen.records(steps["lost"]) if record["kind"] == "outcome"]
    ended = seen.passed(steps["next"])
    need([ended.get("replica")] != lost, f"by {ended.get('replica')}, which had died")
    return f"executed at {ended.get('replica')}"


SCALE: Final = (
    Check(
        "scale",
        "burst",
        "OPS-04",
        f"At least {AT_ONCE} calls at once",
        "each executed, the replica of each in the record, two replicas at least",
        ("scale/burst.json", RECORD),
        _burst,
    ),
    Check(
        "scale",
        "broken_stream",
        "UPS-08",
        "A stream that breaks off, and the client's retry",
        "no made-up result; the retry is executed",
        ("scale/broken_stream.json",),
        _broken,
    ),
    Check(
        "scale",
        "sent_once",
        "UPS-08",
        "A call whose replica dies once it has it, and the same again under its key",
        "502, outcome unknown; refused; arrived once",
        ("scale/sent_once.json", "scale/arrivals.jsonl"),
        _once,
    ),
    Check(
        "scale",
        "repeated",
        "docs/idempotency.md",
        "A call under an idempotency key, again, and another under it",
        "the known outcome again, sent nowhere; 409",
        ("scale/repeated.json",),
        _repeated,
    ),
    Check(
        "scale",
        "goes_on",
        "UPS-08",
        "The next call, while that replica is gone",
        "executed by another",
        ("scale/sent_once.json",),
        _goes_on,
    ),
)
