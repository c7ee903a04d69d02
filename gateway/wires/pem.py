"""Certificates and keys in files: judged together, and only then made into an `ssl.SSLContext`.

Invariant: what is in force was whole when it was read: a key that nobody else may read, that belongs to the
certificate, which is valid now. Whatever is not is `WireRefused`, with the setting and the file (docs/tls.md).
"""

from __future__ import annotations

import os
import ssl
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtensionOID

MOST_BYTES: Final = 1 << 20
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: forward secrecy and authenticated encryption. Those of TLS 1.3 have both."""
HTTP: Final = ["http/1.1"]

Stamp = tuple[tuple[int, int, int, int], ...]


class WireRefused(ValueError):  # noqa: N818 - a past participle, like the house's
    """Files that can't be used. The text names the setting and the file, and never what is in it."""


@dataclass(frozen=True, slots=True)
class Files:
    """Files in PEM, and the settings that name them. `serves`: for a listener, else towards a server.

    `cert` and `key` go together: what the gateway shows. `ca`: whom it believes; for a listener, the clients'
    authorities (all clients then show a certificate), towards a server `None` is the system's.
    """

    setting: str
    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    serves: bool = False

    @property
    def named(self) -> dict[str, Path]:
        """Setting -> file."""
        names = (("cert", self.cert), ("key", self.key), ("client_ca" if self.serves else "ca", self.ca))
        return {f"{self.setting}.{name}": file for name, file in names if file is not None}

    def stamp(self) -> Stamp:
        """What tells that a file changed: time, size, inode (links followed) and mode; zeros where there is none."""
        return tuple(_mark(file) for file in self.named.values())


@dataclass(frozen=True, slots=True)
class Material:
    """Files that were read and judged. `expires_at`: seconds since the epoch, `None` where no certificate is shown.

    `fingerprint`: SHA-256 of the certificate that is shown, as `openssl x509 -fingerprint` has it, without colons.
    `names`: its DNS names and addresses.
    """

    context: ssl.SSLContext
    expires_at: float | None = None
    begins_at: float = 0.0
    fingerprint: str = ""
    names: tuple[str, ...] = ()


def load(files: Files) -> Material:
    """Read, judge and load (blocking). Raises `WireRefused`."""
    texts = {setting: _read(setting, file) for setting, file in files.named.items()}
    own = _judge_own(files, texts) if files.cert is not None else None
    context = _server_context() if files.serves else _client_context(files, texts)
    if files.serves and files.ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _believe(context, f"{files.setting}.client_ca", files.ca, texts)
    if files.cert is not None and files.key is not None:
        try:
            context.load_cert_chain(files.cert, files.key, password=_no_password)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise WireRefused(f"{files.setting}.cert: {files.cert}: {tell(error)}") from None
        # The library reads files by their names: what it read has to be what was judged.
        if any(_read(setting, file) != texts[setting] for setting, file in files.named.items()):
            raise WireRefused(f"{files.setting}: its files changed while they were read")
    if own is None:
        return Material(context)
    return Material(
        context,
        own.not_valid_after_utc.timestamp(),
        own.not_valid_before_utc.timestamp(),
        own.fingerprint(SHA256()).hex(),
        _names(own),
    )


def tell(error: BaseException) -> str:
    """Why TLS or a file failed, in the library's own fixed words: never what a peer or a file said."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or type(error).__name__).lower().replace("_", " ")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__


def _server_context() -> ssl.SSLContext:
    """No ticket is given, and a session ends with its context: whoever comes sees the certificates that are in force.

    By TLS 1.2 a client may resume a session at the worker that it had it with, under the same certificates.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(HTTP)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    return context


