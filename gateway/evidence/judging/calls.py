"""The checks of the classes `wire` and `authorization`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.contract.refusals import Refusal
from gateway.evidence.checks import Check
from gateway.evidence.probes import PROBES, Probe
from gateway.evidence.seen import Seen, need

APPROVAL: Final = "authorization/approved_call.json"


def probe_check(probe: Probe) -> Check:
    """The check of a probe: refused by its row, between two calls that pass."""

    def judge(seen: Seen) -> str:
        steps = seen.steps(probe.file)
        seen.passed(steps["good"])
        seen.refused(steps["spoiled"], probe.row)
        seen.passed(steps["good again"])
        return f"{steps['spoiled'].short}, one record, nothing forwarded; the calls around it passed"

    row = probe.row.value
    told = f"HTTP {row.status}, {'isError' if row.result else row.code} ({probe.row.reason})"
    return Check(probe.group, probe.name, probe.rule, probe.asked, told, (probe.file,), judge)


def _good(seen: Seen) -> str:
    steps = seen.steps("wire/good.json")
    for step in ("discover", "list", "call"):
        seen.passed(steps[step])
        need(steps[step].result.get("resultType") == "complete", f"{step}: no resultType")
    need(isinstance(steps["list"].result.get("tools"), list), "the list holds no tools")
    need(steps["call"].headers.get("cache-control") == "no-store", "an answer without Cache-Control: no-store")
    return f"three results, {len(steps['list'].result['tools'])} tools, each with a decision and an outcome"


def _failure(seen: Seen) -> str:
    steps = seen.steps("wire/handler_failure.json")
    seen.passed(steps["good"])
    failing = steps["failing"]
    need(failing.result.get("isError") is True, f"{failing.short}: no failure")
    seen.passed(failing, "tool_error")
    return f"{failing.short}, outcome tool_error"


def _cancellation(seen: Seen) -> str:
    steps = seen.steps("wire/cancellation.json")
    seen.passed(steps["good"])
    left = steps["left"]
    need(left.told["fault"] == "left" and not left.result, left.short)
    outcomes = [record.get("outcome") for record in seen.records(left) if record["kind"] == "outcome"]
    need(outcomes == ["cancelled"], f"{left.short}, and the outcomes {outcomes}")
    seen.passed(steps["good again"])
    return "the client left, outcome cancelled; the next call passed"


def _expiry(seen: Seen) -> str:
    steps = seen.steps("wire/cache_expiry.json")
    first, again = steps["list"], steps["list again"]
    for listed in (first, again):
        seen.passed(listed)
        fresh, scope = listed.result.get("ttlMs"), listed.result.get("cacheScope")
        need(type(fresh) is int and fresh >= 0 and scope == "private", f"ttlMs {fresh}, cacheScope {scope}")
    waited = again.told["began_ms"] - first.told["ended_ms"]
    need(waited >= first.result["ttlMs"], f"asked again after {waited:.0f} ms, before it expired")
    need(first.decision != again.decision, "both answers are of one decision")
    return (
        f"fresh for {first.result['ttlMs']} ms, for its caller alone; asked again after {waited:.0f} ms, decided anew"
    )


def _held(seen: Seen) -> str:
    held = seen.steps(APPROVAL)["held"]
    seen.refused(held, Refusal.APPROVAL_REQUIRED)
    need(held.ticket.get("state") == "pending", f"a ticket that is {held.ticket.get('state')}")
    return f"{held.short}, a pending ticket, nothing forwarded"


def _own(seen: Seen) -> str:
    steps = seen.steps(APPROVAL)
    need(steps["own approval"].status == 403, steps["own approval"].short)
    state = steps["seen"].document.get("state")
    need(steps["seen"].status == 200 and state == "pending", f"the ticket is {state} afterwards")
    return "HTTP 403, and the ticket is still pending"


def _changed(seen: Seen) -> str:
    steps = seen.steps(APPROVAL)
    need(steps["approved"].status == 200, f"approving: {steps['approved'].short}")
    seen.refused(steps["changed"], Refusal.APPROVAL_REQUIRED)
    other = steps["changed"].ticket.get("id")
    need(other and other != steps["held"].ticket["id"], "it joined the ticket that was approved for other arguments")
    return f"{steps['changed'].short}, a ticket of its own"


def _approved(seen: Seen) -> str:
    steps = seen.steps(APPROVAL)
    ticket = steps["held"].ticket["id"]
    need(steps["seen"].document.get("id") == ticket, "another ticket was looked at")
    need(steps["approved"].status == 200, f"approving: {steps['approved'].short}")
    ended = seen.passed(steps["run"])
    need(ended.get("ticket") == ticket, f"it ran under {ended.get('ticket')}, not under {ticket}")
    used = steps["used"].document
    need((used.get("state"), used.get("uses_left")) == ("used", 0), f"the ticket is {used.get('state')} afterwards")
    asker, given = ended["actor"], used["decisions"]
    need(len(given) == 1 and given[0]["verb"] == "approve", f"decided {len(given)} times")
    whose = [(line["actor"]["issuer"], line["actor"]["subject"]) for line in _moves(seen, ticket, "approve")]
    need(len(whose) == 1 and whose[0] != (asker["issuer"], asker["subject"]), f"approved by {whose}")
    return "approved by another person, in the record; run once; the ticket is used"


def _once(seen: Seen) -> str:
    steps = seen.steps(APPROVAL)
    ticket = steps["held"].ticket["id"]
    seen.refused(steps["again"], Refusal.APPROVAL_REQUIRED)
    need(steps["again"].ticket.get("id") != ticket, "the same ticket once more")
    ran = [line for line in seen.lines if line["kind"] == "decision" and line.get("ticket") == ticket]
    need(len(ran) == 1, f"{len(ran)} decisions to forward under one ticket")
    return f"{steps['again'].short}, a new ticket; the old one was used by one call"


def _denied(seen: Seen) -> str:
    steps = seen.steps(APPROVAL)
    need(steps["denied"].status == 200, f"denying: {steps['denied'].short}")
    seen.refused(steps["after the no"], Refusal.APPROVAL_REFUSED)
    return f"{steps['after the no'].short}, and no new ticket"


def _moves(seen: Seen, ticket: str, transition: str) -> list[Mapping[str, Any]]:
    return [
        line
        for line in seen.lines
        if line["kind"] == "approval" and line.get("ticket") == ticket and line.get("transition") == transition
    ]


def _story(  # noqa: PLR0917 - a row of the table
    group: str, name: str, rule: str, asked: str, expected: str, judge: Callable[[Seen], str]
) -> Check:
    file = APPROVAL if group == "authorization" else f"wire/{name}.json"
    return Check(group, name, rule, asked, expected, (file,), judge)


CALLS: Final = (
    _story(
        "wire", "good", "docs/protocol.md", "server/discover, tools/list and a call", "three complete results", _good
    ),
    *(probe_check(probe) for probe in PROBES if probe.group == "wire"),
    _story(
        "wire",
        "handler_failure",
        "docs/protocol.md",
        "A call that its tool's handler fails on",
        "a result with isError, outcome tool_error",
        _failure,
    ),
    _story(
        "wire",
        "cancellation",
        "UPS-09",
        "A client that goes away during a call",
        "outcome cancelled, the next call passes",
        _cancellation,
    ),
    _story(
        "wire",
        "cache_expiry",
        "CCH-02",
        "A list, and again once it is no longer fresh",
        "ttlMs, cacheScope private, decided anew",
        _expiry,
    ),
    *(probe_check(probe) for probe in PROBES if probe.group == "authorization"),
    _story(
        "authorization",
        "held",
        "docs/approvals.md",
        "The gated call, without an approval",
        f"HTTP 403, {Refusal.APPROVAL_REQUIRED.value.code}, a pending ticket",
        _held,
    ),
    _story("authorization", "own_approval", "APR-12", "Its caller approves it", "HTTP 403, still pending", _own),
    _story(
        "authorization",
        "changed_arguments",
        "APR-03",
        "The approved call, with other arguments",
        f"HTTP 403, {Refusal.APPROVAL_REQUIRED.value.code}, another ticket",
        _changed,
    ),
    _story(
        "authorization",
        "approved_call",
        "APR-01",
        "The identical call, once another person has approved it",
        "executed once, under that ticket",
        _approved,
    ),
    _story(
        "authorization",
        "used_once",
        "APR-01",
        "The identical call once more",
        f"HTTP 403, {Refusal.APPROVAL_REQUIRED.value.code}, another ticket",
        _once,
    ),
    _story(
        "authorization",
        "denied_call",
        "docs/approvals.md",
        "The call, once a person has denied it",
        f"HTTP 403, {Refusal.APPROVAL_REFUSED.value.code}",
        _denied,
    ),
)
