"""Times as people read them; always UTC, always with the date, so that they are right wherever they are read."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = ((86400, "day", "days"), (3600, "h", "h"), (60, "min", "min"), (1, "s", "s"))


def seconds_of(text: str) -> float:
    """`2026-07-28T12:00:00.000Z` -> seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


def moment(at: str | float) -> str:
    """-> `28 Jul 2026, 12:00:00 UTC`."""
    when = datetime.fromtimestamp(at, UTC) if isinstance(at, float) else datetime.fromisoformat(at)
    return f"{when.day} {when:%b %Y, %H:%M:%S} UTC"


def span(seconds: float) -> str:
    """A length of time in its two largest units: `2 days 3 h`, `9 min 41 s`, `0 s`."""
    left = max(0, int(seconds))
    parts: list[str] = []
    for size, one, many in _UNITS:
        number, left = divmod(left, size)
        if number or parts:
            parts.append(f"{number} {one if number == 1 else many}" if number else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part) or "0 s"


def ago(at: str, now: float) -> str:
    """-> `3 min ago`, to one unit."""
    return " ".join(span(now - seconds_of(at)).split()[:2]) + " ago"


def until(at: str, now: float) -> str:
    """-> `9 min 41 s`; `""` when it is over."""
    left = seconds_of(at) - now
    return span(left) if left > 0 else ""
