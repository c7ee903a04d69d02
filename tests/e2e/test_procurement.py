"""The procurement story, told by real processes on both revisions (`ostiary demo procurement`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.demo.procurement.documents import STAGES, Documents, Rejected

COMMAND = [sys.executable, "-m", "gateway.cli", "demo"]


def tell(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.timeout(300)
def test_the_story_behaves_across_replicas_that_come_and_go() -> None:
    """An answer after every replica was replaced is good; tampering is refused; a task outlives its replicas."""
    told = tell("procurement")
    assert told.returncode == 0, told.stdout[-3000:] + told.stderr[-2000:]
    for chapter in ("Small and large", "Replaced in between", "Next day", "Three-way match", "Too late"):
        assert chapter in told.stdout
    report = told.stdout.partition("Which replica served what")[2]
    served = {name for name in ("replica-1", "replica-2", "replica-3") if name in report}
    assert served == {"replica-1", "replica-2", "replica-3"}
    assert report.count("stopped at the gateway") == 6


def test_the_old_revision_loses_what_a_session_held() -> None:
    """Another replica answers 404, the late answer loses the submission, and the documents are intact."""
    told = tell("procurement", "--old")
    assert told.returncode == 0, told.stdout[-3000:] + told.stderr[-2000:]
    assert "404" in told.stdout


def test_old_is_for_procurement_only() -> None:
    """The bank has no old story, and says so."""
    told = tell("--old")
    assert told.returncode == 2
    assert "procurement" in told.stderr


def test_a_requisition_is_submitted_once(tmp_path: Path) -> None:
    """The documents hold, whoever asks how often."""
    documents = Documents(tmp_path)
    number = documents.draft("desks", 60, 1_000).number
    assert documents.submit(number, "r1").state == "submitted"
    with pytest.raises(Rejected):
        documents.submit(number, "r2")
    assert documents.requisition(number).submitted_by == "r1"


def test_a_stage_whose_worker_died_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A match ends with three findings whoever works at it; a stage that was done twice counts once."""
    documents = Documents(tmp_path)
    match = documents.begin_match("INV-77")
    late = documents.claim_stage()
    assert late is not None
    assert documents.claim_stage() is None
    monkeypatch.setattr("gateway.demo.procurement.documents.LEASE_S", -1.0)
    documents.finish_stage(late, "r1")
    for replica in ("r2", "r3"):
        mine = documents.claim_stage()
        assert mine is not None
        documents.finish_stage(mine, replica)
        documents.finish_stage(mine, "late")
    ended = documents.match(match.id)
    assert (ended.state, ended.replicas, len(ended.findings)) == ("completed", ("r1", "r2", "r3"), 3)
    assert len(STAGES) == 3
