"""The configuration: strict, frozen, fail-closed (requirements OPS-07; design.md, "Public face")."""

from __future__ import annotations

import base64
import re
import traceback
from pathlib import Path
from typing import Any

import pytest
import yaml
from mcp.shared._httpx_utils import MCP_DEFAULT_SSE_READ_TIMEOUT, MCP_DEFAULT_TIMEOUT

from gateway.app import build
from gateway.config import (
    ASYMMETRIC,
    SCOPE,
    SERVER_NAME,
    ApprovalSettings,
    ConfigError,
    EmbeddedPolicySettings,
    Settings,
)
from gateway.config_file import load_settings
from gateway.mistakes import FORMS
from gateway.opening import upstream_limits
from gateway.plan import make_plan


def document() -> dict[str, Any]:
    return {
        "public_url": "https://mcp.example.com",
        "identity": {"issuers": [{"issuer": "https://idp.example.com", "algorithms": ["ES256"]}]},
        "servers": {"readonly": {"path": "/readonly/mcp", "replicas": ["http://10.0.0.1:8000/mcp"]}},
        "policy": {"path": "./policies/bundle"},
        "audit": {"file": "./audit.jsonl"},
    }


def load(folder: Path, content: dict[str, Any] | str) -> Settings:
    file = folder / "ostiary.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return load_settings(file)


def test_the_smallest_configuration_has_safe_defaults(tmp_path: Path) -> None:
    """Loopback is the default bind, and a server's resource is public_url + path (design.md)."""
    settings = load(tmp_path, document())
    assert settings.listen.host == "127.0.0.1"
    assert settings.admin.host == "127.0.0.1"
    assert settings.resource("readonly") == "https://mcp.example.com/readonly/mcp"
    assert settings.approvals_resource == "https://mcp.example.com/approvals"
    assert settings.allowed_hosts == ()


def test_relative_paths_are_the_files_own(tmp_path: Path) -> None:
    """Every command sees the same files wherever it is run."""
    settings = load(tmp_path, document() | {"audit": {"file": "./audit.jsonl", "checkpoints": {"file": "kept"}}})
    assert settings.audit.file == tmp_path / "audit.jsonl"
    assert isinstance(settings.policy, EmbeddedPolicySettings)
    assert settings.audit.checkpoints is not None
    assert settings.audit.checkpoints.file == tmp_path / "kept"
    assert settings.policy.path == tmp_path / "policies/bundle"
    assert settings.approvals.database == f"sqlite:///{tmp_path}/ostiary.db"


@pytest.mark.parametrize(
    ("written", "read"),
    [("2025-06-18", "2025-06-18"), ('"2025-11-25"', "2025-11-25"), ("2025-03-26", "2025-03-26"), ("off", "off")],
)
def test_a_revision_means_what_is_written(tmp_path: Path, written: str, read: str) -> None:
    """YAML reads a bare revision as a date and a bare `off` as false; a revision that is not spoken is refused."""
    text = yaml.safe_dump(document())
    at = "    path: /readonly/mcp\n"
    assert at in text
    assert load(tmp_path, text).servers["readonly"].legacy_servers == "off"
    settings = load(tmp_path, text.replace(at, f"{at}    legacy_servers: {written}\n"))
    assert settings.servers["readonly"].legacy_servers == read
    for wrong in ("2024-11-05", "2026-07-28", "true", "yes", "on", "2025"):
        with pytest.raises(ConfigError, match=r"servers\.readonly\.legacy_servers"):
            load(tmp_path, text.replace(at, f"{at}    legacy_servers: {wrong}\n"))


def test_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OSTIARY_LISTEN__PORT overrides listen.port of the file; secrets' own variables are no settings."""
    monkeypatch.setenv("OSTIARY_LISTEN__PORT", "9999")
    monkeypatch.setenv("OSTIARY_AUDIT_KEY", "not-a-setting")
    assert load(tmp_path, document()).listen.port == 9999


