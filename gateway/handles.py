"""The handle of a task: the id that its owner holds in place of the server's own.

A handle is opened only for the issuer, subject and tenant that the task was made for, on the server that made it,
before its expiry, and has one spelling (contract.md section 5). A server that checks no ownership gets one that way.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from gateway.contract.passage import NO_TASKS, Admitted, Call, Identity, OpenedTasks, Server, Task
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.subscription import Rewrite
from gateway.contract.tasks import rewrite_tasks
from gateway.sealing import NotSealed, Sealer

GRACE_S = 86_400.0
"""How long a handle outlives its task's time to live: a server may prolong that, or answer for longer."""

LONGEST_S = 30 * 86_400.0
"""The longest that a handle lives, also that of a task without an end."""

MAX_PAYLOAD_BYTES = 2048
"""What a handle may hold: it travels in a header of every request about the task."""

_MAX_HANDLE = 4096


class Handles:
    """Makes and opens the handles of tasks."""

    def __init__(self, keys: Sequence[bytes], *, label: str = "task-id") -> None:
        self._sealer = Sealer(keys, label)

    @staticmethod
    def _binding(identity: Identity, server: Server) -> bytes:
        # A JSON array keeps the parts apart whatever they hold.
        return orjson.dumps([identity.issuer, identity.subject, identity.tenant, server.name, server.resource])

    def mint(self, task_id: str, ttl_ms: int | None, admitted: Admitted, now: float) -> Task:
        """The server's id of a task that this call made -> the task, under the id by which its owner alone finds it.

        Raises `Refused(UPSTREAM_INVALID)` for an id that is too long for a header.
        """
        lives_s = LONGEST_S if ttl_ms is None else min(max(ttl_ms, 0) / 1000 + GRACE_S, LONGEST_S)
        tool, ticket = admitted.call.name or "", "" if admitted.use is None else admitted.use.ticket_id
        payload = orjson.dumps([task_id, tool, ticket, now + lives_s])
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise Refused(Refusal.UPSTREAM_INVALID, "a task id that is too long")
        handle = self._sealer.seal(payload, self._binding(admitted.identity, admitted.server))
        return Task(handle, task_id, tool, ticket)

    def mint_errand(self, task: Task, identity: Identity, server: Server, now: float) -> str:
        """The id by which its owner alone finds a held call (gateway/errands.py)."""
        payload = orjson.dumps([task.id, task.tool, task.ticket, now + LONGEST_S, task.errand])
        return self._sealer.seal(payload, self._binding(identity, server))

    def open_all(self, call: Call, identity: Identity, server: Server, now: float) -> OpenedTasks:
        """The tasks that a call names. What opens nothing is no error here: the policy is asked first."""
        if not call.task_ids:
            return NO_TASKS
        binding = self._binding(identity, server)
        found: list[Task | None] = []
        why = ""
        for handle in call.task_ids:
            try:
                found.append(self._open(handle, binding, now))
            except NotSealed as error:
                found.append(None)
                why = why or f"handle: {error}"
        return OpenedTasks(tuple(found), why)

    def _open(self, handle: str, binding: bytes, now: float) -> Task:
        if len(handle) > _MAX_HANDLE:
            raise NotSealed("too long")
        task_id, tool, ticket, expires_at, *errand = orjson.loads(self._sealer.open(handle, binding))
        if expires_at <= now:
            raise NotSealed("expired")
        return Task(handle, task_id, tool, ticket, *errand)


async def tell_of_tasks(admitted: Admitted) -> Rewrite | None:
    """A subscription's notifications under the handles of its caller (a `Rewriter` of subscription.py)."""
    return rewrite_tasks(admitted)
