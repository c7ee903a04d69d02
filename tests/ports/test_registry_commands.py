"""`ostiary registry validate | import | publish` against a real registry."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.config import ConfigError
from gateway.config_file import load_settings, read_settings
from gateway.inspecting.finding import Finding
from gateway.inspecting.published_look import look_at_published
from gateway.pins import file as files
from gateway.registry.admission import server_name
from gateway.registry.lock import LockUnreadable, read_lock, write_lock
from gateway.registry.namespaces import namespace_for
from gateway.registry.publishing import NoKey, prove
from tests.support.issuer import Issuer
from tests.support.registry import PUBLISHED, TOKEN, PrivateRegistry, key_pair, private_registry, record, settings_for
from tests.support.stack import ISSUER, secrets_for, write_config

WEATHER = "com.example/weather"
EVIL = "x\u200b\x1b[2J"


@pytest.fixture(scope="module")
def _shared() -> Iterator[PrivateRegistry]:
    with private_registry(page=3) as registry:
        yield registry


@pytest.fixture
def registry(_shared: PrivateRegistry) -> PrivateRegistry:
    """A registry with one good record."""
    _shared.entries.clear()
    _shared.asked.clear()
    _shared.twist = lambda _: None
    _shared.put(at())
    return _shared


@pytest.fixture
def config(tmp_path: Path, registry: PrivateRegistry) -> Path:
    """A configuration with a server of its own, and the registry."""
    servers = {"own": ["http://127.0.0.1:9/mcp"]}
    return write_config(
        tmp_path, Issuer(ISSUER), servers, port=8080, admin_port=9090, registry=dict(settings_for(registry))
    )


def at(url: str = "http://127.0.0.1:8000/mcp", **more: Any) -> dict[str, Any]:
    """The good record, at a URL."""
    return record(remotes=[{"type": "streamable-http", "url": url}], **more)


SECRETS = secrets_for()


def ostiary(*words: str | Path, **env: str) -> Result:
    return CliRunner().invoke(
        main, ["registry", *map(str, words)], env={**SECRETS, "OSTIARY_REGISTRY_TOKEN": "", **env}
    )


def admit(config: Path, *names: str, words: tuple[str, ...] = ()) -> Result:
    """Look, and admit what was shown."""
    shown = json.loads(ostiary("import", "--config", config, *names, "--json").stdout)
    return ostiary("import", "--config", config, *names, *words, "--accept", "--seen", shown["seen"], "--json")


def put(folder: Path, document: Any) -> Path:
    file = folder / "server.json"
    file.write_text(json.dumps(document))
    return file


# ------------------------------------------------------------------------ validate


def test_validate_says_where_and_how_to_mend(tmp_path: Path) -> None:
    """Exit 0 for a good record (notes included), 1 with place, rule and mend, 2 for what can't be read."""
    good, bad = put(tmp_path, record(version="7")), tmp_path / "bad.json"
    bad.write_text(json.dumps(record(version="latest", title=EVIL)))
    done = ostiary("validate", good, "--publisher", "example.com")
    assert done.exit_code == 0, done.output
    assert "[version-semantic] -> write MAJOR.MINOR.PATCH" in done.stdout
    done = ostiary("validate", good, bad)
    assert done.exit_code == 1
    assert f"FAIL {bad}: /version: is no single version [version-concrete] -> name one version" in done.stdout
    assert not {"\u200b", "\x1b"} & set(done.output)
    told = json.loads(ostiary("validate", bad, "--json").stdout)
    assert [one["valid"] for one in told] == [False]
    flaw = next(one for one in told[0]["flaws"] if one["rule"] == "text-hidden")
    assert (flaw["pointer"], flaw["note"]) == ("/title", False)
    assert ostiary("validate", tmp_path / "absent.json").exit_code == 2
    assert ostiary("validate", good, "--publisher", "no domain").exit_code == 2


# ------------------------------------------------------------------------ import