@pytest.mark.parametrize(
    ("name", "text", "mistake"),
    [
        ("OSTIARY_LISTEN__PORT", "70000", "listen.port: "),
        ("OSTIARY_LISTEN_PORT", "1", "is no setting; OSTIARY_LISTEN__PORT is one"),
        ("OSTIARY_LISTN", "{}", "is no setting -> did you mean OSTIARY_LISTEN?"),
        ("OSTIARY_PUBLIC_URI", "https://a", "is no setting -> did you mean OSTIARY_PUBLIC_URL?"),
        ("ostiary_allowed_host", '["a"]', "is no setting -> did you mean OSTIARY_ALLOWED_HOSTS?"),
        ("OSTIARY_LISTN_PORT", "1", "is no setting -> did you mean OSTIARY_LISTEN__PORT?"),
        ("OSTIARY_LISTN__PORT", "1", "there is no setting listn -> did you mean OSTIARY_LISTEN__PORT?"),
        ("ostiary_listn__port", "1", "there is no setting listn -> did you mean OSTIARY_LISTEN__PORT?"),
        ("OSTIARY_NONSUCH__PORT", "1", "there is no setting nonsuch"),
        ("OSTIARY_LISTEN__PRT", "1", "listen.prt: there is no such setting"),
        ("OSTIARY_SERVERS", '{"readonly": {"paht": "/a"}}', "servers.readonly.paht: there is no such setting"),
        ("OSTIARY_SERVERS__READONLY__REPLICAS", '["ftp://h"]', "servers.readonly.replicas.0: "),
    ],
)
def test_a_mistake_is_looked_for_where_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, mistake: str
) -> None:
    """A wrong value of a variable is not called one of the file, nor the other way round."""
    with pytest.raises(ConfigError, match=r"ostiary\.yaml:\d+: admin\.port: "):
        load(tmp_path, {**document(), "admin": {"port": "x"}})
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, document())
    assert f"the environment variable {name}: {mistake}" in str(caught.value)
    assert "ostiary.yaml" not in str(caught.value)


NO_MORE = "must carry neither user information, query nor fragment"
NO_BLANK = "must hold no blank, line end or other control character"


@pytest.mark.parametrize(
    ("more", "mistake"),
    [
        ("http://token:s3cr3t@127.0.0.1:8181", NO_MORE),
        ("http://@127.0.0.1:8181", NO_MORE),
        ("http://127.0.0.1:8181?token=s3cr3t", NO_MORE),
        ("http://127.0.0.1:8181/?", NO_MORE),
        ("http://127.0.0.1:8181/#here", NO_MORE),
        ("http://127.0.0.1:8181\n", NO_BLANK),
        ("http://127.0.0.1:81\t81", NO_BLANK),
        (" http://127.0.0.1:8181", NO_BLANK),
    ],
)
def test_a_url_holds_nothing_that_nobody_would_send(tmp_path: Path, more: str, mistake: str) -> None:
    """What a URL's setting holds is what is asked: a password or a query in it is refused, and not passed over.

    Nor is what Python's `urlsplit` takes away without a word. A secret in it is not shown.
    """

    def with_urls(opa: str, replica: str) -> dict[str, Any]:
        servers = {"readonly": {**document()["servers"]["readonly"], "replicas": [replica]}}
        return {**document(), "policy": {"engine": "opa", "url": opa}, "servers": servers}

    good = "http://127.0.0.1:8181"
    load(tmp_path, with_urls(good, f"{good}/mcp"))
    told = {"policy.url": with_urls(more, good), "servers.readonly.replicas.0": with_urls(good, more)}
    for name, content in told.items():
        with pytest.raises(ConfigError) as caught:
            load(tmp_path, content)
        assert str(caught.value).endswith(f": {name}: {mistake}")
    with pytest.raises(ConfigError, match=r"policy\.url: must have no path"):
        load(tmp_path, with_urls(f"{good}/v1", good))


def test_a_variable_changes_one_setting_of_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the file sets beside it stays: a variable replaces the setting that it names, and no group."""
    content = {**document(), "listen": {"host": "127.0.0.2", "port": 1}}
    monkeypatch.setenv("OSTIARY_LISTEN__PORT", "9999")
    monkeypatch.setenv("ostiary_limits__grace_s", "7")
    settings = load(tmp_path, content)
    assert (settings.listen.host, settings.listen.port, settings.limits.grace_s) == ("127.0.0.2", 9999, 7)


def test_a_setting_has_one_spelling(tmp_path: Path) -> None:
    """`Limits` is no setting, so that a file can't set `limits` twice."""
    assert load(tmp_path, {**document(), "limits": {"grace_s": 7}}).limits.grace_s == 7
    with pytest.raises(ConfigError, match="Limits: there is no such setting"):
        load(tmp_path, {**document(), "Limits": {}})


