"""The demo's parts, each alone: the issuer, the bank's servers, the leash, the screen."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import jwt
import pytest
from jwt import PyJWKSet
from starlette.testclient import TestClient

from gateway.demo.bank import Books, Declined
from gateway.demo.doorstep import CREDENTIAL_ENV
from gateway.demo.exchange import ask_tool, send
from gateway.demo.house import Ports
from gateway.demo.issuer import Mint, Unmintable, build_issuer
from gateway.demo.loopback import NotLoopback, pick_port, require_loopback
from gateway.demo.people import PEOPLE
from gateway.demo.screen import Screen
from gateway.demo.stack import Stack
from gateway.demo.stops import STOPS
from gateway.demo.tour import tell_of_a_held_call

ISSUER = "http://127.0.0.1:8100"


def test_the_demo_takes_no_settings_of_a_real_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that configures a gateway leads the demo neither to its record and tickets nor off loopback."""
    monkeypatch.setenv("OSTIARY_AUDIT__FILE", "/var/lib/ostiary/audit.jsonl")
    monkeypatch.setenv("ostiary_listen__host", "0.0.0.0")
    monkeypatch.setenv("OSTIARY_AUDIT_KEY", "a real one")
    stack = Stack()
    try:
        found = stack._environment()
        assert {name for name in found if name.upper().startswith("OSTIARY_")} == {
            "OSTIARY_AUDIT_KEY", "OSTIARY_SEAL_KEYS"
        }  # fmt: skip
        assert found["OSTIARY_AUDIT_KEY"] == stack.house.secrets["OSTIARY_AUDIT_KEY"]
        assert "PATH" in found
    finally:
        stack.stop()


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://127.0.0.1:x", "http://[::1"])
def test_a_held_call_is_not_tried_where_there_is_no_url(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A slip of the pen in `--url` or `--issuer` is told in a line, and ends with 2."""
    assert tell_of_a_held_call(url, ISSUER) == tell_of_a_held_call(ISSUER, url) == 2
    assert capsys.readouterr().err.count(f"{url} is no URL: ") == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.com", "localhost.example.com", ""])
def test_only_loopback_is_bound(host: str) -> None:
    """A development issuer that other machines can reach would hand tokens to them: it refuses to start."""
    assert require_loopback("127.0.0.1") == "127.0.0.1"
    with pytest.raises(NotLoopback):
        require_loopback(host)
    for module in ("gateway.demo.issuer", "gateway.demo.servers"):
        if host == "0.0.0.0":
            command = [sys.executable, "-m", module, "--host", host, "--port", str(pick_port())]
            if module.endswith("servers"):
                command += ["--replica", "r", "--books", "."]
            done = subprocess.run(
                command,
                env=os.environ | {CREDENTIAL_ENV: "x"},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode != 0
            assert "not a loopback address" in done.stderr


def test_tokens_are_those_of_rfc_9068_and_verify_with_the_published_key() -> None:
    """ES256, typ at+jwt, one audience, the person's groups, and a key set that verifies it."""
    mint = Mint(ISSUER)
    with TestClient(build_issuer(mint), base_url=ISSUER) as http:
        form = {"person": "alice", "resource": "http://gw/readonly/mcp", "scope": "mcp:use bank:read"}
        given = http.post("/token", data=form)
        assert given.status_code == 200
        token = given.json()["access_token"]
        keys = PyJWKSet.from_dict(http.get("/jwks").json())
        for document in ("oauth-authorization-server", "openid-configuration"):
            described = http.get(f"/.well-known/{document}").json()
            assert described["issuer"] == ISSUER
            assert described["jwks_uri"] == f"{ISSUER}/jwks"
            assert "never trust it in production" in described["service_documentation"]
    head = jwt.get_unverified_header(token)
    assert (head["typ"], head["alg"]) == ("at+jwt", "ES256")
    claims = jwt.decode(token, keys[head["kid"]], ["ES256"], audience="http://gw/readonly/mcp", issuer=ISSUER)
    assert claims["sub"] == "alice"
    assert claims["client_id"] == PEOPLE["alice"].client_id
    assert claims["groups"] == list(PEOPLE["alice"].groups)
    assert claims["scope"] == "mcp:use bank:read"
    assert claims["exp"] - claims["iat"] == 3600


@pytest.mark.parametrize(
    "wrong", [{"person": "mallory"}, {"resource": ""}, {"lifetime_s": "999999"}, {"lifetime_s": "soon"}]
)
def test_the_issuer_says_what_it_cannot_mint(wrong: dict[str, str]) -> None:
    """An unknown person, no audience or an absurd lifetime is a 400 that says so."""
    with TestClient(build_issuer(Mint(ISSUER)), base_url=ISSUER) as http:
        form = {"person": "bob", "resource": "http://gw/approvals", "scope": "approvals:read"}
        assert http.post("/token", data=form).status_code == 200
        refused = http.post("/token", data=form | wrong)
        assert refused.status_code == 400
        assert refused.json()["error"] == "invalid_request"


def test_a_page_of_another_site_can_not_reach_the_issuer_by_rebinding() -> None:
    """Only loopback Host names are answered."""
    with TestClient(build_issuer(Mint(ISSUER)), base_url=ISSUER) as http:
        assert http.get("/jwks").status_code == 200
        assert http.get("/jwks", headers={"Host": "evil.example"}).status_code == 400


def test_two_issuers_never_share_a_key() -> None:
    """Keys are made at start: a token of one run is worth nothing in the next."""
    first, second = Mint(ISSUER), Mint(ISSUER)
    assert first.keys()["keys"][0]["kid"] != second.keys()["keys"][0]["kid"]
    assert first.keys()["keys"][0]["x"] != second.keys()["keys"][0]["x"]
    with pytest.raises(Unmintable):
        first.token("alice", "", "x")


def test_the_books_balance(tmp_path: Path) -> None:
    """Money that leaves one account arrives in the other; what can't be paid is declined and books nothing."""
    books = Books(tmp_path)
    before = books.balance("operating")
    assert books.transfer("operating", "payroll", 100, "", "r") == 1
    assert books.balance("operating") == before - 100
    for account, amount in (("nowhere", 1), ("supplier-acme", 0), ("payroll", 10**12)):
        with pytest.raises(Declined):
            books.transfer("payroll", account, amount, "", "r")
    assert len(books.transfers()) == 1


def test_the_servers_work_without_any_gateway(tmp_path: Path) -> None:
    """A replica is a plain MCP server: with its credential it answers, without it says no, and either is noted."""
    port = pick_port()
    command = [sys.executable, "-m", "gateway.demo.servers", "--port", str(port), "--replica", "r9"]
    process = subprocess.Popen(
        [*command, "--books", str(tmp_path)], env=os.environ | {CREDENTIAL_ENV: "Bearer sesame"}
    )
    try:
        ask = ask_tool(f"http://127.0.0.1:{port}/payments/mcp", "sesame", "get_balance", {"account": "payroll"})
        with httpx.Client(trust_env=False) as http:
            deadline = time.monotonic() + 20
            while True:
                try:
                    answer = send(http, ask)
                    break
                except httpx.ConnectError:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            assert answer.structured["replica"] == "r9"
            wrong = ask_tool(ask.url, "sesame-", "get_balance", {"account": "payroll"})
            assert send(http, wrong).status == 401
        assert [line["name"] for line in Books(tmp_path).arrivals("tools/call")] == ["get_balance"] * 2
    finally:
        process.terminate()
        process.wait(10)


LEASHED = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have made it deaf
from gateway.demo.house import Ports
from gateway.demo.stack import Stack
class IssuerAlone(Stack):  # enough to be left behind
    def start(self):
        self.house.furnish()
        self._launch("issuer", "gateway.demo.issuer", "--port", str(self.ports.issuer))

with IssuerAlone(ports=Ports.free(), replicas=("http://127.0.0.1:1",)) as stack:
    print(stack.parts["issuer"].process.pid, stack.house.directory, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_demo(how: signal.Signals) -> None:
    """However the demo ends, kill -9 included, what it started ends too and its directory goes."""
    demo = subprocess.Popen([sys.executable, "-c", LEASHED], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert demo.stdout is not None
    pid, directory = demo.stdout.readline().decode().split()
    os.kill(int(pid), 0)
    assert Path(directory).is_dir()
    demo.send_signal(how)
    demo.wait(10)
    demo.stdout.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and (_alive(int(pid)) or Path(directory).exists()):
        time.sleep(0.05)
    assert not _alive(int(pid))
    assert not Path(directory).exists()


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_taken_ports_are_passed_over() -> None:
    """A port that somebody listens on is not chosen, the documented one included."""
    free = pick_port()
    assert pick_port(free) == free
    command = [sys.executable, "-m", "gateway.demo.issuer", "--port", str(free)]
    with subprocess.Popen(command) as process, httpx.Client(trust_env=False) as http:
        try:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                try:
                    http.get(f"http://127.0.0.1:{free}/jwks")
                    break
                except httpx.ConnectError:
                    time.sleep(0.05)
            assert pick_port(free) != free
        finally:
            process.terminate()
    ports = Ports.free()
    assert len({ports.gateway, ports.admin, ports.issuer, *ports.replicas}) == 5


def test_in_a_pipe_the_screen_writes_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """No ANSI sequence where nobody could see colours, even when the environment asks for them."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = io.StringIO()
    screen = Screen(stream)
    screen.title("Title", "a line")
    screen.stop(1, 10, "A stop", "why " * 60)
    screen.request(ask_tool("http://gw/readonly/mcp", "t" * 700, "x", {"[bold]": "red"}), {"Mcp-Name": "a remark"})
    screen.check("a rule", True)
    screen.check("another", False, "this")
    screen.copyable("x" * 500)
    text = stream.getvalue()
    assert "\x1b" not in text
    assert "x" * 500 in text, "what is to be copied was wrapped"
    assert "[bold]" in text
    assert "Mcp-Name: x   ← a remark" in text
    assert screen.failures == ["another"]


def test_the_tour_has_the_ten_stops_that_the_readme_promises() -> None:
    """Every stop says what it shows and why it matters."""
    assert len(STOPS) == 10
    assert all(stop.title and len(stop.why) > 60 and stop.walk.__doc__ for stop in STOPS)