def test_what_is_admitted_is_a_server_of_the_configuration(config: Path, registry: PrivateRegistry) -> None:
    """Shown, admitted by its digest, recorded, and then a server whose tools have to be accepted; a gateway says by
    which lock and which servers it was."""
    assert ostiary("import", "--config", config).exit_code == 0
    shown = ostiary("import", "--config", config, WEATHER)
    assert shown.exit_code == 1
    assert f"{WEATHER} (1.0.0): new" in shown.stdout
    assert "http://127.0.0.1:8000/mcp" in shown.stdout
    assert set(load_settings(config).servers) == {"own"}
    done = admit(config, WEATHER)
    assert done.exit_code == 0, done.output
    server = load_settings(config).servers["com-example-weather"]
    assert server.replicas == ("http://127.0.0.1:8000/mcp",)
    assert (server.path, server.pins) == ("/com-example-weather/mcp", "enforce")
    assert server.registry is not None
    assert server.registry.record == f"{WEATHER}@1.0.0"
    _, texts = read_settings(config)
    for name, file in (("registry.lock", "registry.lock"), ("registry.servers", "imported.yaml")):
        assert texts[name] == hashlib.sha256((config.parent / file).read_bytes()).hexdigest()
    (admitted,) = read_lock((config.parent / "registry.lock").read_bytes()).values()
    assert admitted.record == at()
    assert admitted.accepted_by == f"local:{os.getuid()}@{socket.gethostname()}"
    lines = [json.loads(line) for line in (config.parent / "audit.jsonl").read_text().splitlines()]
    acts = [one for one in lines if one.get("act") == "registry_admitted"]
    assert [one["facts"]["records"][0][:2] for one in acts] == [[WEATHER, "new"]]
    assert ostiary("import", "--config", config, WEATHER).exit_code == 0
    assert ostiary("import", "--config", config, WEATHER, "--accept", "--seen", "x", "--json").exit_code == 0
    assert len(registry.asked) > 3


def test_what_changed_upstream_is_refused_and_shown(config: Path, registry: PrivateRegistry) -> None:
    """Another URL under the same version changes nothing of what is served, and every difference is told."""
    assert admit(config, WEATHER).exit_code == 0
    assert ostiary("import", "--config", config).exit_code == 0
    served = (config.parent / "imported.yaml").read_bytes()
    registry.entries[0].document = at("http://127.0.0.1:6666/mcp", title="Other")
    told = ostiary("import", "--config", config, "--json")
    assert told.exit_code == 1
    (one,) = json.loads(told.stdout)["servers"]
    assert one["state"] == "changed"
    assert one["warning"] == "the same version with other contents: a version is published once"
    assert [(found["path"], found["before"], found["after"]) for found in one["differences"]] == [
        ("/record/remotes/0/url", '"http://127.0.0.1:8000/mcp"', '"http://127.0.0.1:6666/mcp"'),
        ("/record/title", None, '"Other"'),
    ]
    assert (config.parent / "imported.yaml").read_bytes() == served
    assert load_settings(config).servers["com-example-weather"].replicas == ("http://127.0.0.1:8000/mcp",)
    assert admit(config, WEATHER).exit_code == 0
    assert load_settings(config).servers["com-example-weather"].replicas == ("http://127.0.0.1:6666/mcp",)


@pytest.mark.parametrize(("version", "marked"), [("1.9.0", True), ("1.10.1", False), ("2026-11", False)])
def test_an_older_version_is_marked(config: Path, registry: PrivateRegistry, version: str, marked: bool) -> None:
    """A registry that brings an old record back is told apart from one that brings a new one."""
    registry.put(at(version="1.10.0"))
    assert admit(config, WEATHER).exit_code == 0
    assert "LOOK TWICE" not in ostiary("import", "--config", config, WEATHER).stdout
    registry.put(at(version=version))
    shown = ostiary("import", "--config", config, WEATHER)
    assert shown.exit_code == 1
    assert ("LOOK TWICE: older than 1.10.0, which was admitted" in shown.stdout) is marked


@pytest.mark.parametrize("marked", [False, True])
def test_a_record_that_leads_elsewhere_is_marked(config: Path, registry: PrivateRegistry, marked: bool) -> None:
    """Credentials in a stanza stay: whoever admits a new version sees that they would go to another address."""
    registry.put(at())
    assert admit(config, WEATHER).exit_code == 0
    registry.put(at("http://127.0.0.1:6666/mcp", version="1.1.0") if marked else at(version="1.1.0"))
    shown = ostiary("import", "--config", config, WEATHER)
    assert f"{WEATHER} (1.1.0): changed" in shown.stdout
    assert ("LOOK TWICE: a remote is gone" in shown.stdout) is marked


