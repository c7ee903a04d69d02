"""A held call as a task: the caller polls, and once a person approved, the call runs apart from any connection.

A poll only starts it: the stored call walks the whole corridor like any other, with the token of that poll, and what
comes of it is kept on the shelf until the task's time is over. Exactly once is the desk's promise; a lease that
lapsed is never taken up again (docs/tasks.md, "A held call as a task").
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import orjson
import structlog

from approvals.approvers import Person
from approvals.desk import Desk
from approvals.errand import RUN, WAIT, Errand, Questions, Recipe, Stage, next_step
from approvals.filed import Filed
from approvals.ledger import new_id
from approvals.shelf import Shelf
from approvals.ticket import Held, MovedOn, State, StoreUnavailable, TicketUnknown
from gateway.contract.headers import PROTOCOL_VERSION, encode_value
from gateway.contract.legacy import Answered
from gateway.contract.methods import declares_tasks
from gateway.contract.passage import Arrival, Call, Identity, OpenedTasks, Passage, Received, Reply, Server, Task
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.retelling import reply_of
from gateway.delivery import Delivery, translate
from gateway.following import ANSWERED, INTERRUPTED, LOST, RUNS, asked_by, created, told
from gateway.handles import GRACE_S, LONGEST_S, Handles
from gateway.legs import SAID, refusal_of

MOST_CALL_BYTES: Final = 1 << 20
"""A larger call waits without a task; its caller repeats it."""

LOOK_S: Final = 2.0
"""How often whoever runs an errand looks whether it still is to be run."""

BEGIN_S: Final = 0.5
"""How long a poll waits for what it began: a quick call's result, or why it could not begin."""

