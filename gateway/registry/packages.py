"""What a schema can't say of the packages of a record: how each kind names itself, and how it is started."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from gateway.registry.addresses import look_at_url
from gateway.registry.flaws import Flaw, step
from gateway.registry.releases import Release
from gateway.registry.rules import is_concrete, look_at_headers, look_at_secret

VERSIONED: Final = frozenset({"npm", "pypi", "nuget", "cargo", "go"})
"""Kinds whose packages are named by a name and a version."""

KINDS: Final = VERSIONED | {"oci", "mcpb"}
_IMAGE: Final = re.compile(
    r"(?:[a-z0-9.-]+(?::[0-9]{1,5})?/)?[a-z0-9._/-]+(?::(?P<tag>[\w][\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_IMAGE_SINCE: Final = "2025-10-11"
"""From this release on, an image carries its version in its identifier."""

_OF_VALUES: Final = frozenset("<>$ ")


def look_at_packages(document: Mapping[str, Any], release: Release) -> Iterator[Flaw]:
    """All packages of a record."""
    seen: dict[tuple[Any, ...], int] = {}
    for number, package in enumerate(document.get("packages", ())):
        at = step("packages", number)
        one = _Package(package, at, release)
        for look in (_identity, _arguments, _transport):
            yield from look(one)
        same = (one.kind, package["identifier"], package.get("version"), repr(package.get("transport")))
        if (first := seen.setdefault(same, number)) != number:
            yield Flaw("package-twice", at, f"is the same as /packages/{first}")
    if not document.get("packages") and not document.get("remotes"):
        yield Flaw("nowhere", "", "has neither packages nor remotes")


class _Package:
    """A package, read by the names of today."""

    def __init__(self, package: Mapping[str, Any], at: str, release: Release) -> None:
        self.at = at
        self.release = release
        self._package = package
        self.kind: str = self.get("registryType")

    def get(self, member: str) -> Any:
        """The member, whose name is that of today."""
        return self._package.get(self.release.spell(member))

    def flaw(self, rule: str, member: str, what: str) -> Flaw:
        """At a member, whose name is that of today."""
        return Flaw(rule, f"{self.at}/{self.release.spell(member)}", what)


def _identity(one: _Package) -> Iterator[Flaw]:
    identifier, version, base = one.get("identifier"), one.get("version"), one.get("registryBaseUrl")
    if not identifier or any(character.isspace() for character in identifier):
        yield one.flaw("package-identifier", "identifier", "is empty or holds blanks")
    if base is not None and not base.startswith("https://"):
        yield one.flaw("url-https", "registryBaseUrl", "is no https:// URL")
    if version is not None and not is_concrete(version):
        yield one.flaw("package-version", "version", "is no single version")
    known = _KINDS.get(one.kind)
    if known is not None:
        yield from known(one)
    elif one.kind not in KINDS:
        yield one.flaw("package-kind", "registryType", "is none of the known types")
    elif version is None:
        yield one.flaw("package-version", "version", "is missing")


def _image(one: _Package) -> Iterator[Flaw]:
    if one.release.date < _IMAGE_SINCE:
        return
    found = _IMAGE.fullmatch(one.get("identifier"))
    if found is None or not (found["tag"] or found["digest"]):
        yield one.flaw("package-identifier", "identifier", "is no image with its tag or digest")
    elif found["tag"] == "latest" and not found["digest"]:
        yield one.flaw("package-version", "identifier", "is the image's tag latest")
    for member in ("version", "registryBaseUrl"):
        if one.get(member) is not None:
            yield one.flaw("package-identifier", member, "stands in the identifier of an image")


def _bundle(one: _Package) -> Iterator[Flaw]:
    identifier = one.get("identifier")
    if not identifier.startswith("https://") or "mcp" not in identifier:
        yield one.flaw("package-identifier", "identifier", 'is no https:// URL with "mcp" in it')
    if one.get("fileSha256") is None:
        yield one.flaw("package-digest", "fileSha256", "is missing")


_KINDS: Final[Mapping[str, Callable[[_Package], Iterator[Flaw]]]] = {"oci": _image, "mcpb": _bundle}


def _arguments(one: _Package) -> Iterator[Flaw]:
    for member in ("runtimeArguments", "packageArguments"):
        for number, argument in enumerate(one.get(member) or ()):
            at = f"{one.at}/{one.release.spell(member)}/{number}"
            if argument["type"] == "named":
                name = argument["name"]
                if not name or not _OF_VALUES.isdisjoint(name):
                    yield Flaw("argument-name", f"{at}/name", "is more than a name")
                else:
                    for part in ("value", "default"):
                        if argument.get(part, "").startswith(name):
                            yield Flaw("argument-value", f"{at}/{part}", "begins with the argument's name")
            yield from look_at_secret(argument, at, one.release)
    for number, variable in enumerate(one.get("environmentVariables") or ()):
        at = f"{one.at}/{one.release.spell('environmentVariables')}/{number}"
        yield from look_at_secret(variable, at, one.release)
    if one.get("runtimeArguments") and not one.get("runtimeHint"):
        yield one.flaw("package-runtime", "runtimeHint", "is missing")


def _transport(one: _Package) -> Iterator[Flaw]:
    transport = one.get("transport")
    at, url = f"{one.at}/transport", transport.get("url", "")
    if transport["type"] == "stdio":
        if url:
            yield Flaw("package-transport", f"{at}/url", "is there although the transport is stdio")
        return
    hint = one.release.spell("valueHint")
    declared = {variable["name"] for variable in one.get("environmentVariables") or ()}
    for member in ("runtimeArguments", "packageArguments"):
        for argument in one.get(member) or ():
            declared |= {text for text in (argument.get("name"), argument.get(hint)) if isinstance(text, str)}
    for rule, what in look_at_url(url, declared, private=True, remote=False):
        yield Flaw(rule, f"{at}/url", what)
    yield from look_at_headers(transport.get("headers") or [], at, one.release)