def test_who_dies_in_the_middle_leaves_nothing_served(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two files nothing starts, naming what nobody admitted; the same acceptance again puts it right."""
    put_in_place = files.put_in_place
    placed: list[Path] = []

    def dies(beside: Path, target: Path) -> None:
        if placed:
            raise OSError("died")
        placed.append(target)
        put_in_place(beside, target)

    monkeypatch.setattr(files, "put_in_place", dies)
    assert admit(config, WEATHER).exit_code == 2
    assert [file.name for file in placed] == ["imported.yaml"]
    with pytest.raises(ConfigError, match=r"com-example-weather: is not in registry.lock"):
        load_settings(config)
    monkeypatch.setattr(files, "put_in_place", put_in_place)
    assert admit(config, WEATHER).exit_code == 0
    assert "com-example-weather" in load_settings(config).servers


def test_only_what_was_shown_is_admitted(config: Path, registry: PrivateRegistry) -> None:
    """What moved on since it was shown is refused; so is an acceptance without names, or without having seen."""
    shown = json.loads(ostiary("import", "--config", config, WEATHER, "--json").stdout)
    registry.entries[0].document = at("http://127.0.0.1:6666/mcp")
    late = ostiary("import", "--config", config, WEATHER, "--accept", "--seen", shown["seen"])
    assert (late.exit_code, late.stderr) == (1, "what is there now is not what was shown: look again\n")
    assert not (config.parent / "registry.lock").exists()
    assert ostiary("import", "--config", config, "--accept", "--seen", "x").exit_code == 2
    assert ostiary("import", "--config", config, WEATHER, "--accept").exit_code == 2
    assert ostiary("import", "--config", config, "com.example/absent").exit_code == 2


@pytest.mark.parametrize("status", ["deprecated", "deleted"])
def test_the_registrys_state_counts(config: Path, registry: PrivateRegistry, status: str) -> None:
    """Deprecated is a change to be accepted, deleted (or not listed) one that takes the server away once accepted."""
    assert admit(config, WEATHER).exit_code == 0
    registry.entries[0].status, registry.entries[0].message = status, f"use another {EVIL}"
    told = ostiary("import", "--config", config)
    assert told.exit_code == 1
    assert "the registry says: use another x\\u{200b}\\u{1b}[2J" in told.stdout
    assert "com-example-weather" in load_settings(config).servers
    assert admit(config, WEATHER).exit_code == 0
    assert ("com-example-weather" in load_settings(config).servers) is (status == "deprecated")
    assert ostiary("import", "--config", config).exit_code == 0


def test_a_record_that_is_listed_no_more_is_gone(config: Path, registry: PrivateRegistry) -> None:
    """Also where the registry says nothing of it at all; and `--since` says nothing of what is not listed."""
    assert admit(config, WEATHER).exit_code == 0
    registry.entries.clear()
    told = json.loads(ostiary("import", "--config", config, "--json").stdout)
    assert [(one["name"], one["state"]) for one in told["servers"]] == [(WEATHER, "gone")]
    assert ostiary("import", "--config", config, "--since", PUBLISHED).exit_code == 0


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (at(version="latest"), "version-concrete"),
        (at("http://169.254.169.254/"), "url-address"),
        (at("http://example.com/mcp"), "url-https"),
        (record(remotes=[]), "nothing to front"),
        (record(remotes=[{"type": "sse", "url": "https://example.com/"}]), "nothing to front"),
        (
            record(remotes=[{"type": "streamable-http", "url": "https://{t}.example.com/", "variables": {"t": {}}}]),
            "nothing",
        ),
        (at("http://127.0.0.1:8000/mcp?key=x"), "nothing"),
        (at(_meta={"com.example/large": "x" * 140_000}), "more than 131072 bytes"),
        (record(version=1), None),
    ],
)
def test_what_is_not_fit_is_not_admitted(
    config: Path, registry: PrivateRegistry, document: dict[str, Any], why: str | None
) -> None:
    """A record with flaws, or without a URL to front, is told as such and never written into the lock."""
    registry.entries.clear()
    if why is None:  # the registry's own tests forbid it to say so: a hostile one does
        from tests.support.registry import told as answer

        registry.twist = lambda _: answer({"servers": [{"server": document}]})
        assert ostiary("import", "--config", config, WEATHER).exit_code == 2
        return
    registry.put(document)
    shown = ostiary("import", "--config", config, WEATHER)
    assert shown.exit_code == 1
    assert f"can't be admitted: {why}" in shown.stdout or why in shown.stdout
    done = ostiary("import", "--config", config, WEATHER, "--accept", "--seen", "x")
    assert done.exit_code == 1
    assert not (config.parent / "registry.lock").exists()


@pytest.mark.parametrize("named", ["own", "Bad Name", "../../x", "x" * 200, "a: b\nc", ""])
def test_nothing_is_admitted_that_would_stop_the_start(config: Path, named: str) -> None:
    """A name or a path that the configuration can't have is refused before anything is recorded or written."""
    if not named:  # its own name, and the path that comes with it, which is another server's
        document = yaml.safe_load(config.read_text())
        document["servers"]["own"]["path"] = "/com-example-weather/mcp"
        config.write_text(yaml.safe_dump(document))
    done = admit(config, WEATHER, words=("--as", named) if named else ())
    assert done.exit_code == 1, done.output
    assert json.loads(done.stdout)["error"] == "unfit"
    assert not {"registry.lock", "imported.yaml"} & {file.name for file in config.parent.iterdir()}
    assert "registry_admitted" not in (config.parent / "audit.jsonl").read_text()
    assert set(load_settings(config).servers) == {"own"}
    assert admit(config, WEATHER, words=("--as", "weather")).exit_code == 0


def test_a_publisher_is_held_to_its_namespace(config: Path, registry: PrivateRegistry) -> None:
    """`registry.publisher` holds names of what is imported to the verified domain."""
    document = yaml.safe_load(config.read_text())
    document["registry"]["publisher"] = "example.org"
    config.write_text(yaml.safe_dump(document))
    assert namespace_for("example.org") == "org.example"
    told = ostiary("import", "--config", config, WEATHER)
    assert (told.exit_code, "name-publisher" in told.stdout) == (1, True)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"replicas": ["http://127.0.0.1:6666/mcp"]}, "replicas: is no remote of the admitted record"),
        ({"pins": "warn"}, "pins: must be enforce"),
        ({"registry": {"record": f"{WEATHER}@2.0.0"}}, f"registry.lock admits {WEATHER}@1.0.0"),
        ({"registry": None}, f"registry.lock admits {WEATHER}@1.0.0"),
    ],
)
def test_a_stanza_that_the_lock_does_not_hold_stops_the_start(
    config: Path, registry: PrivateRegistry, change: dict[str, Any], what: str
) -> None:
    """Whatever was edited by hand: what a registry brought is served as it was admitted, or not at all."""
    assert admit(config, WEATHER).exit_code == 0
    file = config.parent / "imported.yaml"
    document = yaml.safe_load(file.read_text())
    document["servers"]["com-example-weather"]["scopes"] = ["weather:use"]
    file.write_text(yaml.safe_dump(document))
    assert load_settings(config).servers["com-example-weather"].scopes == ("weather:use",)
    good = file.read_text()
    document["servers"]["com-example-weather"] |= change
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match=what):
        load_settings(config)
    file.write_text(good)
    registry.entries[0].document = at(description="Another")
    assert admit(config, WEATHER).exit_code == 0
    assert load_settings(config).servers["com-example-weather"].scopes == ("weather:use",)


