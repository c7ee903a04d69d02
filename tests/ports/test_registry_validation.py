"""`server.json` judged: every released schema, every rule beyond it, and texts that want to cost much."""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.registry.flaws import MOST, RULES, usable
from gateway.registry.namespaces import NoPublisher, namespace_for
from gateway.registry.record import LARGEST, PUBLISHER, RecordUnusable, published, read_record
from gateway.registry.releases import DATES, NEWEST, RELEASES, schema_of
from gateway.registry.validation import judge, validate
from tests.support.registry import record

PAGE = (Path(__file__).parents[2] / "docs/registry.md").read_text()
URL = "https://weather.example.com/mcp"
VARIABLES: dict[str, Any] = {"variables": {"tenant": {"isRequired": True}}}
NPM = {"registryType": "npm", "identifier": "@example/weather", "version": "1.0.0", "transport": {"type": "stdio"}}
OCI = {
    "registryType": "oci",
    "identifier": "images.example.com/example/weather:1.0.0",
    "transport": {"type": "stdio"},
}
MCPB = {
    "registryType": "mcpb", "identifier": "https://github.com/e/w/releases/download/v1/w.mcpb",
    "fileSha256": "0" * 64, "transport": {"type": "stdio"},
}  # fmt: skip
HTTP = {"type": "streamable-http", "url": "http://127.0.0.1:{PORT}/mcp"}
PORT = {"environmentVariables": [{"name": "PORT"}]}


def remote(url: str = URL, **more: Any) -> dict[str, Any]:
    return {"type": "streamable-http", "url": url, **more}


