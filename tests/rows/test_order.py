"""The order of checks: one thing broken at a time, then two, and the earlier wins (requirements, preamble)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from gateway.contract.refusals import Refusal
from tests.rows.asking import Ask, encoded, tool, version_of
from tests.rows.proof import passes
from tests.rows.stage import House
from tests.rows.table import CAPABILITIES_KEY, METHOD, NAME, VERSION, VERSION_KEY, Change


@dataclass(frozen=True)
class Stop:
    """A place where a request can be turned away, and how to break just this of it.

    `late`: a change of the body's text, which has to be the last. `apart`: stops that can't be broken together with
    it, because the one is the absence of the other.
    """

    name: str
    refusal: Refusal
    change: Change
    apart: frozenset[str] = frozenset()


def _renamed(name: str) -> Change:
    return lambda ask: ask.edit(lambda m: m["params"].update(name=name)).line(NAME, encoded(name))


def _version(ask: Ask) -> Ask:
    return ask.line(VERSION, b"v9").edit(lambda m: version_of(m).update({VERSION_KEY: "v9"}))


def _method(ask: Ask) -> Ask:
    return ask.line(METHOD, b"no/method").edit(lambda m: m.update(method="no/method"))


def _again(ask: Ask) -> Ask:
    return replace(ask, body=ask.body.replace(b'"params":', b'"params":{},"params":', 1))


STOPS = (
    Stop("framing", Refusal.REQUEST_MALFORMED, lambda ask: ask.more(b"Content-Length", b"1")),
    Stop("path", Refusal.SERVER_UNKNOWN, lambda ask: replace(ask, target=b"/nowhere")),
    Stop("verb", Refusal.METHOD_NOT_POST, lambda ask: replace(ask, verb=b"PUT")),
    Stop("host", Refusal.HOST_FORBIDDEN, lambda ask: ask.line(b"Host", b"evil.example.com")),
    Stop("origin", Refusal.ORIGIN_FORBIDDEN, lambda ask: ask.line(b"Origin", b"https://evil.example.com")),
    Stop("token", Refusal.TOKEN_INVALID, lambda ask: ask.line(b"Authorization", b"Bearer rubbish")),
    Stop("accept", Refusal.ACCEPT_UNSUPPORTED, lambda ask: ask.line(b"Accept", b"text/html")),
    Stop("media type", Refusal.CONTENT_UNSUPPORTED, lambda ask: ask.line(b"Content-Type", b"text/plain")),
    Stop("size", Refusal.BODY_TOO_LARGE, lambda ask: replace(ask, length=5_000_000)),
    Stop("json", Refusal.BODY_NOT_JSON, lambda ask: replace(ask, body=ask.body + b"}")),
    Stop("one reading", Refusal.BODY_AMBIGUOUS, _again),
    Stop("envelope", Refusal.ENVELOPE_INVALID, lambda ask: ask.edit(lambda m: m.update(jsonrpc="1.0"))),
    Stop("headers", Refusal.HEADER_MISMATCH, lambda ask: ask.line(METHOD, b"tools/other")),
    Stop("_meta", Refusal.META_MISSING, lambda ask: ask.edit(lambda m: version_of(m).pop(CAPABILITIES_KEY))),
    Stop("version", Refusal.VERSION_UNSUPPORTED, _version),
    Stop("method", Refusal.METHOD_UNKNOWN, _method, frozenset({"params", "scope", "policy", "approval"})),
    Stop("params", Refusal.PARAMS_INVALID, lambda ask: ask.edit(lambda m: m["params"].update(arguments=[]))),
    Stop("scope", Refusal.SCOPE_INSUFFICIENT, _renamed("narrow"), frozenset({"policy", "approval"})),
    Stop("policy", Refusal.POLICY_DENIED, _renamed("hidden"), frozenset({"approval"})),
    Stop(
        "state",
        Refusal.STATE_NOT_ACCEPTED,
        lambda ask: ask.edit(lambda m: m["params"].update(requestState="made up")),
    ),
    Stop("approval", Refusal.APPROVAL_REQUIRED, _renamed("write")),
)
PAIRS = {
    first: [second for second in STOPS[number + 1 :] if second.name not in first.apart]
    for number, first in enumerate(STOPS)
}


def _broken(house: House, *stops: Stop) -> Ask:
    """A good request with these things broken: from the back to the front, so that changes of the text come last."""
    ask = house.good(tool("read", order="of checks"))
    for stop in reversed(stops):
        ask = stop.change(ask)
    return ask


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.name)
def test_each_stop_stops(house: House, stop: Stop) -> None:
    """One thing broken: the refusal of exactly this stop."""
    passes(house)
    answer = house.ask(_broken(house, stop))
    assert (answer.status, answer.json()["error"]["code"]) == (stop.refusal.value.status, stop.refusal.value.code)


@pytest.mark.parametrize("first", [first for first, rest in PAIRS.items() if rest], ids=lambda stop: stop.name)
def test_of_two_broken_things_the_earlier_is_told(house: House, first: Stop) -> None:
    """Framing, path, method, Host, Origin, token, media, size, JSON, envelope, headers, and so on."""
    before = len(house.forwarded())
    for second in PAIRS[first]:
        answer = house.ask(_broken(house, first, second))
        decision = answer.values("ostiary-decision")[0]
        passes(house)
        assert [record["reasons"][0] for record in house.records_of(decision)] == [first.refusal.reason], second.name
    assert len(house.forwarded()) == before + len(PAIRS[first])


@pytest.mark.parametrize("name", ["write", "narrow"])
def test_a_missing_scope_is_told_before_anything_about_approvals(house: House, name: str) -> None:
    """Scope comes before the approval: who may not ask opens no ticket."""
    passes(house)
    answer = house.call("plain", tool(name, order="scope first"), "scopeless", scope="mcp:use")
    assert (answer.status, answer.json()["error"]["code"]) == (403, 40301)
    passes(house)
    assert not [one for one in house.records() if one["kind"] == "approval" and "scopeless" in one["by"]]
