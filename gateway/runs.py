"""The runs of held calls that are tasks: each apart from any connection, through the whole corridor, once.

A run holds the lease of its errand and is broken off where it has lost it, whoever took it; what comes of the call is
kept before anybody is told. One look at the shelf, every `LOOK_S`, is for all that run in this worker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Protocol

import orjson
import structlog

from approvals.errand import Errand, Questions, Recipe, Stage
from approvals.shelf import Shelf
from approvals.ticket import Held, StoreUnavailable
from gateway.contract.passage import Arrival, Passage, Received, Reply, Server, Task
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.retelling import reply_of
from gateway.delivery import Delivery, translate
from gateway.following import asked_by
from gateway.handles import GRACE_S, LONGEST_S

LOOK_S: Final = 2.0
"""How often a worker looks whether what it runs still is to be run."""

BEGIN_S: Final = 0.5
"""How long a poll waits for what it began: a quick call's result, or why it could not begin."""

KEEPING_S: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""The pauses between attempts to keep what came of a call."""

TOO_LARGE: Final[Mapping[str, str]] = {
    "result": "The call ran; its result is too large to be kept.",
    "error": "The call was answered with an error that is too large to be kept.",
    "input_required": "The call has begun; what its server asks for is too large to be kept.",
}

FINAL: Final = frozenset(
    {
        Refusal.APPROVAL_REFUSED,
        Refusal.APPROVAL_REQUIRED,
        Refusal.ARGUMENTS_INVALID,
        Refusal.HEADER_MISMATCH,
        Refusal.IDEMPOTENCY_ASKED,
        Refusal.IDEMPOTENCY_CONFLICT,
        Refusal.IDEMPOTENCY_NOT_KEPT,
        Refusal.IDEMPOTENCY_UNKNOWN,
        Refusal.PARAMS_INVALID,
        Refusal.POLICY_DENIED,
        Refusal.STATE_NOT_ACCEPTED,
        Refusal.TOOL_QUARANTINED,
    }
)
"""What ends an errand before it was forwarded. Anything else is told to the poll, and the next one tries again."""


class House(Protocol):
    """The corridor, as far as a run needs it: the only way from a door to a reply."""

    def open_passage(self, server: Server | None) -> Passage:
        """An empty record."""
        ...

    async def serve(self, arrival: Arrival, passage: Passage | None = None) -> Reply:
        """Walk one request. Never raises but for cancellation."""
        ...


@dataclass(slots=True)
class Recalled:
    """The stored call at the door (an `Arrival`), with the token of the poll that starts it."""

    server: Server | None
    received: Received
    raw: bytes

    def receive(self) -> Received:
        """The head, made anew."""
        return self.received

    async def body(self) -> bytes:
        """The body, as it was judged, or with the answers of a leg."""
        return self.raw


@dataclass(slots=True)
class Going:
    """One run in this worker: once the lease is taken, the `errand` as it was taken and what walks the corridor.

    `refused` is why it could not begin, where a further poll may.
    """

    errand: Errand | None = None
    serving: asyncio.Future[Reply] | None = None
    lease_until: float = 0.0
    refused: Refused | None = None

    @property
    def holds(self) -> Errand | None:
        """The errand whose lease it holds, while it walks."""
        return None if self.serving is None or self.serving.done() else self.errand


@dataclass(slots=True)
class Runs:
    """All runs of one worker. `count` is told of each event, by a stable name."""

    shelf: Shelf
    delivery: Delivery
    result_bytes: int = 1 << 22
    count: Callable[[str], None] = lambda _: None
    going: dict[str, Going] = field(default_factory=dict)
    _looking: asyncio.Task[None] | None = None

    async def begin(self, task: Task, errand: Errand, recipe: Recipe, received: Received, house: House) -> None:
        """Start the call apart from this poll, and wait a moment. Raises `Refused` where it could not begin."""
        if errand.id in self.going:
            return
        going = self.going[errand.id] = Going()
        headers = recipe.headers + tuple(line for line in received.headers if line[0] == b"authorization")
        server = received.server
        arrival = Recalled(server, Received(server, "POST", server.path, headers), _body(recipe, errand.questions))
        running = self.delivery.spawn(self._see_through(going, task, errand, arrival, house))
        await asyncio.wait({running}, timeout=BEGIN_S)
        if going.refused is not None:
            raise going.refused

    def break_off(self, errand_id: str) -> None:
        """Its owner cancelled it. What runs at another worker learns of that by its next look."""
        if (going := self.going.get(errand_id)) is not None and going.serving is not None:
            going.serving.cancel()

    async def _see_through(self, going: Going, task: Task, errand: Errand, arrival: Recalled, house: House) -> None:
        try:
            taken = await self.shelf.take(errand)
            if taken is None:
                return
            self.count("begun")
            passage = house.open_passage(arrival.server)
            passage.errand = replace(task, ticket=taken.waits_for)
            going.errand, going.lease_until = taken, taken.lease_until
            going.serving = serving = asyncio.ensure_future(house.serve(arrival, passage))
            self._look_from_now_on()
            try:
                await asyncio.wait({serving})
            finally:
                serving.cancel()  # with this worker, if it has not ended
            if not serving.cancelled():
                await self._keep(going, taken, passage, serving.result())
        except StoreUnavailable as error:
            going.refused = translate(error)
        finally:
            del self.going[errand.id]
            if not self.going and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    def _look_from_now_on(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_on())

    async def _look_on(self) -> None:
        """Hold the leases of all that runs, and break off what its owner cancelled, here or at another worker."""
        while True:
            await asyncio.sleep(LOOK_S)
            with contextlib.suppress(
                StoreUnavailable
            ):  # a lease that lapses meanwhile is whoever looks next's to end
                await self._look()

    async def _look(self) -> None:
        running = [going for going in self.going.values() if going.holds is not None]
        errands = [going.errand for going in running if going.errand is not None]
        if not errands:
            return
        soonest = min(going.lease_until for going in running)
        if soonest - self.shelf.clock() < self.shelf.lease_s * 2 / 3:
            until = await self.shelf.renew(errands)
            for going in running:
                going.lease_until = until
        held = await self.shelf.held(errands)
        for going in running:
            if going.holds is not None and going.holds.id not in held:
                self.break_off(going.holds.id)

    async def _keep(self, going: Going, errand: Errand, passage: Passage, reply: Reply) -> None:
        """What came of it, kept before anybody is told."""
        stage, what, expires_at = self._came_of(going, errand, passage, reply)
        for pause in KEEPING_S:
            await asyncio.sleep(pause)
            try:
                kept = await self.shelf.tell(errand, stage, what, expires_at=expires_at)
            except StoreUnavailable as error:
                structlog.get_logger("errands").error("errand_not_kept", errand=errand.id, error=str(error))
                continue
            if kept is not None:
                self.count(str(what.get("status", "again" if stage is Stage.HELD else stage.value)))
            return

    def _came_of(
        self, going: Going, errand: Errand, passage: Passage, reply: Reply
    ) -> tuple[Stage, dict[str, Any], float]:
        """A run's end -> the errand's stage, what it tells, and until when at least it lives."""
        answer: dict[str, Any] = orjson.loads(reply.body)
        refused, questions = passage.refused, errand.questions
        back = Stage.HELD if questions is None else Stage.ASKED
        if refused is not None and not passage.sent:
            held = passage.settled if isinstance(passage.settled, Held) else None
            if questions is not None and held is not None and held.why == "pending":
                return Stage.ASKED, {**errand.told, "ticket": held.ticket.id}, 0.0
            if refused.refusal not in FINAL or passage.committed or (held is not None and held.why == "in_flight"):
                if not passage.committed and held is None:
                    going.refused = _for_the_poll(refused)
                return back, dict(errand.told), 0.0
        if refused is not None:
            return Stage.ENDED, {"status": "failed", "error": answer["error"]}, 0.0
        result = answer.get("result", {})
        if passage.outcome == "task" and passage.made_task is not None:
            lives_s = LONGEST_S if result.get("ttlMs") is None else result["ttlMs"] / 1000 + GRACE_S
            return Stage.RELAYED, {"task": passage.made_task.id}, self.shelf.clock() + min(max(lives_s, 0), LONGEST_S)
        asks = passage.outcome == "input_required"
        if len(reply.body) > self.result_bytes:
            what = "error" if "error" in answer else "input_required" if asks else "result"
            gone = Refused(Refusal.UPSTREAM_INVALID, message=TOO_LARGE[what])
            return Stage.ENDED, {"status": "failed", "error": error_of(passage, gone)}, 0.0
        if "error" in answer:
            return Stage.ENDED, {"status": "failed", "error": answer["error"]}, 0.0
        if asks:
            leg = 1 if passage.opened_state is None else passage.opened_state.leg + 1
            return Stage.ASKED, asdict(asked_by(result, leg)), 0.0
        return Stage.ENDED, {"status": "completed", "result": result}, 0.0


def waited_for(passage: Passage) -> str:
    """The ticket that a run waited for: if it is over, none is opened after it. Empty where it waited for none.

    The first leg waited for the call's ticket; a later one for that of its answers, if they have one by now.
    """
    errand, opened = passage.errand, passage.opened_state
    if errand is None or (opened is not None and opened.use is not None and opened.use.ticket_id == errand.ticket):
        return ""
    return errand.ticket


def error_of(passage: Passage, refused: Refused) -> dict[str, Any]:
    """The error that a refusal is told as."""
    error: dict[str, Any] = orjson.loads(reply_of(passage, refused).body)["error"]
    return error


def _for_the_poll(refused: Refused) -> Refused:
    """The same refusal for the poll that met it; the run has its own record of it."""
    return Refused(refused.refusal, f"errand: {refused.detail}", message=refused.message, **refused.data)


def _body(recipe: Recipe, questions: Questions | None) -> bytes:
    """The call, or its next leg: the same with the state, and the answers if any were asked for."""
    if questions is None:
        return recipe.body
    message = orjson.loads(recipe.body)
    message["params"]["requestState"] = questions.state
    if questions.requests:
        message["params"]["inputResponses"] = questions.responses
    return orjson.dumps(message)
