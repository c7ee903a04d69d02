"""What the address of a page asks the record for: filters, a window of time, a place to go on from. Read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from approvals.ticket import ActInvalid
from gateway.audit.looking import read_cursor, shifted
from gateway.audit.query import Query, moment

DAY_S: Final = 86_400.0
AHEAD_S: Final = 60.0
"""What another host's clock may be ahead: without `until` a page shows that as well."""

MOST_CHARACTERS: Final = 512
FILTERS: Final = tuple(one.name for one in fields(Query))
KINDS: Final = ("decision", "outcome", "refusal", "approval", "admin")
VERDICTS: Final = ("allow", "approve", "deny")


@dataclass(frozen=True, slots=True)
class Asked:
    """`query` has the window as absolute times; `given` is what the address said, for the form and for links."""

    query: Query
    given: Mapping[str, str]
    places: Mapping[int, int]

    @property
    def since(self) -> str:
        """From then on."""
        return self.query.since or ""

    @property
    def until(self) -> str:
        """Before then."""
        return self.query.until or ""

    def link(self, path: str, **changed: str) -> str:
        """An address with the same filters but for `changed`; `""` leaves one out."""
        return link_to(path, **{**self.given, **changed})


def link_to(path: str, **told: str) -> str:
    """An address with these filters alone."""
    kept = {name: value for name, value in told.items() if value}
    return f"{path}?{urlencode(kept)}" if kept else path


def read_asked(items: list[tuple[str, str]], now: float) -> Asked:
    """The pairs of an address or a form. Without a window it is the last day. Raises `ActInvalid`."""
    given = {name: value.strip() for name, value in items if value.strip()}
    known = {*FILTERS, "cursor"}
    texts_are_plain = all(len(one) <= MOST_CHARACTERS and one.isprintable() for one in given.values())
    if len({name for name, _ in items}) != len(items) or not set(given) <= known or not texts_are_plain:
        raise ActInvalid("query_invalid")
    if given.get("kind", "decision") not in KINDS or given.get("verdict", "allow") not in VERDICTS:
        raise ActInvalid("query_invalid")
    try:
        places = read_cursor(given.pop("cursor", ""))
    except ValueError as error:
        raise ActInvalid("cursor_invalid") from error
    then = datetime.fromtimestamp(now, UTC)
    try:
        until = moment(given["until"], then) if "until" in given else shifted(moment("0s", then), AHEAD_S)
        since = moment(given["since"], then) if "since" in given else shifted(until, -DAY_S)
    except (ValueError, OverflowError) as error:
        raise ActInvalid("time_invalid") from error
    filters = {name: given[name] for name in FILTERS if name in given}
    return Asked(Query(**{**filters, "since": since, "until": until}), given, places)


def read_moment(text: str) -> str:
    """The hint of a link: when its request was. `""` where there is none. Raises `ActInvalid`."""
    if not text:
        return ""
    try:
        return moment(text, datetime.now(UTC))
    except (ValueError, OverflowError) as error:
        raise ActInvalid("time_invalid") from error
