"""A private registry on a port of its own, written to the official description of its API, and a server to compare.

Every answer that it gives of itself is checked by that description (tests/vectors/registry-openapi.json) before it
leaves. What it lists is `entries`; `twist` puts another answer in the place of its own.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ed25519
from jsonschema_rs import Draft202012Validator
from mcp.server.mcpserver import MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.registry.releases import NEWEST, schema_of

VECTORS: Final = Path(__file__).parents[1] / "vectors"
API: Final[dict[str, Any]] = orjson.loads((VECTORS / "registry-openapi.json").read_bytes())
OFFICIAL: Final = "io.modelcontextprotocol.registry/official"
TOKEN: Final = "a-token-of-the-registry"
PUBLISHED: Final = "2026-11-30T10:00:00Z"


def _schemas() -> dict[str, Any]:
    """The description's components and the records' definitions, in one document."""
    text = orjson.dumps({**API["components"]["schemas"], **schema_of(NEWEST)["definitions"]})
    components: dict[str, Any] = orjson.loads(text.replace(b"#/definitions/", b"#/components/schemas/"))
    return components


SCHEMAS: Final = _schemas()


def holds_to_api(path: str, method: str, status: int, value: Any) -> None:
    """Raise where an answer is not as the official description has it."""
    answers = API["paths"][path][method]["responses"]
    schema = answers[str(status)]["content"]["application/json"]["schema"]
    Draft202012Validator({**schema, "components": {"schemas": SCHEMAS}}, offline=True).validate(value)


def record(name: str = "com.example/weather", version: Any = "1.0.0", **more: Any) -> dict[str, Any]:
    """A good record."""
    return {
        "$schema": NEWEST.url,
        "name": name,
        "description": "Tells the weather",
        "version": version,
        "remotes": [{"type": "streamable-http", "url": "https://weather.example.com/mcp"}],
        **more,
    }


@dataclass
class Listed:
    """One version that the registry has."""

    document: dict[str, Any]
    status: str = "active"
    message: str = ""
    latest: bool = True
    updated: str = PUBLISHED

    def answer(self) -> dict[str, Any]:
        """As the API answers with it."""
        said: dict[str, Any] = {
            "status": self.status, "publishedAt": PUBLISHED, "updatedAt": self.updated, "isLatest": self.latest,
        }  # fmt: skip
        if self.message:
            said["statusMessage"] = self.message
        return {"server": self.document, "_meta": {OFFICIAL: said}}


Twist = Callable[[Request], Response | None]


@dataclass
class PrivateRegistry:
    """What it has, what it was asked, and how it is reached."""

    entries: list[Listed] = field(default_factory=list)
    versions: tuple[str, ...] = ("v0.1", "v0")
    page: int = 2
    token: str = TOKEN
    key: ed25519.Ed25519PublicKey | None = None
    twist: Twist = lambda _: None
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def put(self, document: dict[str, Any], **more: Any) -> Listed:
        """Have one version more, the newest of its name."""
        for one in self.entries:
            one.latest = one.latest and one.document["name"] != document["name"]
        self.entries.append(listed := Listed(document, **more))
        return listed

    def app(self) -> Starlette:
        """The API."""
        return Starlette(
            routes=[
                Route("/{version}/servers", self._list),
                Route("/{version}/servers/{name:path}/versions/{wanted:path}", self._one),
                Route("/{version}/publish", self._publish, methods=["POST"]),
                Route("/{version}/auth/{method}", self._auth, methods=["POST"]),
                Route("/{anything:path}", self._anything, methods=["GET", "POST"]),
            ]
        )

    def _first(self, request: Request) -> Response | None:
        self.asked.append(f"{request.method} {request.scope['raw_path'].decode()}")
        if request.path_params["version"] not in self.versions:
            return told({"error": "Not Found"}, 404)
        return self.twist(request)

    async def _anything(self, request: Request) -> Response:
        self.asked.append(f"{request.method} {request.scope['raw_path'].decode()}")
        return self.twist(request) or told({"error": "Not Found"}, 404)

    async def _list(self, request: Request) -> Response:
        if (other := self._first(request)) is not None:
            return other
        query = request.query_params
        since = query.get("updated_since", "")
        found = [
            one
            for one in self.entries
            if (since or query.get("include_deleted") == "true" or one.status != "deleted")
            and one.updated >= since
            and (query.get("version") != "latest" or one.latest)
        ]
        start = int(query.get("cursor", "0"))
        size = min(self.page, int(query.get("limit", "30")))
        value: dict[str, Any] = {"servers": [one.answer() for one in found[start : start + size]], "metadata": {}}
        if start + size < len(found):
            value["metadata"]["nextCursor"] = str(start + size)
        holds_to_api("/v0.1/servers", "get", 200, value)
        return told(value)

    async def _one(self, request: Request) -> Response:
        if (other := self._first(request)) is not None:
            return other
        name, wanted = request.path_params["name"], request.path_params["wanted"]
        for one in self.entries:
            if one.document["name"] != name or (
                one.status == "deleted" and "include_deleted" not in request.query_params
            ):
                continue
            if one.document["version"] == wanted or (wanted == "latest" and one.latest):
                value = one.answer()
                holds_to_api("/v0.1/servers/{serverName}/versions/{version}", "get", 200, value)
                return told(value)
        return told({"error": "Server not found"}, 404)

    async def _publish(self, request: Request) -> Response:
        if (other := self._first(request)) is not None:
            return other
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return told({"error": "Invalid or expired Registry JWT token"}, 401)
        document = orjson.loads(await request.body())
        if not document["name"].startswith("com.example/"):
            return told({"error": "You do not have permission to publish this server"}, 403)
        if any(
            (one.document["name"], one.document["version"]) == (document["name"], document["version"])
            for one in self.entries
        ):
            # As the official one says it (RFC 9457).
            fault = {"title": "Bad Request", "status": 400, "detail": "Failed to publish server", "errors": [
                {"message": "invalid version: cannot publish duplicate version"}]}  # fmt: skip
            return told(fault, 400, "application/problem+json")
        value = self.put(document).answer()
        holds_to_api("/v0.1/publish", "post", 200, value)
        return told(value)

    async def _auth(self, request: Request) -> Response:
        if (other := self._first(request)) is not None:
            return other
        proof = orjson.loads(await request.body())
        then = datetime.strptime(proof["timestamp"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        assert self.key is not None
        assert abs((datetime.now(UTC) - then).total_seconds()) < 15
        self.key.verify(bytes.fromhex(proof["signed_timestamp"]), proof["timestamp"].encode())
        return told({"registry_token": self.token, "expires_at": int(time.time()) + 300})


def told(
    value: Any, status: int = 200, kind: str = "application/json", headers: Mapping[str, str] | None = None
) -> Response:
    """An answer of JSON."""
    return Response(orjson.dumps(value), status, headers, kind)


@contextlib.contextmanager
def running(app: ASGIApp) -> Iterator[str]:
    """An application on a port and in a thread of its own -> its base URL."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        end = time.monotonic() + 30
        while not server.started:
            assert thread.is_alive()
            assert time.monotonic() < end
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