def test_servers_of_both_files_are_told_apart(config: Path) -> None:
    """A name in both is refused, naming the file; so is a server that nobody admitted, and a lock that is broken."""
    file = config.parent / "imported.yaml"
    file.write_text("servers: {own: {path: /x/mcp, replicas: ['http://127.0.0.1:9/mcp']}}")
    with pytest.raises(ConfigError, match=r"imported.yaml: servers.own: is one of the configuration's own"):
        load_settings(config)
    file.write_text("servers: {other: {path: /x/mcp, replicas: ['http://127.0.0.1:9/mcp']}}")
    with pytest.raises(ConfigError, match=r"imported.yaml: servers.other: is not in registry.lock"):
        load_settings(config)
    file.write_text("servers: {other: {path: x, replicas: ['http://127.0.0.1:9/mcp']}}")
    with pytest.raises(ConfigError, match=r"imported.yaml:1: servers.other.path"):
        load_settings(config)
    (config.parent / "registry.lock").write_text("{")
    file.write_text("servers: {other: {path: /x/mcp, replicas: ['http://127.0.0.1:9/mcp']}}")
    with pytest.raises(ConfigError, match=r"registry.lock: .*not JSON"):
        load_settings(config)


def test_check_looks_at_records(config: Path) -> None:
    """`ostiary check` judges records: a good one is told, each flaw has its place, one is not there."""

    def told(text: str | None, source: str = "server.json") -> list[Finding]:
        document = yaml.safe_load(config.read_text())
        document["servers"]["own"]["registry"] = {"record": source}
        config.write_text(yaml.safe_dump(document))
        if text is not None:
            (config.parent / "server.json").write_text(text)
        return look_at_published(load_settings(config))

    assert [one.ok for one in told(None)] == [False]
    assert [one.ok for one in told(json.dumps(record()))] == [True]
    (flaw,) = told(json.dumps(record(version="1.x")))
    assert (flaw.ok, flaw.place.endswith("server.json#/version")) == (False, True)
    (asked,) = told(None, f"{WEATHER}@1.0.0")
    assert (asked.ok, "registry drift" in asked.detail) == (True, True)
    done = CliRunner().invoke(main, ["check", "--config", str(config)], env=SECRETS)
    assert f"ok   published: own: {WEATHER}@1.0.0" in done.stdout


