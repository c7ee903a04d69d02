"""The official conformance suite: directly, and through the gateway. docs/conformance.md says what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conformance import stage, suite

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
WHOLLY = ("http-header-validation", "http-custom-header-server-validation")
"""What the gateway itself answers for: these pass completely, whatever the server does."""

DIRECTLY = {
    "2026-07-28": {
        ("http-header-validation", "ServerAcceptsWhitespaceHeaderValue"): (
            "the HTTP parser under the server's SDK keeps white space at a value's end"
        ),
    },
}
"""What fails without a gateway, and why: revision -> scenario and check -> reason."""


ASKS = "the server would have to ask this client over a stream of its own, and find the call again that waits"
LISTENS = "it subscribes over a session, and the events come outside of any call"
LEFT_OUT: dict[str, tuple[str, frozenset[str]]] = {
    "tools-call-sampling": (ASKS, frozenset({"ToolsCallSampling"})),
    "tools-call-elicitation": (ASKS, frozenset({"ToolsCallElicitation"})),
    "elicitation-sep1034-defaults": (
        ASKS,
        frozenset(
            f"ElicitationSEP1034{what}"
            for what in (
                "General", "StringDefault", "IntegerDefault", "NumberDefault", "EnumDefault", "BooleanDefault",
            )
        ),
    ),
    "elicitation-sep1330-enums": (
        ASKS,
        frozenset(
            f"ElicitationSEP1330{what}"
            for what in (
                "General", "UntitledSingle", "TitledSingle", "LegacyEnumNames", "UntitledMulti", "TitledMulti",
            )
        ),
    ),
    "resources-subscribe": (LISTENS, frozenset({"ResourcesSubscribe"})),
    "resources-unsubscribe": (LISTENS, frozenset({"ResourcesUnsubscribe"})),
    "logging-set-level": ("a level that holds for a session", frozenset({"LoggingSetLevel"})),
    "tools-call-with-logging": ("it begins with `logging/setLevel`", frozenset({"ToolsCallWithLogging"})),
    "server-session-lifecycle": (
        "a session is a seal that ends by itself: DELETE is 405, as allowed, and the suite passes over it",
        frozenset({"SessionDeleteAccepted", "SessionTerminatedReturns404"}),
    ),
    "server-sse-multiple-streams": (
        "the modern server answers these calls as JSON, so there are no streams to look at",
        frozenset({"ServerSSEStreamsFunctional"}),
    ),
}  # fmt: skip
"""What a client of 2025-11-25 does not get through the gateway: scenario -> reason, and the checks that are lost."""


async def compare(revision: str, folder: Path, **settings: Any) -> tuple[suite.Verdicts, suite.Verdicts]:
    """Both runs of a revision's list: direct, and through the gateway."""
    async with stage.fixture_server(folder) as replicas:
        direct = await suite.run(replicas[0], revision, folder / "direct")
        house = await stage.gateway(folder, replicas, **settings)
        async with stage.shimmed(house) as endpoint:
            through = await suite.run(endpoint, revision, folder / "through")
    records = [record for writer in range(house.workers) for record in house.records(writer)]
    served = {record["replica"] for record in records if record.get("replica")}
    assert len(served) == 2, f"only {served} served"
    return direct, through


@pytest.mark.timeout(600)
async def test_nothing_that_passes_directly_fails_through_the_gateway(tmp_path: Path) -> None:
    """Scenario by scenario and check by check: what the server does by itself, it does behind the gateway."""
    suite.node()
    direct, through = await compare("2026-07-28", tmp_path)
    for verdicts in (direct, through):
        assert {key[0] for key in verdicts} == suite.scenarios("2026-07-28")
    assert sum(verdict.status == "SUCCESS" for verdict in direct.values()) > 190, (
        "the suite looked at less than it did"
    )
    assert suite.failing(direct) == DIRECTLY["2026-07-28"].keys(), "what fails directly is not what is listed"

    lost = suite.lost(direct, through)
    assert not lost, suite.told(through, lost)
    headers = [key for key, verdict in through.items() if key[0] in WHOLLY and verdict.status != "SUCCESS"]
    assert not headers, suite.told(through, headers)


