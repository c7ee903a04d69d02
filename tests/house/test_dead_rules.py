"""`ostiary check` finds what can never match in the policy's data: each of many mistakes, and nothing but it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from approvals.database import migrate
from gateway.cli import main
from gateway.config import Settings
from gateway.config_file import load_settings
from gateway.demo.house import House, Ports
from gateway.demo.place import BANK, Place
from gateway.demo.procurement.buyer import PROCUREMENT
from gateway.inspecting.data_look import look_at_data
from gateway.inspecting.finding import Finding
from tests.support.issuer import Issuer, signing_key
from tests.support.postgres import Postgres
from tests.support.stack import lend, secrets_for, write_config
from tests.support.upstream import Exchange, ScriptedUpstream, http, result_of

ISSUER = "https://idp.example.com"
PAY = {
    "effect": "write",
    "scopes": ["pay:write"],
    "arguments": {"/amount": {"at_least": 1, "at_most": 5000}, "/folder": {"within": ["/srv/"], "optional": True}},
    "approval": {
        "approvers": [f"group:{ISSUER}|payers"],
        "min_approvers": 1,
        "steps": [{"argument": "/amount", "above": 1000, "min_approvers": 2}],
        "ttl_s": 900,
    },
    "budgets": {"daily": {"count": 20, "window_s": 86_400}},
}
GOOD: dict[str, Any] = {
    "servers": {
        "files": {
            "description": "Files",
            "environments": ["test", "production"],
            "scopes": ["mcp:use"],
            "tenants": ["", "acme"],
            "tools": {
                "read": {"effect": "read", "scopes": ["files:read"], "clear": ["/path"], "disclose": True},
                "touch": {"effect": "write", "approval": {"needed": False}},
                "format": False,
                "pay": PAY,
                "restart": {
                    "effect": "read",
                    "hours": [{"days": ["mon"], "from": "22:00", "until": "06:00", "zone": "Europe/Berlin"}],
                },
            },
            "prompts": {"greet": {}},
            "resources": {"file:///srv/": {}, "file:///srv/secret/": False, "status://all": {}},
            "methods": {"completion/complete": {}, "tasks/update": {"approval": {"needed": False}}},
        }
    }
}
FILES = "/servers/files"


def furnish(folder: Path, data: Any, rules: str = "", **changes: Any) -> Path:
    """A configuration whose bundle holds this data, and the shipped rules or others."""
    issuer = Issuer(ISSUER, [signing_key()])
    changes.setdefault(
        "identity",
        {
            "issuers": [{"issuer": ISSUER, "jwks_file": "jwks.json", "algorithms": ["ES256"]}],
            "scope_implies": {"files:write": ["files:read"]},
        },
    )
    config = write_config(
        folder, issuer, {"files": ["http://127.0.0.1:9/mcp"]}, port=8080, admin_port=9090, **changes
    )
    (folder / "bundle/mcp/authz/data.json").write_text(json.dumps(data))
    if rules:
        (folder / "bundle/mcp/authz/authz.rego").write_text(rules)
    return config


def settings_of(folder: Path, data: Any, **more: Any) -> Settings:
    """The same, loaded."""
    return load_settings(furnish(folder, data, **more))


def put(pointer: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Write one value below the server, or take the member away (`...`)."""

    def change(data: dict[str, Any]) -> None:
        at: Any = data["servers"]["files"]
        *steps, last = [step.replace("~1", "/").replace("~0", "~") for step in pointer.strip("/").split("/")]
        for step in steps:
            at = at[int(step)] if isinstance(at, list) else at[step]
        if value is ...:
            del at[last]
        elif isinstance(at, list):
            at[int(last)] = value
        else:
            at[last] = value

    return change


