"""The forms that a URL of a record may have, and whether two are the same. Data alone: nothing here connects.

A URL is a template: each `{variable}` has to be declared, and the text around it has to be a URL whatever they are.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from gateway.upstream.target import ReplicaRefused, check_replica_url, readings_of

LONGEST: Final = 2048
_VARIABLE: Final = re.compile(r"\{([^{}]+)\}")
_PORT: Final = re.compile(r":\{[^{}]+\}(?=[/?]|\Z)")
_LOCAL: Final = (".localhost", ".local", ".internal", ".intranet", ".lan", ".home.arpa", ".test", ".invalid",
                 ".localdomain", ".corp", ".home")  # fmt: skip
_DEFAULTS: Final = {"http": 80, "https": 443}


def variables_of(url: str) -> list[str]:
    """The names in braces, in their order."""
    return _VARIABLE.findall(url)


def look_at_url(url: str, declared: Collection[str], *, private: bool, remote: bool) -> Iterator[tuple[str, str]]:
    """(rule, what is there) for each rule that a URL breaks.

    `private`: the registry's readers share a network, so its addresses are all right, and plain http to them.
    `remote`: it is of a server far away, not of a package that was started beside its reader.
    """
    if len(url) > LONGEST:
        yield "url-form", f"has more than {LONGEST} characters"
        return
    for name in dict.fromkeys(variables_of(url)):
        if name not in declared:
            yield "url-variable", f"{{{name}}} is not declared"
    filled = _VARIABLE.sub("x", _PORT.sub(":1", url))
    if "{" in filled or "}" in filled:
        yield "url-form", "has braces that enclose no variable"
        return
    if "\\" in url:
        yield "url-form", "has a backslash"
        return
    if url.startswith("{"):
        yield "url-form", "begins with a variable: nobody can tell where it leads"
        return
    bare = filled
    if "#" in bare:
        yield "url-fragment", "has a fragment"
        bare = bare.partition("#")[0]
    if "@" in (netloc := bare.partition("://")[2].partition("/")[0]):
        yield "url-user", "has user information"
        bare = bare.replace(netloc, netloc.rpartition("@")[2], 1)
    try:
        address = check_replica_url(bare)
    except ReplicaRefused as refused:
        yield ("url-address" if "destination" in str(refused) else "url-form"), str(refused)
        return
    near = is_near(address.host)
    if remote and near and not private:
        yield "url-address", "is of this machine or of a private network"
    if remote and not address.secure and not (private and near):
        yield "url-https", "is http://"


def is_near(host: str) -> bool:
    """Whether a host is this machine or of a private network, as far as its text says."""
    name = host.rstrip(".")
    try:
        return not all(one.is_global for one in readings_of(ipaddress.ip_address(name)))
    except ValueError:
        return "." not in name or name.endswith(_LOCAL)


def one_spelling(url: str) -> str:
    """A URL in the spelling in which two that mean the same are equal. One that can't be read stays as it is."""
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        return url
    shown = f"[{host}]" if ":" in host else host.rstrip(".")
    where = shown if port in {None, _DEFAULTS.get(parts.scheme)} else f"{shown}:{port}"
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{where}{parts.path or '/'}{query}"


def could_be(template: str, choices: Mapping[str, Collection[str]], url: str) -> bool:
    """Whether a template with its variables filled in can be this URL.

    A variable without choices stands for one or more characters but `/`, and is tried shortest first without going
    back: the check is linear, and a URL that only going back would match counts as another one.
    """
    netloc = template.partition("://")[2].partition("/")[0]
    pieces = _VARIABLE.split(template if "{" in netloc else one_spelling(template))
    rest = one_spelling(url)
    if not rest.startswith(pieces[0]):
        return False
    rest = rest[len(pieces[0]) :]
    for name, text in zip(pieces[1::2], pieces[2::2], strict=True):
        end = rest.find(text, 1) if text else _until_slash(rest)
        if end < 1:
            return False
        value = rest[:end]
        if (choices.get(name) and value not in choices[name]) or "/" in value:
            return False
        rest = rest[end + len(text) :]
    return not rest


def _until_slash(text: str) -> int:
    found = text.find("/")
    return len(text) if found < 0 else found
