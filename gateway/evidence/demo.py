"""The demo as a deployment to be asked: two replicas that fail on demand, an issuer that signs what is needed."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from gateway.audit.place import Place
from gateway.config_file import load_settings
from gateway.demo.house import Ports
from gateway.demo.proving import BREAK, DIE, PROVING
from gateway.demo.stack import Stack
from gateway.evidence.deployed import facts_of, log_from, record_since
from gateway.evidence.gather import Deployment
from gateway.evidence.scrubbing import Scrubber
from gateway.evidence.site import ACTS, Act, Plan, PlanInvalid, Site

PLAN: Final = Plan(
    server="readonly",
    read="get_balance",
    arguments={"account": "operating"},
    malformed={"account": 7},
    failing={"account": "no-such-account"},
    slow="wait",
    slow_arguments={"seconds": 2.0},
    gated_server="payments",
    gated="transfer_funds",
    gated_arguments={"from_account": "operating", "to_account": "supplier-acme", "amount_cents": 250_000},
    changed={"from_account": "operating", "to_account": "supplier-acme", "amount_cents": 260_000},
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
        self._rules.with_suffix(".kept").replace(self._rules)
        self._revise("demo-2")

    def restore_policy(self) -> None:
        """The first one again."""
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

    def _revise(self, revision: str) -> None:
        text = json.dumps({"revision": revision, "roots": ["mcp/authz"]})
        (self.stack.house.bundle / ".manifest").write_text(text)


def _act(do: Callable[[], bytes | None]) -> Act:
    async def act() -> bytes:
        return await asyncio.to_thread(do) or b""

    return act


@contextmanager
def demo_deployment(scrubber: Scrubber, stack: Stack | None = None) -> Iterator[Deployment]:
    """Start the demo and let it be asked. Raises `StackFailed`."""
    with stack or Stack(ports=Ports.free(), place=PROVING) as running:
        house = running.house
        for name, value in house.secrets.items():
            scrubber.know(name, value.removeprefix("Bearer "))
        hands = Hands(running)
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
            acts={name: _act(getattr(hands, name)) for name in ACTS},
        )
        settings = load_settings(house.config_file)
        yield Deployment(
            site,
            record=lambda began: record_since(Place(house.audit_file), began),
            log=log_from(house.directory / "gateway.log"),
            facts=lambda: facts_of(settings, house.config_file, demo=True),
        )
