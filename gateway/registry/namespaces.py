"""Whose a record's name is: the reverse of a domain, or a GitHub login, that its publisher has shown to be theirs.

The proof itself is the registry's: a key in the domain's DNS or at its well-known path, or a sign-in at GitHub. Here
the name is held to what was proved.
"""

from __future__ import annotations

import re
from typing import Final

GITHUB: Final = "github:"
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DOMAIN: Final = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})+")
PUBLISHER: Final = rf"^(|github:[A-Za-z0-9][A-Za-z0-9-]{{0,38}}|{_LABEL}([.]{_LABEL})+)$".replace("(?:", "(")
"""Their form, for the configuration's schema; empty for none."""
_LOGIN: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})")
_NAMESPACE: Final = re.compile(r"[A-Za-z]{2,63}(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)+")
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


class NoPublisher(ValueError):  # noqa: N818 - what was given
    """Neither a domain nor `github:LOGIN`."""


def namespace_for(publisher: str) -> str:
    """The namespace of a publisher: `example.com` -> `com.example`, `github:alice` -> `io.github.alice`.

    Raises `NoPublisher`; also for a domain below github.io, whose reverse is another publisher's namespace.
    """
    if publisher.startswith(GITHUB):
        login = publisher.removeprefix(GITHUB)
        if not _LOGIN.fullmatch(login):
            raise NoPublisher("not a GitHub login")
        return f"io.github.{login}"
    if not _DOMAIN.fullmatch(publisher):
        raise NoPublisher("must be a domain in lower case, or github:LOGIN")
    if publisher == "github.io" or publisher.endswith(".github.io"):
        raise NoPublisher("pages of github.io prove no namespace: use github:LOGIN")
    return ".".join(reversed(publisher.split(".")))


def name_fault(name: str) -> str:
    """What is wrong with the form of a name; empty where nothing is."""
    namespace, _, own = name.partition("/")
    if "/" in own or not _NAMESPACE.fullmatch(namespace):
        return "the namespace is no domain with its parts reversed"
    return "" if _NAME.fullmatch(own) else "the part after the slash must begin and end with a letter or digit"


def publisher_fault(name: str, publisher: str, *, exact: bool = False) -> str:
    """Why a name is not this publisher's; empty where it is. Domains below theirs are theirs too, unless `exact`.

    Raises `NoPublisher`.
    """
    theirs, namespace = namespace_for(publisher), name.partition("/")[0]
    below = not exact and not publisher.startswith(GITHUB) and namespace.startswith(f"{theirs}.")
    if namespace == theirs or below:
        return ""
    if namespace.lower() == theirs.lower():
        return f"{namespace} is spelt otherwise than {theirs}"
    return f"{namespace} is not {theirs}" + ("" if exact or publisher.startswith(GITHUB) else " nor below it")
