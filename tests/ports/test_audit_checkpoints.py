"""Checkpoints in a second place, what they prove, and files that may go once they are remembered there (AUD-06)."""
# ruff: noqa: ASYNC240 - nothing else runs on the loop while a test looks at files

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import rfc8785
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from gateway.audit import keeping as keeping_of
from gateway.audit.checkpoints import SigningKey, read_checkpoint, read_checkpoints, write_checkpoint
from gateway.audit.commands import audit
from gateway.audit.courier import CheckpointCourier
from gateway.audit.jsonl import JsonlSink
from gateway.audit.keeping import CheckpointFile, Keeper, Keeping
from gateway.audit.place import Place
from gateway.audit.segments import segments_of
from gateway.audit.verify import verify_file
from gateway.contract.chain import ZERO, Checkpoint, chain
from gateway.contract.record import admin_record
from tests.ports.test_audit import decision, opened, outcome, records_of, whole
from tests.ports.test_audit_rotation import all_records, call

KEY = SigningKey(base64.urlsafe_b64encode(bytes(range(32))).decode(), "KEY")
OTHER = SigningKey(base64.urlsafe_b64encode(bytes(32)).decode(), "KEY")
POINT = Checkpoint(3, 17, "ab" * 32)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The second place: on another disk in earnest, beside it here."""
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere" / "checkpoints.jsonl"


def keeper(sink: JsonlSink, file: Path, kept: Path, **keeping: float) -> Keeper:
    return Keeper(sink, file, {"file": CheckpointFile(kept)}, KEY, Keeping(**{"every_s": 0.05, **keeping}))


def ask(*words: str | Path) -> Result:
    return CliRunner().invoke(audit, [str(word) for word in words])


async def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


def test_a_signature_is_ed25519_over_the_label_and_the_canonical_form() -> None:
    """Anybody can check a checkpoint with the public key, RFC 8785 and Ed25519, without this program."""
    told = json.loads(write_checkpoint(POINT, "2026-11-30T10:00:00.000Z", KEY))
    assert (told["writer"], told["count"], told["head"]) == (3, 17, "ab" * 32)
    signature = base64.urlsafe_b64decode(told.pop("signature") + "==")
    public = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(KEY.public.text + "="))
    public.verify(signature, b"ostiary checkpoint v1\0" + rfc8785.dumps(told))


def test_only_a_trusted_keys_untouched_checkpoint_is_one() -> None:
    """Another key, no signature, another member, a changed digit: each is refused and says why."""
    line = write_checkpoint(POINT, "2026-11-30T10:00:00.000Z", KEY)
    assert read_checkpoint(line, (OTHER.public, KEY.public)) == POINT
    assert read_checkpoint(line) == POINT
    told = json.loads(line)
    for changed, why in (
        ({"count": 18}, "signature is wrong"),
        ({"head": "cd" * 32}, "signature is wrong"),
        ({"time": "2027"}, "signature is wrong"),
        ({"key": OTHER.public.id}, "another key"),
        ({"more": 1}, "not signed"),
        ({"signature": told["signature"][:-2]}, "signature is wrong"),
        ({"signature": 7}, "not signed"),
    ):
        with pytest.raises(ValueError, match=why):
            read_checkpoint(json.dumps({**told, **changed}).encode(), (KEY.public,))
    with pytest.raises(ValueError, match="not signed"):
        read_checkpoint(write_checkpoint(POINT, "t", None), (KEY.public,))
    with pytest.raises(ValueError, match="not a checkpoint"):
        read_checkpoint(b'{"writer":0,"count":1,"head":"' + b"0" * 5000, ())


@pytest.mark.parametrize("text", ["", "short", "A" * 44, "!" * 43, base64.urlsafe_b64encode(bytes(33)).decode()])
def test_a_key_of_another_form_is_refused_unquoted(text: str) -> None:
    """The variable is named, its content never."""
    with pytest.raises(ValueError, match=r"^VARIABLE: not 32 bytes in base64url$"):
        SigningKey(text, "VARIABLE")
    assert repr(KEY) == f"SigningKey({KEY.public.id})"


async def test_every_rotated_files_end_and_the_chains_own_are_kept(
    file: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last checkpoint is of the record `stopped`; nothing after it; all are signed and agree with the chain."""
    monkeypatch.setattr(keeping_of, "_CLOSE_S", 20.0)  # the disk of a loaded machine is not the rule
    sink = await opened(file, rotate_bytes=5000)
    keeping = keeper(sink, file, kept)
    keeping.start()
    await call(sink, *range(12))
    await until(lambda: kept.exists() and keeping.age_s < 1)
    await sink.close()
    await keeping.close()
    points = read_checkpoints(kept, (KEY.public,))
    records = {record["seq"]: record["hash"] for record in all_records(file)}
    assert points[-1] == Checkpoint(0, len(records), records[len(records)])
    assert all(records[point.count] == point.head for point in points)
    assert {first - 1 for first, _ in segments_of(file)[1:]} <= {point.count for point in points}
    assert verify_file(file, 0, points).whole
    assert kept.stat().st_mode & 0o777 == 0o600


