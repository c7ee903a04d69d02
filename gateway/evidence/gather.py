"""How a pack comes to be: everything is asked, kept, judged, reported and written, in this order.

What can't be asked breaks off its own taking alone: its check then fails for want of a transcript.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
import orjson

from gateway.audit.checkpoints import SigningKey
from gateway.evidence.checks import CLASSES, Verdict, judge
from gateway.evidence.excerpt import Ours
from gateway.evidence.judging.everything import CHECKS
from gateway.evidence.pack import Draft, Secretive, write
from gateway.evidence.probes import NOT_ASKED
from gateway.evidence.report import render
from gateway.evidence.scrubbing import Scrubber
from gateway.evidence.seen import LOG, RECORD, Exchange, Seen, Unproven, metric
from gateway.evidence.site import NotHere, PlanInvalid, Site
from gateway.evidence.taking import calls, operation, registry, scale
from gateway.evidence.taking.notebook import Notebook, Taking
from gateway.evidence.wire import Client

_OF_CALLERS: Final = ("decision_id", "trace_id", "ticket", "subject")
"""Members of a log's line that say that it is of a caller's request."""

Stage = Mapping[str, Taking]

STAGES: Final[Sequence[Stage]] = (
    {"audit/health": operation.take_health},
    {
        "wire/good": calls.take_good,
        "wire and authorization": calls.take_probes,
        "wire/handler_failure": calls.take_failure,
        "wire/cancellation": calls.take_cancellation,
        "wire/cache_expiry": calls.take_expiry,
        "authorization/approved_call": calls.take_approval,
        "audit/canaries": operation.take_canaries,
        "audit/rollback": operation.take_rollback,
        "registry": registry.take_registry,
        "scale/burst": scale.take_burst,
        "scale/repeated": scale.take_repeated,
    },
    {"scale/broken_stream": scale.take_broken_stream},
    {"scale/sent_once": scale.take_lost_replica},
    {"audit/drain": operation.take_drain},
    {"audit/metrics": operation.take_metrics},
)
"""What is asked, one stage after the other; within a stage side by side."""

Log = Callable[[], bytes]
"""What the gateway logged since the pack was begun. Raises `OSError`."""

Record = Callable[[Ours], tuple[list[dict[str, Any]], bytes]]
"""Every chain's report, and the records that are asked for. Raises `OSError`."""

Tell = Callable[[str], None]
"""Hears a line, for whoever waits."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is asked, and what only its machine knows: record, log and facts (versions), and the key that signs."""

    site: Site
    record: Record
    log: Log
    facts: Callable[[], Awaitable[Mapping[str, Any]]]
    tls: ssl.SSLContext | bool = True
    key: SigningKey | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """A pack that was written: its digest and verdicts, and what could not be asked, and why."""

    digest: str
    verdicts: Sequence[Verdict]
    broke_off: Mapping[str, str]

    @property
    def complete(self) -> bool:
        """Whether every check holds."""
        return all(verdict.holds for verdict in self.verdicts)


async def gather(
    deployment: Deployment,
    scrubber: Scrubber,
    out: Path,
    stages: Sequence[Stage] = STAGES,
    tell: Tell = lambda _: None,
) -> Made:
    """Ask everything and write the pack to `out`; a class whose last question was asked is told.

    Raises `pack.Unreadable`, `pack.Secretive`, `TooShort`.
    """
    for actor, token in deployment.site.tokens.items():
        scrubber.know(f"token of the {actor}", token)
    began = _now()
    draft = Draft(scrubber)
    async with Client(scrubber, deployment.tls) as client:
        book = Notebook(deployment.site, client, draft)
        left = Counter(group for stage in stages for name in stage for group in _classes(name))

        async def take(name: str, taking: Taking) -> None:
            await _take(book, name, taking)
            for group in _classes(name):
                left[group] -= 1
                if not left[group]:
                    tell(f"asked: {CLASSES[group]}")

        for stage in stages:
            await asyncio.gather(*(take(name, taking) for name, taking in stage.items()))
    await asyncio.to_thread(_read_files, deployment, draft, began, book.broke_off)
    facts = {**await deployment.facts(), "bundle": _bundle(draft), "began": began, "broke_off": book.broke_off}
    draft.add_json("facts.json", facts)
    verdicts = judge(CHECKS, Seen(draft.files))
    try:
        report = make_report(verdicts, draft.files)
    except Unproven as unproven:
        raise Secretive(f"{unproven}: nothing was written") from None
    told = {verdict.check.key: verdict.holds for verdict in verdicts}
    digest = write(out, draft, report, began, told, deployment.key)
    return Made(digest, verdicts, book.broke_off)


def make_report(verdicts: Sequence[Verdict], files: Mapping[str, bytes]) -> bytes:
    """The report of these files."""
    return render(verdicts, Seen(files).document("facts.json"), {row.reason: why for row, why in NOT_ASKED.items()})


def _classes(name: str) -> list[str]:
    """The classes that a taking's name says it is of."""
    return [word for word in re.split("[/ ]", name) if word in CLASSES]


async def _take(book: Notebook, name: str, taking: Callable[[Notebook], Awaitable[None]]) -> None:
    try:
        await taking(book)
    except (NotHere, PlanInvalid, httpx.HTTPError, OSError) as error:
        book.broke_off[name] = book.draft.scrubber.clean(str(error) or type(error).__name__)


def _read_files(deployment: Deployment, draft: Draft, began: str, broke_off: dict[str, str]) -> None:
    try:
        reports, selection = deployment.record(Ours(since=began, of=_ids(draft)))
        draft.add_json("audit/verify.json", reports)
        draft.add(RECORD, selection)
    except OSError as error:
        broke_off["audit/record"] = str(error)
    try:
        add_log(draft, deployment.log())
    except (NotHere, OSError) as error:
        broke_off["audit/log"] = str(error)


def add_log(draft: Draft, data: bytes) -> None:
    """All of the log is searched for secrets; other callers' lines are left out, as in the record."""
    draft.add(LOG, data)
    if draft.files[LOG] is data:
        ids = _ids(draft)
        draft.add(LOG, b"".join(line for line in data.splitlines(keepends=True) if _is_ours(line, ids)))


def _is_ours(line: bytes, ids: frozenset[str]) -> bool:
    try:
        told = orjson.loads(line)
        whose = {told[name] for name in _OF_CALLERS if told.get(name)}
    except (ValueError, TypeError, AttributeError):
        return False
    return not whose or not whose.isdisjoint(ids)


def _ids(draft: Draft) -> frozenset[str]:
    """The decisions, traces and tickets of all that was asked."""
    seen, exchanges = Seen(draft.files), list[Exchange]()
    for name in draft.files:
        with contextlib.suppress(Unproven):  # of one that was withheld nothing is told
            exchanges += seen.steps(name).values() if seen.is_transcript(name) else ()
    tickets = {str(one.ticket.get("id")) for one in exchanges}
    return frozenset({one.decision for one in exchanges} | {one.trace for one in exchanges} | tickets) - {"", "None"}


def _bundle(draft: Draft) -> str:
    """The revision that judges at the end, by the gateway's own word; `""` where it said nothing."""
    text = draft.files.get("audit/metrics.txt", b"").decode()
    return ", ".join(sorted(labels.get("revision", "") for labels, _ in metric(text, "ostiary_policy_info")))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
