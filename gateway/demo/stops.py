"""The stops of the guided tour: each asks for one thing, shows the exact answer, and checks what really happened.

Truth is taken from the bank's books (what reached a server, what money moved) and from the audit file on disk, never
from the gateway's answer alone. A stop that finds a rule broken says so and the tour fails.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.demo.exchange import Answer, Ask, ask_api, ask_tool, send
from gateway.demo.screen import Screen
from gateway.demo.stack import Stack

TRANSFER = {
    "from_account": "operating",
    "to_account": "supplier-acme",
    "amount_cents": 250_000,
    "memo": "invoice 1041",
}


@dataclass(slots=True)
class Visit:
    """One walk through the tour: the running stack, the screen, and what earlier stops left for later ones."""

    stack: Stack
    screen: Screen
    tickets: list[str] = field(default_factory=list)
    decision_id: str = ""
    _tokens: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def token(self, person: str, server: str, scope: str) -> str:
        """A token good for an hour, minted once."""
        key = (person, server, scope)
        if key not in self._tokens:
            self._tokens[key] = self.stack.mint(person, server, scope)
        return self._tokens[key]

    def alice(self, server: str, tool: str, arguments: Mapping[str, Any], *, scope: str = "") -> Ask:
        """A call by Alice's agent; with the scopes that the server's tools need unless others are named."""
        scope = scope or ("mcp:use bank:read" if server == "readonly" else "mcp:use bank:read payments:write")
        return ask_tool(self.stack.house.endpoint(server), self.token("alice", server, scope), tool, arguments)

    def review(self, person: str, ticket: str, verb: str = "", comment: str = "") -> Ask:
        """A look at a ticket by one of the reviewers, or a decision on it."""
        token = self.token(person, "approvals", "approvals:read approvals:decide")
        url = f"{self.stack.house.approvals_url}/{ticket}" + (f"/{verb}" if verb else "")
        return ask_api(url, token, {"comment": comment} if verb else None)

    def show(self, ask: Ask, remarks: Mapping[str, str] | None = None) -> Answer:
        """Print the request, send it, print the answer."""
        self.screen.request(ask, remarks)
        answer = send(self.stack.http, ask)
        self.screen.answer(answer)
        return answer

    def look(self, ticket: str) -> dict[str, Any]:
        """A ticket as Bob sees it, without printing."""
        return send(self.stack.http, self.review("bob", ticket)).document

    def reached(self) -> int:
        """How many tool calls have reached the bank's servers."""
        return len(self.stack.books.arrivals("tools/call"))

    def moved(self) -> int:
        """How many transfers the bank has booked."""
        return len(self.stack.books.transfers())

    def expect(self, answer: Answer, status: int, code: int = 0) -> None:
        """Check the HTTP status, and the JSON-RPC error's code where there should be one."""
        self.screen.check(f"HTTP {status}", answer.status == status, answer.status)
        if code:
            self.screen.check(f"JSON-RPC error {code}", answer.code == code, answer.code)

    def untouched(self, reached: int, moved: int) -> None:
        """Check that nothing arrived at the bank since those two counts were taken."""
        self.screen.check("the bank's servers were not touched", self.reached() == reached, self.reached() - reached)
        self.screen.check("no money moved", self.moved() == moved, self.moved() - moved)


def allow_a_read(visit: Visit) -> None:
    """Alice's agent asks for a balance."""
    reached = visit.reached()
    answer = visit.show(visit.alice("readonly", "get_balance", {"account": "operating"}))
    visit.expect(answer, 200)
    right = answer.structured.get("balance_cents") == visit.stack.books.balance("operating")
    visit.screen.check("the answer is the bank's own", right, answer.structured)
    visit.screen.check(
        "exactly one call reached a replica", visit.reached() == reached + 1, visit.reached() - reached
    )
    records = visit.stack.await_records(answer.decision_id, "decision", "outcome")
    visit.screen.say("And this is what was written down: the decision before the call, the outcome after it.")
    for record in records:
        names = ("kind", "seq", "actor", "server", "name", "arguments", "verdict", "outcome", "policy_revision")
        visit.screen.record(json.dumps({name: record[name] for name in names if record.get(name)}))
    kinds = [record["kind"] for record in records]
    visit.screen.check("one decision and one outcome, in this order", kinds == ["decision", "outcome"], kinds)
    visit.screen.check("no account name in the record, only its shape", "operating" not in json.dumps(records))


def lie_in_a_header(visit: Visit) -> None:
    """A harmless name in the header, the dangerous tool in the body."""
    reached, moved = visit.reached(), visit.moved()
    honest = visit.alice("payments", "transfer_funds", TRANSFER)
    lying = Ask(honest.verb, honest.url, {**honest.headers, "Mcp-Name": "get_balance"}, honest.body)
    answer = visit.show(lying, {"Mcp-Name": "says get_balance", "body": "asks for transfer_funds"})
    visit.expect(answer, 400, -32020)
    visit.untouched(reached, moved)


