"""People before the real pages: one Chromium, a context each, signed in at the demo's issuer like anybody.

Every page is watched: a script of a stranger's that runs, a dialog, a broken rule of the content policy or a request
to anybody else is trouble, and a test that ends with trouble fails.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request

from gateway.demo.exchange import Answer, ask_tool, send
from gateway.demo.house import Ports
from gateway.demo.people import REVIEWERS
from gateway.demo.place import BANK, Place
from gateway.demo.stack import Stack

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PATIENCE_MS = 20_000
SHOTS = os.environ.get("REVIEW_SHOTS", "")
"""A folder for pictures of what the tests see, to be looked at by eye."""


def _data(issuer_url: str) -> dict[str, Any]:
    reviewers = [f"group:{issuer_url}|{REVIEWERS}"]

    def gated(**terms: Any) -> dict[str, Any]:
        return {"needed": True, "approvers": reviewers, "ttl_s": 600, **terms}

    transfer = {"effect": "write", "scopes": ["payments:write"], "mask": ["/memo"], "approval": gated()}
    read = {"effect": "write", "scopes": ["bank:read"]}
    return {
        "servers": {
            "payments": {
                "scopes": ["mcp:use"],
                "tools": {"transfer_funds": transfer, "list_transfers": read | {"approval": gated(min_approvers=2)}},
            },
            "readonly": {
                "scopes": ["mcp:use"],
                "tools": {
                    "get_balance": read | {"approval": gated()},
                    "list_transfers": read | {"approval": gated(ttl_s=4)},
                },
            },
        }
    }


PLACE = Place(BANK.servers, BANK.module, _data, BANK.scope_implies)
"""The demo's bank under rules of our own: a quorum, an approval that is soon over, a masked argument."""


def a_stack() -> Stack:
    """The whole gateway, its issuer and its servers, as processes."""
    return Stack(ports=Ports.free(1), place=PLACE)


@dataclass
class Theatre:
    """The gateway, the browser, and everybody's contexts."""

    stack: Stack
    browser: Browser
    trouble: list[str] = field(default_factory=list)
    _states: dict[str, Any] = field(default_factory=dict)
    _contexts: list[BrowserContext] = field(default_factory=list)

    @property
    def origin(self) -> str:
        """Where the pages are."""
        return self.stack.house.public_url

    def call(self, tool: str, server: str = "payments", who: str = "alice", /, **arguments: Any) -> Answer:
        """What this person's program asks of a server, which is an ordinary client."""
        token = self.stack.mint(who, server, "mcp:use payments:write bank:read")
        return send(self.stack.http, ask_tool(self.stack.house.endpoint(server), token, tool, arguments))

    def held(self, tool: str, server: str = "payments", /, **arguments: Any) -> str:
        """Alice's call, held -> the address of its page."""
        answer = self.call(tool, server, **arguments)
        assert answer.code == 40303, answer.text
        page = str(answer.ticket["page"])
        assert page.startswith(self.origin + "/review/tickets/")
        return page

    def visit(self, who: str, url: str = "/review", *, scripts: bool = True, **options: Any) -> Page:
        """A page of this person, in a context of its own, signed in."""
        if who not in self._states:
            self._states[who] = self._sign_in(who)
        context = self.browser.new_context(
            storage_state=self._states[who], java_script_enabled=scripts, reduced_motion="reduce", **options
        )
        self._contexts.append(context)
        page = self._watched(context)
        self.go(page, url)
        return page

    def go(self, page: Page, url: str) -> None:
        """Look at a page."""
        page.goto(url if url.startswith("http") else self.origin + url)

    def forget(self, who: str) -> None:
        """Their session is about to end: whoever visits as them next signs in anew."""
        del self._states[who]

    def _sign_in(self, who: str) -> Any:
        context = self.browser.new_context()
        page = self._watched(context, strict=False)
        self.go(page, "/review")
        page.locator(f'button[value="{who}"]').click()
        page.wait_for_url(self.origin + "/review")
        state = context.storage_state()
        context.close()
        return state

    def _watched(self, context: BrowserContext, *, strict: bool = True) -> Page:
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()

        def console(message: ConsoleMessage) -> None:
            # A page that is answered with 403, 404 or 409 is logged as well; that is what the test asked for.
            if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
                self.trouble.append(f"console: {message.text}")

        def request(one: Request) -> None:
            if strict and not one.url.startswith((self.origin + "/", "data:")):
                self.trouble.append(f"a request to {urlsplit(one.url).netloc}")

        def dialog(one: Dialog) -> None:
            self.trouble.append(f"dialog: {one.message}")
            one.dismiss()

        page.on("console", console)
        page.on("request", request)
        page.on("pageerror", lambda error: self.trouble.append(f"script: {error}"))
        page.on("dialog", dialog)
        return page

    def leave(self) -> None:
        """Close what the test opened; raise for trouble that it met."""
        for context in self._contexts:
            context.close()
        self._contexts.clear()
        met, self.trouble = self.trouble, []
        assert met == []


def picture(page: Page, name: str) -> None:
    """Keep a picture, where somebody wants to look."""
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


def words(page: Page) -> str:
    """What a reader reads."""
    return re.sub(r"\s+", " ", page.locator("main").inner_text())