PAID, METHOD = "tools/pay/approval", "methods/completion~1complete"
WRONG: list[tuple[str, Any, str, str]] = [
    # where the mistake is planted, what, where it is found, a word of what is said
    ("tolls", {}, "tolls", "no member"),
    ("tools/read/scope", ["x"], "tools/read/scope", "no member"),
    ("tools/pay/aproval", {}, "tools/pay/aproval", "no member"),
    ("tools/pay/approval/min_aprovers", 2, "tools/pay/approval/min_aprovers", "no member"),
    ("tools/read/scopes", "files:read", "tools/read/scopes", "not a list"),
    ("tools/read/scopes/0", "files:read files:write", "tools/read/scopes/0", "one scope each"),
    ("tools/read/effect", "reed", "tools/read/effect", "not one of"),
    ("tools/read/disclose", 1, "tools/read/disclose", "true or false"),
    ("tools/read/clear/0", "path", "tools/read/clear/0", "pointers"),
    ("tools/read/tenants", [], "tools/read/tenants", "empty"),
    ("tools/read", True, "tools/read", "not an object"),
    ("tools/pay/approval", ..., "tools/pay", "does not say whether a person"),
    ("tools/pay/approval/ttl_s", "900", "tools/pay/approval/ttl_s", "integer"),
    ("tools/pay/approval/approvers", [], "tools/pay/approval", "nobody"),
    ("tools/pay/approval/approvers/0", "grp:payers", "tools/pay/approval/approvers/0", "user:"),
    ("tools/pay/approval/answers", "never", "tools/pay/approval/answers", "not one of"),
    ("tools/touch/approval/approvers", ["user:x"], "tools/touch/approval/approvers", "never read"),
    ("tools/pay/approval/steps/0/above", 5000, "tools/pay/approval/steps/0", "never applies"),
    ("tools/pay/approval/steps/0/min_approvers", 1, "tools/pay/approval/steps/0", "changes nothing"),
    ("tools/pay/approval/grant", {"schema": {}, "uses": 5}, "tools/pay/approval/grant", "ttl_s"),
    (f"{METHOD}/approval", {"approvers": ["user:x"]}, f"{METHOD}/approval", "can't"),
    ("methods/completion~1complete/budgets", {}, "methods/completion~1complete/budgets", "no member"),
    ("tools/pay/arguments/~1amount/at_least", 9000, "tools/pay/arguments/~1amount/at_least", "above at_most"),
    ("tools/pay/arguments/~1folder/within/0", "/srv", "tools/pay/arguments/~1folder/within/0", "end with /"),
    ("tools/pay/arguments/~1folder/within/0", "/srv/../", "tools/pay/arguments/~1folder/within/0", "plain path"),
    ("tools/pay/arguments/~1folder/sql", "read-only", "tools/pay/arguments/~1folder/sql", "not one of"),
    ("tools/pay/arguments/~1folder/one_of", [], "tools/pay/arguments/~1folder/one_of", "empty"),
    ("tools/pay/arguments/folder", {}, "tools/pay/arguments/folder", "pointer"),
    ("tools/restart/hours", [], "tools/restart/hours", "empty"),
    ("tools/restart/hours/0/days/0", "monday", "tools/restart/hours/0/days/0", "days"),
    ("tools/restart/hours/0/zone", "Europe/Berlyn", "tools/restart/hours/0/zone", "time zone"),
    ("tools/restart/hours/0/from", "8:00", "tools/restart/hours/0/from", "HH:MM"),
    ("tools/restart/hours/0/until", "22:00", "tools/restart/hours/0", "never open"),
    ("tools/restart/hours/0/last_day", "2026-02-30", "tools/restart/hours/0/last_day", "YYYY"),
    ("tools/pay/budgets/daily/count", 0, "tools/pay/budgets/daily/count", "integer"),
    ("tools/pay/budgets/daily/per", "tool", "tools/pay/budgets/daily/per", "not one of"),
    ("tools/pay/budgets/Per Day", {"count": 1, "window_s": 1}, "tools/pay/budgets/Per Day", "name"),
]  # fmt: skip
UNMATCHED: list[tuple[str, Any, str, str]] = [
    ("environments", ["production"], "environments", "never holds here"),
    ("tools/read/tenants", ["acme"], "tools/read/tenants", "tenant_claim"),
    ("tools/read/scopes/0", "file:read", "tools/read/scopes/0", "nearly 'files:read'"),
    (f"{PAID}/approvers/0", "group:https://idp.exmaple.com|payers", f"{PAID}/approvers/0", "nobody"),
    ("tools/pay/approval/approvers/0", "scope:two words", "tools/pay/approval/approvers/0", "nobody"),
    ("methods/tools~1call", {}, "methods/tools~1call", "never asked for"),
    ("methods/completion~1compleet", {}, "methods/completion~1compleet", "not served"),
    ("resources/file:~1~1~1srv~1x~1..~1", {}, "resources/file:~1~1~1srv~1x~1..~1", "normal form"),
    ("resources/other:~1~1x", {}, "resources/other:~1~1x", "resources.allow"),
]  # fmt: skip
ALLOW = {"resources": {"allow": ["file:///srv/", "status://all"]}}