async def test_a_place_that_fails_delays_nobody_and_gets_all_later(file: Path, kept: Path) -> None:
    """While the second place is away records go on; its age grows; once it is back it holds what it missed."""
    kept.parent.rmdir()
    sink = await opened(file, rotate_bytes=5000)
    keeping = keeper(sink, file, kept)
    keeping.start()
    await call(sink, *range(8))
    await until(lambda: keeping.age_s > 0.3)
    ends = {first - 1 for first, _ in segments_of(file)[1:]}
    assert ends
    kept.parent.mkdir()
    await until(lambda: keeping.age_s < 0.3)
    assert ends <= {point.count for point in read_checkpoints(kept, (KEY.public,))}
    await sink.close()
    await keeping.close()


async def test_old_files_go_once_they_are_remembered_and_the_rest_verifies(file: Path, kept: Path) -> None:
    """Retention: verify says from where the chain is whole; without checkpoints its head is cut."""
    sink = await opened(file, rotate_bytes=5000)
    await call(sink, *range(20))
    before = segments_of(file)
    assert len(before) > 3
    keeping = keeper(sink, file, kept, keep_s=0.001)
    keeping.start()
    await until(lambda: len(segments_of(file)) == 1)
    await sink.close()
    await keeping.close()
    told = [record["facts"] for record in all_records(file) if record.get("act") == "segments_removed"]
    assert [name for one in told for name in one["files"]][: len(before) - 1] == [p.name for _, p in before[:-1]]
    first, _ = segments_of(file)[0]
    alone = ask("verify", "--file", file)
    assert (alone.exit_code, "[head_cut]" in alone.output) == (1, True)
    compared = ask("verify", "--file", file, "--checkpoints", kept, "--public-key", KEY.public.text)
    assert compared.exit_code == 0, compared.output
    assert f"records from {first} on, where a checkpoint begins, of writer 0" in compared.output
    assert f"signed by {KEY.public.id}" in compared.output
    for _ in range(2):
        sink = await opened(file, rotate_bytes=5000)
        await call(sink, 77)
        await sink.close()
    assert verify_file(file, 0, read_checkpoints(kept, (KEY.public,))).whole
    assert verify_file(file, 0, read_checkpoints(kept)).first == first


async def test_nothing_goes_that_is_not_remembered_in_every_place(file: Path, kept: Path) -> None:
    """A place that fails, or a file that is not old enough, keeps the files where they are."""
    sink = await opened(file, rotate_bytes=5000)
    await call(sink, *range(12))
    there = segments_of(file)
    missing = CheckpointFile(kept.parent / "absent" / "x")
    both = Keeper(sink, file, {"file": CheckpointFile(kept), "other": missing}, KEY, Keeping(0.05, 0.001))
    both.start()
    young = keeper(sink, file, kept, keep_s=1000.0)
    young.start()
    await until(lambda: kept.exists() and len(read_checkpoints(kept)) > len(there))
    await asyncio.sleep(0.3)
    assert segments_of(file) == there
    await sink.close()
    await young.close()
    await both.close()
    whole(file)


def _made_anew(lines: list[bytes], since: int) -> list[bytes]:
    """The chain with another subject from record `since` on, all its hashes right."""
    made, head = lines[: since - 1], json.loads(lines[since - 2])["hash"] if since > 1 else ZERO
    for line in lines[since - 1 :]:
        record = json.loads(line)
        del record["hash"]
        head, new = chain(head, {**record, "server": "elsewhere", "prev": head})
        made.append(new)
    return made


