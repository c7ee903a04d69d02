"""What is wrong with a `server.json`: the table of rules, each with its mend, and the one value that names a place.

A rule that is a note does not make a record unusable; every other one does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

MOST: Final = 100
"""Flaws that are told of one record."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`mend`: what to do. `note`: it may stay so."""

    mend: str
    note: bool = False


_URL: Final = "write an absolute URL without spaces, of a host name or address in its plain spelling"

RULES: Final[Mapping[str, Rule]] = {
    "json": Rule("write one strict JSON object, no member twice, within the limits"),
    "schema": Rule("hold it to the schema that $schema names"),
    "schema-missing": Rule("add $schema with the newest release"),
    "schema-unknown": Rule("name a released schema"),
    "schema-old": Rule("move to the newest release", note=True),
    "member-unknown": Rule("remove it, or spell it as the schema does: nobody reads it", note=True),
    "name-form": Rule("write NAMESPACE/NAME, the namespace a domain with its parts reversed"),
    "name-publisher": Rule("publish under the namespace of the verified publisher"),
    "version-concrete": Rule("name one version, never a range, a wildcard or latest"),
    "version-semantic": Rule("write MAJOR.MINOR.PATCH: others may not sort as meant", note=True),
    "text-hidden": Rule("remove what can't be seen"),
    "text-blank": Rule("say something, or leave the member out"),
    "secret-kept": Rule("remove value and default: whoever reads the record has the secret"),
    "url-form": Rule(_URL),
    "url-https": Rule("use https://"),
    "url-user": Rule("remove the user information: a secret has no place in a record"),
    "url-fragment": Rule("remove the fragment: it is never sent"),
    "url-address": Rule("name a host that every reader of the record can reach"),
    "url-variable": Rule("declare each {variable} of the URL"),
    "variable-unused": Rule("use the variable in the URL, or remove it", note=True),
    "remote-twice": Rule("list each remote once"),
    "header-form": Rule("name a header once, as a token, and none of the protocol's own"),
    "package-kind": Rule("use a type that clients know", note=True),
    "package-twice": Rule("list each package once"),
    "package-identifier": Rule("name the package as its type asks for"),
    "package-version": Rule("name one version of the package"),
    "package-digest": Rule("add the SHA-256 of the file"),
    "package-transport": Rule("give stdio no URL, and others one"),
    "package-runtime": Rule("add runtimeHint: it says what the runtimeArguments are for", note=True),
    "argument-name": Rule("name the flag alone, without a value or a placeholder"),
    "argument-value": Rule("write the value without the flag's name"),
    "repository": Rule("name the repository's page at its host, and a clean relative subfolder"),
    "meta-size": Rule("keep publisher-provided metadata within 4096 bytes"),
    "meta-reserved": Rule("remove it: only the registry writes it"),
    "meta-dropped": Rule("move it under the publisher-provided key: registries drop others", note=True),
    "nowhere": Rule("add packages or remotes: nobody can connect to this server", note=True),
}
"""Rule -> what mends it. docs/registry.md explains each."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """One thing that is wrong: which rule, where (RFC 6901), and in words what is there."""

    rule: str
    pointer: str
    what: str

    @property
    def mend(self) -> str:
        """What to do."""
        return RULES[self.rule].mend

    @property
    def note(self) -> bool:
        """Whether it may stay so."""
        return RULES[self.rule].note

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "mend": self.mend, "note": self.note}


def usable(flaws: list[Flaw]) -> bool:
    """Whether all of them are notes."""
    return all(flaw.note for flaw in flaws)


def step(*names: str | int) -> str:
    """An RFC 6901 pointer."""
    return "".join("/" + str(name).replace("~", "~0").replace("/", "~1") for name in names)
