"""Checkpoints: what a second place remembers of a chain, so that a cut tail and a chain written anew show (AUD-06).

One line of JSON each: `{count, head, writer}`, and, signed, `time`, `key` and `signature`: Ed25519 over a label and
the RFC 8785 form of the others. Whoever verifies needs the public key only, so nobody shares a secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gateway.audit.segments import open_chain
from gateway.contract.chain import Checkpoint
from gateway.contract.fingerprint import canonical

MAX_CHECKPOINT: Final = 4096
"""Bytes of a line: appended in one write, which processes of one host do not mix."""

_BEGIN: Final = b'{"count":'
_LABEL: Final = b"ostiary checkpoint v1\0"
_SIGNED: Final = frozenset({"count", "head", "key", "signature", "time", "writer"})


class VerifyKey:
    """An Ed25519 public key: 32 bytes in base64url. `id` names it: the first 8 bytes of its SHA-256 in hex."""

    __slots__ = ("_key", "id", "text")

    def __init__(self, raw: bytes) -> None:
        self._key: Final = Ed25519PublicKey.from_public_bytes(raw)
        self.text: Final = _base64(raw)
        self.id: Final = hashlib.sha256(raw).hexdigest()[:16]

    def has_signed(self, label: bytes, members: Any, signature: str) -> bool:
        """Whether the signature is this key's over the members' RFC 8785 form, for the purpose of `label`."""
        try:
            self._key.verify(_bytes_of(signature, 64), label + canonical(members))
        except (InvalidSignature, ValueError, TypeError, RecursionError):
            return False
        return True


class SigningKey:
    """The private half: `text` is the content of `variable`, 32 random bytes in base64url.

    Raises `ValueError` that names the variable and never quotes it.
    """

    __slots__ = ("_key", "public")

    def __init__(self, text: str, variable: str) -> None:
        try:
            seed = _bytes_of(text.strip(), 32)
        except ValueError:
            raise ValueError(f"{variable}: not 32 bytes in base64url") from None
        self._key: Final = Ed25519PrivateKey.from_private_bytes(seed)
        self.public: Final = VerifyKey(self._key.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return f"SigningKey({self.public.id})"

    def sign(self, label: bytes, members: Any) -> str:
        """The signature over the members' RFC 8785 form, in base64url."""
        return _base64(self._key.sign(label + canonical(members)))


def read_verify_key(text: str) -> VerifyKey:
    """A public key from base64url. Raises `ValueError`."""
    return VerifyKey(_bytes_of(text.strip(), 32))


def write_checkpoint(point: Checkpoint, time: str, key: SigningKey | None) -> bytes:
    """The checkpoint as a line, signed where there is a key. `time` is UTC as in records."""
    members: dict[str, Any] = {"writer": point.writer, "count": point.count, "head": point.head, "time": time}
    if key is not None:
        members["key"] = key.public.id
        members["signature"] = key.sign(_LABEL, members)
    return canonical(members) + b"\n"


def read_checkpoint(line: bytes, trusted: Sequence[VerifyKey] = ()) -> Checkpoint:
    """The line's checkpoint; with `trusted` keys it must be signed by one of them. Raises `ValueError` saying why."""
    try:
        told = orjson.loads(line) if len(line) <= MAX_CHECKPOINT else None
    except ValueError:
        told = None
    if not isinstance(told, dict) or not _is_point(told):
        raise ValueError("not a checkpoint")
    if trusted:
        signature = told.pop("signature", None)
        if not isinstance(signature, str) or told.keys() | {"signature"} != _SIGNED:
            raise ValueError("not signed")
        known = [key for key in trusted if key.id == told["key"]]
        if not known:
            raise ValueError("signed with another key")
        if not any(key.has_signed(_LABEL, told, signature) for key in known):
            raise ValueError("its signature is wrong: it was changed, or made up")
    return Checkpoint(told["writer"], told["count"], told["head"])


def read_checkpoints(file: Path, trusted: Sequence[VerifyKey] = ()) -> list[Checkpoint]:
    """All of a file; lines that were not finished are left out. Raises `ValueError` naming the line, or `OSError`."""
    points: dict[Checkpoint, None] = {}
    for number, line in _lines_of(file):
        if not _is_unfinished(line):
            try:
                points[read_checkpoint(line, trusted)] = None
            except ValueError as error:
                raise ValueError(f"{file}, line {number}: {error}") from None
    return list(points)


def count_unfinished(file: Path) -> int:
    """The lines that a crash, or a full disk, of the second place left half-written. Raises `OSError`."""
    return sum(_is_unfinished(line) for _, line in _lines_of(file))


def _lines_of(file: Path) -> Iterator[tuple[int, bytes]]:
    with open(open_chain(file), "rb") as lines:  # noqa: PTH123 - a pipe in its place would hold up whoever reads
        number = 0
        while line := lines.readline(MAX_CHECKPOINT + 1):
            number += 1
            if line.strip():
                yield number, line


def _is_unfinished(line: bytes) -> bool:
    """Whether it is the beginning of a checkpoint, and no more: who made it so could have removed it as well."""
    told = line.rstrip(b"\n")
    return not told.endswith(b"}") and told[: len(_BEGIN)] == _BEGIN[: len(told)]


def _is_point(told: dict[str, Any]) -> bool:
    numbers = all(type(told.get(name)) is int and 0 <= told[name] < 2**53 for name in ("writer", "count"))
    head = told.get("head")
    return numbers and isinstance(head, str) and re.fullmatch("[0-9a-f]{64}", head) is not None


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _bytes_of(text: str, length: int) -> bytes:
    """Exactly so many bytes from base64url in its one spelling, padded or not. Raises `ValueError`."""
    bare = text.rstrip("=")
    try:
        raw = base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != length or _base64(raw) != bare:
        raise ValueError(f"not {length} bytes in base64url")
    return raw
