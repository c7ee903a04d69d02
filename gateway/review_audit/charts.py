"""Verdicts over time, by tool and by reason: counted in one look, drawn as shapes that need no script and no style.

Every request is counted once, by the record that decided it: a `decision` or a `refusal`, with the `count` of those
that were folded. Memory is bounded whatever names the record holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from gateway.audit.query import Query
from gateway.audit.story import is_mixed, reason_of

SERIES: Final[Mapping[str, str]] = {
    "allowed": "Allowed",
    "approved": "Approved by a person",
    "held": "Held for a person",
    "refused": "Refused",
}
OTHERS: Final = ""
WIDTH: Final = 720.0
HEIGHT: Final = 160.0
_STEPS_S: Final = (60, 300, 900, 3600, 3 * 3600, 6 * 3600, 86_400, 7 * 86_400, 28 * 86_400)
_FIRST: Final = datetime.min.replace(tzinfo=UTC).timestamp()
"""No time is before it."""

_MOST_COLUMNS: Final = 32
_MOST_KEYS: Final = 500
_MOST_ROWS: Final = 20

Counts = Counter[str]
"""Series -> requests."""


@dataclass(frozen=True, slots=True)
class Part:
    """A rectangle of a series: where it is and how large, in the drawing's own units."""

    series: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Column:
    """A span of time: when it begins (`label` is short), what was counted, and its rectangles."""

    begins: str
    label: str
    counts: Mapping[str, int]
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Row:
    """A tool (server, name) or a reason (name alone); both empty for all that are not listed."""

    server: str
    name: str
    counts: Mapping[str, int]
    total: int
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Charts:
    """All that the page draws. `most` is the highest column's height in requests."""

    columns: Sequence[Column]
    most: int
    totals: Mapping[str, int]
    tools: Sequence[Row]
    reasons: Sequence[Row]


class Tally:
    """Counts what a query asks for. `read` is given to a look as what is wanted, and wants nothing."""

    def __init__(self, query: Query) -> None:
        self._query: Final = query
        self._begin = _seconds(query.since or "")
        self._end = max(_seconds(query.until or ""), self._begin + 1)
        length = self._end - self._begin
        self._step: Final = next((one for one in _STEPS_S if length / one < _MOST_COLUMNS), int(length / 8))
        self._begin = max(self._begin - self._begin % self._step, _FIRST)  # whole hours and days, in UTC
        self._over_time: dict[int, Counts] = {}
        self._tools: dict[tuple[str, str], Counts] = {}
        self._reasons: dict[tuple[str, str], Counts] = {}

    def read(self, line: bytes) -> None:
        """Count the line's record, if it is one that decided."""
        if b'"kind":"decision"' not in line and b'"kind":"refusal"' not in line:
            return
        record = self._query.read(line)
        if record is None or (series := series_of(record)) is None:
            return
        count = record.get("count")
        times = count if type(count) is int and 0 < count < 2**31 else 1
        at = int((_seconds(str(record.get("time"))) - self._begin) // self._step)
        _add(self._over_time, at, series, times)
        if record.get("name") or record.get("method"):
            tool = (_text(record, "server"), _text(record, "name") or _text(record, "method"))
            _add(self._tools, tool, series, times)
        if is_mixed(record):  # how many of them each reason had, nobody counted
            _add(self._reasons, (OTHERS, OTHERS), series, times)
            return
        reasons = record.get("reasons")
        for reason in dict.fromkeys(map(str, reasons[:16])) if isinstance(reasons, list) else ():
            _add(self._reasons, ("", reason), series, times)

    def charts(self) -> Charts:
        """What was counted, ready to be drawn."""
        number = int((self._end - self._begin - 1) // self._step) + 1
        counted = [self._over_time.get(at, Counter()) for at in range(number)]
        most = max((counts.total() for counts in counted), default=0)
        totals = Counter[str]()
        for counts in self._over_time.values():
            totals.update(counts)
        return Charts(
            [self._column(at, counts, number, most) for at, counts in enumerate(counted)],
            most, totals, _rows(self._tools), _rows(self._reasons),
        )  # fmt: skip

    def _column(self, at: int, counts: Counts, number: int, most: int) -> Column:
        room = WIDTH / number
        x, bottom, parts = at * room, HEIGHT, []
        for series in SERIES:
            if counts[series]:
                height = counts[series] / most * HEIGHT
                bottom -= height
                parts.append(
                    Part(series, round(x + room * 0.1, 2), round(bottom, 2), round(room * 0.8, 2), round(height, 2))
                )
        begins = datetime.fromtimestamp(self._begin + at * self._step, UTC)
        label = f"{begins.day} {begins:%b}" if self._step >= 86_400 else f"{begins:%H:%M}"
        return Column(begins.isoformat(timespec="milliseconds").replace("+00:00", "Z"), label, counts, parts)


def series_of(record: Mapping[str, Any]) -> str | None:
    """Which of the series a record counts for."""
    if record.get("kind") == "decision":
        return "approved" if record.get("verdict") == "approve" else "allowed"
    if record.get("kind") == "refusal":
        return "held" if reason_of(record) == "approval_required" else "refused"
    return None


def _add(table: dict[Any, Counts], key: Any, series: str, times: int) -> None:
    if key not in table and len(table) >= _MOST_KEYS and isinstance(key, tuple):
        key = (OTHERS, OTHERS)
    table.setdefault(key, Counter())[series] += times


def _rows(table: Mapping[tuple[str, str], Counts]) -> list[Row]:
    """The most frequent, and one row for all others."""
    others = Counter(table.get((OTHERS, OTHERS), Counter()))
    named = [(key, counts) for key, counts in table.items() if key != (OTHERS, OTHERS)]
    named.sort(key=lambda one: (-one[1].total(), one[0]))
    for _, counts in named[_MOST_ROWS:]:
        others.update(counts)
    listed = [*named[:_MOST_ROWS], *([((OTHERS, OTHERS), others)] if others else [])]
    most = max((counts.total() for _, counts in listed), default=1)
    return [_row(key, counts, most) for key, counts in listed]


def _row(key: tuple[str, str], counts: Counts, most: int) -> Row:
    x, parts = 0.0, []
    for series in SERIES:
        if counts[series]:
            width = counts[series] / most * 100
            parts.append(Part(series, round(x, 2), 0, round(width, 2), 10))
            x += width
    return Row(*key, counts, counts.total(), parts)


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    return str(value)[:512] if value is not None else ""


def _seconds(moment: str) -> float:
    try:
        return datetime.fromisoformat(moment).timestamp()
    except (ValueError, OverflowError):
        return 0.0
