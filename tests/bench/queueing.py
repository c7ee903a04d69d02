"""How long calls take when a share of the workers' time is used: a simulation of workers that share theirs.

A worker's event loop gives each of its calls a slice in turn, which is processor sharing; calls come at random
(Poisson), each to a worker by chance (the kernel and balancers hand out connections without knowing who is busy). The
seed is fixed: the same figures come out each time.
"""

from __future__ import annotations

import heapq
import random

CALLS = 40_000


def sojourns(load: float, cost_ms: float, calls: int = CALLS, seed: int = 7) -> list[float]:
    """Milliseconds that each call of one worker takes at a load below 1, in ascending order.

    With equal shares all present calls advance together: `done` is how far one that was there from the start would
    be, and a call ends when `done` has grown by its cost since it came.
    """
    chance = random.Random(seed)
    now = done = 0.0
    present: list[tuple[float, float]] = []
    spans = []
    for _ in range(calls):
        arrival = now + chance.expovariate(load / cost_ms)
        while present:
            left = (present[0][0] - done) * len(present)
            if now + left > arrival:
                break
            now, done = now + left, present[0][0]
            spans.append(now - heapq.heappop(present)[1])
        if present:
            done += (arrival - now) / len(present)
        now = arrival
        heapq.heappush(present, (done + cost_ms, now))
    return sorted(spans)


def quantile(ascending: list[float], share: float) -> float:
    """The value that this share of all stays below."""
    return ascending[min(len(ascending) - 1, int(len(ascending) * share))]


def busiest(connections: int, workers: int, rounds: int = 400, seed: int = 7) -> float:
    """Connections of the busiest worker over the mean, when chance deals them; the median of many deals."""
    chance = random.Random(seed)
    most = []
    for _ in range(rounds):
        held = [0] * workers
        for _ in range(connections):
            held[chance.randrange(workers)] += 1
        most.append(max(held) * workers / connections)
    return sorted(most)[rounds // 2]
