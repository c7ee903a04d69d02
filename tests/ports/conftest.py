"""What the ports are tested on: both loops where sockets are spoken to, both databases where a store keeps a rule."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest
import uvloop

from approvals.database import migrate
from approvals.schema import metadata
from tests.support.postgres import Postgres


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Both loops for what speaks to sockets itself; the standard one for the rest."""
    if Path(item.path).name.startswith("test_upstream"):
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture
def certificate(tmp_path: Path) -> Callable[[str], tuple[ssl.SSLContext, ssl.SSLContext]]:
    """Makes (server's context, client's context that trusts it) for a certificate with this name."""
    import datetime as dt

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def make(name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        now = dt.datetime.now(dt.UTC)
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        pem = tmp_path / "cert.pem"
        pem.write_bytes(
            built.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(pem)
        return server, ssl.create_default_context(cafile=str(pem))

    return make


@pytest.fixture(scope="session")
def tables(postgres: Postgres) -> str:
    """A database with the store's tables, one for all tests of a process -> its URL."""
    url = postgres.create()
    with ThreadPoolExecutor(1) as aside:  # whoever asks for it may be in a loop of their own
        aside.submit(asyncio.run, migrate(url)).result()
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
async def where(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Path | str]:
    """An empty database of each kind: the rules of the store are the same in both."""
    if request.param == "sqlite":
        yield tmp_path / "approvals.db"
        return
    url: str = request.getfixturevalue("tables")
    yield url
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"TRUNCATE {', '.join(table.name for table in metadata.sorted_tables)}")
    finally:
        await connection.close()
