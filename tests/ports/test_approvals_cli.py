"""`ostiary approvals …`: the same acts from a shell, over the API and on the store; exit codes, safe output."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from approvals import ahead
from approvals.approvers import local_person
from approvals.clerks import LocalDoor
from approvals.commands import approvals
from approvals.desk import Desk
from approvals.printing import paragraph, plain
from approvals.ticket import StoreUnavailable
from tests.support.approvals import BOB, Bench, bench, effect

HOSTILE = "pay\x1b[2J\u202egnp.exe\u200b\r\n\x07"
Run = Callable[..., Result]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the database is."""
    return tmp_path / "approvals.db"


def on(file: Path, story: Callable[[Bench], Any], **options: Any) -> Any:
    """Run a story on the store, in a loop of its own."""

    async def told() -> Any:
        async with bench(file, **options) as it:
            return await story(it)

    return asyncio.run(told())


def local(file: Path, *arguments: str, **options: Any) -> Result:
    """The command, as an administrator at this machine."""

    @asynccontextmanager
    async def door(_: Path) -> AsyncIterator[Desk]:
        async with bench(file, **options) as it:
            yield it.desk

    person = local_person(0, "host")
    return CliRunner().invoke(approvals, [*arguments, "--config", "ostiary.yaml"], obj=LocalDoor(door, person))


def held(file: Path, **changes: Any) -> str:
    """A pending ticket."""

    async def story(it: Bench) -> str:
        arguments = changes.pop("arguments", {"amount": 1, "pin": "canary"})
        return (await it.held(effect(arguments, **changes), mask=("/pin",))).ticket.id

    return str(on(file, story))


def test_an_administrator_looks_and_narrows(file: Path) -> None:
    """List, show, deny, revoke on the store itself; recorded as `local:UID@HOST`."""
    ticket_id = held(file)
    listed = local(file, "list", "--json")
    assert listed.exit_code == 0
    assert [ticket["id"] for ticket in json.loads(listed.output)["tickets"]] == [ticket_id]
    assert ticket_id in local(file, "list").output
    shown = local(file, "show", ticket_id)
    assert shown.exit_code == 0
    assert "canary" not in shown.output
    assert "[masked]" in shown.output
    denied = json.loads(local(file, "deny", ticket_id, "--comment", "no", "--json").output)
    assert denied["state"] == "denied"
    assert denied["decisions"][0]["by"] == "local:0@host"
    again = local(file, "deny", ticket_id, "--json")
    assert (again.exit_code, json.loads(again.output)) == (1, {"error": "denied"})


def test_a_ticket_names_its_tenant(file: Path) -> None:
    """What the approval is bound to is shown, in the JSON and on the sheet; no tenant is no line."""
    theirs, nobodys = held(file, tenant="acme\x1b"), held(file)
    assert json.loads(local(file, "show", theirs, "--json").output)["requester"]["tenant"] == "acme\x1b"
    assert "tenant" not in json.loads(local(file, "show", nobodys, "--json").output)["requester"]
    (line,) = [one for one in local(file, "show", theirs).output.splitlines() if one.startswith("tenant")]
    assert line.split() == ["tenant", "acme\\u{1b}"]
    assert "tenant" not in local(file, "show", nobodys).output


def test_an_administrator_approves_only_where_it_is_allowed(file: Path) -> None:
    """`approvals.local_approve`; withdrawing, resolving and asking are never done from there."""
    ticket_id = held(file)
    for verb in ("approve", "withdraw", "resolve"):
        refused = local(file, verb, ticket_id, "--comment", "x")
        assert refused.exit_code == 1
        assert refused.stderr.startswith("not_locally: ")
        assert "approvals.local_approve" in refused.stderr
    assert local(file, "request", "--server", "bank", "--tool", "pay").exit_code == 1
    assert local(file, "approve", ticket_id, local_approve=True).exit_code == 0


def test_a_store_that_cannot_be_asked_is_exit_2(file: Path) -> None:
    """No answer is not an answer."""
    file.write_bytes(b"not a database")
    asked = local(file, "list")
    assert asked.exit_code == 2
    assert "Traceback" not in asked.output + asked.stderr


FAULTS = [
    (StoreUnavailable("gone"), "gone"),
    (click.ClickException("audit.file: it is not there"), "audit.file: it is not there"),
    (RuntimeError("no such file"), "RuntimeError: no such file"),
    (KeyError("x"), "KeyError: 'x'"),
]


@pytest.mark.parametrize(("fault", "told"), FAULTS)
def test_what_the_house_raises_is_exit_2(fault: Exception, told: str) -> None:
    """A configuration that can't be read, a record that can't be written: said in a line, in the house's words."""

    @asynccontextmanager
    async def door(_: Path) -> AsyncIterator[Desk]:
        raise fault
        yield

    asked = CliRunner().invoke(approvals, ["list", "--config", "x"], obj=LocalDoor(door))
    assert (asked.exit_code, asked.stderr.strip()) == (2, told)
    assert asked.exception is None or isinstance(asked.exception, SystemExit)


