"""`ostiary demo`: start the stack, walk the tour, then leave it running with everything needed to try it by hand.

`ostiary demo --tour` ends after the walk; its exit code is 0 only if every stop behaved.
"""

from __future__ import annotations

import importlib.util
import io
import select
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from urllib.parse import urlsplit

import httpx

from gateway.demo.exchange import Ask
from gateway.demo.held import hold_a_call
from gateway.demo.house import Ports
from gateway.demo.loopback import require_loopback
from gateway.demo.people import NOTICE, PEOPLE
from gateway.demo.screen import Screen
from gateway.demo.stack import Stack, StackFailed
from gateway.demo.stops import STOPS, TRANSFER, Visit
from gateway.options import INTERRUPTED

NOT_ASKED = 2


def run_demo(tour_only: bool, story: Callable[[], int] | None = None) -> int:
    """Run the demo, or a `story` in its place -> exit code.

    0: every stop behaved. 1: one did not, or nothing came up. 2: the SDK is not installed. 130: stopped on the way.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace", line_buffering=True)
    if importlib.util.find_spec("mcp") is None:
        print("The demo's servers need the official MCP SDK: pip install 'ostiary[demo]'", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts what it puts into the background deaf to SIGINT
        signal.signal(number, _interrupt)
    screen = Screen(sys.stdout)
    handed_over = False
    try:
        if story is not None:
            return story()
        began = time.monotonic()
        with Stack(ports=Ports.usual()) as stack:
            welcome(screen, stack, time.monotonic() - began)
            visit = Visit(stack, screen)
            behaved = walk(visit)
            if not tour_only and behaved:
                hand_over(visit)
                handed_over = True
                stack.watch(lambda: _listen(visit))
            return 0 if behaved else 1
    except StackFailed as failed:
        print(f"The demo could not run: {failed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        screen.say("Everything is stopped and its directory is gone.")
        return 0 if handed_over else INTERRUPTED


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def welcome(screen: Screen, stack: Stack, took_s: float) -> None:
    """What is running, and what the visitor is about to see."""
    house = stack.house
    replicas = " and ".join(f"127.0.0.1:{port}" for port in house.ports.replicas)
    screen.title(
        " Ostiary: a doorkeeper for MCP servers ",
        "AI agents call tools. Some tools only look, others move money. Ostiary stands in between: it checks who "
        "asks, decides by your policy, asks a person where a person must be asked, and writes down what happened.",
        "",
        f"Running for you, on this machine only (up in {took_s:.1f} s):",
    )
    rows = {
        "bank": f"two replicas of two plain MCP servers (official Python SDK): {replicas}",
        "gateway": f"{house.public_url} with /readonly/mcp, /payments/mcp, /approvals and, for people, /review",
        "issuer": f"{house.issuer_url}, a {NOTICE}",
    }
    screen.table(rows)
    screen.table({person.name: person.part for person in PEOPLE.values()})
    screen.say("Tokens are shortened on screen; nothing else is.")


def walk(visit: Visit) -> bool:
    """Every stop, in order. A stop that breaks off counts as one that did not behave."""
    screen = visit.screen
    for number, stop in enumerate(STOPS, start=1):
        screen.stop(number, len(STOPS), stop.title, stop.why)
        try:
            stop.walk(visit)
        except (httpx.HTTPError, LookupError, ValueError, TypeError, AttributeError, OSError) as error:
            screen.check(f"{stop.title}: the stop could be walked to its end", False, repr(error))
    screen.say("")
    if screen.failures:
        screen.title(f" {len(screen.failures)} things did not behave ", *screen.failures)
    else:
        screen.title(f" All {len(STOPS)} stops behaved. ")
    return not screen.failures


def hand_over(visit: Visit) -> None:
    """The stack stays up: tokens good for an hour, and lines to copy."""
    house, screen = visit.stack.house, visit.screen
    tokens = {
        "ALICE_READ": visit.token("alice", "readonly", "mcp:use bank:read"),
        "ALICE_PAY": visit.token("alice", "payments", "mcp:use bank:read payments:write"),
        "BOB_REVIEWS": visit.token("bob", "approvals", "approvals:read approvals:decide"),
    }
    program = sys.argv[0] if sys.argv[0].endswith("ostiary") else f"{sys.executable} -m gateway.cli"
    screen.title(" By hand ", "Everything is still up. Copy this first; the tokens are good for an hour:")
    screen.copyable("")
    for name, token in tokens.items():
        screen.copyable(f"{name}='{token}'")
    lines = {
        "A read:": visit.alice("readonly", "get_balance", {"account": "operating"}),
        "The second transfer, which Bob has approved and nobody has used. It runs once; try it twice:": visit.alice(
            "payments", "transfer_funds", TRANSFER
        ),
        "The tickets that Bob may decide or has decided:": Ask(
            "GET", house.approvals_url, {"Authorization": f"Bearer {tokens['BOB_REVIEWS']}"}
        ),
        "Bob's yes to the larger transfer of stop 9, if you think that it should run:": visit.review(
            "bob", visit.tickets[-1], "approve", "a price rise"
        ),
    }
    for sentence, ask in lines.items():
        screen.say(sentence)
        screen.copyable("")
        screen.copyable(_with_variables(ask.curl(), tokens))
    screen.say("The same from the command line (--state pending: only what still waits):")
    screen.copyable("")
    screen.copyable(f'OSTIARY_TOKEN="$BOB_REVIEWS" {program} approvals list --url {house.public_url}')
    screen.say(f"A token for anybody ({', '.join(PEOPLE)}), any resource, any scope:")
    screen.copyable("")
    screen.copyable(
        f"curl -sS {house.issuer_url}/token -d person=carol -d resource={house.endpoint('readonly')} "
        "-d 'scope=mcp:use bank:read'"
    )
    screen.say("What is behind it:")
    screen.table({"record": str(house.audit_file), "config": str(house.config_file), "policy": str(house.bundle)})
    screen.title(
        " Your turn: be the one who says yes ",
        "Have a call held, and approve it in a browser as somebody else: "
        + ("press Enter here, or, in another terminal:" if sys.stdin.isatty() else "in another terminal,"),
    )
    screen.copyable("")
    screen.copyable(f"{program} demo call --url {house.public_url} --issuer {house.issuer_url}")
    screen.say(f"It prints the page to open. Everything that waits for somebody is at {house.review_url}")
    screen.say("Ctrl-C ends everything." + (" Enter has a call held." if sys.stdin.isatty() else ""))


def _listen(visit: Visit) -> None:
    """Somebody at the terminal may press Enter: then a call is held, and waits."""
    if not sys.stdin.isatty() or not select.select([sys.stdin], [], [], 0)[0] or not sys.stdin.readline():
        return
    house = visit.stack.house
    try:
        hold_a_call(visit.screen, house.public_url, house.issuer_url)
    except httpx.HTTPError as error:
        visit.screen.say(f"The call could not be made: {error!r}")
    visit.screen.say("Enter has another call held; Ctrl-C ends everything.")


def tell_of_a_held_call(gateway_url: str, issuer_url: str) -> int:
    """`ostiary demo call`, beside a demo that runs -> exit code. Raises `NotLoopback`."""
    for url in (gateway_url, issuer_url):
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname or "", parts.port
        except ValueError as error:
            print(f"{url} is no URL: {error}", file=sys.stderr)
            return NOT_ASKED
        require_loopback(host)
    try:
        return hold_a_call(Screen(sys.stdout), gateway_url, issuer_url)
    except httpx.HTTPError as error:
        print(f"No demo answers at {gateway_url} and {issuer_url}: {error!r}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _with_variables(curl: str, tokens: dict[str, str]) -> str:
    """The command with each token replaced by its shell variable, inside double quotes."""
    for name, token in tokens.items():
        curl = curl.replace(f"'Authorization: Bearer {token}'", f'"Authorization: Bearer ${name}"')
    return curl
