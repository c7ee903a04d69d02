"""The checks of the class `audit`: the record's chain, redaction, health, drain, rollback, and the versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from gateway.contract.refusals import Refusal
from gateway.evidence.checks import Check
from gateway.evidence.excerpt import judge_record
from gateway.evidence.scrubbing import CANARY
from gateway.evidence.seen import LOG, RECORD, Exchange, Seen, metric, need

VERSIONS: Final = ("ostiary", "python", "revision", "libraries", "engine", "database", "config_sha256", "bundle")
_METRICS: Final = "audit/metrics.txt"


def _chain(seen: Seen) -> str:
    reports = seen.document("audit/verify.json")
    broken = [report for report in reports if not report["whole"]]
    need(reports and not broken, f"{broken[0]['file']}: {broken[0]['first_bad']}" if broken else "there is no chain")
    judged = judge_record(seen.raw(RECORD))
    need(judged.finding is None, f"the selection: {judged.finding.why if judged.finding else ''}")
    told = {report["writer"]: report["count"] for report in reports if report["count"]}
    stated = {chain["writer"]: chain["count"] for chain in judged.chains}
    fewer = [writer for writer, count in told.items() if stated.get(writer, 0) < count]
    need(not fewer, f"the chains that were judged hold {told} records, the selection says {stated}")
    records = sum(chain["records"] for chain in judged.chains)
    need(records, "no record of this time")
    return f"{len(stated)} chains whole, {sum(stated.values())} records; {records} of them are in this pack"


def _answers(seen: Seen) -> Iterator[tuple[str, Exchange]]:
    for name in sorted(seen.files):
        if seen.is_transcript(name):
            for step, exchange in seen.steps(name).items():
                if exchange.decision:
                    yield f"{name}, {step}", exchange


def _recorded(seen: Seen) -> str:
    answers = list(_answers(seen))
    need(len(answers) >= 100, f"{len(answers)} answers only")
    need(len({one.decision for _, one in answers}) == len(answers), "two answers of one decision")
    for where, exchange in answers:
        kinds = sorted(record["kind"] for record in seen.records(exchange))
        need(kinds in (["refusal"], ["decision", "outcome"]), f"{where}: the records {kinds}")
        need(not any(differs(exchange, record) for record in seen.records(exchange)), f"{where}: of another request")
        last = next(record for record in seen.records(exchange) if record["kind"] != "decision")
        need(
            last.get("status") in (exchange.status, 499), f"{where}: {exchange.short}, recorded {last.get('status')}"
        )
    return f"{len(answers)} answers, each with its records and their status"


def differs(exchange: Exchange, record: Mapping[str, Any]) -> bool:
    """Whether a record is of another request; one that was refused early names neither trace nor method."""
    if record.get("trace_id") not in (None, exchange.trace):
        return True
    if record["kind"] == "refusal":
        return False
    asked = orjson.loads(exchange.told["request"]["body"])
    return bool((record["method"], record["name"]) != (asked["method"], asked["params"].get("name")))


def _redaction(seen: Seen) -> str:
    steps = seen.steps("audit/canaries.json")
    for where, exchange in steps.items():
        request = exchange.told["request"]
        planted = f"[canary {where}]" in "".join((request["body"], request["url"], *request["headers"].values()))
        need(planted, f"{where}: no canary was planted")
    for where in ("argument", "cookie", "metadata", "query"):
        kinds = sorted(record["kind"] for record in seen.records(steps[where]))
        need(kinds == ["decision", "outcome"], f"{where}: the records {kinds}")
    seen.refused(steps["token"], Refusal.TOKEN_INVALID)
    for name in sorted(seen.files):
        need(not CANARY.search(seen.raw(name)), f"{name} holds a canary")
    log, metrics = seen.raw(LOG), seen.raw(_METRICS)
    for where, exchange in steps.items():
        need(exchange.decision.encode() in log, f"the log has no line of the call with the canary {where}")
    need(b"ostiary_policy_info" in metrics, "the metrics are not the gateway's")
    return f"{len(steps)} canaries planted; none in {len(seen.files)} files, record, log and metrics among them"


def _health(seen: Seen) -> str:
    steps = seen.steps("audit/health.json")
    need(steps["livez"].status == 200, f"/livez: {steps['livez'].short}")
    ready = steps["readyz"]
    need(ready.status == 200 and ready.document.get("ready") is True, f"/readyz: {ready.short}")
    text = seen.raw(_METRICS).decode()
    for name in ("ostiary_audit_healthy", "ostiary_approvals_healthy", "ostiary_policy_current"):
        need([value for _, value in metric(text, name)] == [1.0], f"{name} is not 1")
    return "live, ready; record, approvals and policy are healthy"


def _drain(seen: Seen) -> str:
    steps = seen.steps("audit/drain.json")
    need(steps["ready"].status == 200, f"before: {steps['ready'].short}")
    draining, call = steps["draining"], steps["call"]
    need(draining.status == 503, f"told to stop: {draining.short}")
    seen.passed(call)
    within = call.told["sent_ms"] < draining.told["ended_ms"] < call.told["ended_ms"]
    need(within, "the call was not running when it was told to stop")
    need(steps["ready again"].status == 200, f"afterwards: {steps['ready again'].short}")
    seen.passed(steps["next"])
    left = call.told["ended_ms"] - draining.told["ended_ms"]
    return f"/readyz 503; the call that ran was answered {left:.0f} ms later; ready again afterwards"


def _rollback(seen: Seen) -> str:
    steps = seen.steps("audit/rollback.json")
    revisions = {step: _judged_by(seen, step, exchange) for step, exchange in steps.items()}
    first, other = revisions["before"], revisions["changed"]
    same = all(revisions[step] == first for step in ("broken", "rolled back"))
    need(same and other != first, f"the revisions {revisions}")
    current = {step: _current(exchange) for step, exchange in steps.items()}
    need(current == {step: step != "broken" for step in steps}, f"the bundle there is the one that judges: {current}")
    refused = [line for line in seen.lines if line.get("act") == "policy_not_replaced"]
    need(refused, "no record says that the bundle was not taken")
    return f"{first} judged while a broken bundle lay there; then {other}; then {first} again"


def _judged_by(seen: Seen, step: str, exchange: Exchange) -> str:
    seen.passed(exchange)
    revision = str(seen.decided(exchange).get("policy_revision"))
    told = {labels.get("revision") for labels, _ in metric(exchange.told["metrics"], "ostiary_policy_info")}
    need(told == {revision}, f"{step}: decided by {revision}, and the metrics say {told}")
    return revision


def _current(exchange: Exchange) -> bool:
    return {value for _, value in metric(exchange.told["metrics"], "ostiary_policy_current")} == {1.0}


def _versions(seen: Seen) -> str:
    facts: dict[str, Any] = seen.document("facts.json")
    missing = [name for name in VERSIONS if not facts.get(name)]
    missing += [name for name, told in facts["dependencies"].items() if not told]
    need(not missing, f"not known: {', '.join(missing)}")
    told = [labels for labels, _ in metric(seen.raw(_METRICS).decode(), "ostiary_build_info")]
    runs = {"version": facts["ostiary"], "python": facts["python"]}
    need(told == [runs], f"the gateway says that it is {told}, this is {runs}")
    need(facts["bundle"] in {line.get("policy_revision") for line in seen.lines}, "no decision by this bundle")
    return f"Ostiary {facts['ostiary']}, Python {facts['python']}, MCP {facts['revision']}, bundle {facts['bundle']}"


OPERATION: Final = (
    Check(
        "audit",
        "verify",
        "AUD-05",
        "Every chain of the record",
        "whole, and the selection in this pack with it",
        (RECORD, "audit/verify.json"),
        _chain,
    ),
    Check(
        "audit",
        "recorded",
        "AUD-01",
        "Every answer of this pack",
        "a refusal, or a decision and an outcome, with its status",
        (RECORD,),
        _recorded,
    ),
    Check(
        "audit",
        "redaction",
        "AUD-02",
        "Canaries in an argument, metadata, a cookie, a query and a token",
        "nowhere in record, log, metrics or this pack",
        ("audit/canaries.json", RECORD, LOG, _METRICS),
        _redaction,
    ),
    Check(
        "audit",
        "health",
        "docs/operations.md",
        "/livez, /readyz and /metrics",
        "live, ready, healthy",
        ("audit/health.json", _METRICS),
        _health,
    ),
    Check(
        "audit",
        "drain",
        "OPS-01",
        "A gateway that is told to stop while a call runs",
        "not ready at once, the call is answered",
        ("audit/drain.json",),
        _drain,
    ),
    Check(
        "audit",
        "rollback",
        "AZ-08",
        "A bundle that breaks, another one, and the first one back",
        "the broken one changes nothing; each decision names the one that judged",
        ("audit/rollback.json",),
        _rollback,
    ),
    Check("audit", "versions", "docs/evidence.md", "What ran", "every version", ("facts.json",), _versions),
)
