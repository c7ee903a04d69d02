"""Unmodified servers of earlier revisions, most of those in the field, answer modern clients through the gateway.

`@modelcontextprotocol/server-everything` (npm; sessions, resumable streams) and one on the Python SDK's 1.x line,
with and without sessions; two replicas each, without affinity.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent, TextResourceContents

from tests.support.ports import free_port
from tests.support.processes import eventually
from tests.support.stack import Stack, body, call

FOLDER = Path(__file__).parent
EVERYTHING = FOLDER / "typescript/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
SDK = FOLDER / "old_sdk"
PYTHON = SDK / ".venv/bin/python"
READ = {"effect": "read", "scopes": ["files:read"]}
TOOLS = (
    "get-sum", "echo", "trigger-long-running-operation", "gzip-file-as-resource", "run", "steps", "remember", "ask",
)  # fmt: skip
ARCHITECTURE = "demo://resource/static/document/architecture.md"
DATA = {
    "methods": {
        method: {}
        for method in ("server/discover", "tools/list", "prompts/list", "resources/list", "subscriptions/listen")
    },
    "tools": dict.fromkeys(TOOLS, READ),
    "prompts": {"simple-prompt": READ, "args-prompt": READ},
    "resources": {ARCHITECTURE: READ, "note://one": READ},
}


@dataclass
class OldServer:
    """One process; `restart` makes it forget every session."""

    command: Sequence[str]
    port: int = field(default_factory=free_port)
    runs: Path = Path()
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its MCP endpoint."""
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        """Start it, and wait until it listens."""
        command = [part.format(port=self.port, runs=self.runs) for part in self.command]
        self.process = subprocess.Popen(
            command, env={**os.environ, "PORT": str(self.port)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise AssertionError(f"{command[0]} does not listen")

    def stop(self) -> None:
        """Stop it at once."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(20)

    def restart(self) -> None:
        """The same, without its sessions."""
        self.stop()
        self.start()


@pytest.fixture(scope="module")
def everything() -> Iterator[list[OldServer]]:
    """Two replicas of server-everything."""
    node = shutil.which("node")
    if node is None or not EVERYTHING.is_file():
        pytest.skip("server-everything is not installed: npm ci --prefix tests/e2e/typescript")
    with contextlib.ExitStack() as running:
        servers = [OldServer([node, str(EVERYTHING), "streamableHttp"]) for _ in range(2)]
        for server in servers:
            running.callback(server.stop)
            server.start()
        yield servers


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[OldServer]]:
    """Two replicas with sessions and one without, on the Python SDK's 1.x line."""
    if not PYTHON.is_file():
        pytest.skip("the Python SDK's 1.x line is not installed: see .ci/run")
    runs = tmp_path_factory.mktemp("old") / "runs"
    runs.touch()
    command = [str(PYTHON), str(SDK / "server.py"), "{port}", "{runs}"]
    with contextlib.ExitStack() as running:
        servers = [OldServer([*command, *more], runs=runs) for more in ([], [], ["stateless"])]
        for server in servers:
            running.callback(server.stop)
            server.start()
        yield servers


@contextlib.asynccontextmanager
async def gateway(
    folder: Path, version: str, *, workers: int = 1, **servers: Sequence[OldServer]
) -> AsyncIterator[Stack]:
    """A whole gateway in front of old servers."""
    names = {name: [each.url for each in replicas] for name, replicas in servers.items()}
    settings = {"legacy_servers": version}
    async with Stack(folder, names, workers=workers, data=DATA, settings=settings) as stack:
        yield stack


@contextlib.asynccontextmanager
async def connect(stack: Stack, server: str, subject: str = "alice") -> AsyncIterator[Client]:
    """The official client of this revision."""
    headers = {"Authorization": f"Bearer {stack.token(server, subject)}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http,
        Client(streamable_http_client(stack.endpoint(server), http_client=http), mode="auto") as client,
    ):
        assert client.protocol_version == "2026-07-28"
        yield client


def text(result: CallToolResult) -> str:
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


VERSIONS = pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])


@VERSIONS
async def test_server_everything_answers_a_modern_client(
    everything: list[OldServer], tmp_path: Path, version: str
) -> None:
    """Discovery, lists, calls with progress, resources, prompts; calls land on both replicas, in any order."""
    async with gateway(tmp_path, version, everything=everything) as stack, connect(stack, "everything") as client:
        assert client.server_capabilities is not None
        assert client.server_capabilities.tools is not None
        assert not client.server_capabilities.tools.list_changed
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert {"echo", "get-sum"} <= set(names)
        sums = await asyncio.gather(*(client.call_tool("get-sum", {"a": n, "b": 1}) for n in range(40)))
        assert [text(found) for found in sums] == [f"The sum of {n} and 1 is {n + 1}." for n in range(40)]
        told: list[float] = []

        async def note(progress: float, total: float | None, message: str | None) -> None:
            told.append(progress)

        long = await client.call_tool(
            "trigger-long-running-operation", {"duration": 1, "steps": 3}, progress_callback=note
        )
        assert "completed" in text(long)
        assert told == [1, 2, 3]
        contents = (await client.read_resource(ARCHITECTURE)).contents
        assert isinstance(contents[0], TextResourceContents)
        assert "Architecture" in contents[0].text
        prompt = await client.get_prompt("args-prompt", {"city": "Turin"})
        assert isinstance(prompt.messages[0].content, TextContent)
        assert "Turin" in prompt.messages[0].content.text
        served = {record["replica"] for record in stack.records() if record["method"] == "tools/call"}
        assert {server.url for server in everything} <= served


