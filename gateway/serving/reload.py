"""Another configuration without a dropped request: read once, judged whole, then taken by one worker after the other.

| state | SIGHUP (or the watch) | SIGTERM | a worker dies |
|---|---|---|---|
| waiting: nobody has served yet | waiting, and told | the gateway stops | replaced, or the start has failed |
| idle | judging | the gateway stops | replaced, with what its slot runs on |
| judging | once more, afterwards | given up; the judge ends | likewise |
| rolling | once more, afterwards | given up; successors stop too | likewise; a successor that is not: going back |
| going back | once more, afterwards | as above | likewise; a slot stays on what it has, and that is told |

Invariant: what can't be used changes nothing. A worker of the new configuration serves before one of the old one
leaves, and where one of them does not get ready, those that had changed change back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from gateway.serving.configuration import Configuration, digest_of
from gateway.serving.crew import Crew
from gateway.serving.judge_call import Judge, Verdict

LOOK_EVERY_S = 2.0
MAX_BYTES: Final = 8 << 20
NOT_YET: Final = "no worker has been ready since the start: it is read once one is; a restart takes it at once"


class Reload:
    """Of one gateway. `ask` may be called at any time, from a signal handler too."""

    def __init__(self, crew: Crew, file: Path, judge: Judge, configuration: Configuration) -> None:
        self._crew = crew
        self._file = file
        self._judge = judge
        self._configuration = configuration
        self._seen = configuration.digest
        self._asked = asyncio.Event()
        self._log = structlog.get_logger("supervisor")
        self._shown = crew.roster.configuration
        self._shown.digest = configuration.digest

    @property
    def configuration(self) -> Configuration:
        """The one that was taken last."""
        return self._configuration

    def ask(self) -> None:
        """Read the file again, whether it changed or not: what it names may have. Asked meanwhile: once more."""
        if not self._crew.serving.is_set():
            self._shown.state = "waiting"
            self._log.warning("configuration_waits", why=NOT_YET)
        self._asked.set()

    async def run(self) -> None:
        """Until it is cancelled. A gateway that has not served yet is not given another configuration."""
        await self._crew.serving.wait()
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self._reload()

    async def watch(self) -> None:
        """Ask by itself where the file has another text, the same at two looks."""
        before = self._seen
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            with contextlib.suppress(OSError):
                now = digest_of(await asyncio.to_thread(self._read))
                if now == before and now != self._seen and not self._asked.is_set():
                    self.ask()
                before = now

    def _read(self) -> bytes:
        with self._file.open("rb") as file:
            return file.read(MAX_BYTES + 1)

    async def _reload(self) -> None:
        self._shown.state = "judging"
        try:
            text = await asyncio.to_thread(self._read)
        except OSError as error:
            await self._refuse("", [f"{self._file}: {error.strerror}"])
            return
        self._seen = digest_of(text)
        if len(text) > MAX_BYTES:
            await self._refuse(self._seen, [f"{self._file}: is larger than {MAX_BYTES} bytes"])
            return
        verdict: Verdict = await self._judge.judge(text, self._configuration.text)
        if self._crew.stopping.is_set():
            return
        if verdict.mistakes:
            await self._refuse(self._seen, verdict.mistakes)
            return
        began, before = time.monotonic(), self._configuration
        coming = Configuration(text, verdict.grace_s, verdict.drain_s)
        facts: dict[str, Any] = {"digest": coming.digest, "before": before.digest}
        self._shown.state = "rolling"
        why = await self._roll(coming)
        if self._crew.stopping.is_set():
            return
        if why:
            self._log.error("configuration_given_up", **facts, why=why)
            await self._end("given_up", {**facts, "why": why}, why)
            return
        self._configuration = coming
        self._shown.digest = coming.digest
        facts["after_s"] = round(time.monotonic() - began, 1)
        self._log.info("configuration_taken", **facts)
        await self._end("taken", facts)

    async def _roll(self, coming: Configuration) -> str:
        """Renew every slot -> why it was given up, `""` where it was not."""
        for number in self._crew.slots:
            if why := await self._crew.renew(number, coming):
                self._shown.state = "going_back"
                for changed in range(number):
                    if kept := await self._crew.renew(changed, self._configuration):
                        self._log.error("configuration_mixed", slot=changed, digest=coming.digest, why=kept)
                return why
        return ""

    async def _refuse(self, digest: str, mistakes: list[str]) -> None:
        facts = {"digest": digest, "before": self._configuration.digest, "mistakes": "\n".join(mistakes)[:4000]}
        self._log.error("configuration_refused", **facts)
        await self._end("refused", facts, mistakes[0])

    async def _end(self, result: str, facts: Mapping[str, Any], why: str = "") -> None:
        """Say it in readiness, metrics and the record."""
        shown, act = self._shown, f"configuration_{result}"
        shown.state, shown.current, shown.why = "idle", result == "taken", why
        shown.results[result] += 1
        if unrecorded := await self._judge.note(self._configuration.text, act, facts):
            self._log.error("configuration_not_recorded", act=act, why=unrecorded)
        self._crew.tidy()
