"""All replicas of one server: who is asked next, how many calls each may have, and who waits for a place.

There is no affinity: each call goes to the next replica in turn that is well and has room. Where none has room, a
bounded number of calls waits for a bounded time, and whoever comes then is refused before anything is asked of
anybody. With all replicas out, all are tried: a gateway that is wrong about every one of them must not be the outage.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import structlog

from gateway.upstream.health import HealthRules
from gateway.upstream.port import UpstreamFull
from gateway.upstream.replicas import Replica
from gateway.upstream.retries import Budget


@dataclass(frozen=True, slots=True)
class ServerRules:
    """How one server's replicas are asked (counts, seconds, shares), per worker.

    `concurrent`: calls at one replica at a time (0: any number). `queue` calls wait for at most `queue_s` where all
    have that many. `deadlines`: method -> within how long it is answered, waiting and retries included; for others
    `UpstreamLimits.answer_s`. `retry_share`: retries per call that may be repeated. A connection of `connection_s`
    begins no further call (0: it may be of any age), so that what a name or an address stands for is found anew.
    """

    health: HealthRules = field(default_factory=HealthRules)
    concurrent: int = 500
    queue: int = 100
    queue_s: float = 1.0
    connection_s: float = 10.0
    deadlines: Mapping[str, float] = field(default_factory=dict)
    retry_share: float = 0.2


class Ring:
    """All replicas of one server, in turn. `retries`: how often one was answered, failed, or found no budget."""

    def __init__(self, server: str, replicas: tuple[Replica, ...], rules: ServerRules) -> None:
        self.server = server
        self.replicas = replicas
        self.rules = rules
        self.budget = Budget(rules.retry_share)
        self.retries = {"answered": 0, "failed": 0, "no_budget": 0}
        self._most = rules.concurrent or sys.maxsize
        self._most_out = rules.health.most_out(len(replicas))
        self._waiting: deque[asyncio.Future[Replica]] = deque()
        self._turn = 0
        self._log = structlog.get_logger("upstream")
        for replica in replicas:
            replica.ring = self

    @property
    def waiting(self) -> int:
        """Calls that wait for a place."""
        return sum(not one.done() for one in self._waiting)

    def has_room(self, expected: int = 0) -> bool:
        """Whether a call that came now, after those that are `expected`, would find a place, or one to wait in."""
        before, queue = expected + len(self._waiting), self.rules.queue
        return before < queue or before < queue + self._places_left()

    def take(self, now: float, tried: Collection[Replica] = (), *, dear: bool = False) -> Replica | None:
        """A place at the next replica, to be left again; `None` where no replica but those `tried` has one.

        Only a first look is a turn: else, of two replicas, each retry would have the next call begin at the same one.
        A call that is `dear` tries none out: a person approved it, and that can't be repeated for nothing.
        """
        if not tried:
            self._turn = (self._turn + 1) % len(self.replicas)
        replica = self.replicas[self._turn]
        if not replica.health.plain or replica.running >= self._most or tried:
            found = self._look(now, tried, dear=dear)
            if found is None:
                return None
            replica = found
        replica.running += 1
        return replica

    def _look(self, now: float, tried: Collection[Replica], *, dear: bool) -> Replica | None:
        late = None
        for replica in self._from_here():
            if replica in tried or replica.running >= self._most:
                continue
            health = replica.health
            if health.out:
                if not dear and not tried and health.is_due(now):  # a second attempt is for one that is well
                    health.begin_trial(now)
                    return replica
            elif health.takes(now):
                return replica
            else:
                late = late or replica
        if late is None and self._all_out():
            rest = [one for one in self.replicas if one not in tried and one.running < self._most]
            late = min(rest, key=lambda one: one.health.until, default=None)
        return late

    def _from_here(self) -> list[Replica]:
        return [*self.replicas[self._turn :], *self.replicas[: self._turn]]

    def order_by_health(self, now: float, *, again: bool = False, tries: bool = False) -> list[Replica]:
        """All replicas: those in service, then those that are out, and those without room last.

        `tries`: whoever asks is a call, and finds out, in its turn, whether one that is due is well.
        """
        if not again:
            self._turn = (self._turn + 1) % len(self.replicas)

        def how_late(one: Replica) -> tuple[bool, bool, float]:
            waits = one.health.out and not (tries and one.health.is_due(now))
            return one.running >= self._most, waits, one.health.until if waits else 0.0

        order = sorted(self._from_here(), key=how_late)
        if tries and order[0].health.out:
            order[0].health.begin_trial(now)
        return order

    def _places_left(self) -> int:
        all_out = self._all_out()
        return sum(max(0, self._most - one.running) for one in self.replicas if all_out or not one.health.out)

    def is_full(self, tried: Collection[Replica] = ()) -> bool:
        """Whether it is only for room that no replica but those `tried` takes a call."""
        all_out = self._all_out()
        usable = [one for one in self.replicas if one not in tried and (all_out or not one.health.out)]
        return bool(usable) and all(one.running >= self._most for one in usable)

    async def wait(self, until: float) -> Replica:
        """A place as soon as one is left, in the order of arrival. Raises `UpstreamFull`: nothing was sent."""
        if len(self._waiting) >= self.rules.queue:
            raise UpstreamFull("every replica has as many calls as it may have, and so has the queue", sent=False)
        loop = asyncio.get_running_loop()
        place: asyncio.Future[Replica] = loop.create_future()
        self._waiting.append(place)
        taken = False
        try:
            async with asyncio.timeout_at(min(until, loop.time() + self.rules.queue_s)):
                replica = await place
            taken = True
        except TimeoutError:
            raise UpstreamFull("no replica had room in time", sent=False) from None
        finally:
            if not taken and place.done() and not place.cancelled():
                self.leave(place.result())
            elif place in self._waiting:
                self._waiting.remove(place)
        return replica

    def leave(self, replica: Replica) -> None:
        """A place is free again: whoever has waited longest has it."""
        replica.running -= 1
        if self._waiting:
            self._hand_over(replica)

    def _hand_over(self, replica: Replica) -> None:
        while self._waiting and replica.running < self._most and (not replica.health.out or self._all_out()):
            place = self._waiting.popleft()
            if not place.done():
                replica.running += 1
                place.set_result(replica)

    def _all_out(self) -> bool:
        return all(replica.health.out for replica in self.replicas)

    # What replicas tell.

    def refused(self, replica: Replica, now: float) -> None:
        """It took no connection."""
        self._moved_out(replica, now, moved=replica.health.refuse(now))

    def connected(self, replica: Replica, now: float) -> None:
        """It took one."""
        self._came_back(replica, now, moved=replica.health.connect(now))

    def faulted(self, replica: Replica, now: float, *, tried: bool) -> None:
        """One of its exchanges ended in a fault."""
        out = sum(one.health.out for one in self.replicas)
        moved = replica.health.fault(now, tried=tried, may_go=out < self._most_out)
        self._moved_out(replica, now, moved=moved)

    def answered(self, replica: Replica, now: float, *, tried: bool) -> None:
        """One of its exchanges went well; asked only where that may say something new."""
        self._came_back(replica, now, moved=replica.health.well(now, tried=tried))

    def probed(self, replica: Replica, now: float, *, well: bool) -> None:
        """Its probe was answered well, or not."""
        was_out = replica.health.out
        moved = replica.health.probe(now, well=well)
        if was_out:
            self._came_back(replica, now, moved=moved)
        else:
            self._moved_out(replica, now, moved=moved)

    def _moved_out(self, replica: Replica, now: float, *, moved: bool) -> None:
        if moved:
            health = replica.health
            replica.ejections[health.why] += 1
            lasts_s = round(max(0.0, health.until - now), 3)
            self._log.warning(
                "replica_ejected", server=self.server, replica=replica.name, why=health.why, faults=health.faults,
                at_least_s=lasts_s,
            )  # fmt: skip
            if self._waiting and self._all_out():  # then all are tried, and places that nobody could have are there
                for one in self.replicas:
                    self._hand_over(one)

    def _came_back(self, replica: Replica, now: float, *, moved: bool) -> None:
        if moved:
            out_s = round(now - replica.health.since, 3)
            self._log.info("replica_returned", server=self.server, replica=replica.name, out_s=out_s)
            if self._waiting:
                self._hand_over(replica)

    def close(self) -> None:
        """Close every connection at once."""
        for replica in self.replicas:
            replica.close()
