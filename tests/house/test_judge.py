"""What a reload is judged by: the same that a start rests on, and what can't change while a gateway runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import EmbeddedPolicySettings, Settings
from gateway.config_file import load_settings
from gateway.serving.judge import FIXED, judge
from tests.support.stack import Stack, lend

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """A configuration that serves, and its secrets."""
    made = Stack(tmp_path, {"files": ["http://127.0.0.1:9/mcp"]})
    made.configure()
    lend(made.secrets, monkeypatch.setenv)
    return made


def judged(stack: Stack, edit: Edit) -> dict[str, Any]:
    running = stack.config.read_bytes()
    document = yaml.safe_load(running)
    edit(document)
    return judge(stack.config, running, yaml.safe_dump(document, sort_keys=False).encode())


def test_what_serves_is_taken_and_its_bounds_are_told(stack: Stack) -> None:
    """Another limit is no reason to say no; what drains is a part of the grace time."""
    told = judged(stack, lambda one: one.update(limits={"concurrent": 7, "grace_s": 3, "drain_s": 9}))
    assert told == {"mistakes": [], "grace_s": 3, "drain_s": 3}


WRONG: dict[str, tuple[Edit, str]] = {
    "no certificate": (
        lambda one: one["servers"]["files"].update(replicas=["https://127.0.0.1:9/mcp"], tls={"ca": "no.pem"}),
        r"servers\.files\.tls\.ca: .*no\.pem",
    ),
    "unknown key": (lambda one: one["limits"].update(body_byte=1), r"limits\.body_byte: .* did you mean body_bytes"),
    "missing secret": (lambda one: one.update(seals={"keys_env": "NOWHERE"}), r"seals\.keys_env: .*NOWHERE"),
    "no bundle": (lambda one: one.update(policy={"path": "nowhere"}), r"policy\.path: .*nowhere"),
    "half a setting": (
        lambda one: one.update(audit={"file": "audit.jsonl", "checkpoints": {}}),
        r"audit\.checkpoints: name a file",
    ),
    "no keys": (
        lambda one: one["identity"]["issuers"][0].update(jwks_file="no.json"),
        r"identity\.issuers: .*no\.json",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_would_not_start_is_refused_by_name(stack: Stack, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mistake with the file, the line, the key and what to do, where that is known."""
    monkeypatch.setattr("gateway.inspecting.inspection.KEYS_WITHIN_S", 0.5)
    edit, told = WRONG[wrong]
    mistakes = judged(stack, edit)["mistakes"]
    assert len(mistakes) == 1, mistakes
    assert re.match(re.escape(str(stack.config)) + r":\d+: " + told, mistakes[0]), mistakes[0]


def test_a_file_that_is_no_configuration_is_refused(stack: Stack) -> None:
    """Half of a file that is being written, say."""
    told = judge(stack.config, stack.config.read_bytes(), b"servers: {files: ")
    assert len(told["mistakes"]) == 1
    assert "not YAML" in told["mistakes"][0]


OTHERS: dict[str, Any] = {
    "listen.host": "127.0.0.2", "listen.port": 1, "admin.host": "127.0.0.2", "admin.port": 2,
    "audit.file": "other.jsonl", "audit.database": "postgresql://db.example/a", "audit.database_env": "OTHER",
    "approvals.database": "sqlite:///other.db", "approvals.database_env": "OTHER",
}  # fmt: skip


def test_every_fixed_setting_is_tried_below() -> None:
    """The two tables name the same settings, and each is one."""
    assert set(OTHERS) == set(FIXED)
    for name in FIXED:
        group, key = name.split(".")
        annotation: Any = Settings.model_fields[group].annotation
        assert key in annotation.model_fields


