"""`ostiary check` says what would go wrong before it does, and what an operator should know."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.audit.tables import connect, make_tables
from gateway.cli import main
from gateway.config_file import load_settings
from gateway.inspecting.inspection import look_for_folders
from tests.support.issuer import Issuer, signing_key
from tests.support.postgres import Postgres
from tests.support.stack import secrets_for, write_config

PASSING = """package mcp.authz_test

import rego.v1

test_nothing_is_allowed if {
	data.mcp.authz.decision.effect == "deny" with input as {"phase": "call", "server": {"name": "x"}}
}
"""


def check(folder: Path, monkeypatch: pytest.MonkeyPatch, tests: str = PASSING, **changes: Any) -> Result:
    """Run the command on a configuration with the shipped rules and these tests beside them."""
    for name, value in secrets_for().items():
        monkeypatch.setenv(name, value)
    issuer = Issuer("https://idp.example.com", [signing_key()])
    config = write_config(folder, issuer, {"files": ["http://10.0.0.1/mcp"]}, port=8080, admin_port=9090, **changes)
    (folder / "bundle/mcp/authz/own_test.rego").write_text(tests)
    return CliRunner().invoke(main, ["check", "--config", str(config), "--json"], env={})


def findings(result: Result) -> dict[str, tuple[bool, str]]:
    """What was looked at -> whether it is in order, and the words."""
    told = [json.loads(line) for line in result.output.splitlines() if line.startswith('{"what"')]
    return {one["what"]: (one["ok"], one["detail"]) for one in told}


def test_a_bundle_whose_tests_fail_is_not_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundle's own tests run; one that fails is named, and the command's answer is no."""
    good = check(tmp_path, monkeypatch)
    assert (good.exit_code, findings(good)["policy tests"]) == (0, (True, "1 passed")), good.output
    bad = check(tmp_path, monkeypatch, PASSING.replace('"deny"', '"allow"'))
    assert bad.exit_code == 1
    ok, detail = findings(bad)["policy tests"]
    assert (ok, "test_nothing_is_allowed" in detail) == (False, True)


def test_a_candidate_that_could_not_look_on_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shadow's bundle is loaded and tested like the one that judges; in order where it would look on."""
    shadow = {"path": "bundle", "shadow": {"path": "next"}}
    gone = check(tmp_path, monkeypatch, policy=shadow)
    ok, detail = findings(gone)["shadow"]
    assert (gone.exit_code, ok, detail.startswith("policy.shadow.path: ")) == (1, False, True)
    shutil.copytree(tmp_path / "bundle", tmp_path / "next")
    good = check(tmp_path, monkeypatch, policy=shadow)
    assert good.exit_code == 0, good.output
    assert findings(good)["shadow"] == findings(good)["policy"]
    assert findings(good)["shadow tests"] == (True, "1 passed")
    (tmp_path / "next/mcp/authz/own_test.rego").write_text(PASSING.replace('"deny"', '"allow"'))
    bad = check(tmp_path, monkeypatch, policy=shadow)
    assert (bad.exit_code, findings(bad)["shadow tests"][0], findings(bad)["policy tests"][0]) == (1, False, True)


def test_where_the_record_lies_is_told_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres: Postgres
) -> None:
    """No tables yet, tables that only grow, tables whose trigger is off, a server that is away."""

    def told(url: str) -> tuple[int, str]:
        result = check(tmp_path, monkeypatch, audit={"file": "audit.jsonl", "database": url})
        return result.exit_code, findings(result)["audit"][1]

    url = postgres.create()
    database = url.rpartition("/")[2]
    assert told(url) == (0, "audit.database: has no tables yet: the first start makes them")
    assert postgres.sql("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'ostiary%'", database).strip() == "0"

    async def make() -> None:
        connection = await connect(url, 20.0)
        await make_tables(connection)
        await connection.close()

    asyncio.run(make())
    code, detail = told(url)
    assert (code, "only grows; this role owns the tables" in detail) == (0, True)
    postgres.sql("ALTER TABLE ostiary_audit DISABLE TRIGGER ostiary_audit_only_grows", database)
    code, detail = told(url)
    assert (code, "ostiary_audit can be changed" in detail) == (1, True)
    code, detail = told("postgresql://nobody@127.0.0.1:9/none?sslmode=disable")
    assert (code, detail) == (2, "audit.database: ConnectionRefusedError")