ATTEMPTS: Final = 5
KEEPING_S: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""The pauses between attempts to keep what came of a call."""

FINAL: Final = frozenset(
    {
        Refusal.APPROVAL_REFUSED,
        Refusal.APPROVAL_REQUIRED,
        Refusal.ARGUMENTS_INVALID,
        Refusal.HEADER_MISMATCH,
        Refusal.PARAMS_INVALID,
        Refusal.POLICY_DENIED,
        Refusal.STATE_NOT_ACCEPTED,
        Refusal.TOOL_QUARANTINED,
    }
)
"""What ends an errand before it was forwarded. Anything else is told to the poll, and the next one tries again."""


_Owner = tuple[Identity, Server]


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
    """One run in this worker; `refused` is why it could not begin, where a further poll may."""

    task: asyncio.Task[None] | None = None
    refused: Refused | None = None


@dataclass(slots=True)
class Errands:
    """The errands of one worker's callers. `count` is told of each event, by a stable name."""

    shelf: Shelf
    desk: Desk
    handles: Handles
    delivery: Delivery
    result_bytes: int = 1 << 22
    count: Callable[[str], None] = lambda _: None
    running: dict[str, Going] = field(default_factory=dict)

    async def take_in(self, passage: Passage, held: Held, ticket: Mapping[str, Any]) -> Refused | None:
        """The task that a held call becomes, or `None` where it can't be one (a `gateway.challenge.Maker`).

        The row is durable before anybody is told. Raises `StoreUnavailable`.
        """
        call, identity, server = passage.call, passage.identity, passage.server
        if call is None or identity is None or server is None or not self._can_wait(passage, call):
            return None
        errand_id = new_id()
        if held.why == "pending":
            recipe = self._recipe(errand_id, held.ticket.id, passage, call, (identity, server))
            found = await self.shelf.put(held.ticket, errand_id, recipe)
        else:  # it runs, or waits for an answer: as the task that there is, or as no task
            found = await self.shelf.open_of(held.ticket.id) if held.why in ("in_flight", "waiting") else None
        if found is None:
            return None
        errand, handle = found
        passage.made_task = Task(handle, "", call.name or "", held.ticket.id, errand.id)
        if errand.id == errand_id:
            self.count("made")
        row = Refusal.APPROVAL_REQUIRED if held.why == "pending" else Refusal.APPROVAL_REFUSED
        return Refused(row, held.why, instead=created(errand, handle, self._says(errand, held.why)), ticket=ticket)

    @staticmethod
    def _can_wait(passage: Passage, call: Call) -> bool:
        return (
            passage.errand is None
            and passage.spoken is None
            and passage.opened_state is None
            and call.method == "tools/call"
            and declares_tasks(call.capabilities)
            and len(call.envelope.raw) <= MOST_CALL_BYTES
        )

    def _recipe(self, errand_id: str, ticket_id: str, passage: Passage, call: Call, owner: _Owner) -> Recipe:
        task = Task("", "", call.name or "", ticket_id, errand_id)
        handle = self.handles.mint_errand(task, *owner, self.shelf.clock())
        headers = (
            (b"mcp-protocol-version", PROTOCOL_VERSION.encode()),
            (b"mcp-method", call.method.encode()),
            (b"mcp-name", encode_value(call.name or "")),
            *call.param_headers,
            *passage.trace,
        )
        return Recipe(handle, task.tool, owner[0].client_id, call.envelope.raw, headers)

    async def recall(self, tasks: OpenedTasks) -> OpenedTasks:
        """The tasks that a request names, as their rows have it: gone, still held, or a task of the server's by now.

        Raises `StoreUnavailable`.
        """
        ours = {task.errand for task in tasks.found if task is not None and task.errand}
        if not ours:
            return tasks
        stages = await self.shelf.stages(ours)
        found, why = list(tasks.found), tasks.why
        for at, task in enumerate(found):
            if task is None or not task.errand:
                continue
            if task.errand not in stages:
                found[at], why = None, why or "errand: its time is over"
            else:
                found[at] = replace(task, id=stages[task.errand][1])
        return OpenedTasks(tuple(found), why)

    async def attend(self, passage: Passage, received: Received, house: House) -> None:
        """Answer a request about a held call; one about anything else goes on.

        Raises `Answered`, `Refused`, and what the desk, the shelf and the journal raise.
        """
        call, identity, task = passage.call, passage.identity, passage.task
        if call is None or identity is None or call.kind != "task" or task is None or not task.held:
            return
        if call.method == "tasks/cancel":
            await self._cancel(task, identity)
            raise _answer(call, {"resultType": "complete"})
        if call.method == "tasks/update":
            await self._answer(task, call)
        errand, says = await self._go_on(task, passage, identity, received, house)
        if call.method == "tasks/update":
            raise _answer(call, {"resultType": "complete"})
        if errand.stage is Stage.RELAYED:  # since this poll came in: the next one is for its server
            raise _answer(call, told(replace(errand, stage=Stage.RUNNING), task.handle, RUNS, call))
        raise _answer(call, told(errand, task.handle, says, call))

    async def _look(self, task: Task) -> tuple[Errand, Filed | None]:
        found = await self.shelf.look(task.errand)
        if found is None:
            raise Refused(Refusal.TASK_UNKNOWN, "errand: its time is over")
        return found

    async def _go_on(
        self, task: Task, passage: Passage, identity: Identity, received: Received, house: House
    ) -> tuple[Errand, str]:
        """Take the one step that follows -> the errand after it, and what is said of it."""
        errand, filed = await self._look(task)
        step = next_step(errand, filed, self.shelf.clock())
        why = "" if filed is None else filed.ticket.state.value
        if step == RUN:
            recipe = await self.shelf.recipe(errand)
            if recipe is None or recipe.client != identity.client_id:  # the approval is that client's
                return errand, "The call was approved; it runs when the client that made it asks for it."
            await self._begin(task, errand, recipe, received, house)
            errand, filed = await self._look(task)
            why = "approved"
        elif step != WAIT:
            errand = await self._fail(errand, filed, step, passage)
        return errand, self._says(errand, why, filed)

    async def _fail(self, errand: Errand, filed: Filed | None, why: str, passage: Passage) -> Errand:
        """It can't go on any more: its owner reads why, now and whenever it is asked again."""
        ticket = {} if filed is None else self.desk.describe(filed.ticket)
        if filed is None or why == INTERRUPTED:
            said = LOST if why == INTERRUPTED else SAID[why]
            refused = Refused(Refusal.APPROVAL_REFUSED, why, message=said, why=why, ticket=ticket)
        else:
            refused = refusal_of(Held(why, filed.ticket), ticket)
        ended = await self.shelf.tell(errand, Stage.ENDED, {"status": "failed", "error": _error_of(passage, refused)})
        if ended is not None:
            self.count("lost" if why == INTERRUPTED else "failed")
            return ended
        found = await self.shelf.find(errand.id)
        if found is None:
            raise Refused(Refusal.TASK_UNKNOWN, "errand: its time is over")
        return found

    # Running

    async def _begin(
        self, task: Task, errand: Errand, recipe: Recipe, received: Received, house: House
    ) -> None:  # fmt: skip
        """Start the call apart from this poll, and wait a moment. Raises `Refused` where it could not begin."""
        if errand.id in self.running:
            return
        going = self.running[errand.id] = Going()
        headers = recipe.headers + tuple(line for line in received.headers if line[0] == b"authorization")
        server = received.server
        arrival = Recalled(server, Received(server, "POST", server.path, headers), _body(recipe, errand.questions))
        going.task = self.delivery.spawn(self._see_through(going, task, errand, arrival, house))
        await asyncio.wait({going.task}, timeout=BEGIN_S)
        if going.refused is not None:
            raise going.refused

    async def _see_through(
        self, going: Going, task: Task, errand: Errand, arrival: Recalled, house: House
    ) -> None:  # fmt: skip
        try:
            taken = await self.shelf.take(errand)
            if taken is None:
                return
            self.count("begun")
            passage = house.open_passage(arrival.server)
            passage.errand = replace(task, ticket=taken.waits_for)
            serving = asyncio.ensure_future(house.serve(arrival, passage))
            try:
                await self._watch(taken, serving)
            finally:
                serving.cancel()  # with this worker, if it has not ended
            if not serving.cancelled():
                await self._keep(going, taken, passage, serving.result())
        except StoreUnavailable as error:
            going.refused = translate(error)
        finally:
            del self.running[errand.id]

    async def _watch(self, errand: Errand, serving: asyncio.Future[Reply]) -> None:
        """Hold the lease while it runs, and break it off where its owner cancelled it, here or at another replica."""
        until = errand.lease_until
        while not serving.done():
            await asyncio.wait({serving}, timeout=LOOK_S)
            if serving.done():
                break
            with contextlib.suppress(StoreUnavailable):
                is_late = until - self.shelf.clock() < self.shelf.lease_s * 2 / 3
                until = await self.shelf.renew(errand) if is_late else until
                if not until or not (is_late or await self.shelf.is_held(errand)):
                    serving.cancel()
                    await asyncio.wait({serving})

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
    ) -> tuple[Stage, dict[str, Any], float]:  # fmt: skip
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
        if "error" in answer:
            return Stage.ENDED, {"status": "failed", "error": answer["error"]}, 0.0
        result = answer["result"]
        if passage.outcome == "task" and passage.made_task is not None:
            lives_s = LONGEST_S if result.get("ttlMs") is None else result["ttlMs"] / 1000 + GRACE_S
            return Stage.RELAYED, {"task": passage.made_task.id}, self.shelf.clock() + min(max(lives_s, 0), LONGEST_S)
        if passage.outcome == "input_required":
            leg = 1 if passage.opened_state is None else passage.opened_state.leg + 1
            asked = asked_by(result, leg)
            return Stage.ASKED, _members(asked), 0.0
        if len(reply.body) > self.result_bytes:
            gone = Refused(Refusal.UPSTREAM_INVALID, message="The call ran; its result is too large to be kept.")
            return Stage.ENDED, {"status": "failed", "error": _error_of(passage, gone)}, 0.0
        return Stage.ENDED, {"status": "completed", "result": result}, 0.0

    # What its owner asks for

    async def _answer(self, task: Task, call: Call) -> None:
        """Keep the answers to what is open; what answers nothing is ignored, as the extension has it."""
        for _ in range(ATTEMPTS):
            errand, _filed = await self._look(task)
            questions, given = errand.questions, call.input_responses or {}
            if questions is None or errand.stage is not Stage.ASKED:
                return
            new = {key: given[key] for key in questions.open if key in given}
            if not new:
                return
            answered = replace(questions, answers={**questions.answers, **new})
            if len(orjson.dumps(answered.answers)) > MOST_CALL_BYTES:
                raise Refused(Refusal.PARAMS_INVALID, "answers that are larger than what is kept of them")
            if await self.shelf.ask(errand, answered) is not None:
                return
        raise StoreUnavailable("the errand moves too fast")

    async def _cancel(self, task: Task, identity: Identity) -> None:
        """Withdraw the ticket, so that nothing begins any more; then end the errand; then break off what runs."""
        errand, _ = await self._look(task)
        if errand.stage is Stage.ENDED:
            return
        person = Person(
            issuer=identity.issuer,
            subject=identity.subject,
            client=identity.client_id,
            scopes=frozenset({"approvals:request"}),  # the handle proves that it is theirs
            groups=identity.groups,
            claims=identity.claims,
        )
        for ticket_id in dict.fromkeys((errand.ticket_id, errand.waits_for)):
            with contextlib.suppress(MovedOn, TicketUnknown):
                await self.desk.act("withdraw", person, ticket_id)
        for _ in range(ATTEMPTS):
            if await self.shelf.tell(errand, Stage.ENDED, {"status": "cancelled"}) is not None:
                self.count("cancelled")
                break
            errand, _ = await self._look(task)
            if errand.stage in (Stage.ENDED, Stage.RELAYED):
                break
        # Whoever runs it, here or at another replica, finds at its next look that it holds nothing any more.

    def _says(self, errand: Errand, why: str, filed: Filed | None = None) -> str:
        if errand.stage is Stage.RUNNING:
            return RUNS
        questions = errand.questions
        if questions is not None and questions.ticket:
            return f"{ANSWERED} {self.desk.page_of(questions.ticket)}"
        if why in ("pending", State.PENDING):
            return f"A person must approve this call first: {self.desk.page_of(errand.ticket_id)}"
        if filed is not None and filed.running is not None:
            return "A repetition of this call runs."
        return RUNS if why == "in_flight" else "The call was approved."


