"""`ostiary audit export`: evidence that is judged alone, cells that are no formulas, events that OCSF knows."""
# ruff: noqa: ASYNC240 - nothing else runs on the loop while a test looks at files

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.audit.checkpoints import write_checkpoint
from gateway.audit.commands import audit
from gateway.audit.forms import OCSF_VERSION, as_csv, as_ocsf, head_of_csv
from gateway.contract.chain import ZERO, Checkpoint
from gateway.contract.record import admin_record, approval_record
from tests.contract.walked import REDACTOR, transition
from tests.ports.test_audit import decision, opened, outcome, refusal
from tests.ports.test_audit_checkpoints import KEY, OTHER
from tests.ports.test_audit_commands import House
from tests.ports.test_audit_rotation import call
from tests.ports.test_audit_search import at

SCHEMA = json.loads((Path(__file__).parents[1] / "vectors/ocsf-1.8.0-api-activity.json").read_text())


@pytest.fixture
async def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two writers, one of them rotated; twelve calls, one of them thrice."""
    monkeypatch.setenv("SIGNS", base64.urlsafe_b64encode(bytes(range(32))).decode())
    file = tmp_path / "audit.jsonl"
    sinks = [await opened(file, rotate_bytes=7000), await opened(file)]
    for sink in sinks:
        await call(sink, *range(12))
    for sink in sinks:
        await sink.close()
    return file


def ask(*words: str | Path) -> Result:
    return CliRunner().invoke(audit, [str(word) for word in words])


def export(file: Path, *words: str) -> Path:
    out = file.with_name(f"evidence-{len(list(file.parent.iterdir()))}")
    done = ask("export", "--file", file, "--out", out, *words)
    assert (done.exit_code, done.output) == (0, "")
    return out


def verify(out: Path, *words: str | Path, key: str = KEY.public.text) -> Result:
    return ask("verify", "--file", out, "--public-key", key, *words)


async def test_evidence_is_verbatim_and_judged_alone(file: Path) -> None:
    """Records stand as the chain holds them, gaps are named, and one key's word covers all of it."""
    out = export(file, "--decision", f"{5:032x}", "--key-env", "SIGNS")
    lines = out.read_bytes().splitlines(keepends=True)
    records = [line for line in lines if b'"kind"' in line]
    whole = b"".join(path.read_bytes() for path in sorted(file.parent.glob("audit.jsonl*")))
    assert len(records) == 4
    assert all(line in whole for line in records)
    assert [json.loads(line)["gap"]["writer"] for line in lines if line.startswith(b'{"gap"')] == [0, 0, 1, 1]
    for path in file.parent.glob("audit.jsonl*"):
        path.unlink()
    done = verify(out)
    assert done.exit_code == 0, done.output
    assert "2 of records 1 to" in done.output
    assert f"signed by {KEY.public.id}" in done.output
    assert verify(out, key=OTHER.public.text).exit_code == 1
    assert "nobody's word was checked" in ask("verify", "--file", out).output
    assert out.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("when", "zone"), [("2001-01-01 00:00:00", "Pacific/Kiritimati"), ("2099-12-31 23:59:59", "UTC")]
)
async def test_another_machines_clock_changes_nothing(file: Path, tmp_path: Path, when: str, zone: str) -> None:
    """AUD-05: an export is judged years before or after, in any zone: whole is whole, and changed is changed."""
    program = shutil.which("faketime")
    if program is None:
        pytest.skip("faketime is not here: apt-get install faketime")
    out = export(file, "--decision", f"{5:032x}", "--key-env", "SIGNS").rename(tmp_path / "copy.jsonl")
    words = ["audit", "verify", "--file", str(out), "--public-key", KEY.public.text]
    command = [program, when, sys.executable, "-m", "gateway.cli", *words]
    environment = {"PATH": os.environ["PATH"], "TZ": zone, "PYTHONPATH": os.pathsep.join(sys.path)}

    def judged() -> tuple[int, str]:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", check=False)
        return done.returncode, done.stdout

    code, told = judged()
    assert (code, f"signed by {KEY.public.id}" in told) == (0, True), told
    out.write_bytes(out.read_bytes().replace(b'"verdict":"allow"', b'"verdict":"denyy"', 1))
    assert judged()[0] == 1


