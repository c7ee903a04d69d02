"""Certificates in files: what is taken, what is refused and by which setting's name, and how they are replaced."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from gateway.wires import watching
from gateway.wires.pem import Files, WireRefused, load
from gateway.wires.watching import Wires
from tests.support.certificates import LOOPBACK, authority
from tests.support.processes import eventually


def listener(folder: Path, name: str = "own") -> Files:
    """A good pair in files."""
    return Files("listen.tls", *authority().sign(*LOOPBACK).write(folder, name), serves=True)


def test_a_good_pair_is_taken_with_what_is_to_be_told_of_it(tmp_path: Path) -> None:
    """The time of its end, its fingerprint and its names are those of the certificate that is shown."""
    pair = authority().sign(*LOOPBACK, lives_s=5000)
    files = Files("listen.tls", *pair.write(tmp_path, "own"), serves=True)
    found = load(files)
    assert found.expires_at is not None
    assert 4990 < found.expires_at - time.time() < 5001
    assert found.fingerprint == pair.fingerprint
    assert found.names == ("localhost", "127.0.0.1")


def encrypted(files: Files) -> None:
    """A passphrase on the key."""
    assert files.key is not None
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    form = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))


def other_key(files: Files) -> None:
    """The key of another certificate."""
    assert files.key is not None
    files.key.write_bytes(authority().sign(*LOOPBACK).key_pem)


def another(**times: float) -> Callable[[Files], None]:
    """A pair with other times."""

    def spoil(files: Files) -> None:
        assert files.cert is not None
        authority().sign(*LOOPBACK, **times).write(files.cert.parent, files.cert.stem)

    return spoil


def path(name: str, do: Callable[[Path], Any]) -> Callable[[Files], None]:
    """Something done to one of the files."""

    def spoil(files: Files) -> None:
        do(getattr(files, name))

    return spoil


def of_unknown_kind(file: Path) -> None:
    """The file's PEM with another algorithm in place of the elliptic curves' (1.2.840.10045.2.1)."""
    head, *lines, foot = file.read_text().splitlines()
    known, unknown = bytes.fromhex("06072a8648ce3d0201"), bytes.fromhex("06072a8648ce3d0277")
    der = base64.b64decode("".join(lines))
    assert known in der
    file.write_text("\n".join([head, base64.b64encode(der.replace(known, unknown)).decode(), foot, ""]))


def as_pipe(file: Path) -> None:
    """A pipe that nobody writes to."""
    file.unlink()
    os.mkfifo(file)


def as_folder(file: Path) -> None:
    """A folder in its place."""
    file.unlink()
    file.mkdir()


SPOILT: Mapping[str, tuple[Callable[[Files], None], str]] = {
    "no certificate's file": (path("cert", Path.unlink), r"listen\.tls\.cert: \S+own\.pem: No such file"),
    "no key's file": (path("key", Path.unlink), r"listen\.tls\.key: \S+own\.key: No such file"),
    "no certificate in it": (path("cert", lambda f: f.write_text("hello")), r"\.cert: \S+: holds no certificate"),
    "empty": (path("cert", lambda f: f.write_text("")), r"\.cert: \S+: holds no certificate"),
    "no key in it": (path("key", lambda f: f.write_text("hello")), r"\.key: \S+: not a private key"),
    "a pipe": (path("key", as_pipe), r"\.key: \S+: is not a file"),
    "a folder": (path("cert", as_folder), r"\.cert: \S+: (is not a file|Is a directory)"),
    "huge": (path("cert", lambda f: f.write_bytes(b" " * ((1 << 20) + 1))), r"\.cert: \S+: is larger than"),
    "readable by everybody": (path("key", lambda f: f.chmod(0o644)), r"\.key: \S+: everybody may read .*0644"),
    "writable by everybody": (path("key", lambda f: f.chmod(0o602)), r"\.key: \S+: everybody may read or change"),
    "a key of no known kind": (path("key", of_unknown_kind), r"\.key: \S+: not a private key in PEM"),
    "a certificate of no known kind": (path("cert", of_unknown_kind), r"\.cert: \S+: its key is of no kind"),
    "a passphrase": (encrypted, r"\.key: \S+: has a passphrase"),
    "another's key": (other_key, r"\.key: \S+: is not the key of the certificate in \S+own\.pem"),
    "expired": (another(begins_s=-9000, lives_s=-60), r"\.cert: \S+: has expired on 20"),
    "not valid yet": (another(begins_s=9000), r"\.cert: \S+: is not valid before 20"),
    "no authority": (path("ca", lambda f: f.write_text("x")), r"\.client_ca: \S+: holds no certificate"),
    "no authorities' file": (path("ca", Path.unlink), r"\.client_ca: \S+: No such file"),
    "an expired authority": (
        path("ca", lambda f: f.write_bytes(authority().sign("x", begins_s=-99, lives_s=-9).cert_pem)),
        r"\.client_ca: \S+: every certificate in it has expired",
    ),
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_ops_07_what_can_not_be_used_is_refused_by_its_settings_name(spoilt: str, tmp_path: Path) -> None:
    """OPS-07: unreadable, mismatched, expired or exposed files are named with their setting alone."""
    good = listener(tmp_path)
    files = Files(good.setting, good.cert, good.key, authority("clients").write(tmp_path), serves=True)
    load(files)
    spoil, words = SPOILT[spoilt]
    spoil(files)
    with pytest.raises(WireRefused, match=words) as caught:
        load(files)
    assert "hello" not in str(caught.value)


class Told:
    """What the house was told."""

    def __init__(self) -> None:
        self.acts: list[tuple[str, Mapping[str, Any]]] = []
        self.counted: list[bool] = []

    def wires(self, *places: Files) -> Wires:
        """A room that tells it here."""
        return Wires(places, lambda act, facts: self.acts.append((act, facts)), self.counted.append)


async def test_a_replaced_pair_is_taken_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificate and key, one after the other: the new pair is in force once it is whole, told once, and counted."""
    monkeypatch.setattr(watching, "LOOK_EVERY_S", 0.05)
    files, told = listener(tmp_path), Told()
    wires = told.wires(files)
    await wires.start()
    wire = wires.get("listen.tls")
    assert wire is not None
    before = wire.context
    assert wires.current() == {"listen.tls": 1.0}
    pair = authority().sign(*LOOPBACK, lives_s=7000)
    pair.write(tmp_path, "own")
    await eventually("the new pair is in force", lambda: wire.material.fingerprint == pair.fingerprint)
    await eventually("it is told", lambda: bool(told.acts))
    await wires.close()
    assert wire.context is not before
    assert 6000 < wires.expires_in()["listen.tls"] < 7001
    ((act, facts),) = told.acts
    assert act == "certificate_replaced"
    assert facts["setting"] == "listen.tls"
    assert facts["fingerprint"] == pair.fingerprint
    assert told.counted == [True]