def test_a_local_approver_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`local_approve` lets whoever has this machine approve: it works, and it is never silent."""
    database = "sqlite:///ostiary.db"
    assert "approvals" not in findings(check(tmp_path, monkeypatch, approvals={"database": database}))
    told = check(tmp_path, monkeypatch, approvals={"database": database, "local_approve": True})
    assert told.exit_code == 0
    assert "local_approve" in findings(told)["approvals"][1]


def test_a_server_of_an_earlier_revision_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the gateway keeps sessions at a server is nothing to be found out from its log."""
    assert "legacy servers" not in findings(check(tmp_path, monkeypatch))
    told = check(tmp_path, monkeypatch, settings={"legacy_servers": "2025-06-18"})
    assert (told.exit_code, findings(told)["legacy servers"]) == (0, (True, "files is initialized, with 2025-06-18"))


def test_an_issuer_without_keys_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which issuer, where its keys were looked for, and what came of it: else nobody knows what to mend."""
    monkeypatch.setattr("gateway.inspecting.inspection.KEYS_WITHIN_S", 0.2)
    good = check(tmp_path, monkeypatch)
    assert findings(good)["keys"] == (True, "https://idp.example.com")
    document = tmp_path / "none.json"
    document.write_text('{"keys": 1}')
    issuers = [
        {"issuer": "https://idp.example.com", "jwks_file": "jwks.json", "algorithms": ["ES256"]},
        {"issuer": "https://other.example.com", "jwks_file": "none.json", "algorithms": ["ES256"]},
    ]
    bad = check(tmp_path, monkeypatch, identity={"issuers": issuers})
    assert bad.exit_code == 1
    ok, detail = findings(bad)["keys"]
    why = f"{document}: it is no key set (ValueError)"
    assert (ok, detail) == (False, f"identity.issuers: https://other.example.com: {why}")


def test_an_issuer_that_could_sign_nobody_in_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys may be there as a file: that people could not sign in, nothing else would say before they try."""
    assert "sign-in" not in findings(check(tmp_path, monkeypatch))
    away = "http://127.0.0.1:9"
    identity = {"issuers": [{"issuer": away, "jwks_file": "jwks.json", "algorithms": ["ES256"]}]}
    sign_in = {"issuer": away, "client_id": "ostiary-review"}
    bad = check(tmp_path, monkeypatch, identity=identity, sign_in=sign_in)
    assert bad.exit_code == 1
    assert findings(bad)["keys"][0]
    assert findings(bad)["sign-in"] == (False, f"{away}: ConnectError")


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("audit", {"audit": {"file": "none/audit.jsonl"}}),
        ("approvals", {"approvals": {"database": "sqlite:///none/ostiary.db"}}),
    ],
)
def test_a_folder_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, changes: dict[str, Any]
) -> None:
    """The record and the tickets are not opened, but where they would be made is looked at; nothing is made."""
    bad = check(tmp_path, monkeypatch, **changes)
    assert bad.exit_code == 1
    ok, detail = findings(bad)[what]
    assert (ok, detail) == (False, f"{what}.{next(iter(changes[what]))}: there is no folder {tmp_path / 'none'}")
    (tmp_path / "none").mkdir()
    good = check(tmp_path, monkeypatch, **changes)
    assert good.exit_code == 0
    assert what not in findings(good)
    assert list((tmp_path / "none").iterdir()) == []