TAMPERED: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str, int]] = {
    "a cut tail": (lambda lines: lines[:-3], "tail_cut", 18),
    "a swapped file": (lambda lines: _made_anew(lines, 1), "swapped", 10),
    "a fork": (lambda lines: _made_anew(lines, 12), "forked", 20),
    "a flipped byte": (lambda lines: [*lines[:6], lines[6].replace(b"alice", b"alicf"), *lines[7:]], "altered", 7),
    "a removed record": (lambda lines: lines[:6] + lines[7:], "removed", 7),
    "a reordered record": (lambda lines: [*lines[:6], lines[7], lines[6], *lines[8:]], "reordered", 7),
    "an inserted line": (lambda lines: [*lines[:6], b"{}\n", *lines[6:]], "inserted", 7),
    "an inserted record": (lambda lines: [*lines[:6], _made_anew(lines, 7)[6], *lines[6:]], "forked", 8),
    "a doubled record": (lambda lines: [*lines[:6], lines[3], *lines[6:]], "doubled", 7),
    "a rewritten record": (lambda lines: [*lines[:6], _made_anew(lines, 7)[6], *lines[7:]], "rewritten", 8),
    "a cut head": (lambda lines: lines[4:], "head_cut", 1),
    "a torn tail": (lambda lines: [*lines[:-1], lines[-1][:-9]], "torn_tail", 20),
}


@pytest.fixture
async def compared(file: Path, kept: Path) -> tuple[Path, Path]:
    """A whole chain of 20 records, with checkpoints at 10 and at its end."""
    sink = await opened(file)
    for n in range(9):
        await sink.append(decision(n))
    points = [Checkpoint(0, sink.seq, sink.head)]
    for n in range(9):
        await sink.append(outcome(n))
    await sink.close()
    points.append(Checkpoint(0, sink.seq, sink.head))
    assert [point.count for point in points] == [10, 20]
    kept.write_bytes(b"".join(write_checkpoint(point, "t", KEY) for point in points))
    return file, kept


@pytest.mark.parametrize("name", TAMPERED)
async def test_tampering_is_named_with_its_writer_and_its_place(compared: tuple[Path, Path], name: str) -> None:
    """AUD-05, AUD-06: each kind is named as what it is, with the writer and the number; the whole chain is whole."""
    file, kept = compared
    words = ("verify", "--json", "--file", file, "--checkpoints", kept, "--public-key", KEY.public.text)
    assert ask(*words).exit_code == 0
    change, kind, seq = TAMPERED[name]
    file.write_bytes(b"".join(change(file.read_bytes().splitlines(keepends=True))))
    result = ask(*words)
    assert result.exit_code == 1
    (told,) = [json.loads(line) for line in result.output.splitlines()]
    assert (told["first_bad"]["kind"], told["writer"], told["first_bad"]["seq"]) == (kind, 0, seq)


async def test_checkpoints_that_were_tampered_with_are_no_agreement(compared: tuple[Path, Path]) -> None:
    """A changed or unsigned line is exit 2 with its number; a file that vanished with its chain is found."""
    file, kept = compared
    good = kept.read_bytes()
    kept.write_bytes(good.replace(b'"count":20', b'"count":19'))
    result = ask("verify", "--file", file, "--checkpoints", kept, "--public-key", KEY.public.text)
    assert (result.exit_code, "line 2: its signature is wrong" in result.stderr) == (2, True)
    kept.write_bytes(good + write_checkpoint(Checkpoint(0, 20, ZERO), "t", KEY))
    result = ask("verify", "--file", file, "--checkpoints", kept)
    assert (result.exit_code, "[checkpoints_disagree]" in result.output) == (1, True)
    kept.write_bytes(good + write_checkpoint(Checkpoint(4, 9, ZERO), "t", KEY))
    result = ask("verify", "--file", file, "--checkpoints", kept)
    assert (result.exit_code, "writer 4, whose file is not here [file_missing]" in result.output) == (1, True)


