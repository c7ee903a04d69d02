"""What was guarded is made fit for its caller: states and tasks' ids sealed, lists filtered, nothing left in a shared
cache.

The rules themselves are the contract's; here they meet the rooms that they need: the policy, the seals, what is known
of definitions (contract.md sections 4 and 5).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.contract.admission import policy_input
from gateway.contract.discovery import intersect
from gateway.contract.guard import EXECUTED, INPUT_REQUIRED, TASK, Guarded, guard_answer
from gateway.contract.headers import VERSION_KEY
from gateway.contract.legacy import Spoken
from gateway.contract.listing import (
    MEMBERS,
    candidates_of,
    check_contents,
    is_shared,
    keep_private,
    named_twice,
    out_of_reach,
)
from gateway.contract.passage import Admitted, OpenedState, Passage, Server
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.retelling import reply_of, retell_answer
from gateway.contract.subscription import RESOURCE_UPDATED, Rewrite
from gateway.contract.tasks import answer_of, created_task, with_handle
from gateway.definitions import Definitions
from gateway.handles import Handles
from gateway.pages import Page, Pages
from gateway.prompts import Prompts
from gateway.seals import STATE_TTL_S, Seals
from policies.port import Policy
from policies.question import Candidates
from policies.verdict import Effect

TURN = 256
"""After so many URIs the event loop gets a turn: each takes 3 to 10 microseconds."""


LeftOut = Callable[[Server, str, Collection[str]], Awaitable[Collection[str]]]
"""Server, list's method, names of one page -> those that can't be used by what is known of the other pages."""


async def _nothing(_server: Server, _method: str, _names: Collection[str]) -> Collection[str]:
    return ()


async def keep_within_reach(admitted: Admitted) -> Rewrite | None:
    """A subscription hears of no resource outside its server's prefixes (a `contract.subscription.Rewriter`)."""
    reach = admitted.server.reach

    def rewrite(message: dict[str, Any]) -> dict[str, Any] | None:
        if reach is None or message["method"] != RESOURCE_UPDATED:
            return message
        uri = message.get("params", {}).get("uri")
        return message if isinstance(uri, str) and reach.admits(uri) else None

    return rewrite if reach is not None else None


