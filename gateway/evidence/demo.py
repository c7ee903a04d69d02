"""The demo as a deployment to be asked: two replicas that fail on demand, an issuer that signs what is needed."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.audit.checkpoints import SigningKey
from gateway.audit.place import Place
from gateway.config_file import load_settings
from gateway.demo.house import Ports
from gateway.demo.proving import BREAK, DIE, PROVING
from gateway.demo.stack import Stack, StackFailed
from gateway.evidence.deployed import facts_of, log_from, published_of
from gateway.evidence.excerpt import record_of
from gateway.evidence.gather import Deployment
from gateway.evidence.scrubbing import Scrubber
from gateway.evidence.site import ACTS, Act, NotHere, Plan, PlanInvalid, Site

SERVER: Final = "readonly"
PUBLISHER: Final = "bank.example"
RECORD: Final[Mapping[str, Any]] = {
    "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
    "name": "example.bank/readonly",
    "title": "Bank, read only",
    "description": "Reads the books of a small bank.",
    "version": "1.0.0",
}
"""What the bank publishes of its reading server; where it is, is said when that is known."""

PLAN: Final = Plan(
    server=SERVER,
    read="get_balance",
    arguments={"account": "operating"},
    malformed={"account": 7},
    failing={"account": "no-such-account"},
    slow="wait",
    slow_arguments={"seconds": 3.0},
    gated_server="payments",
    gated="transfer_funds",
    gated_arguments={"from_account": "operating", "to_account": "supplier-acme", "amount_cents": 250_000},
    changed={"from_account": "operating", "to_account": "supplier-acme", "amount_cents": 260_000},
    leave_s=20.0,  # it tells of its progress
    publisher=PUBLISHER,
    private=True,
)


@dataclass(frozen=True, slots=True)
class Hands:
    """What is done to the demo: each of it blocks, and is done in a thread."""

    stack: Stack

    def break_stream(self) -> None:
        """The next stream breaks."""
        (self.stack.house.books / BREAK).touch()

    def lose_replica(self) -> None:
        """The next call's replica dies."""
        (self.stack.house.books / DIE).touch()

    def mend_replicas(self) -> None:
        """All replicas are there again."""
        self.stack.revive_replicas()

    def arrivals(self) -> bytes:
        """What arrived at the replicas."""
        return b"".join(json.dumps(line).encode() + b"\n" for line in self.stack.books.arrivals())

    def break_policy(self) -> None:
        """A bundle whose rules can't be read."""
        self._rules.with_suffix(".kept").write_bytes(self._rules.read_bytes())
        self._rules.write_text("package mcp.authz\n\ndecision := {\n")

    def change_policy(self) -> None:
        """Rules that can be read again, as another revision."""
        self._mend()
        self._revise("demo-2")

    def restore_policy(self) -> None:
        """The first one again."""
        self._mend()
        self._revise("demo-1")

    def drain(self) -> None:
        """The gateway is told to stop; returns when it has. Raises `PlanInvalid` where that was no success."""
        part = self.stack.parts.pop("gateway")
        part.process.send_signal(signal.SIGTERM)
        if code := part.process.wait(60):
            raise PlanInvalid(f"the gateway ended with {code}")

    def start(self) -> None:
        """The gateway is there again."""
        self.stack.start_gateway()

    @property
    def _rules(self) -> Any:
        return self.stack.house.bundle / "mcp" / "authz" / "authz.rego"

    def _mend(self) -> None:
        kept = self._rules.with_suffix(".kept")
        if kept.exists():
            kept.replace(self._rules)

    def _revise(self, revision: str) -> None:
        text = json.dumps({"revision": revision, "roots": ["mcp/authz"]})
        (self.stack.house.bundle / ".manifest").write_text(text)


def _act(do: Callable[[], bytes | None]) -> Act:
    async def act() -> bytes:
        return await asyncio.to_thread(do) or b""

    return act


def accept_tools(stack: Stack) -> None:
    """Somebody looks at the reading server's tools and accepts them. Raises `StackFailed`."""
    words = ("--config", str(stack.house.config_file), "--server", SERVER, "--json")
    shown = stack.run("pins", "show", *words)
    accepted = stack.run("pins", "accept", *words, "--seen", str(json.loads(shown.stdout or "{}").get("seen")))
    if accepted.returncode:
        raise StackFailed(f"the bank's tools were not accepted: {shown.stderr}{accepted.stdout}{accepted.stderr}")


def _commands(stack: Stack, accepted: Future[None]) -> Callable[[tuple[str, ...]], Awaitable[tuple[int, str]]]:
    """Commands about the bank, once its tools are accepted."""

    async def run(words: tuple[str, ...]) -> tuple[int, str]:
        try:
            await asyncio.wrap_future(accepted)
        except StackFailed as failed:
            raise NotHere(str(failed)) from None
        done = await asyncio.to_thread(stack.run, *words)
        return done.returncode, done.stdout + done.stderr

    return run


@contextmanager
def demo_deployment(scrubber: Scrubber, stack: Stack | None = None) -> Iterator[Deployment]:
    """Start the demo and let it be asked. Raises `StackFailed`."""
    with ThreadPoolExecutor(1) as hand, stack or Stack(ports=Ports.free(), place=PROVING) as running:
        house = running.house
        for name, value in house.secrets.items():
            scrubber.know(name, value.removeprefix("Bearer "))
        hands = Hands(running)
        settings = load_settings(house.config_file)
        record = house.directory / "server.json"
        remotes = [{"type": "streamable-http", "url": house.endpoint(SERVER)}]
        record.write_text(json.dumps({**RECORD, "remotes": remotes}))
        published = published_of(settings, house.config_file, replace(PLAN, record=record))
        signer = SigningKey(base64.urlsafe_b64encode(os.urandom(32)).decode(), "the demo's key")
        place = Place(house.audit_file, key=signer)
        accepted = hand.submit(accept_tools, running)
        site = Site(
            url=house.public_url,
            admin_url=house.admin_url,
            endpoints={name: house.endpoint(name) for name in PROVING.servers},
            plan=PLAN,
            tokens={
                "caller": running.mint("alice", "readonly", "mcp:use bank:read"),
                "gated caller": running.mint("alice", "payments", "mcp:use bank:read payments:write"),
                "narrow caller": running.mint("alice", "payments", "mcp:use bank:read"),
                "requester": running.mint("alice", "approvals", "approvals:read approvals:decide"),
                "approver": running.mint("bob", "approvals", "approvals:read approvals:decide"),
            },
            published=published and replace(published, run=_commands(running, accepted)),
            acts={name: _act(getattr(hands, name)) for name in ACTS},
        )
        yield Deployment(
            site,
            record=lambda query: record_of(place, query),
            log=log_from(house.directory / "gateway.log"),
            facts=lambda: facts_of(settings, house.config_file, place, demo=True),
            key=signer,
        )