class Configured:
    """A house whose configuration names a second place."""

    def __init__(self, file: Path, kept: Path) -> None:
        self.place = Place(file, checkpoints=kept, key=KEY)

    def audit_place(self, _: Path) -> Place:
        return self.place


def by_config(file: Path, kept: Path, command: str = "verify", *words: str) -> Result:
    return CliRunner().invoke(audit, [command, "--config", "x", *words], obj=Configured(file, kept))


@pytest.mark.parametrize("gone", ["removed", "emptied"])
async def test_a_configured_second_place_that_is_gone_is_no_agreement(compared: tuple[Path, Path], gone: str) -> None:
    """AUD-06: whoever cuts the record and takes the checkpoints away is not told `whole`."""
    file, kept = compared
    assert by_config(file, kept).exit_code == 0
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-3]))
    assert by_config(file, kept).exit_code == 1
    if gone == "removed":
        kept.unlink()
    else:
        kept.write_bytes(b"")
    result = by_config(file, kept)
    assert result.exit_code == 2, result.output
    assert "checkpoints" in result.stderr


@pytest.mark.parametrize("what", ["pipe", "folder", "device"])
async def test_a_second_place_that_is_no_file_holds_nobody_up(compared: tuple[Path, Path], what: str) -> None:
    """A pipe would be waited for without end, a device has no end: neither is agreement, and both are named."""
    file, kept = compared
    kept.unlink()
    if what == "pipe":
        os.mkfifo(kept)
    elif what == "folder":
        kept.mkdir()
    else:
        kept.symlink_to("/dev/zero")
    done = CliRunner().invoke(audit, ["verify", "--file", str(file), "--checkpoints", str(kept)])
    assert (done.exit_code, str(kept) in done.stderr) == (2, True), done.output


async def test_one_writers_file_is_judged_by_its_own_checkpoints(file: Path, kept: Path) -> None:
    """A copy of one file, named alone: what a second place remembers of other writers is not about it."""
    sinks = [await opened(file) for _ in range(3)]
    points = []
    for n, sink in enumerate(sinks):
        for k in range(2, 2 + 3 * (3 - n)):
            await sink.append(decision(k))
        points.append(Checkpoint(sink.writer, sink.seq, sink.head))
        await sink.append(decision(99))
        sink.note(outcome(99))
    for sink in sinks:
        await sink.close()
    kept.write_bytes(b"".join(write_checkpoint(point, "t", KEY) for point in [*points, Checkpoint(0, 4, "ab" * 32)]))
    alone = kept.with_name("copy")
    alone.write_bytes(file.with_name("audit.jsonl.1").read_bytes())
    told = {
        one["writer"]: one
        for one in map(
            json.loads, ask("verify", "--json", "--file", alone, "--checkpoints", kept).output.splitlines()
        )
    }
    assert told[1]["whole"], told[1]
    assert {told[0]["first_bad"]["kind"], told[2]["first_bad"]["kind"]} == {"file_missing"}
    alone.write_bytes(b"".join(alone.read_bytes().splitlines(keepends=True)[:3]))
    assert "[tail_cut]" in ask("verify", "--file", alone, "--checkpoints", kept).output


async def test_a_head_that_no_retention_removed_is_cut(compared: tuple[Path, Path]) -> None:
    """AUD-05: a chain that begins at a checkpoint is whole only if a record says that what was before was removed."""
    file, kept = compared
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[10:]))
    result = ask("verify", "--file", file, "--checkpoints", kept, "--public-key", KEY.public.text)
    assert (result.exit_code, "[head_cut]" in result.output) == (1, True), result.output


async def test_more_than_retention_removed_is_cut(file: Path, kept: Path) -> None:
    """A file that goes beyond what the record says was removed is missed, though its end was kept elsewhere."""
    sink = await opened(file, rotate_bytes=5000)
    keeping = keeper(sink, file, kept)
    keeping.start()
    await call(sink, *range(20))
    await until(lambda: keeping.age_s < 0.3)
    first, second, third = (path for _, path in segments_of(file)[:3])
    end = json.loads(first.read_bytes().splitlines()[-1])
    facts = {"files": [first.name], "to": end["seq"], "head": end["hash"]}
    await sink.append(admin_record("segments_removed", facts=facts))
    await sink.close()
    await keeping.close()
    first.unlink()
    points = read_checkpoints(kept, (KEY.public,))
    assert verify_file(file, 0, points).whole
    second.unlink()
    found = verify_file(file, 0, points).finding
    assert found is not None
    assert found.kind == "head_cut"
    assert third.exists()


