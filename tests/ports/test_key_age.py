"""Since when a key seals: remembered beside the record, for that key alone, and never in the way of a start."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from gateway.settings.keeping import SealSettings
from gateway.signals.key_age import first_seen

ONE, OTHER = bytes(range(32)), bytes(range(1, 33))


def test_a_key_is_as_old_as_its_first_use_here(tmp_path: Path) -> None:
    """A restart changes nothing, a rotation begins anew; the file tells nothing of the key."""
    record, before = tmp_path / "audit.jsonl", int(time.time())
    seen = first_seen((ONE,), record)
    assert before <= seen <= time.time()
    file = tmp_path / "audit.jsonl.seal-key"
    name = file.read_text().split()[0]
    assert ONE.hex() not in file.read_text()
    file.write_text(f"{name} 1000\n")
    assert first_seen((ONE, OTHER), record) == 1000.0
    assert first_seen((OTHER, ONE), record) >= before
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("found", ["nonsense", "a folder", "a link", "the future", "no folder"])
def test_what_can_not_be_read_is_a_key_of_today(tmp_path: Path, found: str) -> None:
    """Nothing of it stops a start, and no link is followed."""
    record, before = tmp_path / "audit.jsonl", int(time.time())
    first_seen((ONE,), record)
    file = tmp_path / "audit.jsonl.seal-key"
    name = file.read_text().split()[0]
    file.unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(f"{name} 1000\n")
    match found:
        case "nonsense":
            file.write_text("\0" * 100)
        case "a folder":
            file.mkdir()
        case "a link":
            file.symlink_to(elsewhere)
        case "the future":
            file.write_text(f"{name} 99999999999\n")
        case _:
            record = tmp_path / "absent" / "audit.jsonl"
    assert first_seen((ONE,), record) >= before
    assert elsewhere.read_text() == f"{name} 1000\n"


def test_a_day_that_is_said_is_believed(tmp_path: Path) -> None:
    """Where the file goes with a pod, the configuration says since when, in UTC; nothing is written."""
    record = tmp_path / "audit.jsonl"
    assert first_seen((ONE,), record, "1970-01-02") == 86_400.0
    assert list(tmp_path.iterdir()) == []


def test_a_day_is_a_day_bare_or_quoted() -> None:
    """YAML reads a bare day as a date: it means what is written. What is no day stops a start."""
    for found in ("2026-02-28", yaml.safe_load("2026-02-28")):
        assert SealSettings(since=found).since == "2026-02-28"
    for wrong in ("2026-02-29", "20260228", "2026-W01-1", "today", ""):
        with pytest.raises(ValueError, match="must be a day, as 2026-11-30"):
            SealSettings(since=wrong)
