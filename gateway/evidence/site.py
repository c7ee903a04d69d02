"""What is asked for evidence: where it is, what may be called there, as whom, and what may be done to it.

A plan is a small YAML file beside the configuration (docs/evidence.md); tokens come from the environment. An act is
what nobody can bring about by asking: a replica that dies, a policy that breaks. On a live deployment it is a command
of the plan; one that the plan lacks leaves its checks unproven.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from gateway.evidence.wire import Request, ask, ask_api

Act = Callable[[], Awaitable[bytes]]
"""Does it, and gives what it said."""

ACTS: Final = (
    "break_stream", "lose_replica", "mend_replicas", "arrivals",
    "break_policy", "change_policy", "restore_policy",
    "drain", "start",
)  # fmt: skip
ACT_S: Final = 120.0
MOST_SAID: Final = 1 << 20

TOKENS: Final[Mapping[str, str]] = {
    "caller": "OSTIARY_EVIDENCE_TOKEN",
    "gated caller": "OSTIARY_EVIDENCE_GATED_TOKEN",
    "narrow caller": "OSTIARY_EVIDENCE_NARROW_TOKEN",
    "requester": "OSTIARY_EVIDENCE_REQUESTER_TOKEN",
    "approver": "OSTIARY_EVIDENCE_APPROVER_TOKEN",
}
"""Actors, and the variables that hold their tokens (docs/evidence.md says for which audience and scopes)."""


class PlanInvalid(ValueError):  # noqa: N818 - says what is wrong with the plan
    """The plan can't be read, or an act of it failed; the text names the member."""


class NotHere(Exception):  # noqa: N818 - says what is missing
    """Something that a check needs was not given: a token, an act, a file."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What may be called. `read` and `slow` are tools of `server` that change nothing, `gated` one of `gated_server`.

    `malformed` are arguments that the tool's schema refuses, `failing` some that its handler does, `changed` others
    for the gated tool. `burst` calls of the slow tool are made at once; one is left
    when it tells of its progress, or after `leave_s`. `record` is `server`'s server.json, whose
    `publisher` is a domain or github:LOGIN; `private`: its readers share a network.
    """

    server: str
    read: str
    arguments: Mapping[str, Any]
    malformed: Mapping[str, Any]
    failing: Mapping[str, Any]
    slow: str
    slow_arguments: Mapping[str, Any]
    gated_server: str
    gated: str
    gated_arguments: Mapping[str, Any]
    changed: Mapping[str, Any]
    burst: int = 120
    expiry_s: float = 10.0
    leave_s: float = 0.5
    log: Path | None = None
    record: Path | None = None
    publisher: str = ""
    private: bool = False
    url: str = ""
    admin_url: str = ""
    acts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def read_plan(path: Path) -> Plan:
    """From a YAML file; paths in it are relative to it. Raises `PlanInvalid`."""
    try:
        told = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise PlanInvalid(f"{path}: {why}") from None
    if not isinstance(told, dict):
        raise PlanInvalid(f"{path}: not a mapping")
    acts = told.get("acts", {})
    if not isinstance(acts, dict) or not all(
        isinstance(words, list) and words and all(isinstance(word, str) for word in words) for words in acts.values()
    ):
        raise PlanInvalid(f"{path}: acts: each is a command, as a list of words")
    if unknown := sorted(acts.keys() - set(ACTS)):
        raise PlanInvalid(f"{path}: acts.{unknown[0]}: not one of {', '.join(ACTS)}")
    try:
        files = {name: path.parent / told[name] for name in ("log", "record") if told.get(name)}
        plan = Plan(**told | files | {"acts": {name: tuple(words) for name, words in acts.items()}})
    except TypeError as error:
        raise PlanInvalid(f"{path}: {str(error).partition('__init__() ')[2] or error}") from None
    for name in ("arguments", "malformed", "failing", "slow_arguments", "gated_arguments", "changed"):
        if not isinstance(getattr(plan, name), dict):
            raise PlanInvalid(f"{path}: {name}: not a mapping")
    return plan


@dataclass(frozen=True, slots=True)
class Published:
    """The record of a server, who published it, the pins, and the way to `ostiary`'s own commands about them.

    `run` gives how a command ended and what it printed.
    """

    server: str
    config: Path
    record: Path
    publisher: str
    private: bool
    pins: Path
    addresses: tuple[str, ...]
    run: Callable[[tuple[str, ...]], Awaitable[tuple[int, str]]]

    def described(self) -> dict[str, Any]:
        """What a verdict needs to know of it."""
        return {
            "server": self.server,
            "publisher": self.publisher,
            "private": self.private,
            "addresses": list(self.addresses),
        }