@dataclass(slots=True)
class Answers:
    """The way of a guarded answer to the text that its caller gets. One per worker."""

    policy: Policy
    seals: Seals
    handles: Handles
    definitions: Definitions = field(default_factory=Definitions)
    prompts: Prompts = field(default_factory=Prompts)
    clock: Callable[[], float] = time.time
    state_s: float = STATE_TTL_S
    left_out: LeftOut = _nothing
    pages: Pages = field(init=False)

    def __post_init__(self) -> None:
        self.pages = Pages(self.definitions.pins.in_force)

    def guard(self, admitted: Admitted, body: bytes) -> Guarded:
        """The text of an answer -> what may be delivered (`guard_answer`). Raises `Refused(UPSTREAM_INVALID)`."""
        return self.pages.guard(admitted, body) or guard_answer(admitted.call, body)

    async def fit(self, passage: Passage, admitted: Admitted, guarded: Guarded) -> bytes:
        """The text for the caller. Raises `Refused` and what the policy raises; then nothing may be delivered."""
        passage.code = guarded.code
        passage.result_digest = hashlib.sha256(guarded.raw).digest()
        if passage.spoken is not None:
            return await self._retell(passage, passage.spoken, admitted, guarded)
        return await self._fit(passage, admitted, guarded)

    async def _fit(self, passage: Passage, admitted: Admitted, guarded: Guarded) -> bytes:
        if guarded.outcome == INPUT_REQUIRED:
            return self._seal_state(passage, admitted, guarded)
        if guarded.outcome == TASK:
            return self._seal_task(passage, admitted, guarded)
        if admitted.call.kind == "task" and guarded.outcome == EXECUTED:
            return guarded.with_result(answer_of(admitted.call, admitted.tasks[0], guarded.result))
        if admitted.call.method in MEMBERS and guarded.outcome == EXECUTED:
            return await self._filter_list(admitted, guarded)
        if admitted.call.method == "server/discover" and guarded.outcome == EXECUTED:
            requested, extensions = admitted.call.envelope.meta[VERSION_KEY], admitted.server.extensions
            makes_tasks = admitted.server.challenge in {"auto", "task"}
            return guarded.with_result(intersect(guarded.result, requested, extensions, makes_tasks=makes_tasks))
        if admitted.call.method == "resources/read" and guarded.outcome == EXECUTED:
            check_contents(admitted.server.reach, guarded.result)
        return guarded.with_result(keep_private(guarded.result)) if is_shared(guarded.result) else guarded.raw

    async def _retell(self, passage: Passage, spoken: Spoken, admitted: Admitted, guarded: Guarded) -> bytes:
        """The same for a client of an older revision, which can be neither asked for input nor given a task."""
        if guarded.outcome not in {INPUT_REQUIRED, TASK}:
            text = await self._fit(passage, admitted, guarded)
            return retell_answer(spoken, admitted.call.method, admitted.server.name, text)
        passage.refused = refused = Refused(Refusal.REVISION_REQUIRED, guarded.outcome)
        passage.code = refused.refusal.value.code
        return reply_of(passage, refused).body

    def _seal_state(self, passage: Passage, admitted: Admitted, guarded: Guarded) -> bytes:
        leg = 1 if passage.opened_state is None else passage.opened_state.leg + 1
        expires_at, use = self.clock() + self.state_s, admitted.use
        if use is not None and use.by_grant:
            use = None  # a grant covers a call and no answers: who goes on with them asks anew
        if use is not None:  # which waits at its own next leg, as long as its ticket lives
            expires_at, use = use.expires_at, replace(use, leg=use.leg + 1, answers=None)
        state = OpenedState(guarded.request_state, leg, use)
        sealed = self.seals.seal_state(state, admitted.identity, admitted.server, admitted.call, expires_at)
        return guarded.with_request_state(sealed)

    def _seal_task(self, passage: Passage, admitted: Admitted, guarded: Guarded) -> bytes:
        task_id, ttl_ms = created_task(admitted.call, guarded.result)
        passage.made_task = task = self.handles.mint(task_id, ttl_ms, admitted, self.clock())
        return guarded.with_result(with_handle(guarded.result, task.handle))

    async def _filter_list(self, admitted: Admitted, guarded: Guarded) -> bytes:
        call, server = admitted.call, admitted.server
        page = self.pages.find(admitted, guarded.raw)
        if page is None:
            page = await self._read_page(admitted, guarded)
        candidates, offered, left_out = page.candidates, page.offered, page.left_out
        cut = "cursor" in call.envelope.params or guarded.result.get("nextCursor") is not None
        if cut and call.method in ("tools/list", "prompts/list"):
            left_out = left_out.union(await self.left_out(server, call.method, page.names))
        if left_out != page.left_out:
            offered = Candidates([candidate for candidate in candidates if candidate["id"] not in left_out])
        verdict = await self.policy.judge(policy_input("list", server, admitted.identity, call, None, offered))
        visible = frozenset(verdict.visible) - left_out if verdict.effect is Effect.ALLOW else ()
        return self.pages.text_of(admitted, guarded, page, visible)

    async def _read_page(self, admitted: Admitted, guarded: Guarded) -> Page:
        """What of a page can't be called, or is out of reach, is not shown; whoever asks."""
        call, server = admitted.call, admitted.server
        pins = self.definitions.pins.in_force()  # before the reading, which takes turns
        candidates = candidates_of(call.method, guarded.result)
        names = frozenset(one["id"] for one in candidates)
        left_out: set[str] = set()
        for start in range(0, len(candidates) if server.reach is not None else 0, TURN):
            left_out |= out_of_reach(server.reach, call.method, candidates[start : start + TURN])
            await asyncio.sleep(0)
        if call.method == "prompts/list":
            left_out |= self.prompts.left_out(server.name, guarded.result["prompts"])
        elif call.method == "tools/list":
            tools = await self.definitions.offered(server.name, guarded.result["tools"])
            left_out |= {one["id"] for one, tool in zip(candidates, tools, strict=True) if tool is None}
            pinned = {tool.name: tool.pinned for tool in tools if tool is not None}
            candidates = [{**one, "pinned": pinned.get(one["id"], False)} for one in candidates]
        if call.method in ("tools/list", "prompts/list"):
            left_out |= named_twice(candidates)
        if left_out:
            candidates = [candidate for candidate in candidates if candidate["id"] not in left_out]
        page = Page(server, pins, guarded.message, names, candidates, frozenset(left_out), Candidates(candidates))
        self.pages.keep(admitted, guarded, page)
        return page
