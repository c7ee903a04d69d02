"""By what two gateways are told apart: every part that they serve by, and nothing in which equal ones differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from gateway.config_file import read_settings
from gateway.plan import make_plan
from policies.bundles import load_bundle
from tests.support.stack import Stack, lend, secrets_for


@dataclass
class Gateway:
    """One that would start, and the environment that it would start in."""

    stack: Stack
    setenv: Callable[[str, str], None]

    def parts(self) -> dict[str, str]:
        """What it would say of its configuration."""
        return dict(make_plan(*read_settings(self.stack.config)).parts)

    def bundle(self) -> str:
        """The digest of its bundle."""
        return load_bundle(self.stack.folder / "bundle").digest()


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    """With its secrets."""
    stack = Stack(tmp_path, {"files": ["http://127.0.0.1:9/mcp"]})
    stack.configure()
    lend(stack.secrets, monkeypatch.setenv)
    return Gateway(stack, monkeypatch.setenv)


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    """The parts in which they are not alike."""
    assert one.keys() == other.keys()
    return {part for part in one if one[part] != other[part]}


def test_the_same_files_and_keys_are_the_same_gateway(gateway: Gateway) -> None:
    """Read twice, nothing differs; a file's part is what `sha256sum` says, and `""` where there is no such file."""
    parts = gateway.parts()
    assert parts == gateway.parts()
    assert parts["configuration"] == hashlib.sha256(gateway.stack.config.read_bytes()).hexdigest()
    assert (parts["registry.servers"], parts["registry.lock"]) == ("", "")
    assert all(len(parts[part]) == 64 for part in ("settings", "seals"))


def test_what_the_environment_says_is_a_part(gateway: Gateway) -> None:
    """Another setting there is other settings under the same text; what it does not set changes nothing."""
    before = gateway.parts()
    gateway.setenv("OSTIARY_LIMITS__CONCURRENT", "7")
    assert differing(before, gateway.parts()) == {"settings"}
    text = gateway.stack.config.read_text()
    gateway.stack.config.write_text(text + "# a remark\n")
    gateway.setenv("OSTIARY_LIMITS__CONCURRENT", "1000")
    assert differing(before, gateway.parts()) == {"configuration"}, "1000 is what it was by itself"


def test_who_can_not_open_what_another_sealed_is_another(gateway: Gateway) -> None:
    """The set of keys counts, not which one seals; and no key, nor what it is hashed to by itself, is told."""
    first, second = (secrets_for()["OSTIARY_SEAL_KEYS"] for _ in range(2))
    seen = []
    for keys in (first, f"{first},{second}", f"{second},{first}"):
        gateway.setenv("OSTIARY_SEAL_KEYS", keys)
        seen.append(gateway.parts())
    assert differing(seen[0], seen[1]) == {"seals"}
    assert seen[1] == seen[2]
    assert hashlib.sha256(first.encode()).hexdigest() not in seen[0].values()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ostiary:{}@db.example/ostiary",
        "postgresql://ostiary@db.example/ostiary?sslmode=require&password={}",
        "postgresql://db.example/ostiary?sslpassword={}&sslmode=require",
    ],
)
def test_no_password_is_guessed_by_a_digest(gateway: Gateway, url: str) -> None:
    """Whoever may read digests could try one password after the other: none is in them. Where tickets lie is."""
    for setting in ("OSTIARY_APPROVALS__DATABASE", "OSTIARY_AUDIT__DATABASE"):
        gateway.setenv(setting, url.format("first"))
        before = gateway.parts()
        for other in ("second", "se%40cond", ""):
            gateway.setenv(setting, url.format(other))
            assert gateway.parts() == before
        gateway.setenv(setting, url.format("first").replace("db.example", "other.example"))
        assert differing(before, gateway.parts()) == {"settings"}


@pytest.mark.parametrize("file", [".manifest", "mcp/authz/data.json", "mcp/authz/authz.rego"])
def test_a_bundle_is_known_by_all_that_decides(gateway: Gateway, file: str) -> None:
    """Revision, data and rules, under one revision as well; not by its tests, nor by how its data is laid out."""
    before, path = gateway.bundle(), gateway.stack.folder / "bundle" / file
    home = gateway.stack.folder / "bundle/mcp/authz"
    data = json.loads((home / "data.json").read_text())
    (home / "data.json").write_text(json.dumps(data, indent=7))
    (home / "more_test.rego").write_text("package mcp.authz_test\n")
    assert gateway.bundle() == before
    path.write_text(
        path.read_text() + "\n# another\n"
        if path.suffix == ".rego"
        else json.dumps({**json.loads(path.read_text()), **({"revision": "other"} if file[0] == "." else {"a": 1})})
    )
    assert gateway.bundle() != before


def test_other_settings_of_a_server_are_another_part(gateway: Gateway) -> None:
    """Whatever file they come from."""
    before = gateway.parts()
    document = yaml.safe_load(gateway.stack.config.read_text())
    document["servers"]["files"]["replicas"] = ["http://127.0.0.1:10/mcp"]
    gateway.stack.config.write_text(yaml.safe_dump(document, sort_keys=False))
    assert differing(before, gateway.parts()) == {"configuration", "settings"}