def test_a_gateway_of_a_registrys_servers_alone_can_begin(config: Path) -> None:
    """No server of its own, and nothing admitted yet: the command works, and nothing is served."""
    document = yaml.safe_load(config.read_text())
    del document["servers"]
    config.write_text(yaml.safe_dump(document))
    assert admit(config, WEATHER, words=("--as", "weather")).exit_code == 0
    assert set(load_settings(config).servers) == {"weather"}
    document["registry"].pop("servers")
    config.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match=r"servers: (must not be empty|is required)"):
        load_settings(config)


def test_a_server_has_a_name_of_its_own() -> None:
    """Names of a registry become names of settings; two that would be the same are told apart."""
    assert server_name("com.example/Weather_2", ()) == "com-example-weather-2"
    assert server_name("com.example/a-b", {"com-example-a-b"}) == server_name("com.example/a-b", {"com-example-a-b"})
    assert server_name("com.example/a-b", {"com-example-a-b"}) != server_name("com.example.a/b", {"com-example-a-b"})
    assert len(server_name("com.example/" + "a" * 180, ())) <= 64


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace(b"8000", b"6666"),
        lambda text: text.replace(b'"version": 1', b'"version": 2'),
        lambda text: text.replace(b'"status"', b'"state"'),
        lambda text: text.replace(b'"active"', b'5'),
        lambda text: text.replace(b'"servers"', b'"servers": {}, "servers"'),
        lambda _: b"[]",
    ],
)  # fmt: skip
def test_a_lock_is_all_right_or_none(config: Path, damage: Any) -> None:
    """A record that is not its digest's, another version, another member: nothing of such a text is taken."""
    assert admit(config, WEATHER).exit_code == 0
    text = (config.parent / "registry.lock").read_bytes()
    assert write_lock(read_lock(text)) == text
    assert text.isascii()
    with pytest.raises(LockUnreadable):
        read_lock(damage(text))


def test_a_registry_that_is_away_is_2(config: Path, registry: PrivateRegistry) -> None:
    """What could not be asked is no answer."""
    from tests.support.registry import told as answer

    registry.twist = lambda _: answer({"error": "down"}, 503)
    told = ostiary("import", "--config", config)
    assert (told.exit_code, "the registry fails (503): down" in told.stderr) == (2, True)


# ------------------------------------------------------------------------ publish


def publish(registry: PrivateRegistry, file: Path, *words: str | Path, token: str = TOKEN) -> Result:
    return ostiary("publish", file, "--url", registry.url, *words, OSTIARY_REGISTRY_TOKEN=token)


def test_a_record_is_published_once(registry: PrivateRegistry, tmp_path: Path) -> None:
    """Sent as it stands; the same again says so and sends nothing; another under its version shows what differs."""
    document = record(version="2.0.0")
    file = put(tmp_path, document)
    dry = publish(registry, file, "--dry-run", token="")
    assert (dry.exit_code, dry.stdout) == (0, f"{WEATHER}@2.0.0 would be published: nothing was sent\n")
    assert len(registry.entries) == 1
    done = publish(registry, file)
    assert (done.exit_code, done.stdout) == (0, f"{WEATHER}@2.0.0 published\n")
    assert registry.entries[-1].document == document
    again = publish(registry, put(tmp_path, {**document, "_meta": {"com.example/dropped": {}}}))
    assert (again.exit_code, "is published already, and the same: nothing was sent" in again.stdout) == (0, True)
    other = publish(registry, put(tmp_path, {**document, "title": "New"}), "--json")
    assert other.exit_code == 1
    assert json.loads(other.stdout) == {
        "result": "differs", "differences": [{"path": "/title", "published": None, "yours": '"New"'}],
    }  # fmt: skip
    assert [one for one in registry.asked if one.startswith("POST")] == ["POST /v0.1/publish"]