@dataclass(frozen=True, slots=True)
class Site:
    """A deployment that can be asked. `tokens` are by actor, `acts` by name; `endpoints` are each server's URL."""

    url: str
    admin_url: str
    endpoints: Mapping[str, str]
    plan: Plan
    tokens: Mapping[str, str]
    acts: Mapping[str, Act]
    published: Published | None = None

    def token(self, actor: str) -> str:
        """An actor's token. Raises `NotHere`."""
        if not self.tokens.get(actor):
            raise NotHere(f"{TOKENS[actor]} is not set")
        return self.tokens[actor]

    def require(self, *names: str) -> None:
        """Nothing is broken that can't be mended: raises `NotHere` for the first act that the plan lacks."""
        for name in names:
            if name not in self.acts:
                raise NotHere(f"the plan has no acts.{name}")

    async def act(self, name: str) -> bytes:
        """Do it. Raises `NotHere` or `PlanInvalid`."""
        self.require(name)
        return await self.acts[name]()

    def endpoint(self, server: str) -> str:
        """A server's URL. Raises `NotHere`."""
        if server not in self.endpoints:
            raise NotHere(f"the configuration has no servers.{server}")
        return self.endpoints[server]

    def read(self, arguments: Mapping[str, Any] | None = None) -> Request:
        """A good call of the tool that reads."""
        plan = self.plan
        called = {"name": plan.read, "arguments": dict(plan.arguments if arguments is None else arguments)}
        return ask(self.endpoint(plan.server), self.token("caller"), "tools/call", called)

    def slow(self, arguments: Mapping[str, Any] | None = None) -> Request:
        """A call that takes its time and tells of its progress."""
        plan = self.plan
        called = {"name": plan.slow, "arguments": dict(plan.slow_arguments if arguments is None else arguments)}
        return ask(self.endpoint(plan.server), self.token("caller"), "tools/call", called, progress=True)

    def gated(self, actor: str = "gated caller", arguments: Mapping[str, Any] | None = None) -> Request:
        """A call of the gated tool."""
        plan = self.plan
        called = {"name": plan.gated, "arguments": dict(plan.gated_arguments if arguments is None else arguments)}
        return ask(self.endpoint(plan.gated_server), self.token(actor), "tools/call", called)

    def listing(self) -> Request:
        """The list of the reading server's tools."""
        return ask(self.endpoint(self.plan.server), self.token("caller"), "tools/list", {})

    def discovery(self) -> Request:
        """What the reading server says of itself."""
        return ask(self.endpoint(self.plan.server), self.token("caller"), "server/discover", {})

    def review(self, actor: str, ticket: str, verb: str = "") -> Request:
        """A look at a ticket, or an act on it."""
        url = f"{self.url}/approvals/{ticket}" + (f"/{verb}" if verb else "")
        return ask_api(url, self.token(actor), {"comment": "for the evidence pack"} if verb else None)

    def admin(self, path: str) -> Request:
        """A question to the admin listener."""
        return Request("GET", f"{self.admin_url}{path}", {})


def commands(plan: Plan) -> dict[str, Act]:
    """The plan's acts: each runs its command, without a shell and without our tokens."""

    def make(name: str, words: tuple[str, ...]) -> Act:
        async def run() -> bytes:
            kept = {key: value for key, value in os.environ.items() if not key.startswith("OSTIARY_EVIDENCE_")}
            process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, env=kept)
            try:
                said = await _said_by(process)
            except TimeoutError:
                raise PlanInvalid(f"acts.{name}: took longer than {ACT_S:.0f} s") from None
            if process.returncode:
                raise PlanInvalid(f"acts.{name}: ended with {process.returncode}")
            return said

        return run

    return {name: make(name, words) for name, words in plan.acts.items()}


def tokens_here() -> dict[str, str]:
    """The tokens that are in the environment, by actor."""
    return {actor: token for actor, variable in TOKENS.items() if (token := os.environ.get(variable, "").strip())}


async def ostiary(words: tuple[str, ...]) -> tuple[int, str]:
    """Run another command of this installation, with this environment."""
    command = (sys.executable, "-m", "gateway.cli", *words)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        said = await _said_by(process)
    except TimeoutError:
        raise NotHere(f"ostiary {words[0]}: took longer than {ACT_S:.0f} s") from None
    return process.returncode or 0, said.decode(errors="replace")


async def _said_by(process: asyncio.subprocess.Process) -> bytes:
    """What it writes, at most `MOST_SAID` bytes, once it has ended. Raises `TimeoutError` for one that was killed."""
    try:
        async with asyncio.timeout(ACT_S):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    return said[:MOST_SAID]


def lines_of(said: bytes) -> list[dict[str, Any]]:
    """What arrived, as the act `arrivals` tells it: a JSON object a line."""
    return [json.loads(line) for line in said.splitlines() if line.strip()]
