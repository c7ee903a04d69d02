"""`ostiary demo procurement --old`: the same business by MCP 2025-11-25, where everything hangs on a session.

There is no gateway in this one. A client that is sent to one replica after another, as a plain load balancer does,
shows what a session in one process's memory costs; the documents are intact all the while.
"""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from gateway.demo.house import Ports
from gateway.demo.procurement.buyer import PROCUREMENT
from gateway.demo.procurement.documents import Documents
from gateway.demo.screen import Screen
from gateway.demo.stack import Stack

REVISION = "2025-11-25"
REPLICAS = 3


@dataclass(slots=True)
class OldClient:
    """Speaks the old revision to one replica or another."""

    stack: Stack
    http: httpx.Client
    session: str = ""
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def url(self, replica: int) -> str:
        """Where a replica listens; they are counted from 1."""
        return f"http://127.0.0.1:{self.stack.ports.replicas[replica - 1]}/procurement/mcp"

    def headers(self) -> dict[str, str]:
        """What every request carries; after `initialize` the session as well."""
        known = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": REVISION}
        return known | ({"Mcp-Session-Id": self.session} if self.session else {})

    def message(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """A request."""
        return {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}

    def post(self, replica: int, message: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Send a message -> HTTP status, and the response or else nothing."""
        answer = self.http.post(self.url(replica), headers=self.headers(), json=message)
        self.session = answer.headers.get("mcp-session-id", self.session)
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        return answer.status_code, json.loads(lines[-1]) if lines else {}

    def initialize(self, replica: int) -> int:
        """Open a session -> HTTP status."""
        self.session = ""
        client = {"name": "buyer", "version": "1"}
        params = {"protocolVersion": REVISION, "capabilities": {"elicitation": {}}, "clientInfo": client}
        status, _ = self.post(replica, self.message("initialize", params))
        self.post(replica, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        return status

    def call(self, replica: int, tool: str, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """A tool call -> HTTP status, and the tool's structured answer."""
        status, document = self.post(replica, self.message("tools/call", {"name": tool, "arguments": arguments}))
        structured = document.get("result", {}).get("structuredContent", {})
        return status, structured

    def until_asked(self, replica: int, tool: str, arguments: dict[str, Any]) -> Any:
        """Call a tool and read its stream until it asks -> the id of the question. The stream is left behind."""
        call = self.message("tools/call", {"name": tool, "arguments": arguments})
        with self.http.stream("POST", self.url(replica), headers=self.headers(), json=call) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {") and "elicitation/create" in line:
                    return json.loads(line[6:])["id"]
        raise LookupError("the server asked nothing")


def sessions(screen: Screen, stack: Stack, http: httpx.Client) -> None:
    """Another replica, a late answer, and yesterday's session."""
    documents, client = Documents(stack.house.books), OldClient(stack, http)
    screen.check("initialize at replica 1 opens a session", client.initialize(1) == 200 and bool(client.session))
    draft = {"title": "desks", "quantity": 60, "unit_price": 1_000}
    status, found = client.call(1, "draft_requisition", draft)
    screen.check("replica 1 drafts a requisition of 60,000", status == 200, status)
    number = int(found["number"])
    status, _ = client.call(2, "get_requisition", {"number": number})
    screen.check("the next call, sent to replica 2: 404, it knows no such session", status == 404, status)
    question = client.until_asked(1, "submit_requisition", {"number": number})
    screen.check("back at replica 1: it asks whether to submit", question is not None)
    stack.replace_replicas()
    screen.say("Before the answer comes, all three replicas are replaced, as any deployment does.")
    said = {"action": "accept", "content": {"confirm": True}}
    status, _ = client.post(1, {"jsonrpc": "2.0", "id": question, "result": said})
    screen.check("the answer: 404, nobody knows the question any more", status == 404, status)
    state = documents.requisition(number).state
    screen.check("the submission is lost", state == "draft", state)
    status, _ = client.call(1, "get_requisition", {"number": number})
    screen.check("yesterday's session is gone on every replica: 404", status == 404, status)
    screen.check("the documents are intact all the while", documents.requisition(number).total == 60_000)
    client.initialize(3)
    status, found = client.call(3, "get_requisition", {"number": number})
    screen.check("a new session finds the draft, and starts from there", found.get("state") == "draft", found)


def tell_old() -> int:
    """Run the story -> exit code: 0 only if the old revision behaves as it is told here. Raises `StackFailed`."""
    screen = Screen(sys.stdout)
    place = replace(PROCUREMENT, options=("--sessions",))
    stack = Stack(ports=Ports.free(REPLICAS), place=place, servers_only=True)
    with stack, httpx.Client(trust_env=False, timeout=10.0) as http:
        screen.title(
            " The same business, with sessions ",
            f"Three replicas of the same procurement server, MCP {REVISION}, nothing in front of them.",
        )
        sessions(screen, stack, http)
    screen.title(
        f" {len(screen.failures)} things went otherwise " if screen.failures else " So it goes with sessions. "
    )
    return 1 if screen.failures else 0
