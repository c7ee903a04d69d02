"""A whole gateway as real processes, for tests that look at it from outside: over the wire and into its files."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import ssl
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from tests.support.issuer import Issuer
from tests.support.ports import free_port
from tests.support.processes import descendants

BUNDLE = Path(__file__).parents[2] / "policies" / "bundle"
ISSUER = "https://idp.example.com"
HOLD = {"needed": True, "approvers": [f"user:{ISSUER}|bob"], "min_approvers": 1, "uses": 1, "ttl_s": 600}
DATA: Mapping[str, Any] = {
    "methods": {"tools/list": {}, "server/discover": {}, "prompts/list": {}, "resources/list": {}},
    "tools": {
        "read": {"effect": "read", "scopes": ["files:read"]},
        "write": {"effect": "write", "scopes": ["files:write"], "approval": HOLD},
    },
}


def secrets_for() -> dict[str, str]:
    """The two variables that a gateway can't start without."""
    return {
        name: base64.urlsafe_b64encode(os.urandom(32)).decode() for name in ("OSTIARY_AUDIT_KEY", "OSTIARY_SEAL_KEYS")
    }


def lend(secrets: Mapping[str, str], setenv: Callable[[str, str], None]) -> None:
    """Put them into this process's environment, for a command that runs in it."""
    for name, value in secrets.items():
        setenv(name, value)