OWN = [Path(__file__).parents[2] / name for name in ("docs", "gateway", "deploy", "helm", "README.md")]
"""Where variables of the product's own are named."""


def test_variables_that_are_no_settings_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What secrets and commands are documented to be in stops no start, nor what Kubernetes sets for a Service.

    Nor what a setting names: that may be spelt like any.
    """
    files = [file for place in OWN for file in (place.rglob("*") if place.is_dir() else [place])]
    texts = [file.read_text() for file in files if file.suffix in {".md", ".py", ".yaml", ".tpl", ".service"}]
    named = {name for text in texts for name in re.findall(r"\bOSTIARY_[A-Z_]+\b", text)}
    told_as_wrong = {"OSTIARY_LISTEN_PORT", "OSTIARY_LISTN", "OSTIARY_ADMIN_PORT"}
    others = {name for name in named if "__" not in name and not name.endswith("_")} - told_as_wrong
    assert {"OSTIARY_TOKEN", "OSTIARY_SEAL_KEYS", "OSTIARY_EVIDENCE_TOKEN"} <= others
    settings = {f"OSTIARY_{name.upper()}" for name in Settings.model_fields}
    others |= {"OSTIARY_SIGN_IN_CLIENT_SECRET", "OSTIARY_AUDIT_DATABASE_URL", "OSTIARY_LOG_LEVEL"}
    links = ("SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT", "PORT_8080_TCP_ADDR", "ADMIN_SERVICE_PORT")
    others |= {f"OSTIARY_{name}" for name in links}
    for name in others - settings:
        monkeypatch.setenv(name, "s3cr3t")
    load(tmp_path, document())
    monkeypatch.setenv("OSTIARY_PUBLIC_URI", "postgresql://h/d")
    approvals = {"approvals": {"database_env": "OSTIARY_PUBLIC_URI"}}
    assert load(tmp_path, {**document(), **approvals}).approvals.database_env == "OSTIARY_PUBLIC_URI"
    with pytest.raises(ConfigError, match="OSTIARY_PUBLIC_URI"):
        load(tmp_path, document())


@pytest.mark.parametrize(
    ("name", "text", "good"),
    [
        ("OSTIARY_SERVERS__readonly__SCOPES", "mcp:use", '["mcp:use"]'),
        ("OSTIARY_ALLOWED_HOSTS", "mcp.internal:8080", '["mcp.internal:8080"]'),
        ("OSTIARY_IDENTITY__SCOPE_IMPLIES", "a=b", '{"a": ["b"]}'),
        ("OSTIARY_IDENTITY__ISSUERS", "s3cr3t-canary", '[{"issuer": "https://i"}]'),
    ],
)
def test_a_list_in_a_variable_that_is_no_json_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, good: str
) -> None:
    """Whoever writes a list as plain text reads which variable it is and what is wanted, and never its value."""
    monkeypatch.setenv("OSTIARY_LISTEN__HOST", "0.0.0.0")
    monkeypatch.setenv(name, good)
    load(tmp_path, document())
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, document())
    assert str(caught.value) == f"the environment variable {name.upper()}: lists and maps are written as JSON there"


WRONG: list[tuple[str, Any, str]] = [
    ("public_url", "http://mcp.example.com", "public_url"),
    ("public_url", "https://mcp.example.com/base", "public_url"),
    ("identity", {"issuers": []}, "identity.issuers"),
    ("identity", {"issuers": [{"issuer": "http://idp.example.com"}]}, "identity.issuers.0.issuer"),
    ("identity", {"issuers": [{"issuer": "https://i", "algorithms": ["HS256"]}]}, "algorithms.0"),
    ("identity", {"issuers": [{"issuer": "https://i", "algorithms": ["none"]}]}, "algorithms.0"),
    ("identity", {"issuers": [{"issuer": "https://i"}, {"issuer": "https://i"}]}, "configured twice"),
    ("identity", {"issuers": [{"issuer": "https://i/a|b"}]}, "identity.issuers.0"),
    ("identity", {"issuers": [{"issuer": "https://i"}], "leeway_s": 61}, "identity.leeway_s"),
    ("servers", {}, "servers"),
    ("servers", {"a": {"path": "/approvals/x", "replicas": ["http://h/"]}}, "servers.a.path"),
    ("servers", {"a": {"path": "/a/../b", "replicas": ["http://h/"]}}, "servers.a.path"),
    ("servers", {"a": {"path": "/a", "replicas": []}}, "servers.a.replicas"),
    ("servers", {"a": {"path": "/a", "replicas": ["ftp://h/"]}}, "servers.a.replicas.0"),
    ("servers", {"a": {"path": "/a", "replicas": ["http://u:p@h/"]}}, "servers.a.replicas.0"),
    ("servers", {"a": {"path": "/a", "replicas": ["http://h/"], "issuers": ["https://other"]}}, "servers.a.issuers"),
    *(
        ("servers", {"a": {"path": "/a", "replicas": ["http://h/"], **more}}, named)
        for more, named in (
            ({"health": {"probe": "healthz"}}, "servers.a.health.probe"),
            ({"health": {"probe": "http://elsewhere/"}}, "servers.a.health.probe"),
            ({"health": {"probe": "/a b"}}, "servers.a.health.probe"),
            ({"health": {"probe": "discover"}, "legacy_servers": "2025-06-18"}, "health.probe"),
            ({"health": {"ejected_share": 1.1}}, "servers.a.health.ejected_share"),
            ({"deadlines": {"tools/cal": 1}}, "servers.a.deadlines"),
            ({"deadlines": {"subscriptions/listen": 1}}, "servers.a.deadlines"),
            ({"deadlines": {"tools/call": 0}}, "servers.a.deadlines"),
            ({"retries": {"idempotent_tools": ["x"]}}, "retries.idempotent_tools"),
        )
    ),
    ("servers", {"a": {"path": "/a", "replicas": ["http://h/"], "allowed_origins": ["*"]}}, "allowed_origins.0"),
    ("servers", {"a": {"path": "/a", "replicas": ["http://h/"], "quirks": ["any"]}}, "servers.a.quirks.0"),
    (
        "servers",
        {"a": {"path": "/a", "replicas": ["http://h/"], "quirks": ["session_without_version"]}},
        "legacy_clients",
    ),
    ("servers", {n: {"path": "/a", "replicas": ["http://h/"]} for n in "ab"}, "servers.b.path"),
    ("approvals", {"issuers": ["https://other"]}, "approvals.issuers"),
    ("approvals", {"database": "mysql://h/d"}, "database"),
    ("allowed_hostz", [], "allowed_hostz"),
    ("limits", {"body_byte": 1}, "limits.body_byte"),
    ("listen", {"port": 70000}, "listen.port"),
    ("policy", {"path": "./b", "engine": "none"}, "policy.engine"),
    ("listen", {"port": 9090}, "admin.port: is that of listen"),
    ("servers", {"a": {"path": "/a", "replicas": "http://h/"}}, "servers.a.replicas: must be a list"),
    ("servers", {"a": {"path": "/a", "replicas": ["http://h/"], "scopes": "x"}}, "servers.a.scopes: must be a list"),
    ("servers", [], "servers: must be a mapping"),
    ("audit", "./audit.jsonl", "audit: must be a mapping"),
    ("audit", {"file": "a", "rotate_bytes": 1000}, "audit.rotate_bytes"),
    ("audit", {"file": "a", "rotate_s": 1}, "audit.rotate_s"),
    ("audit", {"file": "a", "checkpoints": {"webhook": "http://elsewhere.example.com"}}, "checkpoints.webhook"),
]


@pytest.mark.parametrize(("key", "value", "named"), WRONG)
def test_what_is_wrong_is_named(tmp_path: Path, key: str, value: Any, named: str) -> None:
    """An unknown, unsafe or inconsistent setting refuses to start, and the error names it (OPS-07)."""
    load(tmp_path, document())
    with pytest.raises(ConfigError, match=named.replace(".", r"\.")):
        load(tmp_path, {**document(), key: value})


def test_a_mistake_is_said_once_and_in_words(tmp_path: Path) -> None:
    """A line per mistake: no list that is called empty because its one entry is wrong, no words of a library."""
    wrong = {"identity": {"issuers": [{"issuer": "https://i", "algorithms": ["HS256"]}]}}
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, {**document(), **wrong, "servers": {"a": {"path": "/a", "replica": ["http://h/"]}}})
    lines = [line.split("ostiary.yaml:", 1)[1] for line in str(caught.value).splitlines()]
    assert [line.split(": ", 2)[1:] for line in lines] == [
        ["identity.issuers.0.algorithms.0", f"only asymmetric algorithms are accepted: {', '.join(ASYMMETRIC)}"],
        ["servers.a.replicas", "is required"],
        ["servers.a.replica", "there is no such setting -> did you mean replicas?"],
    ]
    with pytest.raises(ConfigError, match=r"identity\.issuers: must not be empty$"):
        load(tmp_path, {**document(), "identity": {"issuers": []}})


UNMEANT = """\
public_url: https://mcp.example.com
identity: {issuers: [{issuer: https://idp.example.com}]}
servers:
  first:
    path: /mcp
    replicas: [http://10.0.0.1/mcp]
    health: {faults: -1, ejected_s: 5m, ejected_share: 50, slow_start: 3, probe: http}
    load: {concurrent: many, queue: 10.5, queue_s: 0}
    retries: {share: 2, idempotent_tools: read}
    deadlines: {tools/cal: 5, tools/list: 10s}
    pins: true
    legacy_clients: maybe
    credentials: {header: X Own, value_env: 7}
    scopes: [read write]
    tls: {verify: false}
    forward_identity: {header: Who, key: abc}
    registry: {record: ""}
  No_Name: {path: /other, replicas: [http://10.0.0.1/mcp]}
policy: {path: ./bundle}
audit: {file: 1}
idempotency: {keep_s: 24h, keys: 0}
telemetry: {traces: {endpoint: "otel:4318", sample: 10}}
registry: {publisher: "https://example.com"}
listen: {tls: {certificate: a, key: b}, port: 70000}
"""
TOLD = {
    "servers.first.health.faults": "must be at least 0",
    "servers.first.health.ejected_s": "must be a number -> seconds, without a unit: 90 for a minute and a half",
    "servers.first.health.ejected_share": "must be at most 1",
    "servers.first.health.slow_start": "there is no such setting -> did you mean slow_start_s?",
    "servers.first.health.probe": "must be off, tcp, discover, or the path of a health check, which begins with /",
    "servers.first.load.concurrent": "must be a whole number",
    "servers.first.load.queue": "must be a whole number",
    "servers.first.load.queue_s": "must be more than 0",
    "servers.first.retries.share": "must be at most 1",
    "servers.first.retries.idempotent_tools": "must be a list",
    "servers.first.deadlines.tools/cal": "is no method that has a deadline",
    "servers.first.deadlines.tools/list": "must be a number -> seconds, without a unit: 90 for a minute and a half",
    "servers.first.pins": "must be 'off', 'warn' or 'enforce'",
    "servers.first.legacy_clients": "must be true or false",
    "servers.first.credentials.header": "must be the name of a header",
    "servers.first.credentials.value_env": "must be text",
    "servers.first.scopes.0": f"{FORMS[SCOPE]}",
    "servers.first.tls.verify": "there is no such setting -> here are: ca, cert, key",
    "servers.first.forward_identity.key_env": "is required",
    "servers.first.forward_identity.key": "there is no such setting -> did you mean key_env?",
    "servers.first.registry.record": "must not be empty",
    "servers.No_Name": f"{FORMS[SERVER_NAME]}",
    "audit.file": "must be a path",
    "idempotency.keep_s": "must be a number -> seconds, without a unit: 90 for a minute and a half",
    "idempotency.keys": "must be at least 1",
    "telemetry.traces.endpoint": "must be an absolute http:// or https:// URL",
    "telemetry.traces.sample": "must be at most 1",
    "registry.publisher": "must be a domain in lower case, or github:LOGIN",
    "listen.tls.cert": "is required",
    "listen.tls.certificate": "there is no such setting -> here are: cert, client_ca, key",
    "listen.port": "must be at most 65535",
}


def test_every_kind_of_mistake_is_told_in_words(tmp_path: Path) -> None:
    """Numbers with units, shares in percent, names and forms: what to write is said, and nothing of a library."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, UNMEANT)
    lines = [line.split("ostiary.yaml:", 1)[1].split(": ", 2) for line in str(caught.value).splitlines()]
    assert {key: words for _, key, words in lines} == TOLD
    text = UNMEANT.splitlines()
    assert [key for at, key, _ in lines if key.split(".")[-1 - key[-1:].isdigit()] not in text[int(at) - 1]] == [
        "servers.first.forward_identity.key_env",  # what is not there is told at what it belongs to
    ]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"replicas": ["http://169.254.169.254/mcp"]}, "replicas: a metadata service is no destination"),
        ({"credentials": {"header": "Mcp-Own", "value_env": "OWN"}}, "credentials.header: "),
        ({"credentials": {"value_env": "BLANK"}}, "credentials.value_env: "),
        ({"forward_identity": {"key_env": "OWN"}}, "forward_identity.key_env: OWN: holds neither "),
        ({"forward_identity": {"key_env": "KEY", "header": "Cookie"}}, "forward_identity.header: "),
    ],
)
def test_what_the_environment_brings_is_told_at_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], told: str
) -> None:
    """A secret or a header that can't be used is told with the whole name of its setting."""
    for number, name in enumerate(("OSTIARY_AUDIT_KEY", "OSTIARY_SEAL_KEYS", "KEY")):
        monkeypatch.setenv(name, base64.urlsafe_b64encode(bytes([number]) * 32).decode())
    monkeypatch.setenv("OWN", "Bearer own")
    monkeypatch.setenv("BLANK", "two\nlines")
    content = document()
    make_plan(load(tmp_path, content))
    content["servers"]["readonly"] |= more
    with pytest.raises(ValueError, match=re.escape(f"servers.readonly.{told}")):
        make_plan(load(tmp_path, content))


