"""A held call as a task: the caller polls, and once a person approved, the call runs apart from any connection.

A poll only starts it: the stored call walks the whole corridor like any other, with the token of that poll, and what
comes of it is kept on the shelf until the task's time is over. Exactly once is the desk's promise; a lease that
lapsed is never taken up again (docs/tasks.md, "A held call as a task").
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from approvals.approvers import Person
from approvals.desk import Desk
from approvals.errand import RUN, WAIT, Errand, Recipe, Stage, next_step
from approvals.filed import Filed
from approvals.ledger import new_id
from approvals.shelf import Shelf
from approvals.ticket import Held, MovedOn, State, StoreUnavailable, TicketUnknown
from gateway.contract.headers import PROTOCOL_VERSION, encode_value
from gateway.contract.legacy import Answered
from gateway.contract.methods import declares_tasks
from gateway.contract.passage import Call, Identity, OpenedTasks, Passage, Received, Server, Task
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.repeats import key_line
from gateway.following import ANSWERED, INTERRUPTED, LOST, RUNS, created, told
from gateway.handles import Handles
from gateway.legs import SAID, refusal_of
from gateway.runs import House, Runs, error_of

MOST_CALL_BYTES: Final = 1 << 20
"""A larger call waits without a task; its caller repeats it."""

ATTEMPTS: Final = 5

ANOTHERS: Final = "Another client made this call; its questions are answered by the client that made it."

_Owner = tuple[Identity, Server]


@dataclass(slots=True)
class Errands:
    """The errands of one worker's callers. `count` is told of each event, by a stable name."""

    shelf: Shelf
    desk: Desk
    handles: Handles
    runs: Runs
    count: Callable[[str], None] = lambda _: None

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
            *key_line(passage.key),
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
            raise _answered(call, {"resultType": "complete"})
        if call.method == "tasks/update":
            await self._keep_answers(task, call, identity)
        errand, says = await self._go_on(task, passage, identity, received, house)
        if call.method == "tasks/update":
            raise _answered(call, {"resultType": "complete"})
        if errand.stage is Stage.RELAYED:  # since this poll came in: the next one is for its server
            raise _answered(call, told(replace(errand, stage=Stage.RUNNING), task.handle, RUNS, call))
        raise _answered(call, told(errand, task.handle, says, call))

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
            await self.runs.begin(task, errand, recipe, received, house)
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
        ended = await self.shelf.tell(errand, Stage.ENDED, {"status": "failed", "error": error_of(passage, refused)})
        if ended is not None:
            self.count("lost" if why == INTERRUPTED else "failed")
            return ended
        found = await self.shelf.find(errand.id)
        if found is None:
            raise Refused(Refusal.TASK_UNKNOWN, "errand: its time is over")
        return found

    # What its owner asks for

    async def _keep_answers(self, task: Task, call: Call, identity: Identity) -> None:
        """Keep the answers to what is open; what answers nothing is ignored, as the extension has it.

        They become part of what was approved for one client, so nobody else gives them. Raises `Refused`.
        """
        for _ in range(ATTEMPTS):
            errand, _filed = await self._look(task)
            questions, given = errand.questions, call.input_responses or {}
            if questions is None or errand.stage is not Stage.ASKED:
                return
            new = {key: given[key] for key in questions.open if key in given}
            if not new:
                return
            recipe = await self.shelf.recipe(errand)
            if recipe is None or recipe.client != identity.client_id:
                raise Refused(Refusal.APPROVAL_REFUSED, "answers by another client", message=ANOTHERS)
            answered = replace(questions, answers={**questions.answers, **new})
            if len(orjson.dumps(answered.answers)) > MOST_CALL_BYTES:
                raise Refused(Refusal.PARAMS_INVALID, "answers that are larger than what is kept of them")
            if await self.shelf.ask(errand, answered) is not None:
                return
        raise StoreUnavailable("the errand moves too fast")

    async def _cancel(self, task: Task, identity: Identity) -> None:
        """Withdraw the ticket, so that nothing begins any more; then end the errand; then break off what runs."""
        errand, _ = await self._look(task)
        if errand.stage in (Stage.ENDED, Stage.RELAYED):  # since this came in; its server is asked the next time
            return
        person = Person(
            issuer=identity.issuer,
            subject=identity.subject,
            client=identity.client_id,
            scopes=frozenset({"approvals:request"}),  # the handle proves that it is theirs
            groups=identity.groups,
            claims=identity.claims,
            tenant=identity.tenant,
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
        self.runs.break_off(errand.id)  # another worker that runs it finds by its next look that it holds nothing

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


def _answered(call: Call, result: dict[str, Any]) -> Answered:
    return Answered(orjson.dumps({"jsonrpc": "2.0", "id": call.envelope.id, "result": result}))
