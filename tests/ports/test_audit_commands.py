"""`ostiary audit verify | tail | checkpoint`: exit codes, names of what is bad, hostile files (AUD-04 to AUD-06)."""
# ruff: noqa: ASYNC240 - nothing else runs on the loop while a test looks at files

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.audit.commands import audit
from gateway.audit.place import Place
from gateway.contract.chain import ZERO, chain
from tests.contract.test_record import HOSTILE
from tests.ports.test_audit import decision, opened, outcome


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three writers' chains, of 12 records each."""
    file = tmp_path / "audit.jsonl"

    async def write() -> None:
        sinks = [await opened(file) for _ in range(3)]
        for sink in sinks:
            for n in range(5):
                await sink.append(decision(n))
                sink.note(outcome(n))
        for sink in sinks:
            await sink.close()

    asyncio.run(write())
    return file


class House:
    """What the command line hands over: a way from a configuration to the audit's file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def audit_place(self, config: Path) -> Place:
        if config.name != "ostiary.yaml":
            raise ValueError(f"{config}: no such configuration")
        return Place(self.file)


def run(*words: str | Path, house: House | None = None) -> Result:
    return CliRunner().invoke(audit, [str(word) for word in words], obj=house)


def test_whole_chains_are_0_and_all_are_found(file: Path) -> None:
    """Every chain beside the file is judged; all whole is exit 0."""
    result = run("verify", "--file", file)
    assert result.exit_code == 0
    assert result.output.count("whole, 12 records") == 3
    told = [json.loads(line) for line in run("verify", "--json", "--file", file).output.splitlines()]
    assert [(report["writer"], report["whole"], report["count"]) for report in told] == [
        (n, True, 12) for n in range(3)
    ]


def test_config_asks_the_house_for_the_file(file: Path) -> None:
    """`--config` finds the file through the house; what it can't read is exit 2."""
    house = House(file)
    assert run("verify", "--config", "ostiary.yaml", house=house).exit_code == 0
    other = run("verify", "--config", "other.yaml", house=house)
    assert (other.exit_code, other.stderr) == (2, "other.yaml: no such configuration\n")
    assert run("verify", "--config", "ostiary.yaml").exit_code == 2
    assert run("verify").exit_code == 2
    assert run("verify", "--config", "ostiary.yaml", "--file", file, house=house).exit_code == 2
    file.write_bytes(file.read_bytes().replace(b"alice", b"mallo", 1))
    assert run("verify", "--config", "ostiary.yaml", house=house).exit_code == 1