CROOKED = """\
public_url: https://mcp.example.com
identity:
  issuers:
    - issuer: https://idp.example.com
    - {issuer: https://two.example.com, algoritms: [ES256]}
servers:
  first:
    path: /mcp
    replica: [http://10.0.0.1/mcp]
  second: {path: /other,
    replicas: [http://10.0.0.1/mcp, ftp://h/]}
policy: {path: ./bundle, evaluatorz: 2}
audit: {file: a, s3cr3t: b}
"""


def test_a_mistake_is_told_with_its_line_and_its_mend(tmp_path: Path) -> None:
    """Where it stands, to the line, and what to write instead, however deep it is and in whichever style."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, CROOKED)
    told = sorted(line.split("ostiary.yaml:", 1)[1] for line in str(caught.value).splitlines())
    assert [one.split(": ")[:2] for one in told] == [
        ["11", "servers.second.replicas.1"],
        ["12", "policy.evaluatorz"],
        ["13", "audit.s3cr3t"],
        ["5", "identity.issuers.1.algoritms"],
        ["7", "servers.first.replicas"],
        ["9", "servers.first.replica"],
    ]
    mends = [one.partition(" -> ")[2] for one in told]
    assert mends[1] == "did you mean evaluators?"
    assert mends[2].startswith("here are: checkpoints, ")
    assert mends[3:] == ["did you mean algorithms?", "", "did you mean replicas?"]


def test_settings_that_do_not_go_together_are_told_at_the_one_to_change(tmp_path: Path) -> None:
    """A check of several settings names one of them, and the line is that one's."""
    mended = CROOKED.replace("algoritms", "algorithms").replace("replica:", "replicas:").replace(", ftp://h/", "")
    mended = mended.replace(", evaluatorz: 2", "").replace(", s3cr3t: b", "")
    load(tmp_path, mended)
    with pytest.raises(ConfigError, match=r"ostiary\.yaml:10: servers\.second\.path: /mcp is that of servers\.first"):
        load(tmp_path, mended.replace("/other", "/mcp"))


