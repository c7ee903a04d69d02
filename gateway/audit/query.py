"""What a reader asks the record for: one filter, whatever the record lies in and whoever shows it.

A filter is a conjunction; a member that is not asked for matches everything. Times are compared as the record tells
them (UTC, milliseconds), which is how they sort.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson

_AGO: Final = re.compile(r"([0-9]{1,6})([smhdw])")
_DEEPEST: Final = 200
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True, slots=True)
class Query:
    """Texts are compared whole, as the record holds them; `since` is included, `until` is not (`Z`, milliseconds).

    `who` is the subject that acted, whose ticket it was, or who moved it; `reason` is one of a record's reasons;
    `ticket` also one that a request's answers needed.
    """

    who: str | None = None
    issuer: str | None = None
    client: str | None = None
    server: str | None = None
    tool: str | None = None
    method: str | None = None
    kind: str | None = None
    verdict: str | None = None
    outcome: str | None = None
    reason: str | None = None
    ticket: str | None = None
    decision: str | None = None
    trace: str | None = None
    since: str | None = None
    until: str | None = None
    _words: tuple[bytes, ...] = field(init=False, repr=False, compare=False, default=())
    """Bytes that stand in every line that matches: most lines need not be parsed."""

    def __post_init__(self) -> None:
        asked = self.asked().items()
        words = tuple(orjson.dumps(value)[1:-1] for name, value in asked if name in _MEMBERS)
        object.__setattr__(self, "_words", words)

    def asked(self) -> dict[str, str]:
        """The members that are asked for."""
        members = (one.name for one in fields(self) if one.init)
        return {name: value for name in members if (value := getattr(self, name)) is not None}

    def read(self, line: bytes) -> dict[str, Any] | None:
        """The line's record if it is asked for. What can't be read as a record matches nothing."""
        for word in self._words:
            if word not in line:
                return None
        record = read_record(line)
        return record if record and self.matches(record) else None

    def matches(self, record: Mapping[str, Any]) -> bool:
        """Whether all that is asked for holds of the record."""
        time = record.get("time")
        if (self.since or self.until) and not isinstance(time, str):
            return False
        if (self.since and time < self.since) or (self.until and time >= self.until):  # type: ignore[operator]
            return False
        return all(_MEMBERS[name](record, value) for name, value in self.asked().items() if name in _MEMBERS)


def read_record(line: bytes) -> dict[str, Any]:
    """The line's JSON object, or `{}`; also for one that is nested too deeply to be written again."""
    try:
        record = orjson.loads(line)
        if line.count(b"[") + line.count(b"{") > _DEEPEST:
            orjson.dumps(record)
    except (ValueError, TypeError):
        return {}
    return record if isinstance(record, dict) else {}


def time_of(line: bytes) -> str:
    """The record's time, `""` where there is none."""
    told = read_record(line).get("time")
    return told if isinstance(told, str) else ""


def moment(text: str, now: datetime) -> str:
    """A time as the record writes it, from `2026-11-30`, `2026-11-30T10:15:00+01:00` (without a zone: UTC) or `2h`.

    A number with `s`, `m`, `h`, `d` or `w` is that long before `now`. Raises `ValueError`.
    """
    if ago := _AGO.fullmatch(text):
        then = now - timedelta(seconds=int(ago[1]) * _UNIT_S[ago[2]])
    else:
        then = datetime.fromisoformat(text)
        then = then.replace(tzinfo=UTC) if then.tzinfo is None else then.astimezone(UTC)
    return then.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _member(name: str) -> Any:
    return lambda record, value: record.get(name) == value


def _of_actor(name: str) -> Any:
    def holds(record: Mapping[str, Any], value: str) -> bool:
        return any(isinstance(one := record.get(who), dict) and one.get(name) == value for who in _WHO)

    return holds


def _has_reason(record: Mapping[str, Any], value: str) -> bool:
    reasons = record.get("reasons")
    return isinstance(reasons, list) and value in reasons


def _is_by(record: Mapping[str, Any], value: str) -> bool:
    """Whether they moved or did it, named as the record does (`ISSUER|SUBJECT`) or by their subject."""
    by = record.get("by")
    return isinstance(by, str) and value in (by, by.partition("|")[2])


_WHO: Final = ("actor", "requester")
_MEMBERS: Final[Mapping[str, Any]] = {
    "who": lambda record, value: _of_actor("subject")(record, value) or _is_by(record, value),
    "issuer": _of_actor("issuer"),
    "client": _of_actor("client"),
    "server": _member("server"),
    "tool": _member("name"),
    "method": _member("method"),
    "kind": _member("kind"),
    "verdict": _member("verdict"),
    "outcome": _member("outcome"),
    "reason": _has_reason,
    "ticket": lambda record, value: value in (record.get("ticket"), record.get("answers_ticket")),
    "decision": _member("decision_id"),
    "trace": _member("trace_id"),
}