async def test_a_checkpoint_that_a_crash_left_half_written_spoils_no_other(compared: tuple[Path, Path]) -> None:
    """A full or dying second place leaves a piece of a line; what is appended later stands on a line of its own."""
    file, kept = compared
    good = kept.read_bytes()
    for torn in range(1, len(good.splitlines()[-1]), 37):
        kept.write_bytes(good + good.splitlines()[-1][:torn])
        assert by_config(file, kept).exit_code == 0
        point = read_checkpoints(kept, (KEY.public,))[-1]
        await CheckpointFile(kept).keep({point: write_checkpoint(point, "later", KEY)})
        assert kept.read_bytes().endswith(b"\n" + write_checkpoint(point, "later", KEY))
        result = by_config(file, kept)
        assert result.exit_code == 0, result.output + result.stderr
        assert "1 unfinished line" in result.output
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-3]))
    assert by_config(file, kept).exit_code == 1


async def test_the_command_writes_what_its_owner_alone_reads_and_follows_no_link(compared: tuple[Path, Path]) -> None:
    """A file that `checkpoint --output` makes is 0600, and a link in its place is not written through."""
    file, kept = compared
    made, aim = kept.with_name("made"), kept.with_name("aim")
    assert ask("checkpoint", "--file", file, "--output", made).exit_code == 0
    assert made.stat().st_mode & 0o777 == 0o600
    made.unlink()
    made.symlink_to(aim)
    assert ask("checkpoint", "--file", file, "--output", made).exit_code == 2
    assert not aim.exists()


async def test_the_command_signs_and_shows_its_key(
    compared: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`checkpoint --key-env` signs what it prints; `--show-key` prints what a verifier needs."""
    file, kept = compared
    monkeypatch.setenv("SIGNS", base64.urlsafe_b64encode(bytes(range(32))).decode())
    shown = ask("checkpoint", "--file", file, "--key-env", "SIGNS", "--show-key")
    assert shown.output == KEY.public.text + "\n"
    pinned = kept.with_name("public-key")
    pinned.write_text(shown.output)
    kept.unlink()
    assert ask("checkpoint", "--file", file, "--key-env", "SIGNS", "--output", kept).exit_code == 0
    assert ask("verify", "--file", file, "--checkpoints", kept, "--public-key", pinned).exit_code == 0
    other = ask("verify", "--file", file, "--checkpoints", kept, "--public-key", OTHER.public.text)
    assert (other.exit_code, "signed with another key" in other.stderr) == (2, True)
    assert ask("verify", "--file", file, "--checkpoints", kept, "--public-key", "nonsense").exit_code == 2
    assert ask("checkpoint", "--file", file, "--key-env", "UNSET").exit_code == 2


class Receiver:
    """A real HTTP server that answers as it is told, and keeps what it was sent."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.bodies: list[bytes] = []
        self.hang = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1])
                    for line in head.splitlines()
                    if line.lower().startswith(b"content-length:")
                )
                self.bodies.append(await reader.readexactly(length))
                if self.hang:
                    await asyncio.sleep(60)
                status = self.answers.pop(0) if self.answers else b"204 No Content"
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")