def borrow_a_token(visit: Visit) -> None:
    """A good token, for another server."""
    reached, moved = visit.reached(), visit.moved()
    token = visit.token("alice", "readonly", "mcp:use bank:read")
    url = visit.stack.house.endpoint("payments")
    ask = ask_tool(url, token, "get_balance", {"account": "operating"})
    answer = visit.show(ask, {"Authorization": "was made for /readonly/mcp"})
    visit.expect(answer, 401)
    challenge = answer.headers.get("www-authenticate", "")
    visit.screen.check("the challenge says where to get a right one", "resource_metadata=" in challenge, challenge)
    visit.untouched(reached, moved)


def lack_a_scope(visit: Visit) -> None:
    """The right server, a right that is missing."""
    reached, moved = visit.reached(), visit.moved()
    ask = visit.alice("payments", "transfer_funds", TRANSFER, scope="mcp:use bank:read")
    answer = visit.show(ask, {"Authorization": "has the scopes mcp:use bank:read"})
    visit.expect(answer, 403)
    challenge = answer.headers.get("www-authenticate", "")
    visit.screen.check("insufficient_scope", 'error="insufficient_scope"' in challenge, challenge)
    visit.screen.check("the scope to ask for is named: payments:write", "payments:write" in challenge, challenge)
    visit.untouched(reached, moved)


def ask_for_money(visit: Visit) -> None:
    """Everything is right, and it still does not run: the policy wants a person's yes."""
    reached, moved = visit.reached(), visit.moved()
    answer = visit.show(visit.alice("payments", "transfer_funds", TRANSFER))
    visit.expect(answer, 403, 40303)
    ticket = answer.ticket
    visit.screen.check("a ticket was opened, and it is pending", ticket.get("state") == "pending", ticket)
    visit.tickets.append(str(ticket.get("id", "")))
    again = send(visit.stack.http, visit.alice("payments", "transfer_funds", TRANSFER))
    same = again.ticket.get("id") == ticket.get("id")
    visit.screen.check("asking again joins the same ticket: reviewers are not flooded", same, again.ticket)
    visit.untouched(reached, moved)


def approve_by_another(visit: Visit) -> None:
    """Alice is a reviewer as well, but nobody approves their own call. Bob may."""
    ticket = visit.tickets[0]
    reached, moved = visit.reached(), visit.moved()
    own = visit.show(visit.review("alice", ticket, "approve", "it is fine, trust me"))
    visit.screen.check("Alice can't approve her own call: HTTP 403", own.status == 403, own.status)
    visit.screen.check("the ticket still waits", visit.look(ticket).get("state") == "pending", visit.look(ticket))
    visit.screen.say("Bob looks at what exactly would run ...")
    seen = visit.show(visit.review("bob", ticket))
    shown = seen.document.get("arguments")
    visit.screen.check("he sees the call's own arguments", shown == TRANSFER, shown)
    visit.screen.say("... and says yes.")
    given = visit.show(visit.review("bob", ticket, "approve", "matches invoice 1041"))
    visit.screen.check("Bob's approval is taken", given.status in (200, 201, 204), given.status)
    state = visit.look(ticket).get("state")
    visit.screen.check("the ticket is approved", state == "approved", state)
    visit.untouched(reached, moved)


def run_it(visit: Visit) -> None:
    """The agent repeats the identical call. It names no ticket: the gateway finds it by its effect."""
    reached, moved = visit.reached(), visit.moved()
    answer = visit.show(visit.alice("payments", "transfer_funds", TRANSFER))
    visit.expect(answer, 200)
    visit.decision_id = answer.decision_id
    visit.screen.check(
        "exactly one call reached a replica", visit.reached() == reached + 1, visit.reached() - reached
    )
    visit.screen.check("exactly one transfer was booked", visit.moved() == moved + 1, visit.moved() - moved)
    booked = {name: value for name, value in visit.stack.books.transfers()[-1].items() if name in TRANSFER}
    visit.screen.check("it is the one that Bob approved, to the cent", booked == TRANSFER, booked)
    ticket = visit.look(visit.tickets[0])
    visit.screen.check("the ticket is used up", ticket.get("state") == "used", ticket.get("state"))


def replay(visit: Visit) -> None:
    """The same request once more, byte for byte (but for the id)."""
    reached, moved = visit.reached(), visit.moved()
    answer = visit.show(visit.alice("payments", "transfer_funds", TRANSFER))
    visit.expect(answer, 403, 40303)
    ticket = str(answer.ticket.get("id", ""))
    visit.screen.check("it needs a new approval: another ticket", ticket not in ("", visit.tickets[0]), ticket)
    visit.tickets.append(ticket)
    visit.untouched(reached, moved)