@pytest.mark.parametrize("name", ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"])
def test_the_first_bad_record_of_each_chain_is_named(file: Path, name: str) -> None:
    """AUD-05: one flipped byte in any chain is exit 1; file, line and record are named."""
    broken = file.with_name(name)
    lines = broken.read_bytes().splitlines(keepends=True)
    broken.write_bytes(b"".join([*lines[:4], lines[4].replace(b"alice", b"alicf"), *lines[5:]]))
    result = run("verify", "--file", file)
    assert result.exit_code == 1
    assert f"{broken}: BROKEN at line 5, record 5: its content does not match its hash" in result.output
    told = [json.loads(line) for line in run("verify", "--json", "--file", file).output.splitlines()]
    bad = next(report for report in told if not report["whole"])
    assert bad["file"] == str(broken)
    assert (bad["first_bad"]["line"], bad["first_bad"]["seq"]) == (5, 5)


def test_swapped_and_removed_chains_are_found(file: Path) -> None:
    """AUD-06: a chain in another writer's place, and a gap in the row of files, are no whole audit."""
    one, two = file.with_name("audit.jsonl.1"), file.with_name("audit.jsonl.2")
    one_text, two_text = one.read_bytes(), two.read_bytes()
    one.write_bytes(two_text)
    two.write_bytes(one_text)
    result = run("verify", "--file", file)
    assert result.exit_code == 1
    assert "it belongs to writer 2, not 1" in result.output
    one.unlink()
    two.write_bytes(two_text)
    result = run("verify", "--file", file)
    assert result.exit_code == 2
    assert f"{one}: could not be read" in result.output


def test_what_cannot_be_read_is_2_and_nothing_is_0(file: Path) -> None:
    """A missing file, a folder or a pipe is exit 2; an empty chain is whole, and said to be empty."""
    assert run("verify", "--file", file.with_name("absent")).exit_code == 2
    assert run("verify", "--file", file.parent).exit_code == 2
    pipe = file.with_name("pipe")
    os.mkfifo(pipe)
    assert run("verify", "--file", pipe).exit_code == 2
    empty = file.with_name("empty")
    empty.touch()
    result = run("verify", "--file", empty)
    assert (result.exit_code, "empty" in result.output) == (0, True)


def test_a_cut_tail_is_found_against_a_checkpoint(file: Path) -> None:
    """AUD-06: cut and swapped chains verify alone, and are found against what a second place kept."""
    kept = file.with_name("kept")
    assert run("checkpoint", "--file", file, "--output", kept).exit_code == 0
    points = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [(point["writer"], point["count"]) for point in points] == [(0, 12), (1, 12), (2, 12)]
    again = [json.loads(line) for line in run("checkpoint", "--file", file).output.splitlines()]
    assert [{**point, "time": ""} for point in points] == [{**point, "time": ""} for point in again]
    assert run("verify", "--file", file, "--checkpoint", kept).exit_code == 0

    one = file.with_name("audit.jsonl.1")
    good = one.read_bytes()
    one.write_bytes(b"".join(good.splitlines(keepends=True)[:-3]))
    assert run("verify", "--file", file).exit_code == 0
    result = run("verify", "--file", file, "--checkpoint", kept)
    assert result.exit_code == 1
    assert "record 10" in result.output
    assert "tail was cut" in result.output

    one.write_bytes(b"")
    assert run("verify", "--file", file, "--checkpoint", kept).exit_code == 1
    one.unlink()
    file.with_name("audit.jsonl.2").unlink()
    assert run("verify", "--file", file).exit_code == 0
    result = run("verify", "--file", file, "--checkpoint", kept)
    assert result.exit_code == 1
    assert "writer 2, whose file is not here" in result.output


def test_a_broken_chain_gets_no_checkpoint(file: Path) -> None:
    """A checkpoint says that all up to it was whole: a broken chain gives none."""
    file.write_bytes(file.read_bytes().replace(b"alice", b"mallo", 1))
    kept = file.with_name("kept")
    assert run("checkpoint", "--file", file, "--output", kept).exit_code == 1
    assert not kept.exists()
    assert run("checkpoint", "--file", file.with_name("absent")).exit_code == 2


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "x",
        '{"writer":0,"count":1}',
        '{"writer":true,"count":1,"head":"00"}',
        '{"writer":0,"count":-1,"head":"0"}',
    ],
)
def test_a_bad_checkpoint_is_2(file: Path, text: str) -> None:
    """A checkpoint that can't be read is not an agreement."""
    kept = file.with_name("kept")
    kept.write_text(text)
    assert run("verify", "--file", file, "--checkpoint", kept).exit_code == 2
    assert run("verify", "--file", file, "--checkpoint", file.with_name("absent")).exit_code == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"\xff" * 100 + b"\n", "not JSON in UTF-8"),
        (b"\x1b[2J\x1b[31mall is well\n", "not JSON"),
        (b"x" * 300_000 + b"\n", "longer than"),
        (b"{", "torn tail"),
    ],
)
def test_hostile_files_are_named_and_printed_escaped(file: Path, text: bytes, why: str) -> None:
    """AUD-04: what a file holds never reaches the terminal raw, and never stops the command with a traceback."""
    with file.open("ab") as audit_file:
        audit_file.write(text)
    for words in (("verify",), ("verify", "--json"), ("tail",), ("tail", "--json")):
        result = run(*words, "--file", file)
        assert "\x1b" not in result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
    result = run("verify", "--file", file)
    assert result.exit_code == 1
    assert "BROKEN at line 13, record 13" in result.output
    assert why in result.output


def test_a_line_without_end_takes_no_memory(tmp_path: Path) -> None:
    """A line of a gigabyte is named after its first bytes: memory stays bounded."""
    file = tmp_path / "audit.jsonl"
    with file.open("wb") as sparse:
        sparse.write(b'{"a":"')
        sparse.truncate(1 << 30)
    script = (
        "import resource, sys\n"
        "limit = 600 * 1024 * 1024\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "from gateway.audit.commands import audit\n"
        "audit(['verify', '--file', sys.argv[1]])\n"
    )
    began = time.monotonic()
    child = subprocess.run(
        [sys.executable, "-c", script, str(file)], check=False, capture_output=True, text=True, timeout=60
    )
    assert child.returncode == 1, child.stderr
    assert "longer than" in child.stdout
    assert time.monotonic() - began < 30


