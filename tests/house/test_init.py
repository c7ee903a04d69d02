"""`ostiary init`: what it writes is accepted, closed where nobody opened it, and takes nobody's files away."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from click.testing import CliRunner, Result

from gateway.beginning.asking import Offer
from gateway.beginning.drafting import Answers, draft_configuration, draft_data
from gateway.beginning.schema import rows_of_page, settings_schema, walk
from gateway.cli import main
from gateway.config import Settings
from gateway.config_file import load_settings
from policies.rego_tests import run_tests
from tests.house.test_settings_documented import DOCUMENT, ROWS, literal, put

KEYS = {"OSTIARY_AUDIT_KEY": "", "OSTIARY_SEAL_KEYS": ""}
GIVEN = {
    "--issuer": "https://idp.example.com",
    "--server": "http://127.0.0.1:9/mcp",
    "--name": "notes",
    "--public-url": "http://127.0.0.1:8080",
    "--scope": "mcp:use",
    "--approvers": "group:ops",
}


def init(folder: Path, *words: str, **changes: str) -> Result:
    """Run it with the answers given, but for `changes`."""
    given = {**GIVEN, **{f"--{name.replace('_', '-')}": value for name, value in changes.items()}}
    options = [word for pair in given.items() for word in pair]
    return CliRunner().invoke(main, ["init", "--dir", str(folder), *options, *words], env=KEYS)


def test_what_it_writes_loads_and_is_closed(tmp_path: Path) -> None:
    """A server that is away: the files load, nothing is open, keys are their owner's alone, the rules' tests pass."""
    done = init(tmp_path / "new")
    assert (done.exit_code, "could not be asked" in done.output) == (0, True), done.output
    settings = load_settings(tmp_path / "new/ostiary.yaml")
    assert settings.servers["notes"].replicas == ("http://127.0.0.1:9/mcp",)
    assert settings.servers["notes"].scopes == ("mcp:use",)
    data = json.loads((tmp_path / "new/policies/bundle/mcp/authz/data.json").read_text())
    assert data == {"servers": {"notes": {"scopes": ["mcp:use"], "tools": {}}}}
    assert (tmp_path / "new/ostiary.env").stat().st_mode & 0o777 == 0o600
    keys = dict(line.split("=", 1) for line in (tmp_path / "new/ostiary.env").read_text().splitlines())
    assert set(keys) == set(KEYS)
    assert len(set(keys.values())) == 2
    assert all(one.passed for one in run_tests(tmp_path / "new/policies/bundle"))
    assert sorted(one.name for one in (tmp_path / "new").iterdir()) == [
        "ostiary.env", "ostiary.schema.json", "ostiary.yaml", "policies",
    ]  # fmt: skip


def test_a_folder_that_has_them_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    """Six answers are not asked for in vain; and the pages name a folder that a clone does not have."""
    (tmp_path / "policies").mkdir()
    done = CliRunner().invoke(main, ["init", "--dir", str(tmp_path)], env=KEYS)
    assert (done.exit_code, "issuer URL" in done.output, "--dir" in done.output) == (2, False, True), done.output
    root = Path(__file__).parents[2]
    for page in ("README.md", "docs/quickstart.md"):
        (folder,) = re.findall(r"^(?:\$ )?ostiary init --dir (\S+)", (root / page).read_text(), re.MULTILINE)
        assert not (root / folder).exists(), page


def test_it_asks_for_what_it_is_not_told(tmp_path: Path) -> None:
    """Six questions; an empty answer takes what is proposed, and opens nothing."""
    answers = "https://idp.example.com" + "\n" * 6
    done = CliRunner().invoke(main, ["init", "--dir", str(tmp_path), "--no-ask"], input=answers, env=KEYS)
    assert done.exit_code == 0, done.output
    server = load_settings(tmp_path / "ostiary.yaml").servers["tools"]
    assert (server.replicas, server.scopes) == (("http://127.0.0.1:8000/mcp",), ())


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("issuer", "http://idp.example.com", "identity.issuers.0.issuer: must be https"),
        ("server", "ftp://h/mcp", "servers.notes.replicas.0: "),
        ("server", "http://169.254.169.254/mcp", "servers.notes.replicas: a metadata service"),
        ("name", "Not A Name", "servers"),
        ("public_url", "http://mcp.example.com", "public_url: must be https"),
        ("scope", "two words", "servers.notes.scopes.0: "),
        ("public_url", "http://127.0.0.1:99999", "public_url: has no valid port"),
        ("public_url", "http://localhost:x", "public_url: has no valid port"),
        ("public_url", "http://[::1", "public_url: Invalid IPv6 URL"),
        ("name", "", "the server needs a name"),
        ("approvers", "bob", "approvers: 'bob' is not group:NAME, user:SUBJECT or scope:NAME"),
        ("approvers", "user:", "approvers: 'user:' is not"),
        ("approvers", "user:bob, user:dora", "approvers: one here"),
    ],
)
def test_an_answer_that_will_not_do_is_named_and_nothing_written(
    tmp_path: Path, name: str, value: str, named: str
) -> None:
    """The setting and the reason; no file, no folder of drafts is left behind."""
    assert init(tmp_path / "good", "--no-ask").exit_code == 0
    done = init(tmp_path / "bad", "--no-ask", **{name: value})
    assert (done.exit_code, named in done.output) == (2, True), done.output
    assert list((tmp_path / "bad").glob("*")) == []


@pytest.mark.parametrize("there", ["ostiary.yaml", "ostiary.env", "ostiary.schema.json", "policies"])
def test_nothing_is_overwritten(tmp_path: Path, there: str) -> None:
    """One file that is there, or a link to nowhere, and nothing is written."""
    (tmp_path / there).symlink_to("nowhere")
    done = init(tmp_path, "--no-ask")
    assert (done.exit_code, there in done.output) == (2, True)
    assert [one.name for one in tmp_path.iterdir()] == [there]


OFFER = Offer({"erase": False, "read": True, "\u202etool\n": False}, ("greet",), "2025-06-18")


@pytest.mark.parametrize("approvers", ["", "group:ops"])
def test_hints_open_only_what_reads(approvers: str) -> None:
    """What does not say that it only reads waits for the approvers, and is closed where nobody was named."""
    answers = Answers("https://i", "http://127.0.0.1/mcp", "notes", "http://127.0.0.1:8080", "", approvers, "at+jwt")
    held: Any = {"effect": "write", "approval": {"approvers": ["group:ops"], "ttl_s": 3600}} if approvers else False
    tools = {"erase": held, "read": {"effect": "read"}, "\u202etool\n": held}
    assert draft_data(answers, OFFER) == {"servers": {"notes": {"tools": tools, "prompts": {"greet": {}}}}}


def test_answers_are_values_and_never_yaml(tmp_path: Path) -> None:
    """Whatever an answer holds, it is the one setting's value."""
    issuer = 'https://idp.example.com/"\n# x: {a: b}'
    answers = Answers(issuer, "http://h/mcp", "notes", "http://127.0.0.1:8080", "a", "", "JWT")
    document = yaml.safe_load(draft_configuration(answers, "2025-06-18"))
    assert document["identity"]["issuers"] == [{"issuer": issuer, "token_types": ["JWT"]}]
    assert document["servers"]["notes"]["legacy_servers"] == "2025-06-18"
    assert set(document) <= set(Settings.model_fields)


def test_the_schema_takes_what_the_page_shows_and_names_what_is_wrong() -> None:
    """Each example of the page is valid by it, each setting described in it; unknown keys and wrong types are not."""
    schema = settings_schema()
    judge = jsonschema_rs.validator_for(schema)
    assert judge.is_valid(DOCUMENT)
    for row in ROWS:
        assert judge.is_valid(put(literal(row[0]), literal(row[3]))), row[0]
    assert not judge.is_valid({**DOCUMENT, "listne": {}})
    assert not judge.is_valid({**DOCUMENT, "listen": {"port": "x"}})
    assert not judge.is_valid({name: value for name, value in DOCUMENT.items() if name != "audit"})
    groups = {"Settings": schema, **schema["$defs"]}
    missing = [
        path for path, group, name in walk(Settings) if not groups[group]["properties"][name].get("description")
    ]
    assert missing == []
    assert len(rows_of_page()) == len(ROWS)
