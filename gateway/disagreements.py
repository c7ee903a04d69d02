"""Where a shadow disagrees with the policy that judges: counted by what was asked, kept small, written to a file.

Nothing of a call but its method and name is kept: no arguments, no claims, no subject, and of a name no more than the
record has: a URI without what may be secret in it, of a task nothing, for its name is its owner's handle. The table
is bounded, and what a caller makes up can only take the place of what was met longest ago.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from glob import escape
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

from gateway.contract.printable import printable, remark
from policies.shadow import Difference
from policies.verdict import Verdict

MOST: Final = 256
LOGGED_EVERY_S: Final = 60.0
SAVED_EVERY_S: Final = 2.0
LARGEST_FILE: Final = 4 * 1024 * 1024
LATEST_S: Final = datetime.max.replace(tzinfo=UTC).timestamp() - 1
_TEXTS: Final = (
    "server", "method", "name", "difference", "live", "candidate", "live_revision", "candidate_revision", "decision",
)  # fmt: skip


@dataclass(slots=True)
class Group:
    """Calls that the candidate would have treated otherwise in the same way. Times are seconds since 1970.

    `decision` is the id of the last one, for `ostiary explain`.
    """

    server: str
    method: str
    name: str
    difference: str
    live: str
    candidate: str
    live_reasons: list[str]
    candidate_reasons: list[str]
    live_revision: str
    candidate_revision: str
    count: int = 0
    first: float = 0.0
    last: float = 0.0
    decision: str = ""

    def key(self) -> tuple[Any, ...]:
        """What makes two differences one."""
        return (
            self.server, self.method, self.name, self.difference, self.live, self.candidate,
            tuple(self.live_reasons), tuple(self.candidate_reasons), self.live_revision, self.candidate_revision,
        )  # fmt: skip


def group_of(difference: Difference, redact_uri: Callable[[str], str]) -> Group:
    """A difference -> a group of its own. A failed candidate's reason is its failure, whose text quotes no input.

    `redact_uri`: see `Redactor.uri`.
    """
    asked = orjson.loads(difference.question)
    request = asked.get("request") or {}
    live, candidate = difference.live, difference.candidate
    method = str(request.get("method", ""))
    return Group(
        server=printable(str((asked.get("server") or {}).get("name", "")), 64),
        method=printable(method, 64),
        name=_shown(method, str(request.get("name") or ""), redact_uri),
        difference=difference.kind,
        live=live.effect.value,
        candidate="none" if candidate is None else candidate.effect.value,
        live_reasons=_reasons(live),
        candidate_reasons=[printable(difference.why, 200)] if candidate is None else _reasons(candidate),
        live_revision=live.revision,
        candidate_revision="" if candidate is None else candidate.revision,
        decision=difference.decision,
    )


def _shown(method: str, name: str, redact_uri: Callable[[str], str]) -> str:
    if method.startswith("tasks/"):
        return ""
    return remark(redact_uri(name) if method.startswith("resources/") else name, 128)


def _reasons(verdict: Verdict) -> list[str]:
    return list(verdict.reasons[:4])


class Disagreements:
    """One worker's table. `count(server, difference)` is the metric; `file` is written by `save`."""

    def __init__(
        self,
        file: Path,
        count: Callable[[str, str], None],
        redact_uri: Callable[[str], str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.file = file
        self._count = count
        self._redact_uri = redact_uri
        self._clock = clock
        self._groups: OrderedDict[tuple[Any, ...], Group] = OrderedDict()
        self._changed = False
        self._logged_at: OrderedDict[tuple[Any, ...], float] = OrderedDict()
        self._log = structlog.get_logger("policy")

    def met(self, difference: Difference) -> None:
        """One more."""
        found = group_of(difference, self._redact_uri)
        key, now = found.key(), self._clock()
        group = self._groups.setdefault(key, found)
        self._groups.move_to_end(key)
        group.count += 1
        group.first = group.first or now
        group.last, group.decision = now, found.decision
        self._changed = True
        while len(self._groups) > MOST:
            self._groups.popitem(last=False)
        self._count(group.server, group.difference)
        if now - self._logged_at.get(key, 0.0) >= LOGGED_EVERY_S:
            self._logged_at[key] = now
            self._logged_at.move_to_end(key)
            while len(self._logged_at) > MOST:
                self._logged_at.popitem(last=False)
            self._log.info("shadow_differs", **asdict(group))

    def save(self) -> None:
        """Write the table where it changed (blocking). Raises `OSError`."""
        if not self._changed:
            return
        self._changed = False
        lines = b"".join(orjson.dumps(asdict(group)) + b"\n" for group in list(self._groups.values()))
        descriptor, name = tempfile.mkstemp(dir=self.file.parent, prefix=f".{self.file.name}.")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(lines)
            Path(name).replace(self.file)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    async def keep_saved(self) -> None:
        """Write the table whenever it changed, until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.save)
            except OSError as error:
                self._changed = True
                self._log.error("shadow_not_written", file=str(self.file), error=error.strerror)
            await asyncio.sleep(SAVED_EVERY_S)

    def forget(self) -> None:
        """Remove what an earlier worker left (blocking): it was about other revisions, or is counted already.

        An empty table is written next: where there is none, nobody has looked on.
        """
        self._changed = True
        with contextlib.suppress(OSError):
            self.file.unlink()


def file_of(file: Path, writer: int) -> Path:
    """A worker's own file, named as its audit file is."""
    return file if writer == 0 else file.with_name(f"{file.name}.{writer}")


def read_all(file: Path) -> list[Group]:
    """What all workers wrote, the same as one, the most frequent first. Raises `ValueError`, `OSError`."""
    groups: dict[tuple[Any, ...], Group] = {}
    files = [one for one in (file, *sorted(file.parent.glob(f"{escape(file.name)}.[1-9]*"))) if one.exists()]
    if not files:
        raise ValueError(f"{file} is not there: no gateway has looked on with this configuration")
    for one in _groups_in(files):
        known = groups.setdefault(one.key(), one)
        if known is not one:
            known.count += one.count
            known.first = min(known.first, one.first)
            if one.last > known.last:
                known.last, known.decision = one.last, one.decision
    return sorted(groups.values(), key=lambda group: -group.count)


def _groups_in(files: Iterable[Path]) -> Iterator[Group]:
    for file in files:
        if not file.is_file():
            raise ValueError(f"{file}: not a regular file")
        if file.stat().st_size > LARGEST_FILE:
            raise ValueError(f"{file}: larger than {LARGEST_FILE} bytes")
        for line in file.read_bytes().splitlines():
            try:
                yield _group_in(line)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{file}: not a list of differences") from error


def _group_in(line: bytes) -> Group:
    """What `save` wrote of a group. Raises `TypeError` or `ValueError` for everything else."""
    group = Group(**orjson.loads(line))
    lists = (group.live_reasons, group.candidate_reasons)
    texts = [getattr(group, name) for name in _TEXTS]
    if not all(isinstance(one, list) for one in lists):
        raise TypeError("reasons are lists")
    if not all(isinstance(one, str) for one in (*texts, *lists[0], *lists[1])):
        raise TypeError("names are texts")
    if type(group.count) is not int or not 0 < group.count < 2**53:
        raise ValueError("a count is a number from 1 on")
    if not all(type(one) in (int, float) and 0 <= one <= LATEST_S for one in (group.first, group.last)):
        raise ValueError("a time is seconds since 1970")
    return group