def at(*remotes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return record(remotes=list(remotes), **more)


def packed(*packages: dict[str, Any]) -> dict[str, Any]:
    return record(packages=list(packages))


GOOD: dict[str, dict[str, Any]] = {
    "a remote": record(),
    "a title": record(title="Weather", websiteUrl="https://example.com/", icons=[{"src": "https://example.com/i.png"}]),
    "a template": at(remote("https://{tenant}.example.com:{port}/mcp", variables={"tenant": {}, "port": {}})),
    "two kinds": at(remote(), {"type": "sse", "url": URL}),
    "a header": at(remote(headers=[{"name": "X-Key", "isSecret": True, "value": "Bearer {key}"}])),
    "a GitHub login": record("io.github.Alice/weather"),
    "a version": record(version="2.0.0-rc.1+build.7"),
    "npm": packed(NPM),
    "an image": packed(OCI),
    "an image by digest": packed({**OCI, "identifier": f"example/weather@sha256:{'a' * 64}"}),
    "a bundle": packed(MCPB),
    "its own port": packed({**NPM, **PORT, "transport": HTTP}),
    "arguments": packed({**NPM, "runtimeHint": "npx",
                         "packageArguments": [{"type": "named", "name": "--v", "value": "1"}],
                         "runtimeArguments": [{"type": "positional", "value": "x"}]}),
    "a repository": record(repository={"url": "https://github.com/a/b", "source": "github", "subfolder": "src/x"}),
    "metadata": record(_meta={PUBLISHER: {"a": "b" * 4_000}}),
}  # fmt: skip

BAD: list[tuple[str, str, dict[str, Any]]] = [
    ("schema", "/version", record(version=1)),
    ("schema", "/remotes/0/url", at(remote("ftp://example.com/"))),
    ("schema", "/remotes/0/type", at({"type": "stdio"})),
    ("schema", "/packages/0/packageArguments/0", packed({**NPM, "packageArguments": [{"type": "positional"}]})),
    ("schema", "/packages/0/fileSha256", packed({**NPM, "fileSha256": "A" * 64})),
    ("schema", "", {key: value for key, value in record().items() if key != "description"}),
    ("schema-missing", "/$schema", {key: value for key, value in record().items() if key != "$schema"}),
    ("schema-unknown", "/$schema", record(**{"$schema": NEWEST.url.replace("2025", "2024")})),
    ("schema-unknown", "/$schema", {**record(), "$schema": 5}),
    ("schema-old", "/$schema", record(**{"$schema": RELEASES[-2].url})),
    ("member-unknown", "/remote", record(remote=[])),
    ("member-unknown", "/status", record(status="active")),
    ("name-form", "/name", record("weather/weather")),
    ("name-form", "/name", record("-com.example/weather")),
    ("name-form", "/name", record("com.example/weather.")),
    ("version-concrete", "/version", record(version="latest")),
    *(("version-concrete", "/version", record(version=one)) for one in (
        "^1.2.3", "~1.2", ">=1.0.0", "1.x", "1.2.X", "1.2.*", "*", "1.0 - 2.0", "1 || 2", "",
        "1.0.0 ", "LATEST", "<2", "=1")),
    ("version-semantic", "/version", record(version="2026.11")),
    ("text-hidden", "/title", record(title="We\u200bather")),
    ("text-hidden", "/description", record(description="x\u202ey")),
    ("text-blank", "/title", record(title="  ")),
    ("secret-kept", "/remotes/0/headers/0/value",
     at(remote(headers=[{"name": "X-Key", "isSecret": True, "value": "hunter2"}]))),
    ("secret-kept", "/packages/0/environmentVariables/0/default",
     packed({**NPM, "environmentVariables": [{"name": "KEY", "isSecret": True, "default": "hunter2"}]})),
    ("secret-kept", "/remotes/0/variables/tenant/value",
     at(remote("https://{tenant}.example.com/", variables={"tenant": {"isSecret": True, "value": "x"}}))),
    ("url-form", "/remotes/0/url", at(remote("https://example.com/{"))),
    ("url-form", "/remotes/0/url", at(remote("https://exa\u200bmple.com/"))),
    ("url-form", "/remotes/0/url", at(remote("https://example.com\\@evil.com/"))),
    ("url-form", "/remotes/0/url", at(remote("https://example.com:99999/"))),
    ("url-address", "/remotes/0/url", at(remote("https://2130706433/"))),
    ("url-form", "/remotes/0/url", at(remote(f"https://example.com/{'a' * 2048}"))),
    ("url-https", "/remotes/0/url", at(remote("http://example.com/mcp"))),
    ("url-user", "/remotes/0/url", at(remote("https://user:pass@example.com/mcp"))),
    ("url-fragment", "/remotes/0/url", at(remote(f"{URL}#x"))),
    *(("url-address", "/remotes/0/url", at(remote(f"https://{one}/mcp"))) for one in (
        "localhost", "mcp.localhost", "127.0.0.1", "[::1]", "10.1.2.3", "192.168.0.1", "[fd00::1]", "intranet",
        "a.internal", "a.localdomain", "a.corp", "169.254.169.254", "[::ffff:127.0.0.1]", "[::a00:1]",
        "[64:ff9b::7f00:1]", "[64:ff9b::a00:1]", "[2002:a00:1::]", "100.64.0.1", "metadata.google.internal")),
    ("url-variable", "/remotes/0/url", at(remote("https://{tenant}.example.com/mcp"))),
    ("url-variable", "/remotes/0/url", at(remote("https://{tenant}.example.com/{other}", **VARIABLES))),
    ("variable-unused", "/remotes/0/variables/tenant", at(remote(**VARIABLES))),
    ("remote-twice", "/remotes/1", at(remote(), remote("https://WEATHER.example.com:443/mcp"))),
    ("header-form", "/remotes/0/headers/1/name", at(remote(headers=[{"name": "X-A"}, {"name": "x-a"}]))),
    ("header-form", "/remotes/0/headers/0/name", at(remote(headers=[{"name": "Mcp-Method"}]))),
    ("header-form", "/remotes/0/headers/0/name", at(remote(headers=[{"name": "a\r\nb"}]))),
    ("url-https", "/websiteUrl", record(websiteUrl="http://example.com/")),
    ("url-https", "/icons/0/src", record(icons=[{"src": "http://example.com/i.png"}])),
    ("package-kind", "/packages/0/registryType", packed({**NPM, "registryType": "apt"})),
    ("package-twice", "/packages/1", packed(NPM, NPM)),
    ("package-identifier", "/packages/0/identifier", packed({**NPM, "identifier": "a b"})),
    ("package-identifier", "/packages/0/identifier", packed({**OCI, "identifier": "images.example.com/weather"})),
    ("package-identifier", "/packages/0/version", packed({**OCI, "version": "1.0.0"})),
    ("package-identifier", "/packages/0/identifier", packed({**MCPB, "identifier": "https://example.com/x.zip"})),
    ("package-version", "/packages/0/version", packed({key: one for key, one in NPM.items() if key != "version"})),
    ("package-version", "/packages/0/version", packed({**NPM, "version": "1.x"})),
    ("package-version", "/packages/0/identifier", packed({**OCI, "identifier": "example/weather:latest"})),
    ("package-digest", "/packages/0/fileSha256",
     packed({key: one for key, one in MCPB.items() if key != "fileSha256"})),
    ("package-transport", "/packages/0/transport/url", packed({**NPM, "transport": {"type": "stdio", "url": "x"}})),
    ("url-variable", "/packages/0/transport/url", packed({**NPM, "transport": HTTP})),
    ("package-runtime", "/packages/0/runtimeHint",
     packed({**NPM, "runtimeArguments": [{"type": "positional", "value": "x"}]})),
    ("argument-name", "/packages/0/packageArguments/0/name",
     packed({**NPM, "packageArguments": [{"type": "named", "name": "--port <port>"}]})),
    ("argument-value", "/packages/0/packageArguments/0/value",
     packed({**NPM, "packageArguments": [{"type": "named", "name": "--port", "value": "--port 80"}]})),
    ("repository", "/repository/url", record(repository={"url": "https://github.com/a", "source": "github"})),
    ("repository", "/repository/url", record(repository={"url": "http://git.example.com/a", "source": "own"})),
    ("repository", "/repository/subfolder",
     record(repository={"url": "https://gitlab.com/a/b/c", "source": "gitlab", "subfolder": "../x"})),
    ("meta-size", "/_meta/io.modelcontextprotocol.registry~1publisher-provided",
     record(_meta={PUBLISHER: {"a": "b" * 4_089}})),
    ("meta-size", "/_meta/io.modelcontextprotocol.registry~1publisher-provided",
     record(_meta={PUBLISHER: {"a": "<" * 700}})),
    ("meta-reserved", "/_meta/io.modelcontextprotocol.registry~1official",
     record(_meta={"io.modelcontextprotocol.registry/official": {"status": "active"}})),
    ("meta-dropped", "/_meta/com.example~1own", record(_meta={"com.example/own": {}})),
    ("nowhere", "", record(remotes=[])),
]  # fmt: skip


def found(document: Any, publisher: str = "", **more: bool) -> set[tuple[str, str]]:
    return {(one.rule, one.pointer) for one in validate(json.dumps(document).encode(), publisher, **more)}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_record_has_no_flaw(name: str) -> None:
    """What the official schema and registry take is taken, without a note."""
    assert found(GOOD[name]) == set()


@pytest.mark.parametrize(("rule", "pointer", "document"), BAD, ids=lambda one: one if isinstance(one, str) else "")
def test_each_rule_names_its_place(rule: str, pointer: str, document: dict[str, Any]) -> None:
    """A record that breaks one rule is told so, at the member that breaks it."""
    assert (rule, pointer) in found(document)


def test_every_rule_can_be_broken_and_is_explained() -> None:
    """The table, the cases and the page name the same rules: none that never fires, none that nobody explains."""
    others = {"json", "name-publisher"}
    assert {rule for rule, *_ in BAD} | others == set(RULES)
    explained = re.findall(r"^\| `([a-z-]+)` \|", PAGE.partition("## Drift")[0], re.MULTILINE)
    assert sorted(explained) == sorted(RULES)


def test_a_record_is_told_all_its_flaws_at_once() -> None:
    """Values that the schema refuses hide no flaw of another member."""
    wrong = at(remote("ftp://x"), remote("https://localhost/"), version="latest", title="")
    assert {("schema", "/title"), ("schema", "/remotes/0/url")} <= found(record(**{**wrong, "version": 1}))
    told = found(record(title="", version="latest"))
    assert {("schema", "/title"), ("version-concrete", "/version")} <= told


@pytest.mark.parametrize(
    ("publisher", "name", "theirs"),
    [
        ("example.com", "com.example/weather", True),
        ("example.com", "com.example.api/weather", True),
        ("api.example.com", "com.example.api/weather", True),
        ("github:alice", "io.github.alice/weather", True),
        ("example.com", "com.example2/weather", False),
        ("example.com", "com.exampl/weather", False),
        ("example.com", "org.example/weather", False),
        ("api.example.com", "com.example/weather", False),
        ("example.com", "com.Example/weather", False),
        ("github:alice", "io.github.bob/weather", False),
        ("github:alice", "io.github.alice.more/weather", False),
        ("github:alice", "io.github.Alice/weather", False),
        ("example.com", "io.github.alice/weather", False),
    ],
)
def test_a_name_is_its_verified_publishers(publisher: str, name: str, theirs: bool) -> None:
    """The reverse of the domain and what lies below it, or exactly the login's namespace; spelt as it is."""
    assert (("name-publisher", "/name") not in found(record(name), publisher)) is theirs


def test_a_proof_over_http_is_of_that_domain_alone() -> None:
    """The registry grants domains below only for a proof by DNS: `exact` holds a name to that."""
    below = record("com.example.api/weather")
    assert found(below, "example.com") == set()
    assert found(below, "example.com", exact=True) == {("name-publisher", "/name")}


@pytest.mark.parametrize(
    "publisher", ["", "Example.com", "com", "alice.github.io", "github:", "github:a/b", "a b.com"]
)
def test_what_proves_no_namespace_is_no_publisher(publisher: str) -> None:
    """Not a domain, not a login; and github.io, whose reverse would be somebody's login."""
    with pytest.raises(NoPublisher):
        namespace_for(publisher)


@pytest.mark.parametrize("url", ["http://10.0.0.5:8000/mcp", "https://intranet/mcp", "http://127.0.0.1:9/mcp"])
def test_a_private_registry_may_name_its_own_network(url: str) -> None:
    """Addresses of a private network are right where all readers share it; metadata services are so nowhere."""
    assert found(at(remote(url)))
    assert found(at(remote(url)), private=True) == set()
    assert found(at(remote("http://169.254.169.254/")), private=True) == {("url-address", "/remotes/0/url")}
    assert found(at(remote("http://example.com/mcp")), private=True) == {("url-https", "/remotes/0/url")}


def test_the_oldest_release_is_read_by_its_own_names() -> None:
    """2025-07-09 writes snake_case: its members are judged by the same rules, at their own places."""
    old = {
        "$schema": RELEASES[0].url, "name": "com.example/weather", "description": "x", "version": "1.0.0",
        "packages": [{"registry_type": "npm", "identifier": "a b", "version": "1.x", "transport": {"type": "stdio"},
                      "runtime_arguments": [{"type": "named", "name": "--a b"}]}],
        "website_url": "http://example.com/",
    }  # fmt: skip
    assert found(old) == {
        ("schema-old", "/$schema"),
        ("package-identifier", "/packages/0/identifier"),
        ("package-version", "/packages/0/version"),
        ("argument-name", "/packages/0/runtime_arguments/0/name"),
        ("package-runtime", "/packages/0/runtime_hint"),
        ("url-https", "/website_url"),
    }
    new = {**old, "$schema": NEWEST.url}
    assert ("schema", "/packages/0") in found(new)


@pytest.mark.parametrize("date", DATES)
def test_every_released_schema_is_there_and_is_itself(date: str) -> None:
    """Six releases, each under its own id; the page beside them has the digests of the official files."""
    schema = schema_of(next(one for one in RELEASES if one.date == date))
    assert schema["$id"] == f"https://static.modelcontextprotocol.io/schemas/{date}/server.schema.json"
    notes = (Path(__file__).parents[2] / "gateway/registry/schemas/README.md").read_text()
    assert re.search(rf"^\| {date} \| `[0-9a-f]{{64}}` \|$", notes, re.MULTILINE)
    good = {"$schema": schema["$id"], "name": "com.example/weather", "description": "x", "version": "1.0.0"}
    assert usable(judge({**good, "remotes": [remote()]}))
    assert not usable(judge({**good, "description": ""}))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b'{"name":1,"name":2}',
        b'{"name":"a","name":"a"}',
        b'{"name":"\xff"}',
        b'{"a":' * 70 + b"1" + b"}" * 70,
        b'{"version":1e999}',
        b" " * (LARGEST + 1),
        json.dumps(record(packages=[{}] * 5_001)).encode(),
    ],
    ids=lambda text: str(text[:12]),
)
def test_a_text_has_one_reading_and_a_size(text: bytes) -> None:
    """Members twice, bad UTF-8, depth, size and count are one flaw, and nothing more is read of them."""
    assert [one.rule for one in validate(text)] == ["json"]
    with pytest.raises(RecordUnusable):
        read_record(text)