def system_context() -> ssl.SSLContext:
    """Towards a server whose certificate an authority of the system's has signed."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(HTTP)
    return context


def _client_context(files: Files, texts: dict[str, bytes]) -> ssl.SSLContext:
    if files.ca is None:
        return system_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies certificate and name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(HTTP)
    _believe(context, f"{files.setting}.ca", files.ca, texts)
    return context


def _believe(context: ssl.SSLContext, setting: str, file: Path, texts: dict[str, bytes]) -> None:
    """Authorities that are valid now: at least one."""
    found = _certificates(setting, file, texts[setting])
    now = datetime.now(UTC)
    if all(one.not_valid_after_utc < now for one in found):
        raise WireRefused(f"{setting}: {file}: every certificate in it has expired")
    try:
        context.load_verify_locations(cadata="".join(one.public_bytes(Encoding.PEM).decode() for one in found))
    except ssl.SSLError as error:
        raise WireRefused(f"{setting}: {file}: {tell(error)}") from None


def _judge_own(files: Files, texts: dict[str, bytes]) -> x509.Certificate:
    """The certificate that is shown. Raises `WireRefused`."""
    cert_setting, key_setting = f"{files.setting}.cert", f"{files.setting}.key"
    assert files.cert is not None  # noqa: S101 - see `load`
    assert files.key is not None  # noqa: S101 - the settings hold both or neither
    shown = _certificates(cert_setting, files.cert, texts[cert_setting])[0]
    try:
        key = load_pem_private_key(texts[key_setting], password=None)
    except TypeError:
        raise WireRefused(f"{key_setting}: {files.key}: has a passphrase, which nobody is there to type") from None
    except (ValueError, ArithmeticError, UnsupportedAlgorithm) as error:
        raise WireRefused(f"{key_setting}: {files.key}: not a private key in PEM ({type(error).__name__})") from None
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    try:
        public = shown.public_key().public_bytes(*form)
    except (ValueError, UnsupportedAlgorithm):
        raise WireRefused(f"{cert_setting}: {files.cert}: its key is of no kind that is known here") from None
    if key.public_key().public_bytes(*form) != public:
        raise WireRefused(f"{key_setting}: {files.key}: is not the key of the certificate in {files.cert}")
    now = datetime.now(UTC)
    if shown.not_valid_after_utc <= now:
        raise WireRefused(f"{cert_setting}: {files.cert}: has expired on {shown.not_valid_after_utc:%Y-%m-%d}")
    if shown.not_valid_before_utc > now:
        raise WireRefused(f"{cert_setting}: {files.cert}: is not valid before {shown.not_valid_before_utc:%Y-%m-%d}")
    return shown


def _certificates(setting: str, file: Path, text: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(text)
    except ValueError:
        raise WireRefused(f"{setting}: {file}: holds no certificate in PEM") from None


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        found = certificate.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        return ()
    assert isinstance(found, x509.SubjectAlternativeName)  # noqa: S101 - by its OID
    return (
        *found.get_values_for_type(x509.DNSName),
        *map(str, found.get_values_for_type(x509.IPAddress)),
    )


def _read(setting: str, file: Path) -> bytes:
    try:
        # A pipe without a writer would be waited for.
        with open(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as stream:  # noqa: PTH123
            mode = os.fstat(stream.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise WireRefused(f"{setting}: {file}: is not a file")
            text = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise WireRefused(f"{setting}: {file}: {error.strerror}") from None
    if len(text) > MOST_BYTES:
        raise WireRefused(f"{setting}: {file}: is larger than {MOST_BYTES} bytes")
    # Of what was read: the file that has this name now may be another one, or none.
    if setting.endswith(".key") and mode & (stat.S_IROTH | stat.S_IWOTH):
        raise WireRefused(
            f"{setting}: {file}: everybody may read or change it (mode {mode & 0o777:04o}) -> chmod o-rw"
        )
    return text


def _mark(file: Path) -> tuple[int, int, int, int]:
    try:
        state = file.stat()
    except OSError:
        return (0, 0, 0, 0)
    return state.st_mtime_ns, state.st_size, state.st_ino, state.st_mode


def _no_password() -> str:
    """A key with a passphrase was refused before; the library must not ask the terminal for one."""
    return ""
