"""Which HTTP parser? Every framing row against every parser that uvicorn offers, and against our door.

`python -m tests.edge.parser_evidence` prints the tables of docs/http-parser.md. A parser that is not installed is
left out (zttp: `pip install zttp`). Each server is real, on loopback; the client is a raw socket. The application
behind all of them is the same: it reads the body, writes down what it was given, and answers 200.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import logging
import platform
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import uvicorn
import uvloop

from gateway.door.connection import server_options
from gateway.door.framing import DoorLimits
from gateway.door.quiet import QuietServer
from tests.edge.door import BODY, _serve, head, post
from tests.edge.rows import ROWS, Row
from tests.support.http_raw import Address, Answer, RawClient

PARSERS = ("h11", "httptools", "zttp", "door")
WAIT_S = 0.4
SLOW_S = 30.0


@dataclass
class Witness:
    """The application: what it was given, in order."""

    seen: list[tuple[str, bytes]] = field(default_factory=list)
    trailers: bool = False

    async def __call__(
        self, scope: MutableMapping[str, Any], receive: Callable[..., Any], send: Callable[..., Any]
    ) -> None:
        """Read the body, note the path, answer."""
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        self.seen.append((scope["path"], body))
        self.trailers = self.trailers or any(name == b"x-trailer" for name, _ in scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def serve(parser: str) -> Iterator[tuple[Address, Witness]]:
    """The witness behind `parser` on a free port, with uvicorn's defaults (for `door`: with ours)."""
    witness = Witness()
    options: dict[str, Any] = {"http": parser, "ws": "none", "interface": "asgi3"}
    if parser == "door":
        options = server_options(DoorLimits(), lambda *_: "none")
    config = uvicorn.Config(
        witness, lifespan="off", log_config=None, timeout_graceful_shutdown=1, **{**options, "access_log": False}
    )
    server, loop = QuietServer(config), uvloop.new_event_loop()
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=_serve, args=(loop, server, listener), daemon=True)
    thread.start()
    try:
        yield listener.getsockname(), witness
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


def ask(address: Address, data: bytes) -> Answer | None:
    """The first answer, or `None` where none comes."""
    with RawClient(address, timeout_s=WAIT_S) as client:
        try:
            answer = client.send(data).read_answer(to_head=data.startswith(b"HEAD"))
        except (TimeoutError, EOFError, ConnectionError):
            return None
        with suppress(TimeoutError):
            client.rest()
        return answer


def judge(row: Row, answer: Answer | None, seen: list[tuple[str, bytes]]) -> str:
    """What became of a row, in a word; what is wrong is in capitals.

    `refused`; `served`: the one right reading, and nothing else; `pipelined`: the same, then what follows as a second
    request, which RFC 9112 allows; `SMUGGLED`: the canary came out of another reading; `WRONG BODY`; `LET THROUGH`:
    served although it has more than one reading.
    """
    canary = any(path == "/canary/mcp" for path, _ in seen)
    if not seen:
        return "refused" if answer is not None and 400 <= answer.status < 600 else "NO ANSWER"
    if row.body is None or 200 not in row.right:
        return "SMUGGLED" if canary else "LET THROUGH"
    if seen[0][1] != row.body:
        return "SMUGGLED" if canary else "WRONG BODY"
    return "pipelined" if canary else "served"


