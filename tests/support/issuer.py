"""A test issuer: real keys, tokens of every kind (well-formed or not), and its JWK set over real loopback HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import get_default_algorithms

CURVES: Mapping[str, ec.EllipticCurve] = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
ALGORITHMS = get_default_algorithms()


def b64(data: bytes) -> str:
    """base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@lru_cache(maxsize=64)
def private_key(alg: str, number: int = 0, bits: int = 2048) -> Any:
    """A private key for `alg`; the same for the same arguments within a process, because RSA keys take their time."""
    if alg in CURVES:
        return ec.generate_private_key(CURVES[alg])
    if alg == "EdDSA":
        return Ed25519PrivateKey.generate()
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@dataclass(frozen=True)
class SigningKey:
    """A private key under a key id. `kid` None: the set names none, nor do its tokens."""

    kid: str | None
    alg: str
    private: Any

    def jwk(self, **changes: Any) -> dict[str, Any]:
        """The public JWK; `changes` replace members, None removes them."""
        public = ALGORITHMS[self.alg].to_jwk(self.private.public_key(), as_dict=True)
        jwk = {**public, "alg": self.alg, "use": "sig", "kid": self.kid, **changes}
        jwk.pop("key_ops", None) if "key_ops" not in changes else None
        return {name: value for name, value in jwk.items() if value is not None}

    def sign(self, header: bytes, payload: bytes) -> str:
        """A compact JWS over exactly these bytes."""
        signing_input = f"{b64(header)}.{b64(payload)}"
        return f"{signing_input}.{b64(ALGORITHMS[self.alg].sign(signing_input.encode(), self.private))}"


def signing_key(alg: str = "ES256", number: int = 0, kid: str | None = "", bits: int = 2048) -> SigningKey:
    """The key `number` of `alg`, under the key id `kid` (default: made of both)."""
    return SigningKey(f"{alg}-{number}" if kid == "" else kid, alg, private_key(alg, number, bits))


@dataclass
class Issuer:
    """An authorization server's tokens and set. `keys[0]` signs unless a key is given."""

    name: str = "https://idp.example.com"
    keys: list[SigningKey] = field(default_factory=lambda: [signing_key()])

    def jwks(self) -> bytes:
        """The set as a document."""
        return json.dumps({"keys": [key.jwk() for key in self.keys]}).encode()

    def write(self, path: Path) -> Path:
        """The set as a file, replaced atomically as a careful operator would."""
        draft = path.with_suffix(".new")
        draft.write_bytes(self.jwks())
        draft.replace(path)
        return path

    def claims(self, audience: Any, **changes: Any) -> dict[str, Any]:
        """The claims of a good access token for one hour; `changes` replace members, None removes them."""
        now = int(time.time())
        claims = {"iss": self.name, "sub": "alice", "aud": audience, "iat": now, "exp": now + 3600, **changes}
        return {name: value for name, value in claims.items() if value is not None}

    def mint(
        self, audience: Any, *, key: SigningKey | None = None, header: Mapping[str, Any] | None = None, **claims: Any
    ) -> str:
        """A token for `audience`; `header` and `claims` replace members of a good one, None removes them."""
        key = key or self.keys[0]
        head = {"alg": key.alg, "typ": "at+jwt", "kid": key.kid, **(header or {})}
        head = {name: value for name, value in head.items() if value is not None}
        return key.sign(json.dumps(head).encode(), json.dumps(self.claims(audience, **claims)).encode())


Handler = Callable[[asyncio.StreamWriter], Awaitable[None]]


class JwksServer:
    """A loopback HTTP/1.1 server. `routes` maps a path to a document or to a handler that writes the whole answer.

    `hits` counts requests by path, `sent` the bytes that handlers of `flood` got rid of.
    """

    def __init__(self) -> None:
        self.routes: dict[str, bytes | Handler] = {}
        self.hits: Counter[str] = Counter()
        self.heads: list[bytes] = []
        self.sent = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.stop()

    async def listen(self) -> None:
        """Accept connections; after `stop` at the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections and break those that are open."""
        if self._server is not None:
            self._server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.wait_closed()
            self._server = None

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`."""
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            path = head.split(b" ", 2)[1].decode()
            self.hits[path] += 1
            route = self.routes.get(path)
            if route is None:
                writer.write(http_head(404, 0))
            elif isinstance(route, bytes):
                writer.write(http_head(200, len(route)) + route)
            else:
                await route(writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    def flood(self, size: int, *, declare: bool) -> Handler:
        """An answer of `size` bytes, with or without `Content-Length`."""

        async def handler(writer: asyncio.StreamWriter) -> None:
            writer.write(http_head(200, size if declare else None))
            for _ in range(size // 65536):
                writer.write(b" " * 65536)
                await writer.drain()
                self.sent += 65536

        return handler


def http_head(status: int, length: int | None, *lines: str) -> bytes:
    """An answer's head; `length` None leaves the body to end with the connection."""
    framing = [] if length is None else [f"Content-Length: {length}"]
    return "\r\n".join([f"HTTP/1.1 {status} X", "Connection: close", *framing, *lines, "", ""]).encode()
