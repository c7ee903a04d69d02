"""`ostiary audit search`: one filter over all writers and all files, streaming, in order of time."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.audit.commands import audit
from gateway.audit.query import Query, moment
from gateway.audit.segments import (
    lines_back,
    lines_of,
    list_chains,
    open_chain,
    segment_path,
    segments_of,
    slot_path,
)
from gateway.audit.trail import ChainOfFiles
from gateway.audit.verify import verify_file
from gateway.contract.chain import ZERO, Checkpoint, chain
from gateway.contract.record import admin_record, approval_record
from tests.contract.walked import REDACTOR, transition
from tests.ports.test_audit import decision, opened, outcome, refusal


def written(file: Path, records: list[dict[str, Any]], *, writer: int = 0, cut: tuple[int, ...] = ()) -> None:
    """A writer's chain; it was rotated after each number of records in `cut`."""
    slot, head, lines, first = slot_path(file, writer), ZERO, [], 1
    for seq, record in enumerate(records, 1):
        head, line = chain(head, {**record, "seq": seq, "prev": head, "writer": writer})
        lines.append(line)
        if seq in cut:
            segment_path(slot, first).write_bytes(b"".join(lines))
            lines, first = [], seq + 1
    slot.write_bytes(b"".join(lines))


def at(record: dict[str, Any], minute: int, **changed: Any) -> dict[str, Any]:
    return {**record, "time": f"2026-11-30T10:{minute:02d}:00.000Z", **changed}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two writers, one of them rotated twice, with records of every kind."""
    file = tmp_path / "audit.jsonl"
    told = [at(decision(n), 2 * n) for n in range(6)]
    told[3] |= {"server": "payments", "name": "pay", "ticket": "t-9", "verdict": "approve"}
    written(file, told, cut=(2, 4))
    other = [
        at(outcome(0), 1),
        at(refusal(9), 3, reasons=["policy_denied", "not_yours"]),
        at(approval_record(transition(), REDACTOR), 5),
        at(admin_record("mark", "local:0@host"), 7),
        at(outcome(3), 9, answers_ticket="t-9"),
    ]
    written(file, other, writer=1)
    return file


def ask(file: Path, *words: str) -> Result:
    return CliRunner().invoke(audit, ["search", "--file", str(file), *words])


def found(file: Path, *words: str) -> list[dict[str, Any]]:
    result = ask(file, "--json", *words)
    assert result.exit_code in (0, 1), result.output
    return [json.loads(line) for line in result.output.splitlines()]


def minutes(records: list[dict[str, Any]]) -> list[int]:
    return [int(record["time"][14:16]) for record in records]


def test_all_writers_and_all_files_are_one_record_in_order_of_time(file: Path) -> None:
    """Rotated files and several writers are read together, newest or oldest first, each record once."""
    everything = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert minutes(found(file, "--oldest-first")) == everything
    assert minutes(found(file)) == everything[::-1]
    assert minutes(found(file, "-n", "3")) == [10, 9, 8]
    assert minutes(found(file, "-n", "2", "--oldest-first")) == [0, 1]
    assert minutes(found(file, "-n", "0")) == everything[::-1]


@pytest.mark.parametrize(
    ("words", "there"),
    [
        (("--who", "alice", "--kind", "decision"), [0, 2, 4, 6, 8, 10]),
        (("--who", "bob"), [5]),
        (("--who", "local:0@host"), [7]),
        (("--who", "ali"), []),
        (("--issuer", "https://idp.example.com", "--kind", "approval"), [5]),
        (("--client", "client-1", "--server", "payments"), [6]),
        (("--server", "payments"), [6]),
        (("--tool", "pay"), [6]),
        (("--method", "tools/call", "--kind", "outcome"), [1, 9]),
        (("--kind", "admin"), [7]),
        (("--verdict", "approve"), [6]),
        (("--outcome", "executed"), [1, 9]),
        (("--reason", "not_yours"), [3]),
        (("--ticket", "t-9"), [6, 9]),
        (("--decision", f"{3:032x}"), [6, 9]),
        (("--since", "2026-11-30T10:08:00Z"), [8, 9, 10]),
        (("--until", "2026-11-30T10:02:00Z"), [0, 1]),
        (("--since", "2026-11-30T11:04:00+01:00", "--until", "2026-11-30T10:06"), [4, 5]),
        (("--since", "2026-12-01"), []),
    ],
)
def test_every_question_finds_its_records_and_no_others(file: Path, words: tuple[str, ...], there: list[int]) -> None:
    """Each option narrows, several all hold; nothing found is exit 1."""
    assert minutes(found(file, "--oldest-first", *words)) == there
    assert ask(file, *words).exit_code == (0 if there else 1)


def test_a_trace_is_found(file: Path) -> None:
    """The trace's id leads to the record."""
    written(file, [at(decision(1), 1, trace_id="00000000000000000000000000000abc"), at(decision(2), 2)])
    assert minutes(found(file, "--trace", "00000000000000000000000000000abc")) == [1]


def test_a_question_that_is_none_is_2(file: Path) -> None:
    """No time, no file, no place: exit 2, with a word about it."""
    assert ask(file, "--since", "yesterday").exit_code == 2
    assert "is no time" in ask(file, "--since", "yesterday").stderr
    assert ask(file.with_name("absent")).exit_code == 2
    assert CliRunner().invoke(audit, ["search"]).exit_code == 2


@pytest.mark.parametrize("option", ["--who", "--tool", "--reason", "--decision"])
def test_a_text_that_is_none_is_2(file: Path, option: str) -> None:
    """Bytes that are no UTF-8 reach a program as lone surrogates: said, no traceback, and no `nothing was found`."""
    result = ask(file, option, b"\xff\xfe".decode("utf-8", "surrogateescape"))
    assert (result.exit_code, "not UTF-8" in result.stderr) == (2, True), result.output