SCHEMA = json.loads((FOLDER.parent / "vectors/mcp-2026-07-28.schema.json").read_text())
RESULTS = {
    "DiscoverResult": body("server/discover"),
    "ListToolsResult": body("tools/list"),
    "ListPromptsResult": body("prompts/list"),
    "ListResourcesResult": body("resources/list"),
    "ReadResourceResult": body("resources/read", {"uri": ARCHITECTURE}),
    "GetPromptResult": body("prompts/get", {"name": "args-prompt", "arguments": {"city": "Turin"}}),
    "CallToolResult": call("get-sum", {"a": 1, "b": 2}),
}


async def test_its_answers_are_of_this_revision(everything: list[OldServer], tmp_path: Path) -> None:
    """Each result fits the official schema of 2026-07-28, under the id that was asked with."""
    async with gateway(tmp_path, "2025-11-25", everything=everything) as stack:
        for name, asked in RESULTS.items():
            answer = await stack.post("everything", {**asked, "id": name})
            events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
            message = json.loads(events[-1] if events else answer.text)
            assert message["id"] == name, message
            check = jsonschema_rs.validator_for({**SCHEMA, "$ref": f"#/$defs/{name}"})
            assert [error.message for error in check.iter_errors(message["result"])] == []


async def test_the_typescript_client_reaches_it_as_well(everything: list[OldServer], tmp_path: Path) -> None:
    """The other official client, unmodified: it asks for this revision and finds nothing missing."""
    node = shutil.which("node")
    assert node is not None
    async with gateway(tmp_path, "2025-06-18", everything=everything) as stack:
        plan = {
            "url": stack.endpoint("everything"),
            "token": stack.token("everything"),
            "mode": {"pin": "2026-07-28"},
            "calls": [{"name": "echo", "arguments": {"message": "hello"}}],
            "resource": ARCHITECTURE,
            "prompt": {"name": "simple-prompt"},
        }
        client = await asyncio.create_subprocess_exec(
            node, "client.mjs", cwd=FOLDER / "typescript", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(client.communicate(json.dumps(plan).encode()), 60)
    said: dict[str, Any] = json.loads(out)
    assert said["connected"] is True, said
    assert said["version"] == "2026-07-28"
    assert said["calls"][0]["result"]["content"][0]["text"] == "Echo: hello"
    assert "result" in said["resource"], said["resource"]
    assert "result" in said["prompt"], said["prompt"]


@VERSIONS
async def test_a_server_on_the_1x_line_answers_a_modern_client(
    sdk: list[OldServer], tmp_path: Path, version: str
) -> None:
    """With sessions (two replicas, two workers, no affinity) and without: each call runs once, with its answer."""
    async with gateway(tmp_path, version, workers=2, kept=sdk[:2], bare=sdk[2:]) as stack:
        for name in ("kept", "bare"):
            async with connect(stack, name) as client:
                assert client.server_info is not None
                assert client.server_info.name == "old"
                listed = [tool.name for tool in (await client.list_tools()).tools]
                assert listed == ["run", "steps", "remember", "ask"]
                marks = [f"{version}-{name}-{n}" for n in range(20)]
                found = await asyncio.gather(*(client.call_tool("run", {"mark": mark}) for mark in marks))
                assert [text(one) for one in found] == [f"ran {mark}" for mark in marks]
                ran = sdk[0].runs.read_text().splitlines()
                assert sorted(mark for mark in ran if mark in marks) == sorted(marks)
                told: list[float] = []

                async def note(
                    progress: float, total: float | None, message: str | None, told: list[float] = told
                ) -> None:
                    told.append(progress)

                assert text(await client.call_tool("steps", {"count": 3}, progress_callback=note)) == "done"
                assert told == [1, 2, 3]
                contents = (await client.read_resource("note://one")).contents
                assert isinstance(contents[0], TextResourceContents)
                assert contents[0].text == "the first"


async def test_what_one_caller_left_in_a_session_reaches_no_other(sdk: list[OldServer], tmp_path: Path) -> None:
    """A tool that keeps a text in its session: its own caller finds it again, nobody else ever does (G8)."""
    async with gateway(tmp_path, "2025-06-18", kept=sdk[:1]) as stack:
        for subject, before in (("alice", ""), ("bob", ""), ("alice", "alice"), ("bob", "bob")):
            async with connect(stack, "kept", subject) as client:
                assert text(await client.call_tool("remember", {"text": subject})) == before


@pytest.mark.parametrize("kind", ["everything", "sdk"])
async def test_a_restart_of_the_server_costs_no_call(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """All sessions are gone (404 from one, 400 from the other): the next call of everybody works, and runs once."""
    server: OldServer = request.getfixturevalue(kind)[0]
    async with gateway(tmp_path, "2025-06-18", old=[server]) as stack:

        async def ask_each(mark: str) -> None:
            for subject in ("alice", "bob"):
                asked = (
                    call("run", {"mark": f"{mark}-{subject}"}) if kind == "sdk" else call("echo", {"message": mark})
                )
                answer = await stack.post("old", asked, stack.token("old", subject))
                assert answer.status_code == 200, answer.text
                assert mark in answer.text

        await ask_each("before")
        await asyncio.to_thread(server.restart)
        await ask_each("after")
        if kind == "sdk":
            ran = server.runs.read_text().splitlines()
            assert sorted(mark for mark in ran if mark.startswith("after-")) == ["after-alice", "after-bob"]
        assert (await stack.post("old", body("tools/list"))).status_code == 200


async def test_a_server_that_asks_back_is_not_answered(sdk: list[OldServer], tmp_path: Path) -> None:
    """An elicitation on the stream can't be passed on: the caller gets an error, the record says `unknown`."""
    async with gateway(tmp_path, "2025-06-18", kept=sdk[:1]) as stack:
        answer = await stack.post("kept", call("ask", {}, request_id="asked"))
        events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        error = json.loads(events[-1])
        assert (error["id"], error["error"]["code"]) == ("asked", 50202)
        decision = answer.headers["ostiary-decision"]
        await eventually(
            "the outcome is recorded as unknown",
            lambda: "unknown" in [one["outcome"] for one in stack.records() if one["decision_id"] == decision],
        )


async def test_an_old_client_and_an_old_server_meet(sdk: list[OldServer], tmp_path: Path) -> None:
    """Both ends on the 1.x line, the gateway between them in this revision: each has its own session with it."""
    more = {"legacy_clients": True, "legacy_servers": "2025-06-18"}
    async with Stack(tmp_path, {"kept": [each.url for each in sdk[:2]]}, data=DATA, settings=more) as stack:
        steps: list[list[Any]] = [["tools"], *(["call", "run", {"mark": f"met-{n}"}] for n in range(6))]
        plan = {"url": stack.endpoint("kept"), "token": stack.token("kept"), "steps": steps}
        client = await asyncio.create_subprocess_exec(
            str(PYTHON), str(SDK / "client.py"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(client.communicate(json.dumps(plan).encode() + b"\n"), 60)
    begun, listed, *answers = [json.loads(line) for line in out.splitlines()]
    assert begun["result"]["serverInfo"]["name"] == "old"
    assert [tool["name"] for tool in listed["result"]["tools"]] == ["run", "steps", "remember", "ask"]
    assert [found["result"]["content"][0]["text"] for found in answers] == [f"ran met-{n}" for n in range(6)]


async def test_listening_is_refused_in_so_many_words(sdk: list[OldServer], tmp_path: Path) -> None:
    """`subscriptions/listen` gets -32601: the discovery offered nothing to listen to."""
    async with gateway(tmp_path, "2025-06-18", kept=sdk[:1]) as stack:
        answer = await stack.post("kept", body("subscriptions/listen", {"notifications": {"toolsListChanged": True}}))
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, -32601)


async def test_operators_see_the_sessions_and_none_is_left(sdk: list[OldServer], tmp_path: Path) -> None:
    """Metrics and record tell of the older revision; the sessions' ids are nowhere; a stop has ended them all."""
    async with gateway(tmp_path, "2025-06-18", kept=sdk[:1]) as stack:
        for subject in ("alice", "bob"):
            assert (
                await stack.post("kept", call("run", {"mark": "m"}), stack.token("kept", subject))
            ).status_code == 200

        async def shown() -> bool:
            async with httpx2.AsyncClient(trust_env=False) as http:
                page = (await http.get(f"{stack.admin}/metrics")).text
            return {
                'ostiary_upstream_sessions{server="kept"} 3.0',
                "ostiary_upstream_sessions_opened_total 3.0",
                "ostiary_upstream_sessions_lost_total 0.0",
                'ostiary_upstream_legacy_requests_total{revision="2025-06-18",server="kept"} 2.0',
            } <= set(page.splitlines())

        await eventually("three sessions in the metrics", shown)
        assert await stack.stop() == 0
        assert "mcp-session-id" not in stack.log().lower()
        told = [record for record in stack.records() if record["kind"] in ("decision", "outcome")]
        assert [record["upstream_revision"] for record in told] == ["2025-06-18"] * 4