def waited_for(passage: Passage) -> str:
    """The ticket that a run waited for: if it is over, none is opened after it. Empty where it waited for none.

    The first leg waited for the call's ticket; a later one for that of its answers, if they have one by now.
    """
    errand, opened = passage.errand, passage.opened_state
    if errand is None or (opened is not None and opened.use is not None and opened.use.ticket_id == errand.ticket):
        return ""
    return errand.ticket


def _for_the_poll(refused: Refused) -> Refused:
    """The same refusal for the poll that met it; the run has its own record of it."""
    return Refused(refused.refusal, f"errand: {refused.detail}", message=refused.message, **refused.data)


def _members(questions: Questions) -> dict[str, Any]:
    return {
        "leg": questions.leg, "state": questions.state, "requests": dict(questions.requests),
        "answers": dict(questions.answers), "ticket": questions.ticket,
    }  # fmt: skip


def _body(recipe: Recipe, questions: Questions | None) -> bytes:
    """The call, or its next leg: the same with the state, and the answers if any were asked for."""
    if questions is None:
        return recipe.body
    message = orjson.loads(recipe.body)
    message["params"]["requestState"] = questions.state
    if questions.requests:
        message["params"]["inputResponses"] = questions.responses
    return orjson.dumps(message)


def _answer(call: Call, result: dict[str, Any]) -> Answered:
    return Answered(orjson.dumps({"jsonrpc": "2.0", "id": call.envelope.id, "result": result}))


def _error_of(passage: Passage, refused: Refused) -> dict[str, Any]:
    error: dict[str, Any] = orjson.loads(reply_of(passage, refused).body)["error"]
    return error
