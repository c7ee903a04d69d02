"""How long requests were in each room: from the times that a passage notes, counted in memory, carried over later.

A request leaves eight marks and costs no write of a shared file: once a second, what came together is carried over.
The rooms' times of a request add up to its whole latency, wherever it ended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
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


class Durations:
    """What one worker counts between two looks at it."""

    def __init__(self, histogram: Histogram) -> None:
        """`histogram` has the label `room`, and `BOUNDS` as its buckets."""
        self._found: dict[str, list[int]] = {room: [0] * (len(BOUNDS) + 1) for room in ROOMS}
        self._seconds = dict.fromkeys(ROOMS, 0.0)
        self._shown: dict[str, Any] = {room: histogram.labels(room) for room in ROOMS}

    def count(self, passage: Passage) -> None:
        """One request's end."""
        found, seconds = self._found, self._seconds
        for room, took in rooms_of(passage):
            found[room][bisect_left(BOUNDS, took)] += 1
            seconds[room] += took

    def carry_over(self) -> None:
        """Bring the histogram up to date. `observe` knows single values only: a bucket's own counter takes many."""
        for room, counts in self._found.items():
            shown = self._shown[room]
            if not any(counts):
                continue
            for bucket, count in enumerate(counts):
                if count:
                    shown._buckets[bucket].inc(count)
                    counts[bucket] = 0
            shown._sum.inc(self._seconds[room])
            self._seconds[room] = 0.0