@pytest.mark.parametrize(
    "value",
    ["2026-02-30", "2026-11-30 25:00:00", "!!int x", "!!int ''", "!!float x", "!!bool perhaps", "!!timestamp x"],
)
def test_a_value_that_is_none_of_its_kind_is_told_with_its_line(tmp_path: Path, value: str) -> None:
    """A day that there is not, a tag that does not fit: a mistake like any other, and never a defect."""
    text = CROOKED.replace("audit: {file: a, s3cr3t: b}", f"audit:\n  file: {value}")
    with pytest.raises(ConfigError, match=r"ostiary\.yaml:14: not YAML: the value is none of its kind"):
        load(tmp_path, text)


def test_a_file_that_is_too_deep_is_refused(tmp_path: Path) -> None:
    """However deep it is, it is told and no defect."""
    with pytest.raises(ConfigError, match="not YAML"):
        load(tmp_path, "audit: " + "[" * 5000)


def test_a_doubled_key_is_refused(tmp_path: Path) -> None:
    """YAML's silent last-wins would judge one configuration and show another."""
    text = yaml.safe_dump(document())
    load(tmp_path, text)
    with pytest.raises(ConfigError, match="stands twice"):
        load(tmp_path, text + "public_url: https://evil.example.com\n")


@pytest.mark.parametrize("text", ["", "- a", "a: [", "1: 2", "\x00"])
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    """A file that is not a mapping of settings is one clear error."""
    with pytest.raises(ConfigError):
        load(tmp_path, text)