def test_a_configuration_is_in_order_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One finding about it, never both."""
    good = [line for line in check(tmp_path, monkeypatch).output.splitlines() if '"configuration"' in line]
    assert [json.loads(line)["detail"] for line in good] == ["1 server: files"]
    secrets = secrets_for() | {"OSTIARY_SEAL_KEYS": "x"}
    monkeypatch.setattr("tests.house.test_inspection.secrets_for", lambda: secrets)
    bad = check(tmp_path, monkeypatch)
    lines = [json.loads(line) for line in bad.output.splitlines() if '"configuration"' in line]
    assert [(one["ok"], "OSTIARY_SEAL_KEYS" in one["detail"]) for one in lines] == [(False, True)]


def test_who_is_served_besides_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older clients and tolerated quirks are in order, named by server, and not there unless they are on."""
    assert not findings(check(tmp_path, monkeypatch)).keys() & {"legacy clients", "quirks"}
    monkeypatch.setenv("OSTIARY_SERVERS__FILES__LEGACY_CLIENTS", "true")
    monkeypatch.setenv("OSTIARY_SERVERS__FILES__QUIRKS", '["session_without_version", "accept_json_only"]')
    told = check(tmp_path, monkeypatch)
    assert told.exit_code == 0
    assert findings(told)["legacy clients"] == (True, "served by files")
    assert findings(told)["quirks"] == (True, "tolerated by files: accept_json_only, session_without_version")


def test_the_folder_of_pins_is_looked_for_where_pins_count(tmp_path: Path) -> None:
    """`pins accept` would fail there; nobody misses a folder that no server needs."""
    changes = {"pins": {"file": "none/pins.json"}}
    issuer = Issuer("https://idp.example.com", [signing_key()])
    for mode, told in (("off", []), ("warn", [f"pins.file: there is no folder {tmp_path / 'none'}"])):
        servers, settings = {"files": ["http://10.0.0.1/mcp"]}, {"pins": mode}
        file = write_config(tmp_path, issuer, servers, port=8080, admin_port=9090, settings=settings, **changes)
        assert [one.detail for one in look_for_folders(load_settings(file))] == told


@pytest.mark.parametrize(
    ("hook", "environment", "told"),
    [
        ({"url": "https://hooks.example/"}, {}, "approvals.webhooks[0].secret_env: is missing"),
        ({"url": "https://hooks.example/", "secret_env": "HOOK"}, {}, "webhooks[0].secret_env: the environment"),
        ({"url": "https://hooks.example/", "secret_env": "HOOK"}, {"HOOK": "canary"}, "secret_env: secret 1 is not"),
        ({"url_env": "HOOK_URL", "format": "slack"}, {}, "webhooks[0].url_env: the environment"),
        ({"url_env": "HOOK_URL", "format": "slack"}, {"HOOK_URL": "http://canary.example/"}, "url: must be https"),
        ({"url": "https://169.254.169.254/", "format": "slack"}, {}, "approvals.webhooks[0].url: a metadata service"),
        ({"format": "slack"}, {}, "give either url or url_env"),
    ],
)  # fmt: skip
def test_a_webhook_that_could_not_be_told_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: dict[str, str], environment: dict[str, str], told: str
) -> None:
    """A missing or unusable secret or URL is a mistake of the configuration: the setting's name, and no value."""
    good = {"url": "https://hooks.example/", "secret_env": "GOOD"}
    monkeypatch.setenv("GOOD", "whsec_" + "A" * 43 + "=")
    database = "sqlite:///ostiary.db"
    fine = check(tmp_path, monkeypatch, approvals={"database": database, "webhooks": [good]})
    assert fine.exit_code == 0, fine.output
    for name in ("HOOK", "HOOK_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    bad = check(tmp_path, monkeypatch, approvals={"database": database, "webhooks": [hook]})
    assert bad.exit_code == (1 if hook.keys() & {"url", "url_env"} else 2)
    assert told in bad.output
    assert "canary" not in bad.output
