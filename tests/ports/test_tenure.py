"""In whose name leases are held: nobody takes the open uses of a process that runs (docs/operations.md)."""

from __future__ import annotations

import os
from errno import ENOSPC
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from approvals.ticket import NotHeld, Run
from gateway.serving.tenure import begin_tenure
from gateway.signals.key_age import first_seen
from tests.support.approvals import BOB, bench
from tests.support.disk import file_system, fill


def test_a_name_is_had_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers alike in host name and paths have other names, and so has each start; it finds the one before it."""
    monkeypatch.setattr("socket.gethostname", lambda: "gateway")
    records = [tmp_path / one / "audit.jsonl" for one in ("volume-1", "volume-2")]
    for record in records:
        record.parent.mkdir()
    first, alike = (begin_tenure(record) for record in records)
    assert (first.before, alike.before) == ("", "")
    assert first.owner != alike.owner
    first.write_down()
    again = begin_tenure(records[0])
    assert again.before == first.owner
    assert again.owner not in (first.owner, alike.owner)
    again.write_down()
    assert begin_tenure(records[0]).before == again.owner
    assert {file.stat().st_mode & 0o777 for file in records[0].parent.iterdir()} == {0o600}


@pytest.mark.parametrize("found", ["nothing", "bytes", "too much", "a link", "a folder", "a line"])
def test_what_is_no_name_is_none(tmp_path: Path, found: str) -> None:
    """Then leases lapse by themselves; a start never fails for it, and never reads elsewhere."""
    path = tmp_path / "audit.jsonl.owner"
    other = tmp_path / "other"
    other.write_text("host/name")
    if found == "a link":
        path.symlink_to(other)
    elif found == "a folder":
        path.mkdir()
    else:
        path.write_bytes(
            {"nothing": b"", "bytes": b"\xff\xfe", "too much": b"x" * 301, "a line": b"host/name\n"}[found]
        )
    tenure = begin_tenure(tmp_path / "audit.jsonl")
    assert tenure.before == ""
    tenure.write_down()
    assert other.read_text() == "host/name"
    assert found == "a folder" or begin_tenure(tmp_path / "audit.jsonl").before == tenure.owner


def test_a_disk_that_takes_nothing_keeps_nobody_from_starting(tmp_path: Path) -> None:
    """The name is not written down, which is told, and the next start waits for leases."""
    tenure = begin_tenure(tmp_path / "gone" / "audit.jsonl")
    with capture_logs() as logs:
        tenure.write_down()
    assert not list(tmp_path.iterdir())
    told = {"event": "note_not_kept", "log_level": "warning", "file": str(tenure.path)}
    assert logs == [{**told, "reason": "No such file or directory"}]


def test_a_full_disk_leaves_what_was_there_and_nothing_empty(tmp_path: Path) -> None:
    """The name before stays whole; the next start finds no file that it could misread, and with room all is well."""
    with file_system(tmp_path, "64k") as disk:
        record = disk / "audit.jsonl"
        before = begin_tenure(record)
        before.write_down()
        seen = first_seen((bytes(32),), record)
        files = {file.name: file.read_text() for file in disk.iterdir()}
        assert files.keys() == {"audit.jsonl.owner", "audit.jsonl.seal-key"}
        filler = fill(disk)
        full = begin_tenure(record)
        with capture_logs() as logs:
            full.write_down()
            assert first_seen((bytes(range(32)),), record) >= seen
        assert [(line["event"], line["reason"]) for line in logs] == [("note_not_kept", os.strerror(ENOSPC))] * 2
        assert {file.name: file.read_text() for file in disk.iterdir() if file != filler} == files
        after = begin_tenure(record)
        assert after.before == before.owner
        filler.unlink()
        after.write_down()
        assert begin_tenure(record).before == after.owner


async def test_the_start_of_one_leaves_the_uses_of_its_like_alone(
    where: Path | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two alike share a database: while one runs its use the other starts, and the use goes on to its end.

    The one that takes its place, after its end, ends what it had left open.
    """
    monkeypatch.setattr("socket.gethostname", lambda: "gateway")
    records = [tmp_path / one / "audit.jsonl" for one in ("volume-1", "volume-2")]
    for record in records:
        record.parent.mkdir()
    tenures = [begin_tenure(record) for record in records]
    async with (
        bench(where, owner=tenures[0].owner) as one,
        bench(where, owner=tenures[1].owner, clock=one.clock) as other,
    ):
        tenures[0].write_down()
        ticket_id = await one.approved()
        use = await one.claimed()
        if tenures[1].before:
            await other.desk.reconcile(tenures[1].before)
        await other.desk.reconcile(tenures[1].owner)
        await one.desk.sent(use)
        await one.desk.finish(use, Run.EXECUTED)
        assert [run["state"] for run in (await one.desk.show(BOB, ticket_id))["runs"]] == ["executed"]

        ticket_id = await one.approved()
        use = await one.claimed()
        after = begin_tenure(records[0])
        async with bench(where, owner=after.owner, clock=one.clock) as successor:
            assert await successor.desk.reconcile(after.before) == 1
            assert [run["state"] for run in (await one.desk.show(BOB, ticket_id))["runs"]] == ["unknown"]
            with pytest.raises(NotHeld):
                await one.desk.sent(use)
