"""A `server.json`, judged whole: strict JSON, the official schema of its release, and the rules beyond it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

from gateway.registry.flaws import MOST, Flaw
from gateway.registry.packages import look_at_packages
from gateway.registry.record import RecordUnusable, known_release, read_text
from gateway.registry.releases import Release, hold_to_schema, members_of
from gateway.registry.rules import (
    look_at_links,
    look_at_members,
    look_at_meta,
    look_at_name,
    look_at_remotes,
    look_at_texts,
    look_at_version,
)


def validate(text: bytes, publisher: str = "", *, private: bool = False, exact: bool = False) -> list[Flaw]:
    """Everything that is wrong with a text, at most `MOST` flaws. `publisher`: a domain, or `github:LOGIN`.

    `private`: for a registry whose readers share a network. `exact`: domains below the publisher's are not theirs.
    Raises `NoPublisher`.
    """
    try:
        document = read_text(text)
    except RecordUnusable as error:
        return error.flaws
    return judge(document, publisher, private=private, exact=exact)


def judge(
    document: Mapping[str, Any], publisher: str = "", *, private: bool = False, exact: bool = False
) -> list[Flaw]:
    """The same of a document that was read."""
    try:
        release = known_release(document)
    except RecordUnusable as error:
        return error.flaws
    flaws, sound = hold_to_schema(release, document)
    if not sound:
        return flaws
    return list(islice(chain(flaws, _beyond(document, release, publisher, private, exact)), MOST))


def _beyond(
    document: Mapping[str, Any], release: Release, publisher: str, private: bool, exact: bool
) -> Iterator[Flaw]:
    yield from look_at_members(document, release)
    # What a release does not describe may be of any type, and nobody reads it.
    document = {name: document[name] for name in document.keys() & members_of(release)}
    yield from look_at_name(document["name"], publisher, exact=exact)
    yield from look_at_version(document["version"])
    yield from look_at_texts(document)
    yield from look_at_remotes(document, release, private=private)
    yield from look_at_packages(document, release)
    yield from look_at_links(document, release)
    yield from look_at_meta(document)