def test_an_error_never_shows_a_value(tmp_path: Path) -> None:
    """A mistyped secret in the configuration is not repeated on the terminal."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, {**document(), "audit": {"file": "a", "hmac_key": "s3cr3t-canary"}})
    assert "s3cr3t-canary" not in str(caught.value)
    for text in (
        "audit: {file: s3cr3t-canary: b",
        "a: 's3cr3t-canary",
        "? [s3cr3t-canary]\n: 1",
        "a: \x00s3cr3t-canary",
    ):
        with pytest.raises(ConfigError, match=r"ostiary\.yaml(:\d+)?: ") as caught:
            load(tmp_path, text)
        assert "s3cr3t-canary" not in "".join(traceback.format_exception(caught.value))


def test_a_missing_secret_names_setting_and_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator is told which variable of which setting is absent."""
    monkeypatch.delenv("OSTIARY_AUDIT_KEY", raising=False)
    settings = load(tmp_path, document())
    with pytest.raises(ConfigError, match=r"audit\.hmac_key_env: the environment variable OSTIARY_AUDIT_KEY"):
        settings.secret(settings.audit.hmac_key_env, "audit.hmac_key_env")


def test_files_go_only_where_checkpoints_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`keep_s` needs rotation and a second place, a second place needs a key; each is told by its setting's name."""
    one, other, third = (base64.urlsafe_b64encode(bytes([number]) * 32).decode() for number in (1, 2, 3))
    monkeypatch.setenv("OSTIARY_AUDIT_KEY", one)
    monkeypatch.setenv("OSTIARY_SEAL_KEYS", other)
    monkeypatch.delenv("OSTIARY_CHECKPOINT_KEY", raising=False)

    def build_with(**audit: Any) -> None:
        build(load(tmp_path, document() | {"audit": {"file": "a", **audit}}))

    with pytest.raises(ConfigError, match=r"audit\.keep_s"):
        build_with(keep_s=60, rotate_s=60)
    with pytest.raises(ConfigError, match=r"audit\.checkpoints: name a file"):
        build_with(checkpoints={})
    with pytest.raises(ConfigError, match=r"audit\.checkpoints\.key_env: .* OSTIARY_CHECKPOINT_KEY is not set"):
        build_with(checkpoints={"file": "kept"})
    monkeypatch.setenv("OSTIARY_CHECKPOINT_KEY", "short")
    with pytest.raises(ValueError, match="OSTIARY_CHECKPOINT_KEY: not 32 bytes"):
        build_with(checkpoints={"file": "kept"})
    monkeypatch.setenv("OSTIARY_CHECKPOINT_KEY", third)
    with pytest.raises(ConfigError, match=r"audit\.keep_s"):
        build_with(keep_s=60, checkpoints={"file": "kept"})
    build_with(keep_s=60, rotate_s=60, checkpoints={"file": "kept"})


