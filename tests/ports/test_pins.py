"""The keeper and its file: what is in force, who is told, and that a broken file weakens nothing."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog

from gateway.contract.fingerprint import digest_definition
from gateway.contract.passage import Tool
from gateway.contract.pins import Mode, Pin, PinsUnreadable, write_pins
from gateway.pins import file as files
from gateway.pins import keeper
from gateway.pins.keeper import Pins

MODES: Mapping[str, Mode] = {"strict": "enforce", "soft": "warn", "open": "off"}


def tool(name: str = "read", **more: Any) -> Tool:
    definition = {"name": name, "inputSchema": {"type": "object"}, **more}
    return Tool(name, digest_definition(definition), {}, definition)


def pins_of(*tools: Tool, servers: tuple[str, ...] = ("strict", "soft")) -> bytes:
    """A file's text that pins these tools for both servers."""
    pinned = {one.name: Pin(one.definition, one.digest, "local:0@host", "2026-11-30T00:00:00Z") for one in tools}
    return write_pins(dict.fromkeys(servers, pinned))


def put(file: Path, text: bytes) -> None:
    """As a ConfigMap changes: another file takes the name, at once."""
    beside = file.with_name("next")
    beside.write_bytes(text)
    beside.replace(file)


@dataclass
class Told:
    """What the keeper wrote down and counted."""

    acts: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    counts: list[tuple[str, str, int]] = field(default_factory=list)

    def of(self, act: str) -> list[Mapping[str, Any]]:
        """The facts of one kind of act."""
        return [facts for name, facts in self.acts if name == act]


@asynccontextmanager
async def kept(file: Path, modes: Mapping[str, Mode] = MODES) -> AsyncIterator[tuple[Pins, Told]]:
    """A keeper at work."""
    told = Told()
    pins = Pins(modes, file, lambda *act: told.acts.append(act), lambda *count: told.counts.append(count))
    await pins.start()
    try:
        yield pins, told
    finally:
        await pins.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "LOOK_EVERY_S", 0.01)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what the keeper finds by itself."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def shown(pins: Pins, server: str, found: Tool) -> tuple[bool, str]:
    judged = pins.judge(server, found)
    assert (judged.name, judged.digest, judged.definition) == (found.name, found.digest, found.definition)
    return judged.pinned, judged.quarantine


async def test_what_each_mode_makes_of_a_definition(tmp_path: Path) -> None:
    """Accepted, changed, new: quarantined under `enforce` alone; `pinned` says it under `warn` too."""
    file = tmp_path / "pins.json"
    file.write_bytes(pins_of(tool()))
    async with kept(file) as (pins, _):
        accepted, changed, new = tool(), tool(description="x"), tool("write")
        assert [shown(pins, "strict", one) for one in (accepted, changed, new)] == [
            (True, ""), (False, "changed"), (False, "new"),
        ]  # fmt: skip
        assert [shown(pins, "soft", one) for one in (accepted, changed, new)] == [
            (True, ""),
            (False, ""),
            (False, ""),
        ]
        for server in ("open", "unknown"):
            assert pins.judge(server, changed) is changed
        assert [pins.enforced(one) for one in ("strict", "soft", "open")] == [True, False, False]


async def test_acceptances_are_alike_whoever_wrote_them_down(tmp_path: Path) -> None:
    """Two gateways are told apart by what is accepted, not by whom, when, or how the file is laid out."""
    file = tmp_path / "pins.json"
    async with kept(file) as (pins, told):
        assert pins.digest == "", "there is no file"
        put(file, text := pins_of(tool()))
        await until(lambda: bool(told.of("pins_loaded")))
        first = pins.digest
        put(file, text.replace(b"local:", b"local:7") + b"\n")
        await until(lambda: len(told.of("pins_loaded")) == 2)
        assert pins.digest == first
        put(file, pins_of(tool(description="x")))
        await until(lambda: len(told.of("pins_loaded")) == 3)
        assert pins.digest not in {"", first}