def test_hostile_text_cannot_act_on_a_terminal(file: Path) -> None:
    """Escape sequences, bidi overrides, line breaks, invisible characters: shown as what they are, in every view."""
    ticket_id = held(file, name=HOSTILE, subject=HOSTILE, arguments={HOSTILE: HOSTILE})
    for arguments in (["list"], ["show", ticket_id], ["show", ticket_id, "--json"], ["list", "--json"]):
        output = local(file, *arguments).output
        assert not any(one in output for one in "\x1b\u202e\u200b\r\x07")
        assert "gnp.exe" in output
    assert "\\u{1b}[2J\\u{202e}gnp.exe" in local(file, "list").output
    assert plain("a\\u{1b}") == "a\\\\u{1b}"


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["--url", "https://x", "--config", "y"], ["--url", "http://mcp.example.com"], ["--url", "ftp://x"],
        ["--url", "http://127.0.0.1:99999"], ["--url", "https://x:y"], ["--url", "http://[::1"],
    ],
)  # fmt: skip
def test_bad_usage_is_exit_2(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    """Neither, both, what is no URL, or one that would send the token in clear."""
    monkeypatch.setenv("OSTIARY_TOKEN", "t")
    assert CliRunner().invoke(approvals, ["list", *arguments]).exit_code == 2
    monkeypatch.delenv("OSTIARY_TOKEN")
    assert CliRunner().invoke(approvals, ["list", "--url", "https://x"]).exit_code == 2


class Answering(BaseHTTPRequestHandler):
    """Keeps what is asked, answers what it is told to."""

    asked: list[tuple[str, str, str, bytes]]
    answer: tuple[int, bytes]
    challenge: str = ""

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length", 0))
        self.asked.append((self.command, self.path, self.headers.get("authorization", ""), self.rfile.read(length)))
        self.send_response(self.answer[0])
        if self.challenge:
            self.send_header("www-authenticate", self.challenge)
        self.send_header("content-length", str(len(self.answer[1])))
        self.end_headers()
        self.wfile.write(self.answer[1])

    do_POST = do_GET  # noqa: N815 - the library's name

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[type[Answering], str]]:
    """A stand-in for the API's server: the API itself is tested at its own edge."""
    handler = type("Handler", (Answering,), {"asked": [], "answer": (200, b"{}")})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("OSTIARY_TOKEN", "secret-token")
    try:
        yield handler, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_api_is_asked_as_documented(gateway: tuple[type[Answering], str], file: Path, tmp_path: Path) -> None:
    """Method, path, token and body of each command."""
    handler, url = gateway
    ticket = on(file, lambda it: it.desk.show(BOB, held_id)) if (held_id := held(file)) else {}
    handler.answer = (200, json.dumps(ticket).encode())
    arguments = tmp_path / "arguments.json"
    arguments.write_text('{"amount": 1}')
    for command in (
        ["show", held_id],
        ["approve", held_id, "--comment", "ok", "--seen", "d"],
        ["request", "--server", "bank", "--tool", "pay", "--arguments", str(arguments), "--justification", "rent"],
    ):
        done = CliRunner().invoke(approvals, [*command, "--url", url])
        assert done.exit_code == 0, done.output
        assert held_id in done.output
        assert "secret-token" not in done.output
    handler.answer = (200, b'{"tickets": [], "next": null}')
    assert CliRunner().invoke(approvals, ["list", "--url", f"{url}/approvals/", "--state", "pending"]).exit_code == 0
    sent = [(method, path, json.loads(body) if body else None) for method, path, _, body in handler.asked]
    assert sent == [
        ("GET", f"/approvals/{held_id}", None),
        ("POST", f"/approvals/{held_id}/approve", {"comment": "ok", "seen": "d"}),
        ("POST", "/approvals", {"server": "bank", "method": "tools/call", "name": "pay", "arguments": {"amount": 1},
                                "justification": "rent"}),
        ("GET", "/approvals?state=pending&limit=50", None),
    ]  # fmt: skip
    assert {token for _, _, token, _ in handler.asked} == {"Bearer secret-token"}


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [(403, b'{"error": "own_request"}', 1), (404, b'{"error": "not_found"}', 1),
     (409, b'{"error": "moved_on", "why": "used"}', 1), (401, b'{"error": "token_invalid"}', 2),
     (503, b'{"error": "approvals_unavailable"}', 2), (500, b"oops", 2), (200, b"[]", 2), (302, b"{}", 2)],
)  # fmt: skip
def test_exit_codes_tell_no_from_not_asked(
    gateway: tuple[type[Answering], str], status: int, body: bytes, code: int
) -> None:
    """1: the answer is no; 2: there is no answer. Redirects are not followed: the token goes nowhere else."""
    handler, url = gateway
    handler.answer = (status, body)
    asked = CliRunner().invoke(approvals, ["approve", "A" * 24, "--url", url, "--json"])
    assert asked.exit_code == code
    assert "error" in json.loads(asked.output)
    assert len(handler.asked) == 1


