"""The evaluators of one bundle, and which of them is asked what.

Every question of a generation is judged by its one revision. No question waits behind one that takes long, none
waits beyond its deadline, none is lost when a process dies; the queue is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from policies import frames
from policies.bundles import Bundle
from policies.memory import Memory
from policies.process import Evaluator, Question
from policies.starting import Starter
from policies.verdict import PolicyUnavailable

# What one evaluator holds: enough that it is never idle between two small questions, and little that would be judged
# twice when it gets stuck. A big question is not followed by another one until it is answered.
WINDOW = 12
WINDOW_BYTES = 16 * 1024
TICK_S = 0.005
STUCK_S = 0.01  # after this long with one question, the others of that evaluator are handed on
GROWTH = 3  # the pool may become this many times as big while evaluations take long
CALM_S = 30.0  # after this long without a jam, what the pool grew by is ended again
STRIKES = 2  # evaluators that may die on one question before it is given up


class Undecided(PolicyUnavailable):
    """The rules themselves came to no decision: undefined, in conflict, a failure. Asked again, they do so again."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one generation. Seconds, bytes, counts."""

    deadline_s: float = 0.5
    evaluators: int = 2
    memory_bytes: int = 1 << 30
    waiting: int = 1024
    waiting_bytes: int = 64 * 1024 * 1024
    question_bytes: int = 16 * 1024 * 1024
    background: bool = False  # at the lowest priority: nobody waits for these answers