def change_one_argument(visit: Visit) -> None:
    """Bob approves the second ticket. The agent then asks for a little more money than he saw."""
    ticket = visit.tickets[1]
    given = send(visit.stack.http, visit.review("bob", ticket, "approve", "a second delivery, same price"))
    visit.screen.check("Bob approves the second ticket", given.status in (200, 201, 204), given.status)
    reached, moved = visit.reached(), visit.moved()
    changed = {**TRANSFER, "amount_cents": 260_000}
    remark = {"body": "amount_cents is 260000; Bob approved 250000"}
    answer = visit.show(visit.alice("payments", "transfer_funds", changed), remark)
    visit.expect(answer, 403, 40303)
    other = answer.ticket.get("id")
    visit.screen.check("that is another effect, with a ticket of its own", other not in (None, ticket), other)
    visit.tickets.append(str(other))
    left = visit.look(ticket)
    whole = left.get("state") == "approved" and left.get("uses_left") == 1
    visit.screen.check("and Bob's approval was not burned: it still waits for its own call", whole, left.get("state"))
    visit.untouched(reached, moved)


def tamper_with_the_record(visit: Visit) -> None:
    """The record proves itself; then somebody changes one byte of it."""
    house = visit.stack.house
    records = visit.stack.await_records(visit.decision_id, "decision", "outcome")
    whole = visit.stack.run("audit", "verify", "--config", str(house.config_file))
    visit.screen.command(f"ostiary audit verify --config {house.config_file}", whole.stdout + whole.stderr)
    visit.screen.check("every chain is whole: exit 0", whole.returncode == 0, whole.returncode)

    seq = int(records[0]["seq"]) if records else 0
    copy = house.directory / "tampered" / house.audit_file.name
    copy.parent.mkdir(exist_ok=True)
    shutil.copyfile(house.audit_file, copy)
    lines = copy.read_bytes().splitlines(keepends=True)
    place = next((at for at, line in enumerate(lines) if json.loads(line).get("seq") == seq), 0)
    honest = lines[place]
    lines[place] = honest.replace(b'"alice"', b'"alicf"', 1)
    copy.write_bytes(b"".join(lines))
    visit.screen.say(f"In a copy, one byte of record {seq} is flipped, so that somebody else moved the money:")
    for line in (honest, lines[place]):
        found = re.search(rb'"actor":\s*\{[^}]*\}', line)
        visit.screen.record(found[0].decode() if found else "")
    flipped = [(a, b) for a, b in zip(honest, lines[place], strict=True) if a != b]
    visit.screen.check("exactly one byte differs", len(flipped) == 1, len(flipped))
    broken = visit.stack.run("audit", "verify", "--file", str(copy))
    said = broken.stdout + broken.stderr
    visit.screen.command(f"ostiary audit verify --file {copy}", said)
    visit.screen.check("the break is found: exit 1", broken.returncode == 1, broken.returncode)
    visit.screen.check(f"and record {seq} is named", bool(re.search(rf"\b{seq}\b", said)), said.strip())


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop: a title, why it matters, and what happens there."""

    title: str
    why: str
    walk: Callable[[Visit], None]


STOPS = (
    Stop(
        "An allowed read",
        "Alice's AI agent asks for a balance, with a token that Alice may use here. The policy allows it, "
        "so the call passes, and two audit records are left behind.",
        allow_a_read,
    ),
    Stop(
        "The header says one tool, the body another",
        "MCP mirrors the tool's name in a header so that proxies need not read the body. A proxy that trusts the "
        "header lets this through, and the server runs what the body says. Ostiary compares them first.",
        lie_in_a_header,
    ),
    Stop(
        "A token for another server",
        "The token is genuine and unexpired, but was made for the read-only server. A stolen or passed-on token "
        "opens no second door.",
        borrow_a_token,
    ),
    Stop(
        "A missing scope",
        "Alice may use the payments server, but this token does not carry the right to move money. The answer "
        "tells a client exactly what to ask the issuer for.",
        lack_a_scope,
    ),
    Stop(
        "Moving money, without anybody's yes",
        "Now token and scope are right. The policy still says that a person must look at a transfer first. "
        "Nothing runs; the call gets a ticket.",
        ask_for_money,
    ),
    Stop(
        "Another person approves",
        "An approval is bound to this caller, this tool on this server, and these arguments, down to the last cent. "
        "Alice holds the reviewer's role too, but never for her own calls.",
        approve_by_another,
    ),
    Stop(
        "The identical call now runs",
        "Alice's agent simply repeats its call. The approval is consumed and the decision is on disk before the "
        "first byte goes to the bank.",
        run_it,
    ),
    Stop(
        "The same call again",
        "One yes is one transfer. A retry, a loop or a replayed request does not pay the invoice twice.",
        replay,
    ),
    Stop(
        "One argument changed",
        "With a fresh approval in hand the agent asks for slightly more. What was approved is what may run, "
        "and nothing else.",
        change_one_argument,
    ),
    Stop(
        "The record, and a forged record",
        "Every decision so far, refusals included, is one line in a hash chain that anybody with the file can "
        "verify. A single changed byte shows.",
        tamper_with_the_record,
    ),
)