def test_nothing_is_found_in_what_is_right(tmp_path: Path) -> None:
    """Every member in use, and no finding: the mistakes below are what is found, not the data around them."""
    assert look_at_data(settings_of(tmp_path, GOOD, settings=ALLOW)) == []


@pytest.mark.parametrize(
    ("where", "value", "pointer", "word"), WRONG, ids=[f"{row[0]}={row[1]}"[:60] for row in WRONG]
)
def test_a_mistake_in_the_data_is_found_and_only_it(
    tmp_path: Path, where: str, value: Any, pointer: str, word: str
) -> None:
    """Its place, what is wrong, and how to mend it; not in order."""
    data = deepcopy(GOOD)
    put(where, value)(data)
    (found,) = look_at_data(settings_of(tmp_path, data, settings=ALLOW))
    assert found.place == f"{tmp_path / 'bundle/mcp/authz/data.json'}#{FILES}/{pointer}"
    assert (found.what, found.ok, bool(found.mend)) == ("policy data", False, True)
    assert word in found.detail + found.mend


@pytest.mark.parametrize(
    ("where", "value", "pointer", "word"), UNMATCHED, ids=[f"{row[0]}={row[1]}"[:60] for row in UNMATCHED]
)
def test_what_matches_nothing_behind_this_configuration_is_told_and_only_it(
    tmp_path: Path, where: str, value: Any, pointer: str, word: str
) -> None:
    """It may be meant for another gateway, so it is told, with its place, and is in order."""
    data = deepcopy(GOOD)
    put(where, value)(data)
    (found,) = look_at_data(settings_of(tmp_path, data, settings=ALLOW))
    assert found.place.endswith(f"#{FILES}/{pointer}")
    assert (found.what, found.ok, bool(found.mend)) == ("policy data", True, True)
    assert word in found.detail


@pytest.mark.parametrize("data", [[], {"server": {}}, {"servers": []}, 7])
def test_data_of_another_shape_is_one_finding(tmp_path: Path, data: Any) -> None:
    """Nothing is stumbled over."""
    (found,) = look_at_data(settings_of(tmp_path, data))
    assert not found.ok


def test_a_server_that_is_in_one_place_only_is_told(tmp_path: Path) -> None:
    """A name spelt in two ways is told of on both sides, with what was meant."""
    data: Any = {"servers": {"flies": {}}}
    missing, strange = look_at_data(settings_of(tmp_path, data))
    assert (missing.ok, missing.detail) == (True, "does not name files: all requests are denied there")
    assert (strange.ok, strange.place.rpartition("#")[2], strange.mend) == (True, "/servers/flies", "write 'files'")


def test_rules_of_ones_own_may_have_data_of_their_own(tmp_path: Path) -> None:
    """Only names are compared then, and that is said."""
    rules = 'package mcp.authz\n\nimport rego.v1\n\ndecision := {"effect": "deny"}\n'
    data: Any = {"servers": {"files": {"whatever": 1, "tools": {"read": {"level": 7}}}}}
    (told,) = look_at_data(settings_of(tmp_path, data, rules=rules))
    assert (told.ok, told.place, "not the shipped ones" in told.detail) == (True, "", True)
    assert len(look_at_data(settings_of(tmp_path, {"servers": {"flies": {}}}, rules=rules))) == 3


@pytest.mark.parametrize("place", [BANK, PROCUREMENT], ids=["bank", "procurement"])
def test_the_demos_have_nothing_dead(tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a newcomer copies from is in order."""
    house = House(tmp_path, Ports.free(), place=place)
    lend(house.secrets, monkeypatch.setenv)
    house.furnish()
    assert look_at_data(load_settings(house.config_file)) == []


def test_the_shipped_bundle_has_nothing_dead(tmp_path: Path) -> None:
    """It names no server, so the one finding is that this one is not named."""
    (found,) = look_at_data(settings_of(tmp_path, {"servers": {}}))
    assert (found.ok, "does not name files" in found.detail) == (True, True)


def run(config: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> tuple[int, list[dict[str, Any]]]:
    """`ostiary check --json` -> its exit code and its findings."""
    for name, value in secrets_for().items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(main, ["check", "--config", str(config), "--json", *more])
    return result.exit_code, [json.loads(line) for line in result.output.splitlines() if line.startswith("{")]


def test_a_mistake_is_no_and_what_may_be_meant_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1 with the place for programs; a note leaves it at 0."""
    data = deepcopy(GOOD)
    data["servers"]["mail"] = {}
    code, found = run(furnish(tmp_path, data), monkeypatch)
    (note,) = [one for one in found if one["what"] == "policy data"]
    assert (code, note["ok"], note["place"].rpartition("#")[2]) == (0, True, "/servers/mail")
    assert note["mend"]
    data["servers"]["files"]["tools"]["read"]["scope"] = []
    code, found = run(furnish(tmp_path, data), monkeypatch)
    assert code == 1
    assert [one["place"].rpartition("#")[2] for one in found if not one["ok"]] == [f"{FILES}/tools/read/scope"]


async def offer(exchange: Exchange) -> None:
    """A server with two tools and a prompt."""
    method = orjson.loads(exchange.seen.body)["method"]
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("read", "write")]
    offers = {"tools": tools} if method == "tools/list" else {"prompts": [{"name": "greet"}]}
    await exchange.send(http(200, result_of(exchange.id, **offers, ttlMs=0, cacheScope="public")))