async def test_a_file_that_retention_takes_ends_no_reading(tmp_path: Path) -> None:
    """Rotated files may go while somebody reads: search passes over them, verify judges what is left."""
    file = tmp_path / "audit.jsonl"
    sink = await opened(file, rotate_bytes=3000)
    for n in range(14):
        await sink.append(decision(n))
    gone = segments_of(file)[:2]
    end = json.loads(gone[-1][1].read_bytes().splitlines()[-1])
    point = Checkpoint(0, end["seq"], end["hash"])
    facts = {"files": [path.name for _, path in gone], "to": end["seq"], "head": end["hash"]}
    await sink.append(admin_record("segments_removed", facts=facts))
    reading = ChainOfFiles(file).lines(newest_first=True)
    seen = [next(reading)]
    for _, path in gone:
        path.unlink()
    seen += reading
    assert [json.loads(line)["seq"] for line in seen] == list(range(sink.seq, end["seq"], -1))
    await sink.close()
    assert verify_file(file, 0, [point]).whole


async def test_a_file_that_retention_takes_breaks_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AUD-05: files that go between the look at the folder and their turn are retention's, and the rest is whole."""
    file = tmp_path / "audit.jsonl"
    sink = await opened(file, rotate_bytes=3000)
    for n in range(14):
        await sink.append(decision(n))
    gone = segments_of(file)[:2]
    end = json.loads(gone[-1][1].read_bytes().splitlines()[-1])
    facts = {"files": [path.name for _, path in gone], "to": end["seq"], "head": end["hash"]}
    await sink.append(admin_record("segments_removed", facts=facts))
    await sink.close()

    def vanish(path: Path) -> int:
        for _, one in gone:
            one.unlink(missing_ok=True)
        return open_chain(path)

    monkeypatch.setattr(
        "gateway.audit.segments.open_chain", lambda path: open_chain(path) if path == file else vanish(path)
    )
    report = verify_file(file, 0, [Checkpoint(0, end["seq"], end["hash"])])
    assert (report.unread, report.finding, report.first) == ("", None, end["seq"] + 1)


def test_what_is_no_record_is_passed_over_and_never_printed_raw(file: Path) -> None:
    """AUD-04: torn, hostile and foreign lines match nothing; the others are found all the same."""
    good = file.read_bytes()
    file.write_bytes(b'\xff\x1b[2J\n[1]\n{"kind":7}\n' + good + b'{"kind":"decision","time":"2026-11-3')
    assert minutes(found(file, "--kind", "decision", "-n", "2")) == [10, 8]
    assert "\x1b" not in ask(file).output


@pytest.mark.parametrize("number", [1024, 999_999])
def test_a_stray_files_number_claims_no_writers(file: Path, number: int) -> None:
    """A number that no writer has is looked into alone; one that a writer can have names those below it."""
    known = [writer for writer, _ in list_chains(file)]
    slot_path(file, number).touch()
    assert [writer for writer, _ in list_chains(file)] == [*known, number]
    slot_path(file, 1023).touch()
    assert [writer for writer, _ in list_chains(file)] == [*range(1024), number]


def test_a_time_is_read_one_way() -> None:
    """A date, a moment in any zone, or so long ago; in UTC with milliseconds, as the record writes it."""
    now = datetime(2026, 11, 30, 10, 0, tzinfo=UTC)
    assert moment("2h", now) == "2026-11-30T08:00:00.000Z"
    assert moment("1w", now) == "2026-11-23T10:00:00.000Z"
    assert moment("2026-11-30", now) == "2026-11-30T00:00:00.000Z"
    assert moment("2026-11-30T10:15:00+01:00", now) == "2026-11-30T09:15:00.000Z"
    for text in ("", "2x", "h", "now", "30.11.2026"):
        with pytest.raises(ValueError, match="isoformat"):
            moment(text, now)
    assert Query(since="a").asked() == {"since": "a"}


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 20])
def test_backwards_is_forwards_turned_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Reading from the end gives the same lines, whatever the blocks, line ends and the last line are."""
    monkeypatch.setattr("gateway.audit.segments._BLOCK", block)
    for text in (b"", b"\n", b"a", b"a\n", b"a\nbb\r\n\n\x0cccc\n", b"one\ntwo\nthree is not finished"):
        (tmp_path / "x").write_bytes(text)
        fd = open_chain(tmp_path / "x")
        assert list(lines_back(fd)) == list(lines_of(fd))[::-1]


def test_a_long_record_takes_no_memory(tmp_path: Path) -> None:
    """A chain of 200 MB is searched from either end in bounded memory, and the newest is found at once."""
    file = tmp_path / "audit.jsonl"
    line = chain(ZERO, at(decision(1), 1, seq=1, prev=ZERO, writer=0))[1]
    last = chain(ZERO, at(decision(2), 2, seq=1, prev=ZERO, writer=0))[1]
    block = line * (1_000_000 // len(line))
    with file.open("wb") as long:
        for _ in range(200):
            long.write(block)
        long.write(last)
    script = (
        "import resource, sys\n"
        "limit = 160 * 1024 * 1024\n"
        "from gateway.audit.commands import audit\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "audit(['search', '--json', '--file', *sys.argv[1:]])\n"
    )
    for words in (["-n", "1"], ["--oldest-first", "--decision", f"{2:032x}"]):
        child = subprocess.run(
            [sys.executable, "-c", script, str(file), *words], check=False, capture_output=True, timeout=120
        )
        assert (child.returncode, child.stdout) == (0, last), child.stderr
