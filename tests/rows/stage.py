"""Where the processes live: a loop in a thread, the servers behind, the gateway as clients and operators see it.

Tests are plain functions; each gateway serves many of them. `House.ask` holds every answer to what all answers share
(RPC-07), so no test has to remember it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.rows.asking import Ask, compose, tool
from tests.support.http_raw import Answer, RawClient
from tests.support.issuer import Issuer, signing_key
from tests.support.stack import Stack, body
from tests.support.upstream import Exchange, Script, ScriptedUpstream, Seen, http, result_of

T = TypeVar("T")

SECOND = "https://second.example.com"
SPEC_CODES = frozenset({-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022})
PATIENCE_S = 60.0
"""How long a test waits for what must come; deadlines that are rules stand in the tests."""


PROMPTS = [
    {"name": "greet"},
    {"name": "secret"},
    {"name": "guarded", "arguments": [{"name": "a", "required": True}, {"name": "b"}]},
]


class Stage:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], within_s: float = PATIENCE_S) -> T:
        """Do `work` on the loop and wait for it."""
        return self.submit(work).result(within_s)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Have `work` done on the loop meanwhile."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """End the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


def listed(**tools: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tool definitions as a server lists them."""
    return [{"name": name, "inputSchema": {"type": "object"}, **more} for name, more in tools.items()]


@dataclass
class Server:
    """An MCP server behind the gateway: answers like a good one, or plays `script` for calls that were forwarded."""

    tools: list[dict[str, Any]]
    ttl_ms: int = 60_000
    script: Script | None = None
    name: str = "rows"
    """As it calls itself."""
    wire: ScriptedUpstream = field(init=False)
    forwarded: list[Seen] = field(default_factory=list)
    """The requests that came for a caller: all but the gateway's own listings."""

    def __post_init__(self) -> None:
        self.wire = ScriptedUpstream(self._answer)

    @property
    def url(self) -> str:
        """Its MCP endpoint."""
        return self.wire.url

    @contextlib.contextmanager
    def playing(self, script: Script) -> Iterator[None]:
        """Answer forwarded requests by `script` meanwhile."""
        self.script = script
        try:
            yield
        finally:
            self.script = None

    async def _answer(self, exchange: Exchange) -> None:
        if not is_own(exchange.seen):
            self.forwarded.append(exchange.seen)
            if self.script is not None:
                await self.script(exchange)
                return
        await exchange.send(http(200, self.result(exchange)))

    def result(self, exchange: Exchange) -> bytes:
        """The good answer to a request."""
        method, request_id = json.loads(exchange.seen.body)["method"], exchange.id
        cached = {"ttlMs": self.ttl_ms, "cacheScope": "public"}
        match method:
            case "tools/list":
                return result_of(request_id, tools=self.tools, **cached)
            case "prompts/list":
                return result_of(request_id, prompts=PROMPTS, **cached)
            case "resources/list":
                return result_of(request_id, resources=[{"uri": "demo://open", "name": "open"}], **cached)
            case "server/discover":
                info = {"io.modelcontextprotocol/serverInfo": {"name": self.name, "version": "7"}}
                offers = {"tools": {"listChanged": True}, "logging": {}, "extensions": {}}
                versions = ["2026-07-28"]
                return result_of(
                    request_id,
                    supportedVersions=versions,
                    capabilities=offers,
                    instructions="Go.",
                    _meta=info,
                    **cached,
                )
            case _:
                return result_of(request_id, content=[{"type": "text", "text": "done"}], isError=False)


def is_own(seen: Seen) -> bool:
    """Whether the gateway asked for itself: a list, what the server is, or to be told of changes."""
    return str(json.loads(seen.body).get("id", "")).startswith("ostiary-")


@dataclass
class House:
    """One gateway with its servers. `secrets` is everything planted that must show up nowhere.

    `away` is the issuer that people would sign in at, and that nobody reaches.
    """

    stage: Stage
    stack: Stack
    behind: dict[str, list[Server]]
    secrets: set[bytes] = field(default_factory=set)
    second: Issuer = field(default_factory=lambda: Issuer(SECOND, [signing_key(number=9)]))
    audit_folder: Path | None = None
    away: str = ""
    http: httpx.Client = field(default_factory=lambda: httpx.Client(trust_env=False, timeout=PATIENCE_S))
    _tokens: dict[tuple[str, ...], str] = field(default_factory=dict)
    _read: dict[Path, int] = field(default_factory=dict)
    _records: list[dict[str, Any]] = field(default_factory=list)
    cookie: str = field(default_factory=lambda: f"planted-cookie-{os.urandom(8).hex()}")
    query: str = field(default_factory=lambda: f"planted-query-{os.urandom(8).hex()}")
    argument: str = field(default_factory=lambda: f"planted-argument-{os.urandom(8).hex()}")

    def __post_init__(self) -> None:
        self.secrets |= {self.cookie.encode(), self.query.encode(), self.argument.encode()}

    # Tokens

    def token(
        self, server: str = "plain", subject: str = "alice", scope: str = "mcp:use files:read files:write"
    ) -> str:
        """A good token for a server (`approvals`: for the approvals API); one and the same for the same words."""
        key = (server, subject, scope)
        if key not in self._tokens:
            audience = f"{self.stack.url}/approvals" if server == "approvals" else self.stack.endpoint(server)
            self._tokens[key] = self.plant(
                self.stack.issuer.mint(audience, sub=subject, scope=scope, client_id="tests")
            )
        return self._tokens[key]

    def person(self, subject: str = "bob", scope: str = "approvals:read approvals:request approvals:decide") -> str:
        """A good token for the approvals API."""
        return self.token("approvals", subject, scope)

    def plant(self, token: str) -> str:
        """Remember a token's payload and signature as secrets; the head is the same for all tokens of a key."""
        self.secrets |= {part.encode() for part in token.split(".")[1:] if len(part) > 16}
        return token

    # Asking

    @property
    def address(self) -> tuple[str, int]:
        """The data plane."""
        return ("127.0.0.1", self.stack.port)

    @property
    def host(self) -> str:
        """Its authority."""
        return f"127.0.0.1:{self.stack.port}"

    def good(
        self, message: Mapping[str, Any] | None = None, server: str = "plain", token: str | None = None, **lines: str
    ) -> Ask:
        """A request that passes, with a planted cookie, query and argument."""
        message = tool("read", path=self.argument) if message is None else message
        token = self.token(server) if token is None else token
        target = f"/{server}/mcp?access={self.query}"
        return compose(target, self.host, message, token, Cookie=f"session={self.cookie}", **lines)

    def ask(self, ask: Ask | bytes, within_s: float = PATIENCE_S) -> Answer:
        """Send on a connection of its own; every answer is held to what all answers share."""
        with RawClient(self.address, within_s) as client:
            data = ask if isinstance(ask, bytes) else ask.encode()
            answer = client.send(data).read_answer(to_head=data.startswith(b"HEAD "))
        self.check(answer)
        return answer

    def call(self, server: str, message: Mapping[str, Any], subject: str = "alice", **scope: str) -> Answer:
        """A good call by somebody."""
        return self.ask(self.good(message, server, self.token(server, subject, **scope)))

    def check(self, answer: Answer) -> None:
        """RPC-07 and what every answer of an MCP endpoint carries."""
        told = b"\r\n".join(f"{name}: {value}".encode("latin-1") for name, value in answer.headers) + answer.body
        assert not self.planted_in(told)
        assert not {"set-cookie", "mcp-session-id", "server"} & {name for name, _ in answer.headers}
        if answer.values("ostiary-decision"):
            assert answer.values("cache-control") == ["no-store"]
        if answer.values("content-type") == ["application/json"] and answer.body:
            error = answer.json().get("error")
            if isinstance(error, dict):
                code = error["code"]
                assert code in SPEC_CODES or not -32768 <= code <= -32000, code

    def api(self, verb: str, path: str = "", token: str | None = None, content: Any = None) -> httpx.Response:
        """The approvals API; `path` begins with `/` or is empty."""
        headers = {} if token == "" else {"Authorization": f"Bearer {token or self.person()}"}
        return self.http.request(verb, f"{self.stack.url}/approvals{path}", headers=headers, json=content)

    def act(self, verb: str, ticket: str, subject: str = "bob", **content: str) -> httpx.Response:
        """A person acts on a ticket."""
        return self.api("POST", f"/{ticket}/{verb}", self.person(subject), {"comment": "row", **content})

    def held(self, server: str, message: Mapping[str, Any], subject: str = "alice") -> dict[str, Any]:
        """The ticket that a call has to wait for."""
        answer = self.call(server, message, subject)
        assert (answer.status, answer.json()["error"]["code"]) == (403, 40303), answer
        ticket: dict[str, Any] = answer.json()["error"]["data"]["ticket"]
        return ticket

    def approved(self, server: str, message: Mapping[str, Any], subject: str = "alice") -> str:
        """The id of a ticket that was opened by the call and approved by another person."""
        ticket: str = self.held(server, message, subject)["id"]
        given = self.act("approve", ticket)
        assert given.status_code == 200, given.text
        return ticket

    def ostiary(self, *words: str, token: str = "") -> subprocess.CompletedProcess[str]:
        """The command, as a process."""
        named = {**os.environ, **self.stack.secrets, **self.stack.environment, "OSTIARY_TOKEN": token}
        return subprocess.run(
            [sys.executable, "-m", "gateway.cli", *words],
            capture_output=True, text=True, env=named, timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    # Looking

    def forwarded(self, server: str | None = None) -> list[Seen]:
        """What the servers (or one of them) saw for callers."""
        servers = self.behind.values() if server is None else [self.behind[server]]
        return [seen for replicas in servers for one in replicas for seen in one.forwarded]

    def metrics(self) -> str:
        """`/metrics`."""
        return self.http.get(f"{self.stack.admin}/metrics").text

    def readiness(self) -> tuple[int, dict[str, Any]]:
        """`/readyz`."""
        answer = self.http.get(f"{self.stack.admin}/readyz")
        return answer.status_code, answer.json()

    def evaluations(self) -> int:
        """How often the policy was asked until now."""
        found = [line for line in self.metrics().splitlines() if line.startswith("ostiary_policy_evaluations_total ")]
        return round(float(found[0].split()[1])) if found else 0

    def _tail(self, file: Path) -> bytes:
        with file.open("rb") as stream:
            stream.seek(self._read.get(file, 0))
            new = stream.read()
        new = new[: new.rfind(b"\n") + 1]
        self._read[file] = self._read.get(file, 0) + len(new)
        return new

    @property
    def audit_files(self) -> list[Path]:
        """One a writer; what lies beside it says in whose name it is written, and how old the sealing key is."""
        found = (self.audit_folder or self.stack.folder).glob("audit.jsonl*")
        return sorted(file for file in found if file.suffix != ".owner" and "seal-key" not in file.name)

    def records(self) -> list[dict[str, Any]]:
        """Every audit record until now; what is new of audit and log was looked through for secrets."""
        for file in [*self.audit_files, self.stack.folder / "gateway.log"]:
            new = self._tail(file)
            assert not self.planted_in(new), file
            if file.name.startswith("audit"):
                self._records += [json.loads(line) for line in new.splitlines()]
        return self._records

    def records_of(self, decision: str) -> list[dict[str, Any]]:
        """The records of one request, in order."""
        return [record for record in self.records() if record["decision_id"] == decision]

    def await_records(self, decision: str, *kinds: str) -> list[dict[str, Any]]:
        """The records of one request, once exactly these kinds are there."""
        end = time.monotonic() + PATIENCE_S
        while True:
            found = self.records_of(decision)
            if [record["kind"] for record in found] == list(kinds):
                return found
            assert time.monotonic() < end, found
            time.sleep(0.01)

    def planted_in(self, data: bytes) -> list[bytes]:
        """The secrets that `data` gives away."""
        return [secret for secret in self.secrets if secret in data]


def at_once(count: int, work: Any) -> list[Any]:
    """Do `work(n)` for n in 0...count-1, as parallel as threads are."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def listing(method: str = "tools/list", request_id: Any = 7) -> dict[str, Any]:
    """A list request."""
    return body(method, {}, request_id)
