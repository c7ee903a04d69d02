"""One writer, one hash chain, wherever it lies; a commit is one durable write for all who wait.

Invariants: at most one commit is under way, and records are linked only when their commit begins, so a failed one
leaves the chain where it was. While the place fails or blocks, callers are refused in time, notes are kept within
bounds, and a probe finds out when it is back (requirements AUD-05, AUD-07).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from gateway.audit.flood import Flood
from gateway.audit.port import AuditUnavailable
from gateway.audit.resuming import Left
from gateway.contract.chain import KINDS, MAX_LINE, chain
from gateway.contract.folding import Kind
from gateway.contract.record import admin_record, closing_outcome
from gateway.vigil import Vigil

MAX_BATCH: Final = 512
"""Records of one commit: linking them holds the loop for about 5 ms at most."""

MARK_EVERY: Final = 50_000
"""Records between two marks: the most that a start has to read back."""

_MAX_MARKED: Final = 256
_MAX_OPEN: Final = 100_000
_PROBE_BATCH: Final = 16
_PROBE_AFTER_S: Final = 0.25
_NOTES_DELAY_S: Final = 0.01
_GATHER_S: Final = 0.002
"""How long a commit waits for as many callers as shared the one before: under load that saves its own cost, some
200 µs of CPU in switches of threads and the fdatasync. Of callers that come one by one, only the first after a shared
commit waits."""

_FOLD_S: Final = 1.0

_VIGIL_S: Final = 0.0004
"""How long the loop stays awake while one caller waits for a commit: a near disk takes half of that."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """`deadline_s` < 2; notes beyond `max_notes` or `max_note_bytes` are counted and dropped.

    Refusals of one caller (of all unknown ones) beyond `folded_beyond` per second are written together.
    """

    deadline_s: float = 1.5
    max_notes: int = 10_000
    max_note_bytes: int = 16 * 1024 * 1024
    folded_beyond: int = 200


class Scribe(Protocol):
    """Who writes a chain's lines down, durably, and knows where the chain ended. Called on the loop."""

    @property
    def remarks(self) -> deque[tuple[str, Mapping[str, Any]]]:
        """What there is to tell of the place, as acts with their facts; taken out by who records them."""
        ...

    @property
    def wants_rotation(self) -> bool:
        """Whether the next commit should begin a file of its own."""
        ...

    async def claim(self) -> Left:
        """Become the one writer of a chain -> where it ended. Raises `AuditUnavailable`."""
        ...

    def write(
        self, lines: Sequence[bytes], *, first: int, mend: bool, rotate: bool, then: Callable[[str], None]
    ) -> None:
        """Append all lines or none, then call `then` on the loop with `""`, or with why it failed.

        `first` is the number of the first line's record; `mend`: the last write failed, or was not answered in time.
        """
        ...

    async def close(self, timeout_s: float) -> None:
        """Give the chain up, once what was asked before is done; waits `timeout_s` at most."""
        ...


@dataclass(slots=True)
class _Waiting:
    """A record before its commit. `done` only where a caller waits, `weight` (bytes) only of what is bounded."""

    record: dict[str, Any]
    since: float
    done: asyncio.Future[None] | None = None
    weight: int = 0


@dataclass(slots=True)
class _Commit:
    """A batch under way, where the chain will stand if it succeeds, and which decisions have their end in it."""

    waiting: list[_Waiting]
    lines: list[bytes]
    seq: int
    head: str
    began: float
    rotates: bool = False
    ended: Sequence[str] = ()