async def test_the_whole_record_is_an_export_without_gaps(file: Path) -> None:
    """Without a filter every record is there; without a key it says that nobody signed."""
    out = export(file)
    told = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [chain["gaps"] for chain in told[-1]["export"]["chains"]] == [0, 0]
    assert told[-1]["signature"] is None
    assert ask("verify", "--file", out).exit_code == 0
    assert "not signed by a key that is trusted" in verify(out).output
    empty = export(file, "--who", "nobody", "--key-env", "SIGNS")
    assert verify(empty).exit_code == 0


def _forged_gap(lines: list[bytes]) -> list[bytes]:
    """A record is taken out, and the gap beside it made wider."""
    first = next(n for n, line in enumerate(lines) if b'"kind"' in line)
    gap = json.loads(lines[first - 1])
    gap["gap"]["to"] += 1
    return [*lines[: first - 1], json.dumps(gap, separators=(",", ":")).encode() + b"\n", *lines[first + 1 :]]


def _made_up(lines: list[bytes]) -> list[bytes]:
    told = json.loads(lines[-1])
    told["export"]["filter"] = {"who": "somebody else"}
    return [*lines[:-1], json.dumps(told).encode() + b"\n"]


CHANGED: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "a flipped byte": (lambda lines: [line.replace(b"read_file", b"read_fils") for line in lines], "altered"),
    "a record less": (lambda lines: [lines[0], *lines[2:]], "removed"),
    "a record less, and a gap to fit": (_forged_gap, "removed"),
    "two records swapped": (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "removed"),
    "a gap less": (lambda lines: lines[1:], "removed"),
    "the end cut off": (lambda lines: [*lines[:-3], lines[-1]], "tail_cut"),
    "another filter told": (_made_up, "altered"),
    "no statement": (lambda lines: lines[:-1], "altered"),
    "a line of something else": (lambda lines: [lines[0], b"{}\n", *lines[1:]], "altered"),
}


@pytest.mark.parametrize("name", CHANGED)
async def test_changed_evidence_is_found(file: Path, name: str) -> None:
    """AUD-05: whatever was changed in an export is named; the untouched one is whole."""
    out = export(file, "--kind", "outcome", "--key-env", "SIGNS")
    assert verify(out).exit_code == 0
    change, kind = CHANGED[name]
    out.write_bytes(b"".join(change(out.read_bytes().splitlines(keepends=True))))
    done = verify(out, "--json")
    assert done.exit_code == 1, done.output
    assert json.loads(done.output.splitlines()[0])["first_bad"]["kind"] in {kind, "altered", "head_cut", "tail_cut"}
    if name != "no statement":
        assert json.loads(done.output.splitlines()[0])["first_bad"]["kind"] == kind


async def test_evidence_of_a_chain_that_was_made_anew_is_found_against_checkpoints(file: Path) -> None:
    """AUD-06: an export agrees with what a second place kept, or it is named."""
    out = export(file, "--key-env", "SIGNS")
    chain = json.loads(out.read_bytes().splitlines()[-1])["export"]["chains"][1]
    kept = file.with_name("kept")
    kept.write_bytes(write_checkpoint(Checkpoint(1, chain["count"], chain["head"]), "t", KEY))
    assert verify(out, "--checkpoints", kept).exit_code == 0
    kept.write_bytes(write_checkpoint(Checkpoint(1, 5, "0" * 64), "t", KEY))
    done = verify(out, "--checkpoints", kept)
    assert (done.exit_code, "[forked]" in done.output) == (1, True)


async def test_nothing_is_exported_of_a_broken_chain_or_over_a_file(file: Path) -> None:
    """A broken chain is exit 1 and leaves no file; a file that is there stays as it is."""
    out = file.with_name("evidence")
    out.write_text("mine")
    assert ask("export", "--file", file, "--out", out).exit_code == 2
    assert out.read_text() == "mine"
    out.unlink()
    file.write_bytes(file.read_bytes().replace(b"alice", b"mallo", 1))
    done = ask("export", "--file", file, "--out", out)
    assert (done.exit_code, "[altered]" in done.stderr) == (1, True)
    assert not out.exists()
    assert ask("export", "--file", file.with_name("absent"), "--out", out).exit_code == 2
    assert not out.exists()


