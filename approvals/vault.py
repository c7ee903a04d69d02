"""Tickets at rest: sealed with AES-256-GCM, found by a keyed digest; the database alone tells and proves nothing.

The first key seals, all open. What is sealed is bound to its ticket and its column: a row's contents moved elsewhere
do not open. The caller hands in keys of this purpose alone (it derives them from the seal keys).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from approvals.ticket import Asked, Unreadable

FORM = b"\x01"
KEY_ID = 8
NONCE = 12


def join(*parts: str) -> bytes:
    """Texts -> bytes from which exactly these texts can be read back (each with its length before it)."""
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)


@dataclass(frozen=True, slots=True)
class _Key:
    id: bytes
    aead: AESGCM = field(repr=False)
    find: bytes = field(repr=False)
    stamp: bytes = field(repr=False)


def _derive(key: bytes, label: bytes, length: int = 32) -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=b"ostiary approvals " + label).derive(key)


class Vault:
    """Seals, opens, and makes the keyed digests. Keys: 32 bytes each, the current one first."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys or any(len(key) != 32 for key in keys):
            raise ValueError("the approvals' vault needs at least one key, each of 32 bytes")
        self._keys = [
            _Key(
                _derive(key, b"key id", KEY_ID),
                AESGCM(_derive(key, b"seal")),
                _derive(key, b"find"),
                _derive(key, b"shown"),
            )
            for key in keys
        ]
        self._by_id = {key.id: key for key in self._keys}

    @property
    def key_id(self) -> str:
        """The current key's id (hex), which is stored with each ticket."""
        return self._keys[0].id.hex()

    @property
    def key_ids(self) -> list[str]:
        """All ids (hex) that can be opened."""
        return [key.id.hex() for key in self._keys]

    def seal(self, plain: bytes, ticket_id: str, column: str) -> bytes:
        """Plain bytes -> form, key id, nonce, ciphertext with tag; bound to the ticket and the column."""
        key, nonce = self._keys[0], os.urandom(NONCE)
        return FORM + key.id + nonce + key.aead.encrypt(nonce, plain, join("ostiary", ticket_id, column))

    def open(self, sealed: bytes, ticket_id: str, column: str) -> bytes:
        """The reverse. Raises `Unreadable` for what was changed, moved, or sealed by a key that is not here."""
        key = self._by_id.get(sealed[1 : 1 + KEY_ID])
        if sealed[:1] != FORM or key is None:
            raise Unreadable(f"ticket {ticket_id}: {column} is sealed by a key that is not configured")
        body = 1 + KEY_ID
        try:
            return key.aead.decrypt(
                sealed[body : body + NONCE], sealed[body + NONCE :], join("ostiary", ticket_id, column)
            )
        except (InvalidTag, ValueError) as fault:
            raise Unreadable(f"ticket {ticket_id}: {column} was changed in the database") from fault

    def lookups(self, asked: Asked) -> list[str]:
        """The keyed digests under which a ticket of this effect may be filed, the current key's first."""
        return self._find(effect_of(asked))

    def kin(self, asked: Asked) -> list[str]:
        """Likewise those of the grants that could cover this call: all but its arguments."""
        return self._find(kin_of(asked))

    def marks(self, what: bytes) -> list[str]:
        """The keyed digests of any other text that something is found by, the current key's first."""
        return self._find(what)

    def _find(self, what: bytes) -> list[str]:
        return [hmac.new(key.find, what, hashlib.sha256).hexdigest() for key in self._keys]

    def stamp(self, shown: bytes) -> str:
        """The digest of what a person is shown: keyed, so that a record of it confirms no guess."""
        return hmac.new(self._keys[0].stamp, shown, hashlib.sha256).hexdigest()

    def stamped(self, shown: bytes, stamp: str) -> bool:
        """Whether `stamp` is the digest of exactly this, by any key; in constant time."""
        given = stamp.encode("utf-8", "surrogatepass")
        made = [hmac.new(key.stamp, shown, hashlib.sha256).hexdigest().encode() for key in self._keys]
        return sum(hmac.compare_digest(one, given) for one in made) > 0


def effect_of(asked: Asked) -> bytes:
    """What finds a ticket: who, where and what beside the digest that covers them.

    The digest alone would do if it is made right; that two callers never share a ticket does not hang on it.
    """
    return join(
        asked.issuer, asked.subject, asked.client, asked.server, asked.resource, asked.environment, asked.method,
        asked.name, asked.digest,
    )  # fmt: skip


def kin_of(asked: Asked) -> bytes:
    """What finds the grants of a call: who, where and which tool."""
    return join(
        "grant", asked.issuer, asked.subject, asked.tenant, asked.client, asked.server, asked.resource,
        asked.environment, asked.method, asked.name,
    )  # fmt: skip