class GroupCommit:
    """`AuditSink` over a scribe; one per process, used from the loop that started it.

    `make_scribe` is called once the loop runs; `place` is what errors call the place.
    For metrics: `healthy`, `fault` (why not), `lag`, `writer`, `seq`, `commits`, `failures`, `lost`, `folded`.
    """

    def __init__(self, bounds: Bounds, make_scribe: Callable[[], Scribe], place: str) -> None:
        self._bounds: Final = bounds
        self._make_scribe: Final = make_scribe
        self._place: Final = place
        self.export: Callable[[Sequence[bytes]], None] | None = None
        """Given the lines of every commit that succeeded. Must not wait."""
        self.introduction: Mapping[str, str] = {}
        """What the record of its start says besides."""
        self.told: Callable[[Mapping[str, Any]], None] = lambda _: None
        """Given each record of refusals that came beyond the rate. Must not wait."""
        self._scribe: Scribe
        self._loop: asyncio.AbstractEventLoop
        self._idle: Final = asyncio.Event()
        self._pending: deque[_Waiting] = deque()
        self._notes = self._note_bytes = 0
        self._under_way: _Commit | None = None
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.Handle | None = None
        self._due = 0.0  # when `_later` is: uvloop gives a handle that can't be asked for a time that has come
        self._watch: asyncio.TimerHandle | None = None
        self._callers = 0
        """Of the records that wait for a commit to begin, those with a caller."""
        self._shared = 1
        """How many callers the last commit had; of several, others come meanwhile, and the loop has more to do."""
        self._vigil: Final = Vigil(_VIGIL_S)
        self._flood: Final = Flood(bounds.folded_beyond)
        self._open: set[str] = set()
        self._marked_at = 0
        self._markable = True
        self._second, self._prefix = -1, ""
        self._told_lost = self._told_failures = 0
        self._started = self._running = False
        self.fault = "the audit is not started"
        self.writer = self.seq = self.commits = self.failures = self.lost = 0
        self.head = ""

    @property
    def healthy(self) -> bool:
        """Whether the last commit succeeded and none is overdue."""
        return not self.fault

    @property
    def lag(self) -> float:
        """Seconds that the oldest record has been waiting for its commit to end."""
        waiting = self._under_way.waiting if self._under_way else self._pending
        return max(0.0, self._loop.time() - waiting[0].since) if waiting else 0.0

    @property
    def folded(self) -> int:
        """Refusals beyond the rate: what is of one kind shares a record."""
        return self._flood.folded

    async def start(self) -> None:
        """Claim a slot, mend its tail, close what an earlier life left open; all durable when it returns.

        Once per sink: an answer of the disk to a start that failed could come during the next one.
        """
        if self._started:
            raise AuditUnavailable("this sink was started before")
        self._started = True
        self._loop = asyncio.get_running_loop()
        self._scribe = self._make_scribe()
        try:
            left = await self._scribe.claim()
            self.writer, self.seq, self.head, self.fault = left.writer, left.seq, left.head, ""
            self._running = True
            self._marked_at = self.seq
            if left.cut:
                self._add(admin_record("torn_tail", facts={"bytes": left.cut, "after": left.seq}))
            for decision_id, record in left.open.items():
                self._add(closing_outcome(decision_id, record, "unknown", "writer_ended"))
            facts = {"pid": os.getpid(), "closed": len(left.open), "open": [], **self.introduction}
            left.open.clear()
            await self.append(admin_record("started", facts=facts))
        except BaseException:
            self._running, self.fault = False, self.fault or "the audit did not start"
            self._cancel_timers()
            await self._scribe.close(0.1)
            raise

    async def append(self, record: Mapping[str, Any]) -> None:
        """Durable when it returns; `AuditUnavailable` within the deadline, at once while the file is known to fail.

        A decision whose caller is cancelled meanwhile may be on disk all the same: its end is the caller's to note.
        """
        if self.fault:
            raise AuditUnavailable(self.fault)
        if len(self._pending) >= 2 * self._bounds.max_notes:
            raise AuditUnavailable("too many records wait for the audit")
        done: asyncio.Future[None] = self._loop.create_future()
        self._add(record, done)
        if self._watch is None:
            self._watch = self._loop.call_later(self._bounds.deadline_s, self._judge_lateness)
        self._callers += 1
        if self._under_way is None:
            self._gather()
        await done

    def note(self, record: Mapping[str, Any]) -> None:
        """Joins the next commit. What has no room is counted, and reported by a record once there is some."""
        self._keep(record)

    def fold(self, kind: Kind, make: Callable[[], Mapping[str, Any]]) -> bool:
        """Whether a refusal is one too many in its second, and shares a record with others of its kind.

        Otherwise its own is to be noted. `make` gives that, and is called for the first of a kind alone.
        """
        if not self._running:
            return False
        waited = self._flood.waits
        taken = self._flood.takes(kind, make, self._loop.time())
        if taken and not waited:
            self._loop.call_later(_FOLD_S, self._unfold)
        return taken

    async def close(self) -> None:
        """Commit what waits, within the deadline; free the slot."""
        if not self._running:
            return
        self._unfold()
        if not self.fault:
            ends = [one.record for one in self._pending if one.record["kind"] in {"outcome", "refusal"}]
            ending = {record["decision_id"] for record in ends}
            self._add(admin_record("stopped", facts={"open": sorted(self._open - ending)[:_MAX_MARKED]}))
        fault, self.fault, self._running = self.fault, "the audit is closed", False
        if not fault:
            self._idle.clear()
            self._commit()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), self._bounds.deadline_s)
        self._cancel_timers()
        self._refuse_waiting(self.fault)
        await self._scribe.close(self._bounds.deadline_s)

    def _add(self, record: Mapping[str, Any], done: asyncio.Future[None] | None = None, weight: int = 0) -> _Waiting:
        second, millis = divmod(int(time.time() * 1000), 1000)
        if second != self._second:
            self._second, self._prefix = second, time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second))
        stamped = {**record, "time": f"{self._prefix}{millis:03d}Z"}
        waiting = _Waiting(stamped, self._loop.time(), done, weight)
        self._pending.append(waiting)
        return waiting

    def _keep(self, record: Mapping[str, Any]) -> None:
        # Strangers may fill half the room: what is known of calls that ran is worth more.
        share = 0.5 if record.get("kind") == "refusal" and record.get("actor") is None else 1.0
        weight = 1024 + 256 * len(record.get("arguments") or ())
        limits = self._bounds
        if (
            not self._running
            or self._notes >= limits.max_notes * share
            or self._note_bytes + weight > limits.max_note_bytes * share
        ):
            self.lost += int(record.get("count") or 1)
            return
        self._notes += 1
        self._note_bytes += weight
        self._add(record, None, weight)
        if not self.fault and self._later is None and self._soon is None and self._under_way is None:
            self._commit_within(_NOTES_DELAY_S)

    def _unfold(self) -> None:
        for record in self._flood.unfold():
            self._keep(record)
            self.told(record)

    def _gather(self) -> None:
        """Decide when the next commit begins, for those who wait: none is under way."""
        if self._callers >= self._shared or len(self._pending) >= MAX_BATCH:
            if self._soon is None:
                # In the next turn of the loop: all that arrive in this one share the commit.
                self._soon = self._loop.call_soon(self._commit)
        elif self._callers:
            self._commit_within(_GATHER_S)
        elif self._pending:
            self._commit_within(_NOTES_DELAY_S)

    def _commit_within(self, delay_s: float) -> None:
        due = self._loop.time() + delay_s
        if self._later is not None:
            if self._due <= due:
                return
            self._later.cancel()
        self._commit_after(delay_s, MAX_BATCH)

    def _commit_after(self, delay_s: float, limit: int) -> None:
        self._due = self._loop.time() + delay_s
        self._later = self._loop.call_later(delay_s, self._commit, limit)

    def _commit(self, limit: int = MAX_BATCH) -> None:
        """Link what waits and hand it to the scribe."""
        for handle in (self._soon, self._later):
            if handle is not None:
                handle.cancel()
        self._soon = self._later = None
        if self._under_way is not None:
            return
        commit = self._link(limit)
        if not commit.waiting:
            self._idle.set()
            return
        self._under_way = commit
        if self._watch is None:
            self._watch = self._loop.call_later(self._bounds.deadline_s, self._judge_lateness)
        self._scribe.write(
            commit.lines,
            first=self.seq + 1,
            mend=bool(self.fault),
            rotate=commit.rotates,
            then=self._committed,
        )
        if self._shared == 1 and any(waiting.done is not None for waiting in commit.waiting):
            self._vigil.begin(self._loop)

    def _link(self, limit: int) -> _Commit:
        rotates = self._scribe.wants_rotation
        if (rotates or self.seq - self._marked_at >= MARK_EVERY) and self._can_mark():
            self._add(admin_record("mark", facts={"open": sorted(self._open)}))
            self._pending.rotate(1)  # to the front: it speaks of what is linked so far
            self._marked_at = self.seq
        else:
            rotates = False  # a file begins with a mark, so that a start need not look into the ones before it
        seq, head, callers = self.seq, self.head, self._callers
        batch: list[_Waiting] = []
        lines: list[bytes] = []
        ended: list[str] = []
        while self._pending and len(batch) < limit:
            waiting = self._pending.popleft()
            if waiting.done is None:
                self._weigh(waiting, -1)
            else:
                self._callers -= 1
                if waiting.done.done():
                    continue  # refused or cancelled before its commit: nothing of it is written
            record = waiting.record
            record["seq"], record["prev"], record["writer"] = seq + 1, head, self.writer
            try:
                linked, line = chain(head, record)
                if len(line) > MAX_LINE or record.get("kind") not in KINDS:
                    raise ValueError("too long, or of no kind")
            except (ValueError, TypeError, RecursionError) as error:
                self._drop(waiting, f"the record has no form: {error}")
                continue
            seq, head = seq + 1, linked
            lines.append(line)
            batch.append(waiting)
            self._follow(record, ended)
        self._shared = max(1, callers - self._callers)
        return _Commit(batch, lines, seq, head, self._loop.time(), rotates, ended)

    def _can_mark(self) -> bool:
        """Whether what is open is known, and fits into a record; a commit of nothing is no reason to write."""
        return self._markable and len(self._open) <= _MAX_MARKED and bool(self._pending)

    def _weigh(self, waiting: _Waiting, sign: int) -> None:
        if waiting.weight:
            self._notes += sign
            self._note_bytes += sign * waiting.weight

    def _drop(self, waiting: _Waiting, why: str) -> None:
        if waiting.done is None:
            self.lost += 1
        else:
            waiting.done.set_exception(AuditUnavailable(why))

    def _follow(self, record: Mapping[str, Any], ended: list[str]) -> None:
        kind = record["kind"]
        if kind == "decision":
            self._open.add(record["decision_id"])
            self._markable = self._markable and len(self._open) <= _MAX_OPEN
        elif kind in ("outcome", "refusal") and record["decision_id"] in self._open:
            self._open.discard(record["decision_id"])
            ended.append(record["decision_id"])
        if not self._markable:
            self._open.clear()  # more than can be kept in mind: this life's records will be read back whole

    def _committed(self, why: str) -> None:
        """The scribe is done with the commit under way: `why` it failed, or `""`."""
        self._vigil.end()
        commit, self._under_way = self._under_way, None
        if commit is None:
            return
        if why:
            self._failed(commit, why)
            return
        self.seq, self.head = commit.seq, commit.head
        self.commits += 1
        if self.export is not None:
            self.export(commit.lines)
        if self._running:
            self.fault = ""
        for waiting in commit.waiting:
            if waiting.done is not None and not waiting.done.done():
                waiting.done.set_result(None)
        if (self.lost > self._told_lost or self.failures > self._told_failures) and self._has_room():
            self._tell()
        while self._running and self._scribe.remarks:
            act, facts = self._scribe.remarks.popleft()
            self._add(admin_record(act, facts=facts))
        if self._running:
            self._gather()
        else:
            self._commit()

    def _failed(self, commit: _Commit, why: str) -> None:
        """Nothing of the commit counts: notes wait for the next, who waited is refused, a probe looks again soon."""
        if self._markable:
            self._open.update(commit.ended)
        for waiting in reversed(commit.waiting):
            if waiting.record["kind"] == "decision":
                self._open.discard(waiting.record["decision_id"])
            if waiting.done is None:
                self._weigh(waiting, 1)
                self._pending.appendleft(waiting)
            elif not waiting.done.done():
                waiting.done.set_exception(AuditUnavailable(why))
        if not self._running:
            self._refuse_waiting(why)
            self._idle.set()
        else:
            self._break_down(why)
            self._commit_after(_PROBE_AFTER_S, _PROBE_BATCH)

    def _break_down(self, why: str) -> None:
        """The file does not take records: refuse at once until a commit succeeds. The outage is a record too."""
        if not self.fault:
            self._add(admin_record("audit_unavailable", facts={"why": why}))
        self.fault = why
        self.failures += 1
        self._refuse_waiting(why)

    def _has_room(self) -> bool:
        return self._notes < self._bounds.max_notes // 2

    def _tell(self) -> None:
        """What the outage cost: failed commits, and records that found no room."""
        lost, failures = self.lost - self._told_lost, self.failures - self._told_failures
        self._told_lost, self._told_failures = self.lost, self.failures
        record = admin_record(
            "records_lost" if lost else "audit_recovered", facts={"lost": lost, "failures": failures}
        )
        self._add({**record, "count": max(1, lost)})

    def _refuse_waiting(self, why: str) -> None:
        kept: deque[_Waiting] = deque()
        for waiting in self._pending:
            if waiting.done is None:
                kept.append(waiting)
            elif not waiting.done.done():
                waiting.done.set_exception(AuditUnavailable(why))
        self._pending, self._callers = kept, 0

    def _judge_lateness(self) -> None:
        """One timer for all: if the oldest commit or caller is over the deadline, the file blocks."""
        self._watch = None
        commit = self._under_way
        waits = [w for w in self._pending if w.done is not None and not w.done.done()]
        if commit is not None:
            waits += [w for w in commit.waiting if w.done is not None and not w.done.done()]
        times = [w.since for w in waits] + ([commit.began] if commit is not None else [])
        if not times or self.fault:
            return
        due = min(times) + self._bounds.deadline_s
        if self._loop.time() < due - 0.001:
            self._watch = self._loop.call_at(due, self._judge_lateness)
            return
        why = f"{self._place} did not answer within {self._bounds.deadline_s} s"
        for waiting in waits:
            if waiting.done is not None:
                waiting.done.set_exception(AuditUnavailable(why))
        self._break_down(why)

    def _cancel_timers(self) -> None:
        for handle in (self._soon, self._later, self._watch):
            if handle is not None:
                handle.cancel()
        self._soon = self._later = self._watch = None
