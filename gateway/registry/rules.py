"""What a schema can't say of a record: its name, its version, its texts, its metadata and its links.

Each function is one concern and yields flaws; the document was held to its schema before, so types are as declared.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from gateway.registry.addresses import look_at_url, one_spelling, variables_of
from gateway.registry.flaws import Flaw, step
from gateway.registry.namespaces import name_fault, publisher_fault
from gateway.registry.record import OFFICIAL, PUBLISHER
from gateway.registry.releases import NEWEST, Release, members_of

META_BYTES: Final = 4096
"""What the official registry takes of publisher-provided metadata, as Go's encoding/json writes it."""

_SEMANTIC: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?")
_OF_RANGES: Final = frozenset("^~<>=|*, \t\r\n")
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADERS_NEVER: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "content-type", "accept"}
)
_HOSTS: Final = {"github": re.compile(r"(?:www\.)?github\.com/[\w.-]+/[\w.-]+/?"),
                 "gitlab": re.compile(r"(?:www\.)?gitlab\.com/[\w.-]+(?:/[\w.-]+)+/?")}  # fmt: skip
_SUBFOLDER: Final = re.compile(r"[\w.-]+(?:/[\w.-]+)*")


def look_at_name(name: str, publisher: str, *, exact: bool) -> Iterator[Flaw]:
    """`publisher` is empty where nobody proved anything. Raises `NoPublisher`."""
    if fault := name_fault(name):
        yield Flaw("name-form", "/name", fault)
    if publisher and (fault := publisher_fault(name, publisher, exact=exact)):
        yield Flaw("name-publisher", "/name", fault)


def is_concrete(version: str) -> bool:
    """Whether this is one version: neither a range, nor a wildcard, nor `latest`."""
    if not version or version.lower() == "latest" or not _OF_RANGES.isdisjoint(version):
        return False
    parts = version.removeprefix("v").partition("-")[0].partition("+")[0].split(".")
    return not ({"x", "X"} & set(parts) and all(part.isdigit() or part in ("x", "X") for part in parts))


def look_at_version(version: str) -> Iterator[Flaw]:
    """The server's own version."""
    if not is_concrete(version):
        yield Flaw("version-concrete", "/version", "is no single version")
    elif not _SEMANTIC.fullmatch(version):
        yield Flaw("version-semantic", "/version", "is no semantic version")


def look_at_texts(document: Mapping[str, Any]) -> Iterator[Flaw]:
    """What people read has to say something, and nothing that they don't see."""
    for member in ("name", "version", "title", "description"):
        text = document.get(member, "")
        if hidden := [one for one in text if unicodedata.category(one) in _HIDDEN]:
            yield Flaw("text-hidden", step(member), f"holds U+{ord(hidden[0]):04X}")
        if text and not text.strip():
            yield Flaw("text-blank", step(member), "is blank")


def look_at_members(document: Mapping[str, Any], release: Release) -> Iterator[Flaw]:
    """Members that nobody reads, and an old release."""
    for member in sorted(document.keys() - members_of(release)):
        yield Flaw("member-unknown", step(member), "is no member of this release")
    if "$schema" not in document:
        yield Flaw("schema-missing", "/$schema", "is missing")
    elif release != NEWEST:
        yield Flaw("schema-old", "/$schema", f"is the release {release.date}; the newest is {NEWEST.date}")


def look_at_links(document: Mapping[str, Any], release: Release) -> Iterator[Flaw]:
    """The website, icons and the repository: secure, absolute, and of the host that they say."""
    links = [(step(name), document[name]) for name in (release.spell("websiteUrl"),) if name in document]
    links += [(step("icons", at, "src"), icon["src"]) for at, icon in enumerate(document.get("icons", ()))]
    for at, url in links:
        for rule, what in look_at_url(url.partition("#")[0], (), private=False, remote=True):
            yield Flaw(rule, at, what)
    repository = document.get("repository") or {}
    if url := repository.get("url", ""):
        scheme, _, rest = url.partition("://")
        host = _HOSTS.get(repository.get("source", ""))
        if scheme != "https" or (host is not None and not host.fullmatch(rest)):
            yield Flaw("repository", "/repository/url", "is not the https:// page of a repository of its source")
    folder = repository.get("subfolder", "")
    if folder and (not _SUBFOLDER.fullmatch(folder) or {".", ".."} & set(folder.split("/"))):
        yield Flaw("repository", "/repository/subfolder", "is no clean relative path")