@pytest.mark.timeout(600)
async def test_the_rules_of_headers_are_the_gateways_own(tmp_path: Path) -> None:
    """Before a server that never looks at its headers, both scenarios about them still pass wholly."""
    suite.node()
    direct: suite.Verdicts = {}
    through: suite.Verdicts = {}
    async with stage.fixture_server(tmp_path, "--careless") as replicas:
        house = await stage.gateway(tmp_path, replicas)
        async with stage.shimmed(house) as endpoint:
            for scenario in WHOLLY:
                options = ("--scenario", scenario, "--spec-version", "2026-07-28")
                direct = {**direct, **await suite.drive(replicas[0], tmp_path / f"{scenario}-direct", *options)}
                through = {**through, **await suite.drive(endpoint, tmp_path / f"{scenario}-through", *options)}
    for scenario in WHOLLY:
        failed = {key for key, verdict in direct.items() if key[0] == scenario and verdict.status != "SUCCESS"}
        assert len(failed) > 3, "the server was not careless"
    wrong = [key for key, verdict in through.items() if verdict.status != "SUCCESS"]
    assert through.keys() == direct.keys()
    assert not wrong, suite.told(through, wrong)


@pytest.mark.timeout(600)
async def test_the_revision_before_is_served_but_for_what_is_listed(tmp_path: Path) -> None:
    """A client of 2025-11-25 gets all of a modern server that needs no session; what is left out has a reason."""
    suite.node()
    direct, through = await compare("2025-11-25", tmp_path, legacy_clients=True)
    for verdicts in (direct, through):
        assert {key[0] for key in verdicts} == suite.scenarios("2025-11-25")
    assert sum(verdict.status == "SUCCESS" for verdict in direct.values()) > 75, (
        "the suite looked at less than it did"
    )
    assert not suite.failing(direct)
    lost = suite.lost(direct, through)
    listed = {(scenario, check) for scenario, (_, checks) in LEFT_OUT.items() for check in checks}
    assert {(key[0], key[2]) for key in lost} == listed, suite.told(through, lost)


def test_the_page_tells_what_fails_or_is_left_out_and_why() -> None:
    """Nobody has to read a test to know what the suite found."""
    page = PAGE.read_text()
    for revision, failures in DIRECTLY.items():
        for (scenario, check), why in failures.items():
            assert f"| {revision} | `{scenario}` | `{check}` | {why} |" in page
    for scenario, (why, checks) in LEFT_OUT.items():
        assert f"| `{scenario}` | {len(checks)} | {why} |" in page


PASS, FAIL, WARN = suite.Verdict("SUCCESS", ""), suite.Verdict("FAILURE", "x"), suite.Verdict("WARNING", "x")
A, B = ("scenario", "a", "A", 0), ("scenario", "b", "B", 0)


@pytest.mark.parametrize(
    ("direct", "through", "lost"),
    [
        ({A: PASS, B: FAIL}, {A: PASS, B: PASS}, []),
        ({A: PASS, B: FAIL}, {A: PASS, B: FAIL}, []),
        ({A: PASS, B: PASS}, {A: PASS, B: FAIL}, [B]),
        ({A: PASS, B: PASS}, {A: PASS, B: WARN}, [B]),
        ({A: PASS, B: PASS}, {A: PASS}, [B]),
        ({A: PASS}, {A: PASS, B: FAIL}, [B]),
    ],
)
def test_the_comparison_finds_what_is_lost(direct: suite.Verdicts, through: suite.Verdicts, lost: list[Any]) -> None:
    """A check is lost that turns worse, is not made any more, or fails through the gateway alone."""
    assert suite.lost(direct, through) == lost


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_in_ci_a_suite_that_is_not_there_is_a_failure(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a user's machine the reason says what to do; in CI nothing is passed over."""
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(suite, "PACKAGE", tmp_path / "nothing")
    with pytest.raises(outcome, match="npm ci --prefix tests/conformance"):
        suite.node()