def write_bundle(folder: Path, servers: Mapping[str, Mapping[str, Any]]) -> Path:
    """The shipped bundle with other data."""
    bundle = folder / "bundle"
    shutil.copytree(BUNDLE, bundle, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*_test.rego"))
    (bundle / "mcp/authz/data.json").write_text(json.dumps({"servers": servers}))
    return bundle


def write_config(
    folder: Path,
    issuer: Issuer,
    servers: Mapping[str, Sequence[str]],
    *,
    port: int,
    admin_port: int,
    data: Mapping[str, Any] = DATA,
    settings: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """A configuration file for `servers` (name -> replicas) under `folder`.

    `settings` are more settings of every server, `changes` replace whole sections.
    """
    issuer.write(folder / "jwks.json")
    write_bundle(folder, dict.fromkeys(servers, data))
    document = {
        "public_url": f"http://127.0.0.1:{port}",
        "listen": {"port": port},
        "admin": {"port": admin_port},
        "identity": {"issuers": [{"issuer": issuer.name, "jwks_file": "jwks.json", "algorithms": ["ES256"]}]},
        "servers": {
            name: {
                "path": f"/{name}/mcp",
                "replicas": list(replicas),
                "scopes": ["mcp:use"],
                "environment": "test",
                **(settings or {}),
            }
            for name, replicas in servers.items()
        },
        "policy": {"path": "bundle"},
        "approvals": {"database": "sqlite:///ostiary.db"},
        "audit": {"file": "audit.jsonl"},
        **changes,
    }
    # Whoever wants to see it wait says so: no other test needs to.
    document["limits"] = {"drain_s": 0, **document.get("limits", {})}
    file = folder / "ostiary.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file


def call(name: str = "read", arguments: Mapping[str, Any] | None = None, request_id: Any = 1) -> dict[str, Any]:
    """The body of a `tools/call`."""
    return body("tools/call", {"name": name, "arguments": dict(arguments or {})}, request_id)


def body(method: str, params: Mapping[str, Any] | None = None, request_id: Any = 1) -> dict[str, Any]:
    """The body of a request with all that the revision asks for."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
    }
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {"_meta": meta, **(params or {})}}


def headers_of(message: Mapping[str, Any], token: str = "") -> dict[str, str]:
    """The headers that agree with a body."""
    params = message.get("params", {})
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": message["method"],
    }
    name = params.get("name", params.get("uri", params.get("taskId")))
    if name is not None:
        headers["Mcp-Name"] = name
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return headers


@dataclass
class Stack:
    """One gateway (a supervisor and its workers) on ports of its own."""

    folder: Path
    servers: Mapping[str, Sequence[str]]
    workers: int = 1
    data: Mapping[str, Any] = field(default_factory=lambda: DATA)
    changes: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    issuer: Issuer = field(default_factory=lambda: Issuer(ISSUER))
    port: int = field(default_factory=free_port)
    admin_port: int = field(default_factory=free_port)
    secrets: dict[str, str] = field(default_factory=secrets_for)
    environment: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    """How a client trusts it, where `changes` have it listen over TLS."""
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """`public_url`."""
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def admin(self) -> str:
        """The operators' listener."""
        return f"http://127.0.0.1:{self.admin_port}"

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self.folder / "ostiary.yaml"

    def endpoint(self, server: str) -> str:
        """The MCP endpoint of a server."""
        return f"{self.url}/{server}/mcp"

    def token(
        self, server: str, subject: str = "alice", scope: str = "mcp:use files:read files:write", **more: Any
    ) -> str:
        """A good token for a server; `more` replaces claims."""
        return self.issuer.mint(self.endpoint(server), sub=subject, scope=scope, client_id="tests", **more)

    def person(
        self, subject: str = "bob", scope: str = "approvals:read approvals:request approvals:decide", **more: Any
    ) -> str:
        """A good token for the approvals API; `more` replaces claims."""
        return self.issuer.mint(f"{self.url}/approvals", sub=subject, scope=scope, client_id="tests", **more)

    def records(self, writer: int = 0) -> list[dict[str, Any]]:
        """What a writer's audit file holds now."""
        file = self.folder / ("audit.jsonl" if writer == 0 else f"audit.jsonl.{writer}")
        return [json.loads(line) for line in file.read_text().splitlines()]

    def configure(self) -> Path:
        """Write the configuration file."""
        return write_config(
            self.folder,
            self.issuer,
            self.servers,
            port=self.port,
            admin_port=self.admin_port,
            data=self.data,
            settings=self.settings,
            **{"public_url": self.url, **self.changes},
        )

    async def start(self) -> Self:
        """Start and wait until it is ready."""
        self.configure()
        await self.launch()
        return self

    async def launch(self) -> None:
        """Start the gateway on the configuration as it stands, and wait until it is ready."""
        await self.spawn()
        await self.until_ready()

    async def spawn(self) -> asyncio.subprocess.Process:
        """Start the gateway on the configuration as it stands."""
        with (self.folder / "gateway.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gateway.cli", "serve", "--config", str(self.config),
                "--workers", str(self.workers),
                stdout=log, stderr=log, env={**os.environ, **self.secrets, **self.environment},
            )  # fmt: skip
        return self.process

    async def until_ready(self, deadline_s: float = 90.0) -> None:
        """Until every worker is ready. Raises with the log when the gateway ends or does not get ready."""
        assert self.process is not None
        end = time.monotonic() + deadline_s
        async with httpx.AsyncClient(trust_env=False) as client:
            while time.monotonic() < end and self.process.returncode is None:
                try:
                    answer = (await client.get(f"{self.admin}/readyz")).json()
                    if answer["ready"] and all(worker["ready"] for worker in answer["workers"]):
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)
        raise AssertionError("the gateway did not become ready:\n" + self.log())

    def log(self) -> str:
        """What the gateway printed."""
        return (self.folder / "gateway.log").read_text()

    async def worker_pids(self) -> list[int]:
        """The workers' process ids."""
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = (await client.get(f"{self.admin}/readyz")).json()
        return [worker["pid"] for worker in answer["workers"] if worker["pid"] is not None]

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop the gateway -> its exit code."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 40)

    async def die(self) -> None:
        """kill -9 of all its processes at once: nothing of it is left that could end anything.

        They are stopped first: between two kills a worker could see its supervisor gone, and hand its callers on.
        """
        assert self.process is not None
        pids = (self.process.pid, *descendants(self.process.pid))
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        await asyncio.wait_for(self.process.wait(), 40)

    async def post(
        self,
        server: str,
        message: Mapping[str, Any],
        token: str | None = None,
        client: httpx.AsyncClient | None = None,
        **headers: str,
    ) -> httpx.Response:
        """Send a message as an ordinary client would; `headers` replace (or, empty, leave out) its headers."""
        merged = {**headers_of(message, self.token(server) if token is None else token), **headers}
        chosen = {name: value for name, value in merged.items() if value}
        content = json.dumps(message, separators=(",", ":")).encode()
        if client is not None:
            return await client.post(self.endpoint(server), content=content, headers=chosen)
        async with httpx.AsyncClient(trust_env=False, timeout=30, verify=self.tls or True) as own:
            return await own.post(self.endpoint(server), content=content, headers=chosen)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.returncode is None:
            await self.stop()
