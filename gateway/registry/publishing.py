"""One record into a registry: proved whose it is, sent once, and the same again is no error.

A version is published once. What is there already is compared first, so that to publish again what was published says
so and sends nothing, and to publish something else under its version shows what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gateway.contract.differences import Difference, differences
from gateway.registry.asking import RegistryInvalid, RegistryRefused
from gateway.registry.client import RegistryClient
from gateway.registry.listing import Entry, Unreadable, read_entry
from gateway.registry.record import PUBLISHER

Result = Literal["published", "unchanged", "differs", "deleted", "would_publish"]

_IN_THE_WAY: Final = frozenset({400, 409, 422})
"""What registries answer where the version is there already."""


class NoKey(ValueError):  # noqa: N818 - what was given
    """Not a private key that proves a domain."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of it. `found`: how what is published differs from what was to be."""

    result: Result
    found: tuple[Difference, ...] = ()

    @property
    def done(self) -> bool:
        """Whether the registry has (or, on a dry run, would take) exactly this record."""
        return self.result in {"published", "unchanged", "would_publish"}


def prove(domain: str, pem: bytes, now: datetime | None = None) -> dict[str, str]:
    """The proof that a domain's key makes for this moment (Ed25519, or ECDSA on P-384). Raises `NoKey`."""
    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise NoKey("not a private key in PEM without a password") from None
    timestamp = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(key, ed25519.Ed25519PrivateKey):
        signature = key.sign(timestamp.encode())
    elif isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP384R1):
        r, s = decode_dss_signature(key.sign(timestamp.encode(), ec.ECDSA(SHA384())))
        signature = r.to_bytes(48) + s.to_bytes(48)
    else:
        raise NoKey("must be an Ed25519 key, or one of the curve P-384")
    return {"domain": domain, "timestamp": timestamp, "signed_timestamp": signature.hex()}


async def publish(client: RegistryClient, document: Mapping[str, Any], *, dry: bool = False) -> Outcome:
    """Publish a record that was validated. Raises `RegistryFault` subclasses."""
    name, version = document["name"], document["version"]
    there = await client.entry(name, version)
    if there is not None:
        return beside(document, there)
    if dry:
        return Outcome("would_publish")
    try:
        answer = await client.publish(document)
    except RegistryRefused as refused:
        # Somebody else may have been sooner.
        there = await client.entry(name, version) if refused.status in _IN_THE_WAY else None
        if there is None:
            raise
        return beside(document, there)
    try:
        entry = read_entry(answer.value)
    except Unreadable as error:
        raise RegistryInvalid(f"answers the record with something else: {error}") from None
    kept = beside(document, entry)
    return Outcome("published") if kept.result == "unchanged" else kept


def beside(document: Mapping[str, Any], there: Entry) -> Outcome:
    """A record beside what is published under its version."""
    if there.status == "deleted":
        return Outcome("deleted")
    found = differences(_kept(there.document), _kept(document))
    return Outcome("differs", tuple(found)) if found else Outcome("unchanged")


def _kept(document: Mapping[str, Any]) -> dict[str, Any]:
    """What a registry keeps of a record: all of it, but for metadata that is not the publisher's."""
    meta = document.get("_meta", {})
    kept = {key: value for key, value in document.items() if key != "_meta"}
    return kept | ({"_meta": {PUBLISHER: meta[PUBLISHER]}} if PUBLISHER in meta else {})
