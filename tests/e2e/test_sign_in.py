"""People sign in to a real gateway at the demo's issuer, both as processes: the whole way, and what is left of it."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from gateway.demo.exchange import ask_api, send
from gateway.demo.held import hold_a_call
from gateway.demo.screen import Screen
from gateway.demo.stack import Stack
from tests.support.browsing import Browser


def test_a_person_signs_in_and_is_where_they_wanted_to_be(stack: Stack) -> None:
    """The code flow from begin to end; one durable record of it, without a code, a token or a cookie in it."""
    with Browser() as browser:
        signs_in(stack, browser)


def signs_in(stack: Stack, browser: Browser) -> None:
    there = browser.begin(stack.house.review_url, "/review/tickets/abc?x=1")
    back = browser.pick(there, "bob")
    landed = browser.get(back)
    assert (landed.status_code, landed.headers["location"]) == (303, "/review/tickets/abc?x=1")
    secret = browser.cookie("ostiary-")
    assert secret
    (record,) = stack.await_records(landed.headers["ostiary-decision"], "admin")
    assert (record["act"], record["by"]) == ("signed_in", f"{stack.house.issuer_url}|bob")
    written = "".join(path.read_text(errors="replace") for path in stack.house.directory.glob("*.*l*"))
    written += (stack.house.directory / "ostiary.db").read_bytes().decode("latin-1")
    code = back.partition("code=")[2].partition("&")[0]
    for planted in (secret, code, "eyJhbGciOi"):
        assert len(planted) > 8
        assert planted not in written


def test_a_held_call_runs_once_somebody_else_has_said_yes(stack: Stack) -> None:
    """`ostiary demo call`: a newcomer sees the page's address and whom to be; the call then runs by itself."""
    house = stack.house
    command = [sys.executable, "-m", "gateway.cli", "demo", "call", "--url", house.public_url]
    with subprocess.Popen(
        [*command, "--issuer", house.issuer_url], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as call:
        try:
            assert call.stdout is not None
            page = next(line.strip() for line in call.stdout if line.startswith(f"{house.review_url}/tickets/"))
            told = "".join(itertools.islice(call.stdout, 3))
            assert "Sign in as Bob or Dora" in told
            ticket = page.rpartition("/")[2]
            moved = len(stack.books.transfers())
            token = stack.mint("bob", "approvals", "approvals:read approvals:decide")
            given = send(stack.http, ask_api(f"{house.approvals_url}/{ticket}/approve", token, {"comment": "fine"}))
            assert given.status == 200
            rest = call.communicate(timeout=60)[0]
            assert call.returncode == 0, rest
            assert "it ran" in rest
            assert len(stack.books.transfers()) == moved + 1
        finally:
            call.kill()


def test_a_held_call_that_is_denied_says_so(stack: Stack) -> None:
    """Exit 1, in words; nothing moved."""
    house, told = stack.house, io.StringIO()
    moved = len(stack.books.transfers())
    before = set(tickets(stack))
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(hold_a_call, Screen(told), house.public_url, house.issuer_url)
        deadline = time.monotonic() + 30
        while not (new := set(tickets(stack)) - before):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        token = stack.mint("dora", "approvals", "approvals:read approvals:decide")
        (ticket,) = new
        given = send(stack.http, ask_api(f"{house.approvals_url}/{ticket}/deny", token, {"comment": "no"}))
        assert given.status == 200
        assert call.result(60) == 1
    assert "It did not run" in told.getvalue()
    assert len(stack.books.transfers()) == moved


def tickets(stack: Stack) -> list[str]:
    """Those that wait, as Bob sees them."""
    token = stack.mint("bob", "approvals", "approvals:read approvals:decide")
    found = send(stack.http, ask_api(f"{stack.house.approvals_url}?state=pending", token)).document
    return [ticket["id"] for ticket in found["tickets"]]


def test_the_call_of_the_demo_goes_to_this_machine_alone() -> None:
    """Another machine's address is refused before anything is asked of it."""
    command = [sys.executable, "-m", "gateway.cli", "demo", "call", "--url", "http://192.0.2.7:8080"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "not a loopback address" in done.stderr
