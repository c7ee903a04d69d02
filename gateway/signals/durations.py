"""How long requests took, and in which room: counted in memory, carried over later.

A request leaves eight marks and costs no write of a shared file: several times a second, and once more when the
worker stops, what came together is carried over. One that is killed takes along what it counted since the last time.
The rooms' times of a request add up to its whole latency, wherever it ended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final

from prometheus_client import Histogram

from gateway.contract.passage import Passage

ROOMS: Final = ("identify", "read", "hold", "judge", "settle", "record", "forward", "answer", "finish")
"""The rooms in their order; `hold` is where a call waits for a person, `answer` ends with the server's last byte."""

BOUNDS: Final = (0.00025, 0.001, 0.0025, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0)
"""Upper ends of the buckets in seconds; one more is for all that took longer."""

OWN_ANSWERS: Final = frozenset({"answered", "replayed"})
"""How requests end that the house answers by itself."""

_AFTER: Final = {
    "": "identify", "identify": "read", "read": "judge", "hold": "judge", "judge": "settle", "settle": "record",
    "record": "forward", "forward": "answer", "answer": "finish",
}  # fmt: skip
"""Where a request is that left this room last."""


def rooms_of(passage: Passage) -> Iterator[tuple[str, float]]:
    """(room, seconds) of a request that has ended, in its order."""
    last, before = "", passage.began
    for last, at in passage.left.items():
        yield last, at - before
        before = at
    yield _AFTER[last], max(0.0, passage.began + passage.latency_s - before)


def server_seconds(passage: Passage) -> float | None:
    """How long the server behind had the call, from its forwarding to its last byte; `None`: it never had it."""
    left = passage.left
    if "record" not in left or passage.outcome in OWN_ANSWERS:
        return None
    return left.get("answer", passage.began + passage.latency_s) - left["record"]


class Spread:
    """One histogram with one label: what one worker counts of it between two looks, in memory."""

    def __init__(self, histogram: Histogram, bounds: Sequence[float]) -> None:
        """`bounds` are the histogram's buckets, but for the last one, which is for all that is more."""
        self._histogram = histogram
        self._bounds = bounds
        self._found: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}
        self._shown: dict[str, Any] = {}

    def count(self, label: str, took: float) -> None:
        """One value. Its label's first one makes a series, for which there may be no room: raises what that does."""
        found = self._found.get(label) or self.open(label)
        found[bisect_left(self._bounds, took)] += 1
        self._seconds[label] += took

    def open(self, label: str) -> list[int]:
        """The series of a label, from its beginning."""
        self._shown[label] = self._histogram.labels(label)
        self._seconds[label] = 0.0
        found = self._found[label] = [0] * (len(self._bounds) + 1)
        return found

    def carry_over(self) -> None:
        """Bring the histogram up to date. `observe` knows single values only: a bucket's own counter takes many."""
        for label, counts in self._found.items():
            shown = self._shown[label]
            if not any(counts):
                continue
            for bucket, count in enumerate(counts):
                if count:
                    shown._buckets[bucket].inc(count)
                    counts[bucket] = 0
            shown._sum.inc(self._seconds[label])
            self._seconds[label] = 0.0


class Durations(Spread):
    """How long requests were in each room."""

    def __init__(self, histogram: Histogram) -> None:
        """`histogram` has the label `room`, and `BOUNDS` as its buckets."""
        super().__init__(histogram, BOUNDS)
        for room in ROOMS:
            self.open(room)

    def count_rooms(self, passage: Passage) -> None:
        """One request's end."""
        found, seconds = self._found, self._seconds
        for room, took in rooms_of(passage):
            found[room][bisect_left(BOUNDS, took)] += 1
            seconds[room] += took
