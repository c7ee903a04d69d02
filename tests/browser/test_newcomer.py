"""The newcomer run in a real browser: what the demo prints is enough to hold a call and to approve it."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from gateway.demo.house import Ports
from gateway.demo.stack import Stack

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser; its contexts share nothing."""
    if not CHROMIUM.exists():
        pytest.skip("Chromium is not on this machine (Debian: apt install chromium)")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """The demo's processes."""
    with Stack(ports=Ports.free()) as running:
        yield running


def pick(page: Page, name: str) -> None:
    """At the issuer's page: be this person."""
    expect(page.get_by_role("heading", name="Who are you?")).to_be_visible()
    expect(page.get_by_role("note")).to_contain_text("Never trust it in production")
    page.get_by_role("button", name=re.compile(f"^{name}")).click()


def held(stack: Stack) -> subprocess.Popen[str]:
    """`ostiary demo call`, as the demo's last screen has it."""
    house = stack.house
    command = [sys.executable, "-m", "gateway.cli", "demo", "call", "--url", house.public_url]
    command += ["--issuer", house.issuer_url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def page_of(call: subprocess.Popen[str], stack: Stack) -> str:
    """The address that it prints."""
    assert call.stdout is not None
    return next(line.strip() for line in call.stdout if line.startswith(f"{stack.house.review_url}/tickets/"))


def test_a_newcomer_holds_a_call_and_sees_it_run(stack: Stack, chromium: Browser) -> None:
    """From the printed address to the transfer that ran, in two minutes at most: sign in as Bob, approve, look."""
    began, moved = time.monotonic(), len(stack.books.transfers())
    with held(stack) as call:
        try:
            address = page_of(call, stack)
            context = chromium.new_context()
            page = context.new_page()
            page.goto(address)
            pick(page, "Bob")
            expect(page).to_have_url(address)
            assert len(stack.books.transfers()) == moved
            page.get_by_role("button", name="Approve").click()
            rest = call.communicate(timeout=60)[0]
            assert call.returncode == 0, rest
            assert "it ran" in rest
        finally:
            call.kill()
    assert len(stack.books.transfers()) == moved + 1
    assert time.monotonic() - began < 120
    (cookie,) = context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Lax", "/")
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="You are signed out")).to_be_visible()
    assert context.cookies() == []
    page.goto(stack.house.review_url)
    expect(page.get_by_role("heading", name="Who are you?")).to_be_visible()
    context.close()


@pytest.mark.parametrize("name", ["Alice", "Carol", "Eve"])
def test_nobody_else_can(stack: Stack, chromium: Browser, name: str) -> None:
    """Who asks, who may only read, who has no rights: signed in, and without a way to say yes."""
    moved = len(stack.books.transfers())
    with held(stack) as call:
        try:
            context = chromium.new_context()
            page = context.new_page()
            page.goto(page_of(call, stack))
            pick(page, name)
            expect(page.locator("main")).to_be_visible()
            expect(page).to_have_url(re.compile(f"^{re.escape(stack.house.review_url)}"))
            expect(page.get_by_role("button", name="Approve")).to_have_count(0)
            context.close()
        finally:
            call.kill()
    assert len(stack.books.transfers()) == moved


def test_whoever_turns_back_is_told_so(stack: Stack, chromium: Browser) -> None:
    """The issuer's no is a page of ours with a way on, readable on a phone, with nothing that a script could do."""
    context = chromium.new_context(viewport={"width": 360, "height": 740}, java_script_enabled=False)
    page = context.new_page()
    faults: list[str] = []
    page.on("console", lambda line: faults.append(line.text))
    page.goto(stack.house.review_url)
    pick(page, "Nobody")
    expect(page.get_by_role("heading", name="The sign-in was not accepted")).to_be_visible()
    width = page.locator("body").bounding_box()
    assert width is not None
    assert width["width"] <= 360
    page.get_by_role("link", name="Sign in again").click()
    pick(page, "Dora")
    expect(page).to_have_url(stack.house.review_url)
    page.get_by_role("link", name="Dora").click()
    page.get_by_role("button", name="Sign out everywhere").click()
    expect(page.get_by_role("heading", name="You are signed out")).to_be_visible()
    assert context.cookies() == []
    assert [fault for fault in faults if "Security Policy" in fault] == []
    context.close()


def test_a_terminal_needs_no_second_one(chromium: Browser) -> None:
    """`ostiary demo` at a terminal: Enter has a call held, the page is printed, and what came of it is shown; from
    the command to the call that ran in two minutes at most.
    """
    began = time.monotonic()
    master, slave = pty.openpty()
    demo = subprocess.Popen(
        [sys.executable, "-m", "gateway.cli", "demo"], stdin=slave, stdout=slave, stderr=subprocess.STDOUT,
        env=os.environ | {"TERM": "dumb", "COLUMNS": "200"},
    )  # fmt: skip
    os.close(slave)
    seen = Seen(master)
    try:
        seen.until(r"Enter has a call held")
        os.write(master, b"\n")
        address = seen.until(r"(http://127\.0\.0\.1:\d+/review/tickets/\S+)")
        page = chromium.new_page()
        page.goto(address)
        pick(page, "Dora")
        page.get_by_role("button", name="Approve").click()
        assert "invoice" in seen.until(r"it ran:\s+(.*memo invoice \d+)")
        assert time.monotonic() - began < 120
        page.close()
    finally:
        demo.terminate()
        seen.drain(demo)
        os.close(master)


class Seen:
    """What a terminal shows."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._text = ""

    def until(self, pattern: str, within_s: float = 90) -> str:
        """Read on until it is there -> its group, or all of it."""
        deadline = time.monotonic() + within_s
        while not (found := re.search(pattern, self._text)):
            assert time.monotonic() < deadline, self._text[-3000:]
            self._read()
        self._text = self._text[found.end() :]
        return found[found.re.groups]

    def _read(self) -> None:
        if select.select([self._handle], [], [], 0.2)[0]:
            try:
                self._text += os.read(self._handle, 65536).decode(errors="replace").replace("\r", "")
            except OSError:
                time.sleep(0.1)

    def drain(self, process: subprocess.Popen[bytes]) -> None:
        """Read what it still says until it has ended."""
        deadline = time.monotonic() + 30
        while process.poll() is None:
            assert time.monotonic() < deadline
            self._read()
