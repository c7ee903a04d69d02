"""Asking a process of its own whether a configuration can be used, and to write down what came of it.

The supervisor itself knows no settings, no policy and no record: it is what is left when all else breaks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.serving.configuration import lay_down

JUDGED_WITHIN_S = 90.0
"""Ten seconds for keys, thirty for the bundle's own tests, and a busy machine."""
NOTED_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """`mistakes` are lines for people; without any, the two bounds (seconds) that the supervisor has to know."""

    mistakes: list[str]
    grace_s: float = 0.0
    drain_s: float = 0.0


class Judge:
    """`command` is `ostiary judge --config FILE`; texts are handed over in files of `folder`."""

    def __init__(self, command: tuple[str, ...], folder: Path) -> None:
        self._command: Final = command
        self._folder: Final = folder

    async def judge(self, text: bytes, running: bytes) -> Verdict:
        """Judge `text`, which is to follow `running`. What can't be judged is not taken."""
        try:
            old, new = lay_down(self._folder, running), lay_down(self._folder, text)
            said = json.loads(await self._ask(JUDGED_WITHIN_S, "--text", str(old), "--coming", str(new)))
            return Verdict(said["mistakes"], said["grace_s"], said["drain_s"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            return Verdict([f"configuration: could not be judged: {error}"])

    async def note(self, running: bytes, act: str, facts: Mapping[str, Any]) -> str:
        """Write it down in the record of `running` -> why it is not there, `""` where it is."""
        try:
            old, told = lay_down(self._folder, running), json.dumps(facts)
            said = json.loads(await self._ask(NOTED_WITHIN_S, "--text", str(old), "--note", act, "--facts", told))
            return str(said["why"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            return str(error)

    async def _ask(self, within_s: float, *options: str) -> bytes:
        """One line of a process of its own. Raises `OSError` where it says nothing in time."""
        process = await asyncio.create_subprocess_exec(
            *self._command, *options, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None  # noqa: S101 - it was asked for
        try:
            async with asyncio.timeout(within_s):
                line = await process.stdout.readline()
                await process.wait()
                return line
        except TimeoutError:
            raise OSError(f"no answer within {within_s:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