class Generation:
    """Evaluators that all hold the same bundle. Made for one bundle, started once, closed once."""

    def __init__(self, bundle: Bundle, bounds: Bounds, checks: tuple[str, ...]) -> None:
        """`checks` are questions that the bundle must answer with a well-formed verdict before it is used."""
        self.revision = bundle.revision
        self.memory = Memory()
        """What this bundle decided for any arguments; it ends with the generation."""
        self._bounds = bounds
        self._starter = Starter(bundle, checks, bounds.memory_bytes, self, self._join)
        self._evaluators: list[Evaluator] = []
        self._retired: list[Evaluator] = []
        self._ending: list[Evaluator] = []
        self._waiting: deque[Question] = deque()
        self._waiting_bytes = 0
        self._next_ident = 0
        self._closed = False
        self._tick: asyncio.TimerHandle | None = None
        self._tick_due = 0.0
        self._jammed_at = 0.0  # loop time at which all evaluators took long at once, for the last time
        self._shrinking: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._retire_s = bounds.deadline_s / 5

    @property
    def ready(self) -> bool:
        """Whether an evaluator has loaded the bundle and is alive."""
        return any(evaluator.loaded for evaluator in self._evaluators)

    @property
    def pids(self) -> list[int]:
        """The processes that are asked at present."""
        return [evaluator.process.pid for evaluator in self._evaluators if evaluator.loaded]

    async def start(self) -> None:
        """Start all evaluators. Raises `PolicyUnavailable` with the first one's reason when one can't judge."""
        for failure in await self._starter.start_first(self._bounds.evaluators):
            await self.close()
            raise failure

    async def ask(self, text: bytes) -> bytes:
        """The input document -> the decision as JSON text. Raises `PolicyUnavailable`, `Undecided` by the rules."""
        if self._closed:
            raise PolicyUnavailable("the policy engine is closed")
        if len(text) > self._bounds.question_bytes:
            raise PolicyUnavailable(f"the question is longer than {self._bounds.question_bytes} bytes")
        if len(self._waiting) >= self._bounds.waiting or self._waiting_bytes >= self._bounds.waiting_bytes:
            raise PolicyUnavailable("overloaded: too many questions wait for an evaluator")
        now = self._loop.time()
        self._next_ident = ident = (self._next_ident + 1) & 0xFFFFFFFF
        question = Question(ident, text, now + self._bounds.deadline_s, self._loop.create_future())
        evaluator = None if self._waiting else self._choose()
        if evaluator is None:
            self._enqueue(question)
        else:
            self._send(evaluator, question, now)
        if self._tick is None:
            self._schedule(now)
        return await question.answered

    async def retire(self) -> None:
        """Answer what was asked already, then `close`. Nothing more may be asked; ends with the last deadline."""
        end = self._loop.time() + self._bounds.deadline_s
        while self._loop.time() < end and self._is_busy():  # noqa: ASYNC110 - once per bundle
            await asyncio.sleep(TICK_S)
        await self.close()

    def _is_busy(self) -> bool:
        return bool(self._waiting) or any(one.asked for one in (*self._evaluators, *self._retired))

    async def close(self) -> None:
        """End all processes and refuse what waits."""
        self._closed = True
        for timer in (self._tick, self._shrinking):
            if timer is not None:
                timer.cancel()
        await self._starter.close()
        everyone = [*self._evaluators, *self._retired, *self._starter.loading]
        for question in [*self._waiting, *(question for evaluator in everyone for question in evaluator.asked)]:
            _refuse(question, "the policy engine was closed")
        self._waiting.clear()
        for evaluator in everyone:
            # Nothing is kept in there, and one in the middle of an evaluation would not see the end of its stream.
            evaluator.kill()
        while everyone or self._ending:
            everyone = [evaluator for evaluator in everyone if evaluator.process.poll() is None]
            self._reap()
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)  # transports that were aborted close in the next turn of the loop

    # What evaluators say

    def heard(self, evaluator: Evaluator, kind: int, ident: int, payload: bytes) -> None:
        """A frame of a child. Anything out of order ends that child: an answer is never given to another question."""
        if not evaluator.loaded:
            self._starter.heard(evaluator, kind, payload)
            return
        if not evaluator.asked or evaluator.asked[0].ident != ident or kind not in (frames.ANSWER, frames.FAILED):
            evaluator.kill()
            return
        question = evaluator.asked.popleft()
        evaluator.asked_bytes -= len(question.text)
        evaluator.answers += 1
        evaluator.stuck = False
        self._starter.failures = 0
        if not question.answered.done():
            if kind == frames.ANSWER:
                question.answered.set_result(payload)
            else:
                question.answered.set_exception(Undecided(payload.decode(errors="replace")))
        if evaluator.retired:
            evaluator.hang_up()
            return
        now = self._loop.time()
        evaluator.head_since = now
        if self._waiting:
            self._hand_out(now)

    def lost(self, evaluator: Evaluator) -> None:
        """A child is gone: its first question is asked once more, the others as if they had never been sent."""
        self._ending.append(evaluator)
        self._starter.lost(evaluator)
        for pool in (self._evaluators, self._retired):
            if evaluator in pool:
                pool.remove(evaluator)
        if self._closed:
            return
        now = self._loop.time()
        if evaluator.asked:
            head = evaluator.asked[0]
            head.strikes += 1
            if head.strikes >= STRIKES:
                _refuse(head, "evaluators died on this question")
        self._take_back(evaluator, 0)
        if evaluator.loaded and not evaluator.retired:
            self._starter.failures = 0 if evaluator.answers else self._starter.failures + 1
            self._replace()
        self._hand_out(now)
        if self._tick is None:
            self._schedule(now)

    # Who is asked

    def _choose(self) -> Evaluator | None:
        """The evaluator with the fewest questions, or none where all hold as many as they may."""
        best: Evaluator | None = None
        fewest = WINDOW
        for evaluator in self._evaluators:
            held = len(evaluator.asked)
            if held < fewest and evaluator.loaded and not evaluator.stuck:
                if held and evaluator.asked_bytes > WINDOW_BYTES:
                    continue
                best, fewest = evaluator, held
        return best

    def _send(self, evaluator: Evaluator, question: Question, now: float) -> None:
        if not evaluator.asked:
            evaluator.head_since = now
        evaluator.asked.append(question)
        evaluator.asked_bytes += len(question.text)
        evaluator.send(frames.ASK, question.ident, question.text)

    def _hand_out(self, now: float) -> None:
        while self._waiting:
            evaluator = self._choose()
            if evaluator is None:
                return
            question = self._dequeue()
            if not question.answered.done():
                self._send(evaluator, question, now)

    def _enqueue(self, question: Question) -> None:
        question.waits = True
        self._waiting.append(question)
        self._waiting_bytes += len(question.text)

    def _dequeue(self) -> Question:
        question = self._waiting.popleft()
        question.waits = False
        self._waiting_bytes -= len(question.text)
        return question

    def _take_back(self, evaluator: Evaluator, first: int) -> None:
        """Put the questions of an evaluator from the `first` on in front of those that wait, in their order."""
        for question in reversed(list(evaluator.asked)[first:]):
            if not question.waits and not question.answered.done():
                question.waits = True
                self._waiting.appendleft(question)
                self._waiting_bytes += len(question.text)

    # The clock

    def _schedule(self, now: float) -> None:
        self._tick_due = now + TICK_S
        self._tick = self._loop.call_at(self._tick_due, self._look)

    def _look(self) -> None:
        """Every few milliseconds while anything is asked: hand on, retire, refuse what took too long."""
        now = self._loop.time()
        late = now - self._tick_due
        self._tick = None
        self._reap()
        if late > 4 * TICK_S:
            # The loop itself stood still: answers may lie unread, so nobody is judged slow in this turn.
            self._schedule(now)
            return
        for evaluator in [*self._evaluators, *self._retired]:
            if evaluator.asked:
                self._judge_pace(evaluator, now)
        while self._waiting and (self._waiting[0].answered.done() or self._waiting[0].deadline <= now):
            _refuse(self._dequeue(), "overloaded: no evaluator was free within the deadline")
        self._hand_out(now)
        self._grow()
        if self._ending or self._is_busy():
            self._schedule(now)

    def _judge_pace(self, evaluator: Evaluator, now: float) -> None:
        head, spent = evaluator.asked[0], now - evaluator.head_since
        if head.deadline <= now or spent >= self._bounds.deadline_s:
            _refuse(head, f"the evaluation took longer than {self._bounds.deadline_s:g} s")
        if spent >= self._bounds.deadline_s:
            evaluator.kill()
        elif spent >= self._retire_s and not evaluator.retired:
            self._retire(evaluator)
        elif spent >= STUCK_S and not evaluator.stuck:
            evaluator.stuck = True
            self._take_back(evaluator, 1)

    def _retire(self, evaluator: Evaluator) -> None:
        """Let it finish its question at the lowest priority, and put another in its place already now."""
        self._take_back(evaluator, 1)
        while len(evaluator.asked) > 1:
            evaluator.asked_bytes -= len(evaluator.asked.pop().text)
        evaluator.retired = True
        evaluator.demote()
        self._evaluators.remove(evaluator)
        self._retired.append(evaluator)
        if len(self._retired) > 2 * self._bounds.evaluators:
            oldest = self._retired[0]
            if oldest.asked:
                _refuse(oldest.asked[0], "overloaded: too many evaluations take long")
            oldest.kill()
        self._replace()

    def _grow(self) -> None:
        """Where all evaluators take long at once, others shall not wait for them: start one more, up to a bound."""
        stuck = sum(evaluator.stuck for evaluator in self._evaluators)
        if not stuck or stuck < len(self._evaluators):
            return
        self._jammed_at = self._loop.time()
        if stuck < GROWTH * self._bounds.evaluators and not self._starter.under_way:
            self._starter.begin(at_once=True)

    def _shrink(self) -> None:
        """Once all has been calm for a while, end what the pool grew by, as far as it has nothing to do."""
        self._shrinking = None
        surplus = len(self._evaluators) - self._bounds.evaluators
        if surplus <= 0:
            return
        calm_at = self._jammed_at + CALM_S
        now = self._loop.time()
        if calm_at <= now:
            for evaluator in [idle for idle in self._evaluators if not idle.asked][:surplus]:
                self._evaluators.remove(evaluator)
                evaluator.retired = True
                evaluator.hang_up()
        self._shrinking = self._loop.call_at(max(calm_at, now + CALM_S / 4), self._shrink)

    # Who comes and goes

    def _join(self, evaluator: Evaluator) -> None:
        """It has loaded the bundle, and is asked from now on."""
        if self._bounds.background:
            evaluator.demote()
        self._evaluators.append(evaluator)
        if self._shrinking is None and len(self._evaluators) > self._bounds.evaluators:
            self._shrinking = self._loop.call_later(CALM_S, self._shrink)
        self._hand_out(self._loop.time())

    def _replace(self) -> None:
        if len(self._evaluators) + self._starter.under_way < self._bounds.evaluators:
            self._starter.begin()

    def _reap(self) -> None:
        self._ending = [evaluator for evaluator in self._ending if evaluator.process.poll() is None]


def _refuse(question: Question, why: str) -> None:
    if not question.answered.done():
        question.answered.set_exception(PolicyUnavailable(why))
