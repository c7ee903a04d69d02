"""Carries what is to be told to the webhooks: from the outbox, apart from every call and every decision.

At least once: a message is held by lease while it is tried, and tried again (the same id and body, ever later, at
random) until the receiver takes it, gives it up for good, or `MOST_ATTEMPTS` have failed. What can't be delivered is
told to the house and never stays unseen. A receiver that hangs costs its own messages time, and nobody else's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from approvals.ledger import Ledger
from approvals.outbox import Message, Outbox, due, forget, has_due, lost, put_off, settle, take, waiting
from approvals.store import Store
from approvals.telling import Hook, signed
from approvals.ticket import StoreUnavailable

MOST_ATTEMPTS = 12
FIRST_S = 10.0
FACTOR = 2.5
LONGEST_S = 6 * 3600.0
"""How long to wait after the n-th attempt at the most: 10 s, 25 s, … 6 h; a random part of it is waited."""

LEASE_S = 60.0
POLL_S = 2.0
TIDY_S = 60.0
AT_ONCE = 4
"""Messages of one webhook that one worker has under way."""

DELIVERED, FAILED, DEAD = "delivered", "failed", "dead"
OUTCOMES = (DELIVERED, FAILED, DEAD)


class NotDelivered(Exception):  # noqa: N818 - what happened to the message
    """No answer, or one that is no yes. The text is a stable name (no address, no secret); `final`: never try again.

    `retry_after_s`: what the receiver asked for.
    """

    def __init__(self, why: str, *, final: bool = False, retry_after_s: float = 0.0) -> None:
        super().__init__(why)
        self.why = why
        self.final = final
        self.retry_after_s = retry_after_s


Send = Callable[[str, bytes, Mapping[str, str]], Awaitable[None]]
"""(webhook's id, body, headers): delivers one message within the lease, or raises `NotDelivered`."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one attempt ended: `outcome` is one of `OUTCOMES`, `why` a stable name."""

    message: Message
    outcome: str
    why: str = ""


def wait_after(attempts: int) -> float:
    """How long to wait at the most after so many attempts (seconds)."""
    return float(min(LONGEST_S, FIRST_S * FACTOR ** (attempts - 1)))


class Courier:
    """One worker's courier. `told` hears of every attempt, and must not wait; `start` and `close` are once each."""

    def __init__(
        self,
        store: Store,
        outbox: Outbox,
        send: Send,
        told: Callable[[Attempt], None],
        *,
        clock: Callable[[], float] | None = None,
        poll_s: float = POLL_S,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._send = send
        self._told = told
        self._clock = clock or store.now
        self._poll_s = poll_s
        self._chance = chance
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._running: asyncio.Task[None] | None = None
        self._tidied_at = 0.0
        self._log = structlog.get_logger("webhooks")
        self.waiting: dict[str, int] = dict.fromkeys(outbox.hooks, 0)

    def start(self) -> None:
        """Begin to carry, where there is anybody to carry to."""
        if self._outbox.hooks:
            self._running = asyncio.create_task(self._run())

    @property
    def well(self) -> bool:
        """Whether it carries, or has nobody to carry to."""
        return not self._outbox.hooks or (self._running is not None and not self._running.done())

    async def close(self) -> None:
        """Stop. What is under way is left to its lease: somebody tries it again, with the same id."""
        tasks = [task for task in (self._running, *self._busy.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            self._outbox.rung.clear()
            try:
                await self._look()
            except StoreUnavailable as error:
                self._log.error("webhooks_not_looked_after", error=str(error))
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._outbox.rung.wait()
            except TimeoutError:
                pass

    async def _look(self) -> None:
        """Remind of what expires, and set out for every webhook that has something due and is not being served."""
        now = self._clock()
        await self._remind()
        if now - self._tidied_at >= TIDY_S:
            self._tidied_at = now
            await self._tidy()
        for hook in self._outbox.hooks.values():
            busy = self._busy.get(hook.id)
            if busy is not None and not busy.done():
                continue
            if await self._has_due(hook):
                self._busy[hook.id] = task = asyncio.create_task(self._serve(hook))
                task.add_done_callback(self._ended)
        self.waiting |= dict.fromkeys(self._outbox.hooks, 0) | await self._store.read(_waiting)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("task_broke", exc_info=error)  # its messages are tried again when their leases lapse

    async def _serve(self, hook: Hook) -> None:
        """All that is due for one webhook."""
        try:
            while taken := await self._take(hook):
                async with asyncio.TaskGroup() as attempts:
                    for one in taken:
                        attempts.create_task(self._attempt(hook, one))
        except* StoreUnavailable as errors:
            self._log.error("webhooks_not_looked_after", error=str(errors.exceptions[0]))

    async def _take(self, hook: Hook) -> list[Message]:
        async def work(ledger: Ledger) -> list[Message]:
            now = self._clock()
            found = await due(ledger.connection, hook.id, now, AT_ONCE)
            taken = [await take(ledger.connection, self._store.vault, row, now, LEASE_S) for row in found]
            return [one for one in taken if one is not None]

        if not await self._has_due(hook):
            return []
        return await self._store.write(work)

    async def _has_due(self, hook: Hook) -> bool:
        return await self._store.read(lambda ledger: has_due(ledger.connection, hook.id, self._clock()))

    async def _attempt(self, hook: Hook, message: Message) -> None:
        if message.body is None or message.attempts > MOST_ATTEMPTS:
            await self._give_up(message, message.why or "no_attempt_left")
            return
        headers = signed(hook.secrets, message.id, int(self._clock()), message.body)
        try:
            async with asyncio.timeout(LEASE_S / 2):
                await self._send(hook.id, message.body, headers)
        except (NotDelivered, TimeoutError) as fault:
            failed = fault if isinstance(fault, NotDelivered) else NotDelivered("timeout")
            await self._try_again(message, failed)
            return
        await self._store.write(lambda ledger: settle(ledger.connection, message, DELIVERED, self._clock()))
        self._told(Attempt(message, DELIVERED))

    async def _try_again(self, message: Message, failed: NotDelivered) -> None:
        if failed.final or message.attempts >= MOST_ATTEMPTS:
            await self._give_up(message, failed.why)
            return
        wait_s = max(self._chance() * wait_after(message.attempts), min(failed.retry_after_s, LONGEST_S))
        due_at = self._clock() + wait_s
        await self._store.write(lambda ledger: put_off(ledger.connection, message, due_at))
        self._told(Attempt(message, FAILED, failed.why))

    async def _give_up(self, message: Message, why: str) -> None:
        if await self._store.write(lambda ledger: settle(ledger.connection, message, DEAD, self._clock())):
            self._told(Attempt(message, DEAD, why))

    async def _remind(self) -> None:
        while await self._store.read(lambda ledger: ledger.has_late(self._clock())):
            if not await self._store.write(lambda ledger: ledger.remind(self._clock())):
                break

    async def _tidy(self) -> None:
        """Give up what nobody delivers any more, and forget what was settled long ago."""

        async def work(ledger: Ledger) -> list[Message]:
            now = self._clock()
            found = await lost(ledger.connection, self._outbox.hooks, now)
            taken = [await take(ledger.connection, self._store.vault, row, now, LEASE_S) for row in found]
            gone = [one for one in taken if one is not None]
            for one in gone:
                await settle(ledger.connection, one, DEAD, now)
            await forget(ledger.connection, now)
            return gone

        for one in await self._store.write(work):
            self._told(Attempt(one, DEAD, "given_up"))


async def _waiting(ledger: Ledger) -> dict[str, int]:
    return await waiting(ledger.connection)