def test_tail_shows_the_last_records_of_all_writers(file: Path) -> None:
    """The newest records of all chains, in order of time, as sentences or as the lines themselves."""
    result = run("tail", "-n", "4", "--file", file)
    assert result.exit_code == 0
    assert len(result.output.splitlines()) == 4
    assert "stopped" in result.output
    lines = run("tail", "-n", "100", "--json", "--file", file).output.splitlines()
    assert len(lines) == 36
    times = [json.loads(line)["time"] for line in lines]
    assert times == sorted(times)
    written = {line for path in file.parent.glob("audit.jsonl*") for line in path.read_text().splitlines()}
    assert set(lines) == written
    assert run("tail", "-n", "0", "--file", file).output == ""
    assert run("tail", "--file", file.with_name("absent")).exit_code == 2


def test_a_refusal_is_not_shown_beside_an_allow(file: Path) -> None:
    """What the policy said of a call that another room refused is no end of it: only `--json` shows it."""
    record = {**decision(), "verdict": "allow", "seq": 1, "prev": ZERO, "writer": 0, "time": "9"}
    file.write_bytes(chain(ZERO, record)[1])
    assert "allow" in run("tail", "-n", "1", "--file", file).output.split()
    refused = {**record, "kind": "refusal", "status": 403, "reasons": ["tool_quarantined", "allowed"]}
    file.write_bytes(chain(ZERO, refused)[1])
    shown = run("tail", "-n", "1", "--file", file).output.split()
    assert {"refusal", "403", "tool_quarantined,allowed"} <= set(shown)
    assert "allow" not in shown
    assert '"verdict":"allow"' in run("tail", "-n", "1", "--json", "--file", file).output


def test_tail_escapes_what_was_forged(file: Path) -> None:
    """AUD-04: a forged line that holds control characters is shown escaped in both forms."""
    record: dict[str, Any] = {
        **decision(),
        "name": HOSTILE.replace("\ud800", ""),
        "seq": 1,
        "prev": ZERO,
        "writer": 0,
    }
    file.write_bytes(chain(ZERO, {**record, "time": "9"})[1])
    for words in (("tail",), ("tail", "--json")):
        output = run(*words, "-n", "1", "--file", file).output
        assert "read_file" not in output
        assert output.removesuffix("\n").isprintable()


@pytest.mark.parametrize("command", ["tail", "search"])
def test_a_reader_that_has_enough_ends_it_without_a_word(file: Path, command: str) -> None:
    """`… | head -1`: a closed pipe is no fault of the record, and nothing is said of it."""
    assert run(command, "--file", file).exit_code == 0
    gone, pipe = os.pipe()
    os.close(gone)
    try:
        script = f"from gateway.audit.commands import audit; audit([{command!r}, '--file', {str(file)!r}])"
        done = subprocess.run([sys.executable, "-c", script], stdout=pipe, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(pipe)
    assert (done.returncode, done.stderr) == (1, b"")


def test_tail_follows(file: Path) -> None:
    """`--follow` prints what is written from then on."""
    script = (
        "import sys; from gateway.audit.commands import audit\n"
        "audit(['tail', '-n', '0', '-f', '--json', '--file', sys.argv[1]])"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(file)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        time.sleep(1.5)

        async def write() -> None:
            sink = await opened(file)
            await sink.append(decision(77))
            await sink.close()

        asyncio.run(write())
        guard = threading.Timer(20, child.kill)
        guard.start()
        seen = [json.loads(child.stdout.readline()) for _ in range(2)]
        guard.cancel()
        assert [record.get("act") or record["decision_id"] for record in seen] == ["started", f"{77:032x}"]
        child.stdout.close()
    finally:
        child.kill()
        child.wait()


def test_a_living_writer_is_no_broken_chain(file: Path) -> None:
    """A record that is just being written is waited for, not reported as torn."""
    good = file.read_bytes()
    lines = good.splitlines(keepends=True)

    async def write() -> None:
        sink = await opened(file)  # holds the lock
        now = file.read_bytes()
        with file.open("ab") as raw:
            raw.write(lines[0][:50])
        finish = threading.Timer(0.3, lambda: os.truncate(file, len(now)))
        finish.start()
        began = time.monotonic()
        result = await asyncio.to_thread(run, "verify", "--file", file)
        assert time.monotonic() - began < 5
        finish.join()
        assert result.exit_code == 0, result.output
        await sink.close()

    asyncio.run(write())