def test_what_is_not_valid_is_not_sent(registry: PrivateRegistry, tmp_path: Path) -> None:
    """Validation comes first, and nothing is asked of the registry."""
    registry.asked.clear()
    done = publish(registry, put(tmp_path, record(version="latest")))
    assert (done.exit_code, "version-concrete" in done.stdout) == (1, True)
    done = publish(registry, put(tmp_path, record()), "--publisher", "example.org")
    assert (done.exit_code, "name-publisher" in done.stdout) == (1, True)
    assert registry.asked == []


def test_somebody_else_may_be_sooner(registry: PrivateRegistry, tmp_path: Path) -> None:
    """A version that appears between the look and the sending is compared like one that was there."""
    document = record(version="3.0.0")

    def sooner(request: Any) -> None:
        if request.method == "POST":
            registry.put(document)

    registry.twist = sooner
    done = publish(registry, put(tmp_path, document))
    assert (done.exit_code, "and the same" in done.stdout) == (0, True)


@pytest.mark.parametrize(
    ("token", "name", "code", "why"),
    [
        ("another-token", "com.example/new", 1, "does not take the token"),
        (TOKEN, "org.other/new", 1, "the namespace is not its (403): You do not have permission"),
        ("", "com.example/new", 2, "OSTIARY_REGISTRY_TOKEN holds no bearer token"),
        ("two words", "com.example/new", 2, "holds no bearer token"),
    ],
)
def test_a_no_of_the_registry_is_said(  # noqa: PLR0917 - one a column
    registry: PrivateRegistry, tmp_path: Path, token: str, name: str, code: int, why: str
) -> None:
    """Exit 1 with the registry's reason in our words; 2 where there is nothing to ask with. No token is shown."""
    done = publish(registry, put(tmp_path, record(name)), token=token)
    assert (done.exit_code, why in done.stderr) == (code, True), done.output
    assert not token or token not in done.output


@pytest.mark.parametrize("method", ["http", "dns"])
def test_a_domains_key_is_a_login(registry: PrivateRegistry, tmp_path: Path, method: str) -> None:
    """The proof is signed for this moment; the token that it gives publishes; the name is held to the domain."""
    pem, registry.key = key_pair()
    key = tmp_path / "key.pem"
    key.write_bytes(pem)
    words = ("--login", method, "--domain", "example.com", "--key", key)
    done = publish(registry, put(tmp_path, record(version="4.0.0")), *words, token="")
    assert done.exit_code == 0, done.output
    assert f"POST /v0.1/auth/{method}" in registry.asked
    below = publish(registry, put(tmp_path, record("com.example.api/x")), *words, "--dry-run", token="")
    assert ("name-publisher" in below.stdout) is (method == "http")
    foreign = publish(registry, put(tmp_path, record("org.other/x")), *words, token="")
    assert (foreign.exit_code, "name-publisher" in foreign.stdout) == (1, True)
    assert publish(registry, put(tmp_path, record()), "--login", method).exit_code == 2


def test_a_p384_key_proves_a_domain_too() -> None:
    """Its signature is r and s in 96 bytes, as registries read it; other keys are refused."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA384

    def pem(key: ec.EllipticCurvePrivateKey) -> bytes:
        return key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    key = ec.generate_private_key(ec.SECP384R1())
    proof = prove("example.com", pem(key))
    signature = bytes.fromhex(proof["signed_timestamp"])
    assert len(signature) == 96
    whole = encode_dss_signature(int.from_bytes(signature[:48]), int.from_bytes(signature[48:]))
    key.public_key().verify(whole, proof["timestamp"].encode(), ec.ECDSA(SHA384()))
    for wrong in (pem(ec.generate_private_key(ec.SECP256R1())), b"no key"):
        with pytest.raises(NoKey):
            prove("example.com", wrong)
