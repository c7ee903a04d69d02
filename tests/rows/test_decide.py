"""`ostiary decide`: the corridor's own answer about one request, with nothing consumed and nothing forwarded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.rows.asking import tool
from tests.rows.conftest import furnish, opened, settings_of
from tests.rows.stage import House, Server, Stage, listed
from tests.support.stack import DATA, ISSUER, Stack, headers_of


@pytest.fixture
def house(stage: Stage, tmp_path: Path) -> Iterator[House]:
    """A configuration and a server; no gateway runs."""
    behind = {"plain": [Server(listed(read={}, write={}, hidden={}))]}
    stack = Stack(tmp_path, {}, data=DATA)
    with opened(stage, behind["plain"]):
        house = House(stage, stack, behind)
        furnish(stack, settings_of(behind))
        (tmp_path / "gateway.log").touch()  # what `records` looks through
        with house.http:
            yield house


def decide(house: House, message: Mapping[str, Any], *words: str, **changes: Any) -> tuple[int, dict[str, Any]]:
    request = {
        "server": "plain",
        "token": house.token(),
        "headers": headers_of(message),
        "body": message,
        **changes,
    }
    file = house.stack.folder / "request.json"
    file.write_text(json.dumps({name: value for name, value in request.items() if value is not None}))
    done = house.ostiary("decide", "--config", str(house.stack.config), str(file), "--json", *words)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_what_would_be_forwarded_is_said_and_not_done(house: House) -> None:
    """Exit 0, the policy's answer and its revision; no server sees the call; the record says who asked."""
    code, told = decide(house, tool("read", path=house.argument))
    assert (code, told["forwarded"], told["verdict"], told["refusal"]) == (0, True, "allow", None), told
    assert (told["policy"]["reasons"], told["revision"]) == (["allowed"], "default-4")
    assert house.forwarded() == []
    (record,) = [one for one in house.records() if one["kind"] == "admin" and one["act"] == "decide"]
    assert record["by"].startswith("local:")
    assert (record["facts"]["server"], record["facts"]["verdict"]) == ("plain", "allow")
    assert {one["kind"] for one in house.records()} == {"admin"}


def test_the_pages_example_is_a_whole_request(house: House) -> None:
    """docs/policy.md's request, of this stage's issuer, server and tool, would be forwarded: it lacks nothing."""
    text = (
        (Path(__file__).parents[2] / "docs/policy.md")
        .read_text()
        .partition("<!-- decide -->\n```json\n")[2]
        .partition("```")[0]
    )
    for there, here in (("https://idp.example.com", ISSUER), ('"files"', '"plain"'), ("read_file", "read")):
        assert there in text
        text = text.replace(there, here)
    asked = json.loads(text)
    code, told = decide(house, asked["body"], **{**asked, "token": None})
    assert (code, told["refusal"]) == (0, None), told


def test_refusals_are_those_of_the_gateway(house: House) -> None:
    """Each room refuses as it would: the token, the headers, the policy, the scope; exit 1, with the row's name."""
    asked = tool("read")
    for message, changes, name in (
        (asked, {"token": "x.y.z"}, "token_invalid"),
        (asked, {"headers": headers_of(tool("write"))}, "header_mismatch"),
        (tool("hidden"), {}, "policy_denied"),
        (asked, {"token": house.token(scope="mcp:use")}, "scope_insufficient"),
        (asked, {"body": "{"}, "body_not_json"),
    ):
        code, told = decide(house, message, **changes)
        assert (code, told["refusal"] and told["refusal"]["name"]) == (1, name), told
        assert told["forwarded"] is False
    assert house.forwarded() == []


def test_an_approval_is_neither_asked_for_nor_used(house: House) -> None:
    """A gated call says that a person has to approve it; no ticket is opened."""
    code, told = decide(house, tool("write", n=1))
    assert (code, told["verdict"], told["approval"], told["refusal"]) == (1, "approve", "needed", None)
    assert told["policy"]["approval"]["min_approvers"] == 1
    assert house.forwarded() == []
    assert {one["kind"] for one in house.records()} == {"admin"}


def test_nothing_of_a_token_is_printed_or_recorded(house: House) -> None:
    """Refused, or in a file that is no request: neither a token nor another credential comes out again."""
    good = house.token()
    bad = f"{good[:-8]}AAAAAAAA"
    for changes in (
        {"token": bad},
        {"headers": {**headers_of(tool("read")), "Authorization": f"Bearer {bad}", "Cookie": good}},
        {"extra": good},
    ):
        _, told = decide(house, tool("read"), **changes)
        for part in good.split("."):
            assert part not in json.dumps(told), changes
    record = json.dumps(house.records())
    for part in good.split("."):
        assert part not in record


def test_claims_stand_for_a_token(house: House) -> None:
    """Without a token at hand the claims say who it would be; a trace names the lines that were evaluated."""
    claims = {"iss": ISSUER, "sub": "carol", "scope": "mcp:use files:read"}
    code, told = decide(house, tool("read"), "--trace", token=None, claims=claims)
    assert (code, told["verdict"]) == (0, "allow"), told
    assert len(told["trace"]["mcp/authz/authz.rego"]) > 5
    code, told = decide(house, tool("read"), token=None, claims={**claims, "iss": "https://other.example"})
    assert (code, told["error"]) == (2, "not_asked")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"server": "none"}, "server: must be one of plain"),
        ({"claims": {"iss": ISSUER}}, "either token"),
        ({"token": None}, "either token"),
        ({"headers": ["x"]}, "headers"),
        ({"tokn": "x"}, "must be an object of"),
    ],
)
def test_what_is_no_request_is_2(house: House, changes: dict[str, Any], words: str) -> None:
    """It could not be asked, and why; nothing is guessed."""
    code, told = decide(house, tool("read"), **changes)
    assert (code, words in told["message"]) == (2, True), told