async def test_a_judgement_follows_the_file(tmp_path: Path) -> None:
    """Accepted in the file: served within seconds; taken out again: quarantined. No restart, and each is recorded."""
    file = tmp_path / "pins.json"
    async with kept(file) as (pins, told):
        assert shown(pins, "strict", tool()) == (False, "new")
        for number in range(1, 4):
            put(file, pins_of(tool()))
            await until(lambda: shown(pins, "strict", tool()) == (True, ""))
            put(file, pins_of(tool(description="x")))
            await until(lambda: shown(pins, "strict", tool()) == (False, "changed"))
            assert len(told.of("pins_loaded")) == 2 * number
        assert told.of("pins_loaded")[-1]["moved"] == 2
        # A judgement that was made before is made anew.
        old = pins.judge("strict", tool(description="x"))
        assert old.pinned
        put(file, pins_of())
        await until(lambda: shown(pins, "strict", old) == (False, "new"))


@pytest.mark.parametrize("broken", [b"", b"{}", pins_of(tool(description="evil")).replace(b"evil", b"good"), None])
async def test_a_broken_file_keeps_the_pins_that_were_good(tmp_path: Path, broken: bytes | None) -> None:
    """Half a file, a forged one, none: the old pins stay, said once, shown all the time, over when it is mended."""
    file = tmp_path / "pins.json"
    file.write_bytes(pins_of(tool()))
    with structlog.testing.capture_logs() as lines:
        async with kept(file) as (pins, told):
            assert pins.healthy
            if broken is None:
                file.unlink()
            else:
                put(file, broken)
            await until(lambda: not pins.healthy)
            await asyncio.sleep(0.1)
            assert shown(pins, "strict", tool()) == (True, "")
            assert shown(pins, "strict", tool(description="evil")) == (False, "changed")
            assert len(told.of("pins_not_read")) == 1
            put(file, pins_of(tool(description="x")))
            await until(lambda: pins.healthy and shown(pins, "strict", tool(description="x")) == (True, ""))
    assert [line["log_level"] for line in lines if line["event"] == "pins_not_read"] == ["error"]


async def test_a_broken_file_is_no_start_and_a_missing_one_no_pin(tmp_path: Path) -> None:
    """Fail closed at the start: nobody would notice that nothing is pinned."""
    file = tmp_path / "pins.json"
    file.write_bytes(b"{")
    with pytest.raises(PinsUnreadable):
        await Pins(MODES, file).start()
    file.unlink()
    file.mkdir()
    with pytest.raises(OSError, match=r"pins\.json"):
        await Pins(MODES, file).start()
    file.rmdir()
    with structlog.testing.capture_logs() as lines:
        async with kept(file) as (pins, _):
            assert shown(pins, "strict", tool()) == (False, "new")
    assert [line["event"] for line in lines] == ["pins_missing"]
    async with kept(tmp_path / "none", {"open": "off"}) as (pins, told):
        assert pins.judge("open", tool()) is not None
        assert told.acts == []


async def test_each_deviation_is_told_once(tmp_path: Path) -> None:
    """Changed, new and gone, in log, metric and record, once a change and not once a request."""
    file = tmp_path / "pins.json"
    file.write_bytes(pins_of(tool(), tool("old"), servers=("strict", "soft", "open")))
    changed, new = tool(description="x"), tool("wr\u202eite")
    with structlog.testing.capture_logs() as lines:
        async with kept(file) as (pins, told):
            for _ in range(3):
                for server in MODES:
                    pins.met(server, [tool(), tool("old")])
            assert told.of("definitions_deviate") == []
            for _ in range(5):
                pins.met("strict", [changed, new])
                pins.met_all("strict", {one.name: one for one in (changed, new)})
                pins.met_all("open", {})
            pins.met("soft", [changed])
            assert told.counts == [
                ("strict", "changed", 1), ("strict", "new", 1), ("strict", "gone", 1), ("soft", "changed", 1),
            ]  # fmt: skip
            first, second, third = told.of("definitions_deviate")
            assert first == {
                "server": "strict", "mode": "enforce", "count": 2,
                "changed": [["read", tool().digest, changed.digest]], "new": [["wr\\u202eite", new.digest]],
            }  # fmt: skip
            assert second == {
                "server": "strict", "mode": "enforce", "count": 1, "gone": [["old", tool("old").digest]],
            }  # fmt: skip
            assert third["mode"] == "warn"
            assert pins.quarantined() == {"strict": 2}
            # Taken back and done again: the same change is no news, another is.
            pins.met("strict", [tool()])
            pins.met("strict", [changed])
            assert len(told.of("definitions_deviate")) == 3
            pins.met("strict", [tool(description="y")])
            assert len(told.of("definitions_deviate")) == 4
            # After it was accepted, the way back is a change.
            put(file, pins_of(changed, new))
            await until(lambda: pins.quarantined() == {"strict": 0})
            pins.met("strict", [tool()])
            assert told.of("definitions_deviate")[-1]["changed"] == [["read", changed.digest, tool().digest]]
    assert sum(line["event"] == "definitions_deviate" for line in lines) == 5


