"""All workers of a gateway: every slot filled, and one after the other renewed while the others serve.

A worker has three numbers. Its slot is its place, which two hold while one takes over from the other. Its seat is the
lowest number that no living worker has, by which it counts (metrics); its writer is that of the audit file whose lock
it got. Only one slot is renewed at a time, so there is never more than one more of any than there are slots.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

import structlog

from gateway.options import INTERRUPTED
from gateway.serving.configuration import Configuration, clear_away, lay_down
from gateway.serving.employment import Life
from gateway.serving.roster import Roster
from gateway.serving.understudy import Understudy

CANNOT_START = 3
"""A worker's exit code when its configuration or its bundle can't be used."""
ORDERLY = (0, CANNOT_START, -signal.SIGTERM, -signal.SIGINT, INTERRUPTED)
"""Exit codes of a worker that ended when it was asked to."""
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
STEADY_AFTER_S = 10.0
TRIES = 5
"""Deaths of a worker that was never ready after which a gateway that has never served gives up."""
READY_WITHIN_S = 60.0
"""What a successor has until it is ready; an issuer that does not answer makes it some seconds."""


@dataclass(slots=True)
class Slot:
    """A place. `holder` is who serves there; `successor` who took over while the holder still finishes its work."""

    number: int
    configuration: Configuration
    holder: Life | None = None
    successor: Life | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    served: bool = False


class Crew:
    """Starts, replaces, renews and stops the workers. `fault` is why the gateway could not begin to serve."""

    def __init__(
        self,
        roster: Roster,
        command: tuple[str, ...],
        door: socket.socket,
        folder: Path,
        configuration: Configuration,
        *,
        understudies: list[Understudy] | None = None,
    ) -> None:
        self.roster: Final = roster
        self.stopping: Final = asyncio.Event()
        self.serving: Final = asyncio.Event()
        self.fault = ""
        self.killed = False
        self._command = command
        self._door = door
        self._folder = folder
        self._understudies = [] if understudies is None else understudies
        self._slots = [Slot(number, configuration) for number in range(roster.wanted)]
        self._lives: set[Life] = set()
        self._seats: set[int] = set()
        self._hurried = False
        self._log = structlog.get_logger("supervisor")

    @property
    def slots(self) -> range:
        """Their numbers."""
        return range(len(self._slots))

    def tidy(self) -> None:
        """What no slot runs on any more goes."""
        clear_away(self._folder, [slot.configuration.text for slot in self._slots])

    async def work(self) -> None:
        """Keep all slots filled until `stop`; then wait until the last worker has ended."""
        async with asyncio.TaskGroup() as keepers:
            for slot in self._slots:
                keepers.create_task(self._keep(slot))
        if self._lives:  # successors that have not taken over
            await asyncio.wait({life.ended for life in self._lives})

    def stop(self, at_once: bool) -> None:
        """Not ready from this moment on. Asked again, nothing changes but the hurry."""
        if self.stopping.is_set() and (self._hurried or not at_once):
            return
        self._hurried = self._hurried or at_once
        self.roster.draining = True
        self.stopping.set()
        for life in self._lives:
            self._dismiss(life)

    def _dismiss(self, life: Life) -> None:
        life.leave(signal.SIGINT if self._hurried else signal.SIGTERM)

    async def _begin(self, slot: Slot, configuration: Configuration) -> Life:
        """Start a worker. Raises `OSError`."""
        seat = next(number for number in count() if number not in self._seats)
        self._seats.add(seat)
        try:
            text = lay_down(self._folder, configuration.text)
            options = ("--port", str(self._door.getsockname()[1]), "--text", str(text))
            environment: Mapping[str, str] = {"PROMETHEUS_MULTIPROC_DIR": str(self._folder)}
            life = await Life.begin(
                (*self._command, *options),
                self._door.fileno(),
                seat,
                configuration.grace_s,
                environment,
                understudy=self._understudies.pop() if self._understudies else None,
            )
        except BaseException:
            self._seats.discard(seat)
            raise
        self._lives.add(life)
        self.roster.besides.append(life.worker)
        life.ended.add_done_callback(lambda ended: self._forget(life, ended))
        self._log.info("worker_started", slot=slot.number, pid=life.worker.pid, configuration=configuration.digest)
        if self.stopping.is_set():
            self._dismiss(life)
        return life

    def _forget(self, life: Life, ended: asyncio.Task[tuple[int, str]]) -> None:
        self._lives.discard(life)
        self._seats.discard(life.seat)
        if self.stopping.is_set() and not ended.cancelled() and ended.result()[0] not in ORDERLY:
            self.killed = True
        if life.worker in self.roster.besides:
            self.roster.besides.remove(life.worker)

    def _install(self, slot: Slot, life: Life) -> None:
        """From now on it is the one of this slot."""
        before = self.roster.workers.get(slot.number)
        if before is not None:
            self.roster.besides.append(before)
        self.roster.workers[slot.number] = life.worker
        if life.worker in self.roster.besides:
            self.roster.besides.remove(life.worker)

    async def _keep(self, slot: Slot) -> None:
        """Keep one slot filled until the gateway stops."""
        failures = 0
        while not self.stopping.is_set():
            life, age_s = None, 0.0
            try:
                life = slot.successor or await self._begin(slot, slot.configuration)
                if slot.successor not in {None, life}:  # it took over while this one's process was being started
                    life.leave(signal.SIGTERM)
                    continue
                code, why = await self._attend(slot, life)
                age_s = life.age_s
            except OSError as error:  # no process, no descriptor: the system is short of something
                code, why = None, f"no process could be started: {error.strerror}"
            if self.stopping.is_set():
                break
            if life is not None and life.retired:
                continue
            failures = 0 if age_s > STEADY_AFTER_S else failures + 1
            if not self.serving.is_set() and (code == CANNOT_START or (not slot.served and failures >= TRIES)):
                self.fault = self.fault or why or f"a worker ended {failures} times before it was ready"
                self.stop(False)
                break
            self.roster.restarts += 1
            pause = BACKOFF_S[min(failures, len(BACKOFF_S) - 1)]
            tell = self._log.info if code == 0 else self._log.error
            event = "worker_left" if code == 0 else "worker_died"
            tell(event, slot=slot.number, code=code, why=why, restart_in_s=pause)
            await self._pause(slot, pause)

    async def _attend(self, slot: Slot, life: Life) -> tuple[int, str]:
        """Wait until whoever holds the slot ends or is relieved, and note when it is ready for the first time.

        Who is relieved may go on for its grace time: it is not waited for, or nobody would mind its successor.
        """
        if slot.successor is life:
            slot.successor = None
        slot.holder = life
        slot.arrived.clear()
        self._install(slot, life)
        besides = asyncio.create_task(self._greet(slot, life)), asyncio.create_task(slot.arrived.wait())
        try:
            await asyncio.wait({life.ended, besides[1]}, return_when=asyncio.FIRST_COMPLETED)
            return life.ended.result() if life.ended.done() else (0, "")
        finally:
            for task in besides:
                task.cancel()
            slot.holder = None
            if self.roster.workers.get(slot.number) is life.worker:
                del self.roster.workers[slot.number]

    async def _greet(self, slot: Slot, life: Life) -> None:
        await life.ready.wait()
        if not slot.served:
            slot.served = True
            self._log.info("worker_ready", slot=slot.number, after_s=round(life.age_s, 3))
            if all(one.served for one in self._slots):
                # What fails from now on is not the configuration that the gateway was started with.
                self.serving.set()

    async def _pause(self, slot: Slot, pause_s: float) -> None:
        """Until it is time, the gateway stops, or somebody else takes the slot."""
        waiting = {asyncio.create_task(self.stopping.wait()), asyncio.create_task(slot.arrived.wait())}
        await asyncio.wait(waiting, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()

    async def renew(self, number: int, configuration: Configuration) -> str:
        """Put a worker with `configuration` into a slot: it gets ready, takes over, and its predecessor ends.

        -> why it could not be, `""` where it was. Whoever held the slot goes on then.
        """
        slot = self._slots[number]
        if self.stopping.is_set():
            return "the gateway stops"
        try:
            life = await self._begin(slot, configuration)
        except OSError as error:
            return f"no process could be started: {error.strerror}"
        if why := await self._await_ready(life):
            life.leave(signal.SIGTERM)
            await asyncio.wait({life.ended})
            return why
        holder, slot.configuration, slot.successor = slot.holder, configuration, life
        self._install(slot, life)
        slot.arrived.set()
        if holder is not None:
            holder.retired = True
            # One that has not spoken yet knows only the system's way of ending.
            holder.leave(signal.SIGUSR1 if holder.ready.is_set() else signal.SIGTERM)
            await asyncio.wait({holder.ended})
        return ""

    async def _await_ready(self, life: Life) -> str:
        """-> why it is not, `""` where it is."""
        waiting = [asyncio.create_task(self.stopping.wait()), asyncio.create_task(life.ready.wait())]
        try:
            await asyncio.wait({*waiting, life.ended}, timeout=READY_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        if self.stopping.is_set():
            return "the gateway stops"
        if life.ended.done():
            code, why = life.ended.result()
            return why or f"a worker ended with {code} before it was ready"
        if not life.ready.is_set():
            missing = ", ".join(life.worker.describe()["missing"])
            return f"a worker was not ready within {READY_WITHIN_S:g} s: missing {missing}"
        return ""