async def test_tools_that_no_server_has_are_found_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--live` the servers are asked; without it is said that they were not; one that is away is exit code 2."""
    data: Any = {
        "servers": {"files": {"tools": {"read": {"effect": "read"}, "wriet": False}, "prompts": {"gret": {}}}}
    }
    config = furnish(tmp_path, data)
    code, found = await asyncio.to_thread(run, config, monkeypatch)
    (told,) = [one for one in found if one["what"] == "offers"]
    assert (code, told["ok"], "not asked" in told["detail"]) == (0, True, True)
    code, found = await asyncio.to_thread(run, config, monkeypatch, "--live")
    (away,) = [one for one in found if one["what"] == "offers"]
    assert (code, away["ok"], away["asked"]) == (2, False, False)
    async with ScriptedUpstream(offer) as scripted:
        monkeypatch.setenv("OSTIARY_SERVERS__FILES__REPLICAS", json.dumps([scripted.url]))
        code, found = await asyncio.to_thread(run, config, monkeypatch, "--live")
        missing = {one["place"].rpartition("#")[2]: one["mend"] for one in found if one["what"] == "offers"}
        assert (code, missing) == (
            1,
            {"/servers/files/tools/wriet": "write 'write'", "/servers/files/prompts/gret": "write 'greet'"},
        )
        del data["servers"]["files"]["tools"]["wriet"], data["servers"]["files"]["prompts"]
        furnish(tmp_path, data)
        code, found = await asyncio.to_thread(run, config, monkeypatch, "--live")
        assert (code, [one["ok"] for one in found if one["what"] == "offers"]) == (0, [True])


def test_the_databases_revision_is_told_and_the_database_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres: Postgres
) -> None:
    """None where there is none; the newest; an empty one, which a start that may migrate brings there; one away."""
    database = tmp_path / "desk.db"

    def told(url: str, **more: Any) -> tuple[int, list[str]]:
        config = furnish(tmp_path, GOOD, approvals={"database": url, **more})
        code, found = run(config, monkeypatch)
        return code, [one["detail"] for one in found if one["what"] == "approvals"]

    assert told(f"sqlite:///{database}") == (0, [])
    assert not database.exists()
    asyncio.run(migrate(f"sqlite:///{database}"))
    before = database.read_bytes()
    code, (detail,) = told(f"sqlite:///{database}")
    assert (code, "revision 0" in detail) == (0, True)
    assert database.read_bytes() == before
    url = postgres.create()
    code, (detail,) = told(url)
    assert (code, "the next start" in detail) == (0, True)
    code, (detail,) = told(url, migrate=False)
    assert (code, "has revision none" in detail) == (1, True)
    code, (detail,) = told("postgresql://nobody@127.0.0.1:9/none?sslmode=disable&connect_timeout=1")
    assert code == 2


def test_a_finding_reads_as_one_line() -> None:
    """What people see says whether it is wrong, to be looked at, or in order."""
    lines = [
        Finding("keys", True, "fine").line(),
        Finding("policy data", True, "odd", "f#/a", "write b").line(),
        Finding("policy data", False, "wrong", "f#/a", "write b").line(),
        Finding("offers", False, "away", asked=False).line(),
    ]
    assert lines == [
        "ok   keys: fine",
        "note policy data: f#/a: odd -> write b",
        "FAIL policy data: f#/a: wrong -> write b",
        "???? offers: away",
    ]
