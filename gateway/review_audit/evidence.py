"""Evidence for one incident as a download: what `ostiary audit export` makes, signed by the same key, judged alike.

Whole chains are judged for it, which can take long: it is made by a process of its own (copyist.py), one at a time,
into a file without a name, and leaves only once it is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import IO, Final

import orjson

from gateway.audit.place import Place
from gateway.audit.query import Query
from gateway.contract.refusals import Refusal, Refused

MOST_BYTES: Final = 64 * 1024 * 1024
DEADLINE_S: Final = 60.0
_BLOCK: Final = 1 << 16
_KEPT_ENVIRONMENT: Final = (
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "PYTHONHOME",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "TMPDIR",
)


class NoEvidence(Exception):  # noqa: N818 - what came of it
    """None was made. `why` is broken, unreadable, large or slow; the text is for auditors."""

    def __init__(self, why: str, text: str = "") -> None:
        super().__init__(text)
        self.why = why


_WHY: Final = {1: "broken", 3: "large"}


@dataclass(frozen=True, slots=True)
class Evidence:
    """Makes it from the record at `place`. `key` signs: the checkpoints' key as its variable holds it, or `""`."""

    place: Place
    key: str
    busy: asyncio.Lock

    @property
    def is_signed(self) -> bool:
        """Whether it will be."""
        return bool(self.key)

    async def make(self, query: Query) -> IO[bytes]:
        """A file that holds it, at its beginning. Raises `NoEvidence`, and `Refused(OVERLOADED)` beside another."""
        if self.busy.locked():
            raise Refused(Refusal.OVERLOADED, "evidence is being made for somebody else")
        async with self.busy:
            file = tempfile.TemporaryFile()  # noqa: SIM115 - whoever asked closes it
            try:
                await self._fill(file, query)
                file.seek(0)
            except BaseException:
                file.close()
                raise
            return file

    async def _fill(self, file: IO[bytes], query: Query) -> None:
        place = self.place
        question = orjson.dumps(
            {
                "file": str(place.file.absolute()),
                "database": place.database,
                "checkpoints": str(place.checkpoints.absolute()) if place.checkpoints else None,
                "key": self.key,
                "query": query.asked(),
                "most_bytes": MOST_BYTES,
            }
        )
        environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-X", "utf8", "-m", "gateway.review_audit.copyist",
            stdin=asyncio.subprocess.PIPE, stdout=file, stderr=asyncio.subprocess.PIPE, env=environment, cwd="/",
        )  # fmt: skip
        try:
            async with asyncio.timeout(DEADLINE_S):
                _, why = await process.communicate(question)
        except TimeoutError:
            raise NoEvidence("slow") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            raise NoEvidence(_WHY.get(process.returncode, "unreadable"), why.decode("utf-8", "replace")[:1000])


async def blocks_of(file: IO[bytes]) -> AsyncIterator[bytes]:
    """The file's content; it is closed at the end, whatever ends it."""
    with file:
        while block := await asyncio.to_thread(file.read, _BLOCK):
            yield block