WORDS: list[tuple[int, dict[str, Any], str]] = [
    (403, {"error": "own_request", "message": "Not your own."}, "own_request: Not your own."),
    (409, {"error": "moved_on", "why": "used", "message": "Look again."}, "moved_on: used: Look again."),
    (404, {"error": "not_found"}, "not_found"),
    (403, {"error": {"code": 40302, "message": "Not allowed.", "data": {"decisionId": "d1"}}},
     "40302: Not allowed. (decision d1)"),
    (400, {"error": {"code": -32602, "message": "It does not fit.\n- lacks \x1b[2J\u202e."}},
     "-32602: It does not fit.\n  - lacks \\u{1b}[2J\\u{202e}."),
    (503, {"error": {"code": 50301, "message": "No keys."}}, "50301: No keys."),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body", "told"), WORDS)
def test_a_refusal_is_told_in_the_gateways_words(
    gateway: tuple[type[Answering], str], status: int, body: dict[str, Any], told: str
) -> None:
    """The stable name, the sentence, and the decision's id where the door refused: never a dump of the answer.

    A sentence of several lines (what does not fit) is printed as such; what else could act on a terminal is not.
    """
    handler, url = gateway
    handler.answer = (status, json.dumps(body).encode())
    assert CliRunner().invoke(approvals, ["list", "--url", url]).stderr.strip() == told
    heard = json.loads(CliRunner().invoke(approvals, ["list", "--url", url, "--json"]).output)
    assert paragraph(": ".join(heard.values())) == told


def test_a_token_for_another_resource_is_told_which_one_is_needed(gateway: tuple[type[Answering], str]) -> None:
    """The token that a server takes is not the one that the approvals API takes."""
    handler, url = gateway
    refused = {"error": {"code": 40102, "message": "Not accepted."}}
    handler.answer = (401, json.dumps(refused).encode())
    told = CliRunner().invoke(approvals, ["list", "--url", url]).stderr
    assert told.strip() == f"40102: Not accepted. OSTIARY_TOKEN has to be a token for {url}/approvals."


def test_a_missing_scope_is_named(gateway: tuple[type[Answering], str]) -> None:
    """The challenge says which scope; so does the command."""
    handler, url = gateway
    handler.answer = (403, b'{"error": "insufficient_scope", "message": "A scope is missing."}')
    handler.challenge = 'Bearer error="insufficient_scope", resource_metadata="x", scope="approvals:decide"'
    told = CliRunner().invoke(approvals, ["list", "--url", url]).stderr
    assert told.strip() == "insufficient_scope: A scope is missing. Needed: approvals:decide"


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_token_in_clear_meets_no_proxy(
    gateway: tuple[type[Answering], str], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """What goes to this machine in clear goes there directly: a proxy of the environment would read the token."""
    proxy, url = gateway
    for other in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(variable, url)
    asked = CliRunner().invoke(approvals, ["list", "--url", "http://127.0.0.1:9"])
    assert asked.exit_code == 2
    assert proxy.asked == []


@pytest.mark.parametrize("ticket_id", ["../../readonly/mcp", "a/b", "a?b", "a#b", "%2e%2e", "a b", "é"])
def test_an_id_stays_in_its_path_segment(gateway: tuple[type[Answering], str], ticket_id: str) -> None:
    """Nothing that is given as an id reaches another route."""
    handler, url = gateway
    asked = CliRunner().invoke(approvals, ["show", ticket_id, "--url", url])
    assert asked.exit_code == 1
    assert handler.asked == []


def test_a_gateway_that_is_down_is_exit_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said in a line that names whom it asked."""
    monkeypatch.setenv("OSTIARY_TOKEN", "t")
    asked = CliRunner().invoke(approvals, ["list", "--url", "http://127.0.0.1:9"])
    assert asked.exit_code == 2
    assert asked.stderr.startswith("no answer from http://127.0.0.1:9/approvals: ")


ASK = ("request", "--server", "bank", "--tool", "pay")


@pytest.mark.parametrize(
    ("more", "given", "told"),
    [
        (("--arguments", "-"), b'{"a": 1, "a": 2}', "--arguments: a member stands twice"),
        (("--arguments", "-"), b'{"x": {"a": 1, "a": 2}}', "--arguments: a member stands twice"),
        (("--arguments", "-"), b'{"n": 18446744073709551617}', "or a number is beyond 64 bits"),
        (("--arguments", "-"), b"[1]", "--arguments: not a JSON object"),
        (("--arguments", "-"), b"{'a': 1}", "--arguments: not JSON"),
        (("--arguments", "-"), b"", "--arguments: not JSON"),
        (("--arguments", "-"), b'{"a": NaN}', "--arguments: not JSON"),
        (("--arguments", "-"), b'{"a":' * 65 + b"1" + b"}" * 65, "--arguments: nested too deeply"),
        (("--arguments", "-"), b'{"a": "' + b"x" * (1 << 20) + b'"}', "--arguments: more than 1048576 bytes"),
        (("--vary", "-"), b"true", "--vary: not a JSON object"),
        (("--arguments", "-", "--vary", "-"), b"{}", "in the place of --arguments"),
        (("--vary", "-", "--method", "prompts/get"), b"{}", "for tools"),
        (("--arguments", "absent.json"), b"", "absent.json"),
        (("--name", "pay"), b"", "either --tool or --name"),
    ],
)  # fmt: skip
def test_what_has_two_readings_is_not_asked(
    gateway: tuple[type[Answering], str], more: tuple[str, ...], given: bytes, told: str
) -> None:
    """Exit 2, naming the option and what is wrong: nothing is asked that the file does not say in one way."""
    handler, url = gateway
    handler.answer = (201, json.dumps(TICKET).encode())
    good = CliRunner().invoke(approvals, [*ASK, "--arguments", "-", "--url", url], input=b'{"a": 1}')
    assert good.exit_code == 0, good.output
    bad = CliRunner().invoke(approvals, [*ASK, *more, "--url", url], input=given)
    assert bad.exit_code == 2
    assert told in bad.output
    assert len(handler.asked) == 1


TICKET: dict[str, Any] = {
    "id": "T" * 24, "state": "pending", "server": "bank", "resource": "r", "environment": "", "method": "tools/call",
    "name": "pay", "arguments": {}, "masked": [], "meta": {},
    "requester": {"issuer": "i", "subject": "s", "client": "c"},
    "justification": "", "reasons": [], "approvers": ["user:x"], "min_approvers": 1, "decisions": [], "uses": 2,
    "uses_left": 2, "runs": [], "tool_digest": "", "page": "https://mcp.example/review/tickets/T", "digest": "d",
    "createdAt": "2026-07-28T12:00:00.000Z", "expiresAt": "2026-07-28T13:00:00.000Z", "earlier": [], "tool": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("state", "code", "next_"),
    [("approved", 0, "make the identical call"), ("denied", 1, "nothing runs"), ("expired", 1, "nothing runs"),
     ("withdrawn", 1, "nothing runs")],
)  # fmt: skip
def test_waiting_ends_with_the_decision(
    gateway: tuple[type[Answering], str], monkeypatch: pytest.MonkeyPatch, state: str, code: int, next_: str
) -> None:
    """`--wait` looks until the ticket is pending no more, then 0 for an approval and 1 for anything else."""
    handler, url = gateway
    monkeypatch.setattr(ahead, "POLL_S", (0.001,))
    handler.answer = (201, json.dumps(TICKET).encode())
    looks: list[str] = []

    def decide(self: Any) -> None:
        looks.append(self.path)
        if len(looks) == 3:
            handler.answer = (200, json.dumps(TICKET | {"state": state}).encode())
        Answering.do_GET(self)

    monkeypatch.setattr(handler, "do_GET", decide)
    done = CliRunner().invoke(approvals, [*ASK, "--wait", "--url", url])
    assert done.exit_code == code, done.output
    assert looks == [f"/approvals/{TICKET['id']}"] * 3
    assert next_ in done.output
    unasked = CliRunner().invoke(approvals, [*ASK, "--url", url, "--json"])
    assert (unasked.exit_code, json.loads(unasked.output)["state"]) == (0, state)


def test_a_pending_ticket_says_what_comes_next(gateway: tuple[type[Answering], str]) -> None:
    """Where it is decided, until when, how to look, and what to do then; of a grant, that arguments may vary."""
    handler, url = gateway
    handler.answer = (201, json.dumps(TICKET).encode())
    told = CliRunner().invoke(approvals, [*ASK, "--url", url]).output
    for words in (TICKET["page"], TICKET["expiresAt"], f"approvals show {TICKET['id']}", "identical call"):
        assert words in told
    handler.answer = (201, json.dumps(TICKET | {"vary": {"schema": {"maximum": 7}, "bounds": {}}}).encode())
    told = CliRunner().invoke(approvals, [*ASK, "--vary", "-", "--url", url], input=b'{"maximum": 7}').output
    for words in ("not one call: up to 2 calls of this tool", '"maximum": 7', "a call whose arguments fit"):
        assert words in told
    assert json.loads(handler.asked[-1][3])["vary"] == {"maximum": 7}