async def test_whatever_servers_list_memory_and_records_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of made-up tools are one record each time, of a bounded size, and remembered up to a bound."""
    monkeypatch.setattr(keeper, "KEPT", 100)
    async with kept(tmp_path / "pins.json") as (pins, told):
        for turn in range(3):
            pins.met("strict", [tool("n" * 500 + str(number), turn=turn) for number in range(300)])
        assert len(pins._told["strict"]) == 100
        assert [facts["count"] for facts in told.of("definitions_deviate")] == [300, 300, 300]
        assert all(len(str(facts)) < 8_192 for facts in told.of("definitions_deviate"))


async def test_what_one_server_lists_makes_nobody_forget_what_another_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change is told once, also where another server floods the gateway with made-up ones."""
    monkeypatch.setattr(keeper, "KEPT", 100)
    async with kept(tmp_path / "pins.json") as (pins, told):
        for turn in range(3):
            pins.met("soft", [tool("quiet")])
            pins.met("strict", [tool(f"n{number}", turn=turn) for number in range(300)])
        assert [facts["server"] for facts in told.of("definitions_deviate")].count("soft") == 1


async def test_what_could_not_be_read_for_a_while_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk or a right that comes back changes nothing about the file; what lies there is in force all the same."""
    file, reads = tmp_path / "pins.json", files.read
    file.write_bytes(pins_of(tool()))
    async with kept(file) as (pins, told):
        assert shown(pins, "strict", tool()) == (True, "")

        def fail(_file: Path) -> bytes | None:
            raise PermissionError("for a while")

        monkeypatch.setattr(files, "read", fail)
        file.write_bytes(pins_of(tool(description="x")))
        os.utime(file, (1, 1))  # long ago: nothing about it is young
        await until(lambda: not pins.healthy)
        monkeypatch.setattr(files, "read", reads)
        await until(lambda: pins.healthy and shown(pins, "strict", tool(description="x")) == (True, ""))
        assert len(told.of("pins_not_read")) == 1


def test_the_file_is_replaced_at_once_and_followed_through_links(tmp_path: Path) -> None:
    """Whoever reads sees the old text or the new; a link stays one; nothing is left beside it."""
    place = tmp_path / "data"
    place.mkdir()
    target, link = place / "real.json", tmp_path / "pins.json"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    with files.held(link) as found, files.prepared(found, b"new") as beside:
        assert link.read_bytes() == b"old"
        with pytest.raises(BlockingIOError), files.held(link):
            pass
        files.put_in_place(beside, found)
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    with files.held(link) as found, files.prepared(found, b"newer"):
        pass
    assert target.read_bytes() == b"new"
    assert sorted(place.iterdir()) == [target]


def test_too_large_a_file_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read is bounded."""
    monkeypatch.setattr(files, "MAX_BYTES", 10)
    file = tmp_path / "pins.json"
    file.write_bytes(b"x" * 10)
    assert files.read(file) == b"x" * 10
    file.write_bytes(b"x" * 11)
    with pytest.raises(PinsUnreadable):
        files.read(file)


async def test_a_keeper_that_broke_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect ends the looking, never silently: the alarm is on, the log has it, and the pins stay in force."""
    file = tmp_path / "pins.json"
    file.write_bytes(pins_of(tool()))
    with structlog.testing.capture_logs() as lines:
        async with kept(file) as (pins, _):
            assert pins.healthy

            def fail(_file: Path) -> bytes | None:
                raise LookupError("a defect")

            monkeypatch.setattr(files, "read", fail)
            file.write_bytes(pins_of(tool(description="x")))
            await until(lambda: any(line["event"] == "task_broke" for line in lines))
            assert not pins.healthy
            assert shown(pins, "strict", tool()) == (True, "")
    assert [line["task"] for line in lines if line["event"] == "task_broke"] == ["pins"]