@pytest.mark.parametrize("word", ["=cmd|' /C calc'!A0", "+1", "-1+1", "@SUM(A1)", "  =1", "＝1", "\t=1", "\r=1"])
def test_no_cell_is_a_formula(word: str) -> None:
    """A name that a caller or a server chose never acts in a spreadsheet, and stays readable."""
    record = {**decision(), "name": word, "code": -32602, "detail": f'a "quoted"; {word}'}
    head, row = list(csv.reader(io.StringIO((head_of_csv() + as_csv(record)).decode())))
    told = dict(zip(head, row, strict=True))
    assert told["name"].startswith(("'", "\\t", "\\r"))
    assert word.strip() in told["name"].replace("\\\\", "\\")
    assert told["code"] == "-32602"
    assert told["subject"] == "alice"
    assert told["detail"].startswith('a "quoted"; ')
    assert not [cell for cell in row if cell.lstrip(" ").startswith(("=", "+", "@", "＝")) or "\n" in cell]


def test_a_floods_record_says_when_it_was_in_every_form() -> None:
    """How often, from when to when, and of how many callers: a row has columns for it, an event its attributes."""
    times = {"first": "2026-11-30T10:02:00.000Z", "last": "2026-11-30T10:02:00.900Z"}
    record = {**decision(), "kind": "refusal", "count": 480, "actors": 7, **times}
    head, row = list(csv.reader(io.StringIO((head_of_csv() + as_csv(record)).decode())))
    told = dict(zip(head, row, strict=True))
    assert [told[name] for name in ("count", "first", "last", "actors")] == ["480", *times.values(), "7"]
    event = json.loads(as_ocsf(record, "1"))
    assert event["count"] == 480
    assert event["end_time"] - event["start_time"] == 900
    assert event["unmapped"]["actors"] == 7
    assert "start_time" not in json.loads(as_ocsf(decision(), "1"))


@pytest.mark.parametrize("word", ["a;=1+1", 'a"; =1', "a,@SUM(A1)", "x|+1", "a;;-2", "a\t=1", "a; ＝1"])
def test_no_part_of_a_cell_is_one_where_another_separator_is_usual(word: str) -> None:
    """A spreadsheet whose locale separates with `;` cuts our cells anew: no piece begins like a formula."""
    row = as_csv({**decision(), "name": word, "detail": word, "reasons": [word]}).decode()
    for separator in (";", "|", "\t", ","):
        for piece in row.split(separator):
            assert not piece.lstrip(' "').startswith(("=", "+", "-", "@", "＝")), piece


async def test_a_sheet_has_every_record_once(file: Path) -> None:
    """One row each, of both writers, after the row of names."""
    out = export(file, "--format", "csv", "--kind", "decision")
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert sorted(row["decision_id"] for row in rows) == sorted(2 * [f"{n:032x}" for n in range(12)])


def problems(event: Mapping[str, Any], attributes: Mapping[str, Any], where: str = "") -> list[str]:
    """What of an event the published schema does not know, or misses."""
    found = [f"{where}{name} is not there" for name, one in attributes.items()
             if one["requirement"] == "required" and name not in event]  # fmt: skip
    for name, value in event.items():
        here, one = f"{where}{name}", attributes.get(name)
        if one is None:
            found.append(f"{here} is unknown")
            continue
        if one.get("is_array", False) != isinstance(value, list):
            found.append(f"{here}: an array, or none")
        for item in value if isinstance(value, list) else [value]:
            found += _judge(item, one, here)
    return found


def _judge(item: Any, one: Mapping[str, Any], here: str) -> list[str]:
    if isinstance(item, dict):
        if one["type"] == "object":
            return []
        inner = SCHEMA["objects"][one["type"]]
        least = inner.get("constraints", {}).get("at_least_one", [])
        missing = [f"{here}: none of {least}"] if least and not set(least) & item.keys() else []
        return missing + problems(item, inner["attributes"], f"{here}.")
    numbers = {"integer_t", "long_t", "timestamp_t"}
    if (one["type"] in numbers) != (type(item) is int):
        return [f"{here}: {item!r} is no {one['type']}"]
    if "enum" in one and one["type"] == "integer_t" and str(item) not in one["enum"]:
        return [f"{here}: {item} is none of {one['enum']}"]
    return []