@pytest.fixture
async def receiver() -> AsyncIterator[tuple[Receiver, str]]:
    one = Receiver()
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(one.serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    yield one, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/checkpoints"
    server.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # for the transports to close


def posted(receiver: Receiver) -> list[Checkpoint]:
    return [read_checkpoint(body, (KEY.public,)) for body in receiver.bodies]


async def test_each_checkpoint_is_posted_until_the_receiver_has_it(receiver: tuple[Receiver, str]) -> None:
    """At least once and in order, over errors and redirects, which are not followed; the body proves itself."""
    one, url = receiver
    one.answers = [b"500 No", b"302 Found\r\nLocation: http://127.0.0.1:1/", b"204 No Content", b"429 Slow"]
    courier = CheckpointCourier(url, pause_s=(0.01, 0.05))
    points = [Checkpoint(0, n, f"{n:064x}") for n in range(1, 4)]
    lines = {point: write_checkpoint(point, "t", KEY) for point in points}
    there: set[Checkpoint] = set()
    assert await courier.keep(lines) == set()
    while there != set(points):
        await asyncio.sleep(0.02)
        with contextlib.suppress(OSError):
            there |= await courier.keep({point: lines[point] for point in points if point not in there})
    await courier.close()
    assert [point.count for point in posted(one)] == [1, 1, 1, 2, 2, 3]


async def test_a_receiver_that_hangs_or_is_not_there_holds_nobody_up(receiver: tuple[Receiver, str]) -> None:
    """`keep` answers at once, the end is bounded, and what waits is bounded."""
    one, url = receiver
    one.hang = True
    for address in (url, "http://127.0.0.1:9/"):
        courier = CheckpointCourier(address, timeout_s=0.2, pause_s=(0.01, 0.02))
        began = time.perf_counter()
        for n in range(1500):
            point = Checkpoint(0, n, f"{n:064x}")
            with contextlib.suppress(OSError):
                assert await courier.keep({point: write_checkpoint(point, "t", None)}) == set()
        assert time.perf_counter() - began < 5
        assert courier.dropped == 500
        await until(lambda courier=courier: bool(courier._fault))  # type: ignore[misc]
        with pytest.raises(OSError, match="not reached"):
            await courier.keep({})
        began = time.perf_counter()
        await courier.close()
        assert time.perf_counter() - began < 4


async def test_the_webhook_alone_is_a_second_place_too(file: Path, receiver: tuple[Receiver, str]) -> None:
    """Files go only after the receiver said that it has their end; what it has verifies the rest."""
    one, url = receiver
    one.answers = [b"503 Later"] * 3
    sink = await opened(file, rotate_bytes=5000)
    await call(sink, *range(12))
    courier = CheckpointCourier(url, pause_s=(0.01, 0.05))
    keeping = Keeper(sink, file, {"webhook": courier}, KEY, Keeping(0.05, 0.001))
    keeping.start()
    await until(lambda: len(segments_of(file)) == 1)
    await sink.close()
    await keeping.close()
    assert posted(one)[-1].count == sink.seq
    assert verify_file(file, 0, posted(one)).whole
    assert not verify_file(file, 0).whole


async def test_two_writers_share_the_file_of_checkpoints(file: Path, kept: Path) -> None:
    """Lines of several processes do not mix: each is one write; both chains agree with what was kept."""
    sinks = [await opened(file, rotate_bytes=5000) for _ in range(2)]
    keepers = [keeper(sink, file, kept, every_s=0.01) for sink in sinks]
    for one in keepers:
        one.start()
    await asyncio.gather(*(call(sink, *range(15)) for sink in sinks))
    for sink, one in zip(sinks, keepers, strict=True):
        await sink.close()
        await one.close()
    assert ask("verify", "--file", file, "--checkpoints", kept, "--public-key", KEY.public.text).exit_code == 0
    assert {point.writer for point in read_checkpoints(kept)} == {0, 1}
    assert records_of(file)[-1]["act"] == "stopped"
    assert os.access(kept, os.R_OK)


HANGS = """
import asyncio, sys
from pathlib import Path
from gateway.audit.keeping import CheckpointFile
from gateway.contract.chain import Checkpoint

async def main():
    place, point = CheckpointFile(Path(sys.argv[1])), Checkpoint(0, 1, "0" * 64)
    for _ in range(4):
        try:
            async with asyncio.timeout(0.2):
                await place.keep({point: b"line"})
        except OSError as fault:
            print(type(fault).__name__, fault)

asyncio.run(main())
"""


def test_a_second_place_that_hangs_holds_up_no_end(tmp_path: Path) -> None:
    """A disk that never answers (here a pipe that nobody reads) costs two threads and no exit."""
    os.mkfifo(tmp_path / "kept")
    done = subprocess.run(
        [sys.executable, "-c", HANGS, str(tmp_path / "kept")], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == [
        "TimeoutError ", "TimeoutError ", *["OSError what was written before still hangs"] * 2
    ]  # fmt: skip
