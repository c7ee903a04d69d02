"""Who buys: the calls of the story as a client makes them, and a report of which replica served each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.demo.exchange import Answer, Ask, ask_mcp, send
from gateway.demo.place import Place
from gateway.demo.procurement.documents import Documents
from gateway.demo.procurement.matching import TASKS
from gateway.demo.screen import Screen
from gateway.demo.stack import Stack

SCOPE = "mcp:use procurement:read procurement:write"
CAPABILITIES: dict[str, Any] = {"elicitation": {"form": {}}, "extensions": {TASKS: {}}}


def _data(_issuer_url: str) -> dict[str, Any]:
    read = {"effect": "read", "scopes": ["procurement:read"]}
    write = {"effect": "write", "scopes": ["procurement:write"], "approval": {"needed": False}}
    tools = {
        "draft_requisition": write,
        "submit_requisition": write,
        "get_requisition": read,
        "match_invoice": read,
    }
    return {"servers": {"procurement": {"scopes": ["mcp:use"], "tools": tools}}}


PROCUREMENT = Place(("procurement",), "gateway.demo.procurement.servers", _data)
"""A purchasing department. Here a question of the server's own is what stands between a call and its effect."""


@dataclass(slots=True)
class Question:
    """An `input_required` result: the call that it answers, and what has to come back with the answer."""

    number: int
    keys: tuple[str, ...]
    state: str

    def answer(self, confirm: bool, *, state: str = "") -> dict[str, Any]:
        """The parameters that bring the answer back."""
        said = {"action": "accept", "content": {"confirm": confirm}}
        return {"requestState": state or self.state, "inputResponses": dict.fromkeys(self.keys, said)}


@dataclass(slots=True)
class Buyer:
    """Makes the calls through the gateway, and keeps count of who served what."""

    stack: Stack
    screen: Screen
    served: list[tuple[str, str]] = field(default_factory=list)
    _tokens: dict[str, str] = field(default_factory=dict)

    @property
    def documents(self) -> Documents:
        """The ground truth."""
        return Documents(self.stack.house.books)

    def reached(self) -> int:
        """How many tool calls have reached a replica."""
        return len(self.stack.books.arrivals("tools/call"))

    def ask(self, person: str, method: str, params: Mapping[str, Any]) -> Ask:
        """An MCP request of a client that can ask its user and that knows tasks."""
        if person not in self._tokens:
            self._tokens[person] = self.stack.mint(person, "procurement", SCOPE)
        url = self.stack.house.endpoint("procurement")
        return ask_mcp(url, self._tokens[person], method, params, capabilities=CAPABILITIES)

    def call(
        self, step: str, person: str, tool: str, arguments: Mapping[str, Any], *, shown: bool = False, **more: Any
    ) -> Answer:
        """A tool call, as a step of the report."""
        return self.send(
            step,
            self.ask(person, "tools/call", {"name": tool, "arguments": dict(arguments), **more}),
            shown=shown,
        )

    def send(self, step: str, ask: Ask, *, shown: bool = False) -> Answer:
        """Send it; the replica that it reached, if it reached any, goes into the report."""
        before = len(self.stack.books.arrivals(ask.headers["Mcp-Method"]))
        if shown:
            self.screen.request(ask)
        answer = send(self.stack.http, ask)
        if shown:
            self.screen.answer(answer)
        arrived = self.stack.books.arrivals(ask.headers["Mcp-Method"])[before:]
        self.served.append((step, arrived[0]["replica"] if arrived else "stopped at the gateway"))
        return answer

    def draft(self, person: str, title: str, quantity: int, unit_price: int) -> int:
        """A new requisition -> its number."""
        values = {"title": title, "quantity": quantity, "unit_price": unit_price}
        answer = self.call(f"{person} drafts {title}, {quantity * unit_price:,}", person, "draft_requisition", values)
        return int(answer.structured["number"])

    def submit(self, person: str, number: int, *, step: str = "", shown: bool = False, **more: Any) -> Answer:
        """Ask for a requisition to be submitted, or bring back an answer with `requestState` and `inputResponses`."""
        step = step or f"{person} submits requisition {number}"
        return self.call(step, person, "submit_requisition", {"number": number}, shown=shown, **more)

    def question(self, number: int, answer: Answer) -> Question:
        """What the answer asks. Raises `LookupError` where it asks nothing."""
        result = answer.document["result"]
        return Question(number, tuple(result["inputRequests"]), result["requestState"])

    def state_of(self, number: int) -> str:
        """How a requisition really stands."""
        return self.documents.requisition(number).state