@pytest.mark.parametrize("headers", ["x-key=k\u20acy", "x key=secret", "=secret", "x-key=sec\nret"])
def test_headers_that_could_not_be_sent_stop_the_start(
    headers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`audit.otlp.headers_env`: told by its name, never quoted; a good one is taken."""
    for number, name in enumerate(("OSTIARY_AUDIT_KEY", "OSTIARY_SEAL_KEYS")):
        monkeypatch.setenv(name, base64.urlsafe_b64encode(bytes([number]) * 32).decode())
    otlp = {"endpoint": "https://otel.example.com/v1/logs", "headers_env": "OTLP_HEADERS"}
    settings = load(tmp_path, document() | {"audit": {"file": "a", "otlp": otlp}})
    monkeypatch.setenv("OTLP_HEADERS", "x-key=good, other=Bearer a=b")
    assert build(settings)._plan.audit_headers == {"x-key": "good", "other": "Bearer a=b"}
    monkeypatch.setenv("OTLP_HEADERS", headers)
    with pytest.raises(ConfigError, match=r"audit\.otlp\.headers_env: OTLP_HEADERS does not hold") as told:
        build(settings)
    assert "secret" not in str(told.value)


def test_who_subscribes_leaves_connections_for_who_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All subscriptions may be at one replica, and every call beside them still finds a connection to it."""
    for number, name in enumerate(("OSTIARY_AUDIT_KEY", "OSTIARY_SEAL_KEYS"), 1):
        monkeypatch.setenv(name, base64.urlsafe_b64encode(bytes([number]) * 32).decode())
    for limits in ({}, {"subscriptions": 100_000}, {"concurrent": 20_000}):
        settings = load(tmp_path, document() | {"limits": limits})
        connections = upstream_limits(build(settings)._plan).connections
        assert connections > settings.limits.subscriptions + settings.limits.concurrent


def test_the_record_and_the_seals_share_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is given the audit's key to compare values must not hold the tickets' and states' key with it."""
    one, other = (base64.urlsafe_b64encode(bytes([number]) * 32).decode() for number in (1, 2))
    monkeypatch.setenv("OSTIARY_AUDIT_KEY", one)
    monkeypatch.setenv("OSTIARY_SEAL_KEYS", other)
    settings = load(tmp_path, document())
    house = build(settings)
    assert repr(bytes([2]) * 32) not in repr(house._plan)
    monkeypatch.setenv("OSTIARY_SEAL_KEYS", f"{other},{one}")
    with pytest.raises(ConfigError, match=r"seals\.keys_env.*share a key"):
        build(settings)


@pytest.mark.parametrize("setting", ["pins", "arguments", "legacy_servers"])
def test_a_bare_off_is_off(tmp_path: Path, setting: str) -> None:
    """YAML reads it as false; whoever writes it means off, wherever that is a choice. True is no choice at all."""
    at = "    path: /readonly/mcp\n"
    text = yaml.safe_dump(document())
    settings = load(tmp_path, text.replace(at, f"{at}    {setting}: off\n    tool_arguments: {{search: off}}\n"))
    assert getattr(settings.servers["readonly"], setting) == "off"
    assert settings.servers["readonly"].tool_arguments == {"search": "off"}
    with pytest.raises(ConfigError, match=f"readonly.{setting}"):
        load(tmp_path, text.replace(at, f"{at}    {setting}: on\n"))


@pytest.mark.parametrize("method", ["tasks/list", "tasks/result", "notifications/cancelled", ""])
def test_a_method_that_is_never_served_is_not_listed(tmp_path: Path, method: str) -> None:
    """A setting that would silently do nothing is a mistake, and named."""
    content = document()
    content["servers"]["readonly"]["methods"] = ["acme/report"]
    assert load(tmp_path, content).servers["readonly"].methods == ("acme/report",)
    content["servers"]["readonly"]["methods"] = ["acme/report", method]
    with pytest.raises(ConfigError, match=r"servers\.readonly\.methods\.1"):
        load(tmp_path, content)


def test_a_kept_call_is_answered_before_an_official_client_gives_up() -> None:
    """The default hold is shorter than the Python SDK's timeouts (the TypeScript SDK waits 60 s for an answer)."""
    assert ApprovalSettings().hold_s < min(MCP_DEFAULT_TIMEOUT, MCP_DEFAULT_SSE_READ_TIMEOUT, 60.0)
