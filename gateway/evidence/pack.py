"""A pack on disk: a directory of files, a manifest with each file's digest, and one digest over the manifest.

The manifest is the RFC 8785 form of `{pack, made, files, verdicts, complete}`; its SHA-256 is the pack's digest.
Where the deployment has a key, `signature.json` is that key's over the manifest, and so over every byte of the pack.
A file that holds a secret is withheld, a manifest or report that does refuses to be written. Whoever reads a pack
trusts nothing of it: no link is followed, nothing but regular files of a bounded size is read.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.audit.checkpoints import SigningKey, VerifyKey
from gateway.contract.fingerprint import canonical
from gateway.evidence.scrubbing import CANARY, Scrubber

MANIFEST: Final = "manifest.json"
REPORT: Final = "report.html"
SIGNATURE: Final = "signature.json"
VERSION: Final = 1
MOST_FILES: Final = 1000
MOST_BYTES: Final = 64 << 20
_LABEL: Final = b"ostiary evidence v1\0"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,80}(?:/[a-z0-9][a-z0-9_.-]{0,80})?")
_MEMBERS: Final = frozenset({"pack", "made", "files", "verdicts", "complete"})


class Unreadable(Exception):  # noqa: N818 - says what can't be asked
    """The directory can't be read, or can't be made."""


class Secretive(Exception):  # noqa: N818 - says what was found
    """A secret stands in what was about to be written; the text names it."""


class Draft:
    """A pack that is being made, in memory: nothing of it is on disk before all of it was searched."""

    def __init__(self, scrubber: Scrubber) -> None:
        self.scrubber = scrubber
        self.files: dict[str, bytes] = {}

    def add(self, name: str, data: bytes) -> None:
        """A file. One that holds a secret or a canary is withheld: its check finds that and fails."""
        found = self.scrubber.found(data) + (["a canary"] if CANARY.search(data) else [])
        self.files[name] = orjson.dumps({"withheld": found}) if found else data

    def add_json(self, name: str, value: Any) -> None:
        """A file of JSON."""
        self.add(name, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n")


def write(  # noqa: PLR0917 - all that a pack is made of
    out: Path, draft: Draft, report: bytes, made: str, verdicts: Mapping[str, bool], key: SigningKey | None = None
) -> str:
    """Write all of it -> the pack's digest. Raises `Unreadable` or `Secretive`; then nothing was written."""
    files = {**draft.files, REPORT: report}
    described = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()
    }
    told = {
        "pack": VERSION,
        "made": made,
        "files": described,
        "verdicts": dict(verdicts),
        "complete": bool(verdicts) and all(verdicts.values()),
    }
    files[MANIFEST] = manifest = canonical(told)
    if key is not None:
        files[SIGNATURE] = canonical({"key": key.public.id, "signature": key.sign(_LABEL, told)})
    for name, data in files.items():
        if found := draft.scrubber.found(data):
            raise Secretive(f"{name} holds {', '.join(found)}: nothing was written")
    try:
        out.mkdir(parents=True, mode=0o700)
        for name, data in files.items():
            path = out / name
            path.parent.mkdir(exist_ok=True, mode=0o700)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        raise Unreadable(f"{error.filename or out}: {error.strerror}") from None
    return hashlib.sha256(manifest).hexdigest()


def read(folder: Path) -> tuple[dict[str, bytes], list[str]]:
    """Every regular file of a pack, and what is wrong with its directory. Raises `Unreadable`."""
    files: dict[str, bytes] = {}
    wrong: list[str] = []
    size = 0
    try:
        if folder.is_symlink():
            raise Unreadable(f"{folder}: is a symbolic link")
        for path in _walk(folder, 0):
            name = path.relative_to(folder).as_posix()
            if not _NAME.fullmatch(name):
                wrong.append(f"{name!a}: not a name of a pack")
                continue
            if path.is_symlink() or path.is_dir():
                wrong.append(f"{name}: not a regular file")
                continue
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(fd, "rb") as file:
                state = os.fstat(fd)
                size += state.st_size
                if not stat.S_ISREG(state.st_mode):
                    wrong.append(f"{name}: not a regular file")
                elif size > MOST_BYTES or len(files) >= MOST_FILES:
                    raise Unreadable(f"{folder}: more than {MOST_FILES} files or {MOST_BYTES} bytes")
                else:
                    files[name] = file.read(MOST_BYTES)
    except OSError as error:
        raise Unreadable(f"{error.filename or folder}: {error.strerror}") from None
    return files, wrong


def compare(files: Mapping[str, bytes]) -> tuple[dict[str, Any], list[str]]:
    """The manifest, and where the files are not what it says."""
    if MANIFEST not in files:
        return {}, [f"{MANIFEST}: missing"]
    try:
        manifest = orjson.loads(files[MANIFEST])
        if manifest.keys() != _MEMBERS or manifest["pack"] != VERSION or canonical(manifest) != files[MANIFEST]:
            return {}, [f"{MANIFEST}: not the canonical form of a manifest of version {VERSION}"]
        told = {str(name): (one["bytes"], one["sha256"]) for name, one in manifest["files"].items()}
        if not isinstance(manifest["verdicts"], dict):
            raise TypeError("verdicts")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return {}, [f"{MANIFEST}: can't be read: {type(error).__name__}"]
    wrong = [f"{name}: missing" for name in sorted(told.keys() - files.keys())]
    wrong += [f"{name}: not in the manifest" for name in sorted(files.keys() - told.keys() - {MANIFEST, SIGNATURE})]
    for name, described in told.items():
        if name in files and described != (len(files[name]), hashlib.sha256(files[name]).hexdigest()):
            wrong.append(f"{name}: its bytes are not those of the manifest")
    return manifest, wrong


def unsigned(files: Mapping[str, bytes], manifest: Mapping[str, Any], trusted: Sequence[VerifyKey]) -> str:
    """Why the manifest is not signed by one of these keys; empty where it is."""
    if SIGNATURE not in files:
        return f"{SIGNATURE}: missing: nobody signed this pack"
    try:
        told = orjson.loads(files[SIGNATURE])
        whose, signature = str(told["key"]), str(told["signature"])
    except (ValueError, TypeError, KeyError) as error:
        return f"{SIGNATURE}: can't be read: {type(error).__name__}"
    known = [key for key in trusted if key.id == whose]
    if not known:
        return f"{SIGNATURE}: not by a key that is trusted here"
    right = any(key.has_signed(_LABEL, dict(manifest), signature) for key in known)
    return "" if right else f"{SIGNATURE}: not of this manifest: it was changed, or made up"


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    with os.scandir(folder) as found:
        entries = list(islice(found, MOST_FILES + 1))
    if len(entries) > MOST_FILES:
        raise Unreadable(f"{folder}: more than {MOST_FILES} files or {MOST_BYTES} bytes")
    for entry in sorted(entries, key=lambda one: one.name):
        within = list(_walk(Path(entry.path), 1)) if depth == 0 and entry.is_dir(follow_symlinks=False) else []
        yield from within or [Path(entry.path)]
