"""One held call from begin to end: Alice's agent asks, a person says yes on a page, and the call runs by itself.

The client is one that opens pages (URL elicitation): it shows the page's address, repeats its call with what it was
given, and is kept waiting until a person has decided.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import httpx

from gateway.demo.exchange import Answer, ask_mcp, send
from gateway.demo.people import PEOPLE, REVIEWERS
from gateway.demo.screen import Screen

CALLER = "alice"
SERVER, TOOL = "payments", "transfer_funds"
OPENS_PAGES: Mapping[str, Any] = {"elicitation": {"url": {}}}
MOST_ROUNDS = 60
"""Of half a minute each."""


def hold_a_call(screen: Screen, gateway_url: str, issuer_url: str) -> int:
    """Ask, show the page, wait, show what came -> exit code: 0 if the call ran, 1 if not.

    Raises httpx's errors where nobody answers at these URLs.
    """
    endpoint = f"{gateway_url}/{SERVER}/mcp"
    arguments = {
        "from_account": "operating",
        "to_account": "supplier-acme",
        "amount_cents": 123_400,
        "memo": f"invoice {secrets.randbelow(9000) + 1000}",
    }
    with httpx.Client(trust_env=False, timeout=90.0) as http:
        form = {"person": CALLER, "resource": endpoint, "scope": "mcp:use bank:read payments:write"}
        given = http.post(f"{issuer_url}/token", data=form)
        given.raise_for_status()
        token = given.json()["access_token"]
        screen.say(
            f"{PEOPLE[CALLER].name}'s agent asks to move 1,234.00 to supplier-acme for {arguments['memo']} ..."
        )
        carried: dict[str, Any] = {}
        for _ in range(MOST_ROUNDS):
            asked = {"name": TOOL, "arguments": arguments, **carried}
            answer = send(http, ask_mcp(endpoint, token, "tools/call", asked, capabilities=OPENS_PAGES))
            result = answer.document.get("result", {})
            if result.get("resultType") != "input_required":
                return _ended(screen, answer)
            questions = result.get("inputRequests", {})
            for question in questions.values():
                _show(screen, question["params"]["url"])
            carried = {"requestState": result["requestState"]}
            if questions:
                carried["inputResponses"] = {name: {"action": "accept"} for name in questions}
    screen.check("a person decided", False)
    return 1


def _show(screen: Screen, page: str) -> None:
    reviewers = [person.name for person in PEOPLE.values() if REVIEWERS in person.groups and person.subject != CALLER]
    screen.say("... and is held. Nothing has moved. Open this page in a browser:")
    screen.copyable("")
    screen.copyable(page)
    screen.say(
        f"Sign in as {' or '.join(reviewers)}, look at what would run, and approve it. ({PEOPLE[CALLER].name} can't: "
        "it is her own call.) Then look here again: the call waits, and runs by itself."
    )


def _ended(screen: Screen, answer: Answer) -> int:
    structured = answer.structured
    if structured:
        screen.say("Approved, and it ran:")
        screen.record(", ".join(f"{name} {value}" for name, value in structured.items()))
        return 0
    error = answer.document.get("error", {})
    screen.say("It did not run:")
    screen.record(str(error.get("message", answer.text)))
    return 1
