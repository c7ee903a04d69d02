"""Certificates for tests: authorities, what they sign, and what nobody should take. Real ones, by `cryptography`."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

LOOPBACK = ("localhost", "127.0.0.1")


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key. `begins_s` and `lives_s`: seconds from now."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def cert_pem(self) -> bytes:
        """As a file holds it."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """As a file holds it, without a passphrase."""
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return self.key.private_bytes(serialization.Encoding.PEM, *form)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal."""
        return self.certificate.fingerprint(hashes.SHA256()).hex()

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """`NAME.pem` and `NAME.key`, replaced one after the other as a renewal would -> both."""
        cert, key = folder / f"{name}.pem", folder / f"{name}.key"
        for file, text, mode in ((cert, self.cert_pem, 0o644), (key, self.key_pem, 0o600)):
            draft = file.with_suffix(file.suffix + ".new")
            draft.write_bytes(text)
            draft.chmod(mode)
            draft.replace(file)
        return cert, key


class Authority:
    """Signs certificates; `pair` is its own."""

    def __init__(self, name: str) -> None:
        self.pair = _make(name, (), None, ca=True)

    def sign(self, *names: str, begins_s: float = -3600, lives_s: float = 86400) -> Pair:
        """A certificate for these DNS names and addresses, the first of them its subject."""
        return _make(names[0], names, self.pair, begins_s=begins_s, lives_s=lives_s)

    def write(self, folder: Path, name: str = "ca") -> Path:
        """Its own certificate as a file."""
        file = folder / f"{name}.pem"
        file.write_bytes(self.pair.cert_pem)
        return file

    def client_context(self, own: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """A client's that believes this authority, and shows `own`."""
        context = ssl.create_default_context(cadata=self.pair.cert_pem.decode())
        if own is not None:
            context.load_cert_chain(*own)
        return context

    def server_context(self, own: tuple[Path, Path], clients: Self | None = None) -> ssl.SSLContext:
        """A server's that shows `own`, and asks for a certificate of `clients`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*own)
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=clients.pair.cert_pem.decode())
        return context


_authority = cache(Authority)


def authority(name: str = "tests") -> Authority:
    """One per name and process."""
    return _authority(name)


def _make(
    subject: str,
    names: tuple[str, ...],
    signer: Pair | None,
    *,
    ca: bool = False,
    begins_s: float = -3600,
    lives_s: float = 86400,
) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, subject)])
    now = dt.datetime.now(dt.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name if signer is None else signer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + dt.timedelta(seconds=begins_s))
        .not_valid_after(now + dt.timedelta(seconds=lives_s))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    if names:
        built = built.add_extension(x509.SubjectAlternativeName([_general(one) for one in names]), critical=False)
    return Pair(built.sign(key if signer is None else signer.key, hashes.SHA256()), key)