def test_tls_is_neither_begun_nor_ended_while_it_runs(stack: Stack) -> None:
    """Workers of two configurations share a socket for a while: it speaks one thing. Other files are no change."""

    def tls(document: dict[str, Any]) -> None:
        document["public_url"] = document["public_url"].replace("http:", "https:")
        document["listen"]["tls"] = {"cert": "x.pem", "key": "x.key"}

    (mistake,) = judged(stack, tls)["mistakes"]
    assert ": listen.tls: can't change while the gateway runs -> " in mistake
    document = yaml.safe_load(stack.config.read_bytes())
    tls(document)
    stack.config.write_text(yaml.safe_dump(document, sort_keys=False))
    (mistake,) = judged(stack, lambda one: one["listen"]["tls"].update(key="y.key"))["mistakes"]
    assert re.search(r"listen\.tls\.cert: .*x\.pem: No such file", mistake)


@pytest.mark.parametrize("name", FIXED)
def test_what_cannot_change_is_refused_by_name_and_not_ignored(
    stack: Stack, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a gateway listens, and where what it must not forget is: put it back, or restart."""
    monkeypatch.setenv("OTHER", "postgresql://db.example/a")
    group, key = name.split(".")

    def edit(document: dict[str, Any]) -> None:
        chosen = {} if name == "approvals.database_env" else document.get(group, {})  # either, or the default
        document[group] = {**chosen, key: OTHERS[name]}

    mistakes = judged(stack, edit)["mistakes"]
    assert len(mistakes) == 1, mistakes
    assert f": {name}: can't change while the gateway runs -> put the old value back, or restart" in mistakes[0]


def test_what_was_taken_in_from_elsewhere_may_be_gone(stack: Stack) -> None:
    """What runs has servers of a registry that are admitted no more: it can still be followed by another text."""
    running = yaml.safe_load(stack.config.read_bytes())
    coming = yaml.safe_dump(running, sort_keys=False).encode()
    other = {"servers": {"other": {**running["servers"]["files"], "path": "/other/mcp"}}}
    (stack.config.parent / "taken.yaml").write_text(yaml.safe_dump(other))
    old = yaml.safe_dump({**running, "registry": {"servers": "taken.yaml", "lock": "no.lock"}}).encode()
    assert "registry.lock" in judge(stack.config, coming, old)["mistakes"][0], "it would not start by now"
    assert judge(stack.config, old, coming)["mistakes"] == []
    (stack.config.parent / "taken.yaml").write_text("servers: {")
    (mistake,) = judge(stack.config, old, coming)["mistakes"]
    assert ": configuration: what runs can't be read any more" in mistake
    assert "taken.yaml" in mistake
    assert mistake.endswith("-> mend that, or restart")


@pytest.mark.parametrize("name", ["audit.file", "approvals.database"])
def test_a_link_that_leads_elsewhere_moves_neither_the_record_nor_the_tickets(
    stack: Stack, tmp_path: Path, name: str
) -> None:
    """The same text in another folder names another record and other tickets: refused, unless its paths are whole."""
    document = yaml.safe_load(stack.config.read_bytes())
    paths = {"audit.file": "audit.jsonl", "approvals.database": "tickets.db"}
    for one, path in paths.items():
        group, key = one.split(".")
        whole = str(path if one == name else tmp_path / path)
        document[group] = {**document.get(group, {}), key: f"sqlite:///{whole}" if key == "database" else whole}
    text = yaml.safe_dump(document, sort_keys=False).encode()
    assert judge(stack.config, text, text, tmp_path)["mistakes"] == []
    begun_in = tmp_path / "release-1"
    (mistake,) = judge(stack.config, text, text, begun_in)["mistakes"]
    assert f": {name}: can't change while the gateway runs" in mistake
    settings = load_settings(stack.config, text, home=begun_in)
    assert str(begun_in / paths[name]) in f"{settings.audit.file} {settings.approvals.database}"
    assert isinstance(settings.policy, EmbeddedPolicySettings)
    assert settings.policy.path == stack.config.parent / document["policy"]["path"], (
        "all else is where the link leads"
    )