def test_a_hostile_record_costs_little() -> None:
    """As many broken alternatives as a record may hold, and names that backtracking would choke on: soon over."""
    many = packed({**NPM, "packageArguments": [{"type": "q"}] * 2_400})
    long = record("a" * 200, version="1" * 250, description="x" * 100_000)
    braces = at(remote("https://" + "{" * 2_000))
    for document in (many, long, braces):
        began = time.thread_time()
        assert 1 <= len(validate(json.dumps(document).encode())) <= MOST
        assert time.thread_time() - began < 5


def test_a_digest_is_of_what_the_record_says() -> None:
    """Another order or spelling of the same record has the same digest, another word has another."""
    one, other = record(), dict(reversed(record().items()))
    assert (
        published(one).digest
        == published(other).digest
        == hashlib.sha256(json.dumps(one, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    )
    assert published(record(description="y")).digest != published(one).digest


WORDS = st.sampled_from(
    "$schema name version description title remotes packages type url variables _meta headers isSecret value "
    "identifier transport registryType registry_type icons status packageArguments environmentVariables repository "
    f"source subfolder {PUBLISHER} ostiary.offers".split()
)
TEXTS = [URL, "{a}", "https://{a}:{b}/", "latest", "stdio", "sse", "streamable-http", "npm", "oci", "named"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8)
    | st.sampled_from(TEXTS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=80)
@given(st.sampled_from(RELEASES), st.dictionaries(WORDS, VALUES, max_size=6), st.booleans())
def test_nothing_that_is_json_breaks_the_validator(release: Any, more: dict[str, Any], private: bool) -> None:
    """Whatever stands in a record, there is an answer; and what is usable can be read as a value."""
    document = record(**{"$schema": release.url} | more)
    flaws = judge(document, "example.com", private=private)
    assert len(flaws) <= MOST
    if usable(flaws):
        assert published(document).name == document["name"]


@settings(max_examples=60)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_nothing_that_is_bytes_breaks_the_validator(text: bytes) -> None:
    """Nor do bytes."""
    assert validate(text)