@contextlib.contextmanager
def private_registry(**more: Any) -> Iterator[PrivateRegistry]:
    """A registry at work."""
    registry = PrivateRegistry(**more)
    with running(registry.app()) as url:
        registry.url = url
        yield registry


def read(path: str) -> str:
    """Read a file."""
    return path


def weather_server(name: str = "weather", version: str = "1.0.0") -> MCPServer[Any]:
    """A server of the official SDK with one tool, whose description `describe` changes."""
    server = MCPServer[Any](name, version=version, log_level="ERROR")
    server.add_tool(read, description="Reads a file.")
    return server


def describe(server: MCPServer[Any], description: str) -> None:
    """Have the tool described otherwise from now on."""
    server.remove_tool("read")
    server.add_tool(read, description=description)


def served_over_http(server: MCPServer[Any]) -> ASGIApp:
    """Its endpoint, at /mcp."""
    return server.streamable_http_app(streamable_http_path="/mcp", stateless_http=True)


def key_pair() -> tuple[bytes, ed25519.Ed25519PublicKey]:
    """A domain's key in PEM, and its public half."""
    from cryptography.hazmat.primitives import serialization

    key = ed25519.Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem, key.public_key()


def settings_for(registry: PrivateRegistry, **more: Any) -> Mapping[str, Any]:
    """The configuration's group."""
    return {"url": registry.url, "private_addresses": True, "servers": "imported.yaml", **more}