@pytest.mark.parametrize(
    "record",
    [
        decision(), outcome(), outcome(1, "unknown"), refusal(), approval_record(transition(), REDACTOR),
        admin_record("started", facts={"pid": 1}), {**decision(), "method": "tasks/cancel"},
        {**refusal(), "method": "shared", "first": "2026-11-30T10:00:00.000Z", "last": "2026-11-30T10:00:01.000Z"},
    ],
    ids=lambda record: f"{record['kind']}-{record['method']}-{record['outcome']}",
)  # fmt: skip
def test_an_event_is_one_of_the_published_schema(record: dict[str, Any]) -> None:
    """Every attribute of an event is one of OCSF's API Activity, of its type; none that is required is missing."""
    event = json.loads(as_ocsf(at({**record, "seq": 7, "writer": 1, "hash": "0" * 64}, 5), "0.1.0"))
    assert problems(event, SCHEMA["class"]) == []
    assert (event["class_uid"], event["type_uid"]) == (6003, 600_300 + event["activity_id"])
    assert event["metadata"]["version"] == OCSF_VERSION == SCHEMA["version"]
    assert event["time"] == 1_796_033_100_000
    assert event["status_id"] == {"unknown": 0, "executed": 1}.get(
        record["outcome"], 2 if record["kind"] == "refusal" else 1
    )
    assert problems({**event, "made_up": 1}, SCHEMA["class"]) == ["made_up is unknown"]


async def test_events_are_one_a_line(file: Path) -> None:
    """`--format ocsf` writes every record that is asked for."""
    out = export(file, "--format", "ocsf", "--kind", "outcome")
    events = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert len(events) == 24
    assert {event["actor"]["user"]["uid"] for event in events} == {"alice"}


async def test_no_export_stands_for_the_record(file: Path) -> None:
    """AUD-06: a genuine, signed export in a record's place is no whole record, by `--config` or beside its files."""
    out = export(file, "--kind", "admin", "--key-env", "SIGNS")
    assert verify(out).exit_code == 0
    chosen, there = out.read_bytes(), file.read_bytes()
    house = House(file)
    by_config = ("verify", "--config", "ostiary.yaml", "--public-key", KEY.public.text)
    assert CliRunner().invoke(audit, by_config, obj=house).exit_code == 0
    file.write_bytes(chosen)
    assert CliRunner().invoke(audit, by_config, obj=house).exit_code == 1
    assert verify(file).exit_code == 1, "other files of the record stand beside it"
    file.write_bytes(there)
    assert verify(file).exit_code == 0


async def test_nothing_follows_a_statement_but_the_end(file: Path) -> None:
    """AUD-05: lines between the statement and its copy at the end are not the statement's."""
    out = export(file, "--kind", "outcome", "--key-env", "SIGNS")
    lines = out.read_bytes().splitlines(keepends=True)
    for forged in ([lines[1], lines[-1]], [lines[-1]], [b"{}\n", lines[-1]]):
        out.write_bytes(b"".join([*lines, *forged]))
        assert verify(out).exit_code == 1
    out.write_bytes(b"".join(lines))
    assert verify(out).exit_code == 0


HOSTILE_WORDS = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
STATED = {"version": 1, "time": "t", "filter": {}, "sha256": hashlib.sha256().hexdigest(), "key": None}
STATED_CHAIN = {"writer": 0, "first": 1, "count": 0, "head": ZERO, "records": 0, "gaps": 0}


@settings(max_examples=300)
@given(
    in_statement=st.dictionaries(
        st.sampled_from([*STATED, "chains"]), HOSTILE_WORDS | st.just("\x1b[2J"), max_size=3
    ),
    in_chain=st.dictionaries(st.sampled_from(list(STATED_CHAIN)), HOSTILE_WORDS | st.just("\x1b[2J"), max_size=3),
    gap=st.fixed_dictionaries({"writer": HOSTILE_WORDS, "from": HOSTILE_WORDS, "to": HOSTILE_WORDS}) | HOSTILE_WORDS,
    left_out=st.sampled_from(["", *STATED]),
)
def test_no_export_breaks_the_judge_or_a_terminal(
    tmp_path_factory: pytest.TempPathFactory, in_statement: Any, in_chain: Any, gap: Any, left_out: str
) -> None:
    """Whatever a file says of itself: it is judged, exit 0 or 1, and nothing of it acts on a terminal (AUD-04)."""
    told: dict[str, Any] = {**STATED, "chains": [{**STATED_CHAIN, **in_chain}], **in_statement}
    told.pop(left_out, None)
    lines = [{"gap": gap}, {"export": told, "signature": None}]
    out = tmp_path_factory.mktemp("hostile") / "evidence"
    text = b"".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode() + b"\n" for line in lines)
    for content in (text, text.partition(b"\n")[2]):
        out.write_bytes(content)
        for words in (("--json",), (), ("--public-key", KEY.public.text)):
            done = ask("verify", "--file", out, *words)
            assert done.exit_code in (0, 1), done.output
            assert done.exception is None or isinstance(done.exception, SystemExit)
            assert all(line.isprintable() for line in done.output.split("\n"))