def look_at_meta(document: Mapping[str, Any]) -> Iterator[Flaw]:
    """What the publisher adds, what only the registry writes, and what is dropped."""
    meta = document.get("_meta", {})
    if (size := _size(meta[PUBLISHER]) if PUBLISHER in meta else 0) > META_BYTES:
        yield Flaw("meta-size", step("_meta", PUBLISHER), f"has {size} bytes")
    if OFFICIAL in meta:
        yield Flaw("meta-reserved", step("_meta", OFFICIAL), "is the registry's own")
    for key in sorted(meta.keys() - {PUBLISHER, OFFICIAL}):
        yield Flaw("meta-dropped", step("_meta", key), "is dropped where it is published")


def _size(value: Any) -> int:
    """Bytes as Go's encoding/json writes them: compact, and five characters escaped."""
    text = orjson.dumps(value)
    escaped = sum(text.count(one) for one in (b"<", b">", b"&"))
    return len(text) + 5 * escaped + 3 * (text.count(b"\xe2\x80\xa8") + text.count(b"\xe2\x80\xa9"))


def look_at_remotes(document: Mapping[str, Any], release: Release, *, private: bool) -> Iterator[Flaw]:
    """Where the server is."""
    seen: dict[tuple[str, str], int] = {}
    for number, remote in enumerate(document.get("remotes", ())):
        at = step("remotes", number)
        kind, url, declared = remote["type"], remote["url"], remote.get("variables")
        if not isinstance(declared, dict):  # releases before 2025-12-11 describe none
            declared = {}
        for rule, what in look_at_url(url, declared, private=private, remote=True):
            yield Flaw(rule, f"{at}/url", what)
        for name in sorted(declared.keys() - set(variables_of(url))):
            yield Flaw("variable-unused", f"{at}{step('variables', name)}", "is in no place of the URL")
        if (first := seen.setdefault((kind, one_spelling(url)), number)) != number:
            yield Flaw("remote-twice", at, f"is the same as /remotes/{first}")
        yield from look_at_headers(remote.get("headers") or [], at, release)
        for name, one in sorted(declared.items()):
            yield from look_at_secret(one, f"{at}{step('variables', name)}", release)


def look_at_headers(headers: list[Any], at: str, release: Release) -> Iterator[Flaw]:
    """Headers that a client is told to send."""
    seen: set[str] = set()
    for number, header in enumerate(headers):
        name, place = header["name"], f"{at}{step('headers', number)}"
        folded = name.lower()
        if not _HEADER.fullmatch(name) or folded in _HEADERS_NEVER or folded.startswith("mcp-"):
            yield Flaw("header-form", f"{place}/name", "is no header that a record can ask for")
        elif folded in seen:
            yield Flaw("header-form", f"{place}/name", "stands twice")
        seen.add(folded)
        yield from look_at_secret(header, place, release)


def look_at_secret(given: Any, at: str, release: Release) -> Iterator[Flaw]:
    """A secret whose value everybody can read is none. One that is only a template of variables tells nothing."""
    if not isinstance(given, dict):
        return
    if given.get(release.spell("isSecret")) is True:
        for member in ("value", "default"):
            text = given.get(member)
            if isinstance(text, str) and text and not variables_of(text):
                yield Flaw("secret-kept", f"{at}/{member}", "holds the value of a secret")
    for name, one in sorted((given.get("variables") or {}).items()):
        yield from look_at_secret(one, f"{at}{step('variables', name)}", release)