@pytest.mark.parametrize(
    "spoilt",
    ["another's key", "expired", "no key's file", "readable by everybody", "a certificate of no known kind"],
)
async def test_a_bad_pair_changes_nothing_and_is_told(
    spoilt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can't be used leaves the certificate before it in force: log, count and record say why, once."""
    monkeypatch.setattr(watching, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(watching, "AGAIN_S", 0.2)
    files, told = listener(tmp_path), Told()
    wires = told.wires(files)
    await wires.start()
    wire = wires.get("listen.tls")
    assert wire is not None
    before = wire.context
    spoil, words = SPOILT[spoilt]
    spoil(files)
    await eventually("it is told", lambda: bool(told.acts))
    assert wires.current() == {"listen.tls": 0.0}
    tried = wire.looks
    await eventually("it was tried again", lambda: wire.looks > tried + 1)
    assert wire.context is before
    ((act, facts),) = told.acts
    assert act == "certificate_not_replaced"
    assert re.search(words, facts["why"])
    assert told.counted == [False]
    good = authority().sign(*LOOPBACK)
    good.write(tmp_path, "own")
    await eventually("mended", lambda: wires.current() == {"listen.tls": 1.0})
    await wires.close()
    assert wire.material.fingerprint == good.fingerprint
    assert [act for act, _ in told.acts] == ["certificate_not_replaced", "certificate_replaced"]


async def test_nothing_is_watched_where_nothing_is_configured(tmp_path: Path) -> None:
    """No place, no task; of a wire that shows nothing there is no end to tell."""
    nothing = Wires(())
    await nothing.start()
    assert nothing.get("listen.tls") is None
    assert nothing.current() == nothing.expires_in() == {}
    await nothing.close()
    believing = Wires([Files("servers.a.tls", ca=authority().write(tmp_path))])
    await believing.start()
    assert believing.current() == {"servers.a.tls": 1.0}
    assert believing.expires_in() == {}
    wire = believing.get("servers.a.tls")
    assert wire is not None
    assert wire.context.verify_mode is ssl.CERT_REQUIRED
    assert wire.context.check_hostname
    await believing.close()


async def test_a_bad_file_stops_the_start(tmp_path: Path) -> None:
    """The first look is the start's: what is wrong then is no matter of waiting."""
    files = listener(tmp_path)
    other_key(files)
    with pytest.raises(WireRefused, match=r"listen\.tls\.key"):
        await Wires([files]).start()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "wires"]