def run_rows(parsers: list[str]) -> dict[str, dict[str, dict[str, str]]]:
    """group -> row -> parser -> outcome."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for parser in parsers:
        with serve(parser) as (address, witness):
            for group, rows in ROWS.items():
                for row in (one for one in rows if 405 not in one.right):  # methods are the edge's to judge
                    witness.seen.clear()
                    answer = ask(address, row.data)
                    outcome = judge(row, answer, list(witness.seen))
                    found.setdefault(group, {}).setdefault(row.name, {})[parser] = outcome
    return found


def lasts(address: Address, first: bytes, drip: bytes) -> str:
    """How long a slow client is borne with: it sends `first`, then `drip` once a second."""
    with RawClient(address, timeout_s=1.0) as client:
        began = time.monotonic()
        client.send(first)
        while (taken := time.monotonic() - began) < SLOW_S + 1:
            try:
                if not client.socket.recv(65536):
                    return f"{taken:.0f} s"
                return f"{time.monotonic() - began:.0f} s"
            except TimeoutError:
                client.send(drip)
            except ConnectionError:
                return f"{taken:.0f} s"
        return "UNBOUNDED"


def _limits(address: Address, witness: Witness) -> dict[str, str]:
    def status(data: bytes) -> str:
        answer = ask(address, data)
        return "no answer" if answer is None else str(answer.status) if answer.status != 200 else "LET THROUGH"

    chunked = head(b"Transfer-Encoding: chunked") + b"\r\n\r\n%x\r\n%b\r\n0\r\nX-Trailer: 1\r\n\r\n" % (
        len(BODY),
        BODY,
    )
    witness.trailers = False
    ask(address, chunked)
    found = {
        "5,000 header lines": status(post(*[b"X-%d: y" % n for n in range(5000)])),
        "one header line of 1 MB": status(post(b"X: " + b"y" * 1_000_000)),
        "a trailer's field among the headers": "YES" if witness.trailers else "no",
    }
    slow = {
        "a connection and nothing": (b"", b""),
        "a head, one byte a second": (post()[:9], b"x"),
        "a body, one byte a second": (head(b"Content-Length: 4000") + b"\r\n\r\n", b"x"),
    }
    with ThreadPoolExecutor() as pool:
        waits = {name: pool.submit(lasts, address, *how) for name, how in slow.items()}
        found |= {
            f"{name}: closed after (up to {SLOW_S:.0f} s watched)": wait.result() for name, wait in waits.items()
        }
    return found


def run_limits(parsers: list[str]) -> dict[str, dict[str, str]]:
    """row -> parser -> outcome, for sizes, times and trailers."""
    found: dict[str, dict[str, str]] = {}
    for parser in parsers:
        with serve(parser) as (address, witness):
            for name, outcome in _limits(address, witness).items():
                found.setdefault(name, {})[parser] = outcome
    return found


def table(first: str, parsers: list[str], rows: dict[str, dict[str, str]]) -> str:
    """A Markdown table."""
    lines = [f"| {first} | " + " | ".join(parsers) + " |", "|---" * (len(parsers) + 1) + "|"]
    for name, outcomes in rows.items():
        shown = name.replace("|", "\\|").encode("unicode_escape").decode()
        lines.append(f"| {shown} | " + " | ".join(outcomes[parser] for parser in parsers) + " |")
    return "\n".join(lines)


def main() -> int:
    """Run everything, print Markdown; 0 only if the door let nothing through."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="without the rows that take time")
    quick = arguments.parse_args().quick
    logging.disable(logging.CRITICAL)
    parsers = [name for name in PARSERS if name == "door" or importlib.util.find_spec(name)]
    versions = {name: importlib.metadata.version(name) for name in ("uvicorn", *parsers[:-1])}
    out = sys.stdout.write
    out(f"Python {platform.python_version()}, " + ", ".join(f"{k} {v}" for k, v in versions.items()) + "\n\n")
    found = run_rows(parsers)
    totals: dict[str, dict[str, str]] = {}
    for group, rows in found.items():
        counts = {parser: Counter(outcome[parser] for outcome in rows.values()) for parser in parsers}
        totals[f"{group} ({len(rows)})"] = {
            parser: ", ".join(f"{count} {what}" for what, count in sorted(counts[parser].items()))
            for parser in parsers
        }
    out(table("group", parsers, totals) + "\n\n")
    differing = {
        f"{group}: {name}": outcomes
        for group, rows in found.items()
        for name, outcomes in rows.items()
        if any(outcome.isupper() for outcome in outcomes.values())
    }
    out(table("row that at least one does not answer right", parsers, differing) + "\n\n")
    if not quick:
        out(table("limit", parsers, run_limits(parsers)) + "\n")
    return int(any(outcomes["door"].isupper() for rows in found.values() for outcomes in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
