"""Checkpoints by HTTP: each is posted until the receiver says that it has it; nobody waits for that.

At least once, in the order of their making, as long as the process lives; what a process leaves behind is covered by
the next one's first checkpoint. The body is the signed line: the receiver needs the public key and no secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import httpx

from gateway.contract.chain import Checkpoint

_MAX_WAITING: Final = 1000
_PAUSE_S: Final = (0.5, 60.0)
_CLOSE_S: Final = 2.0


class CheckpointCourier:
    """A second place behind a URL. `keep` takes lines and says which ones have arrived by now."""

    def __init__(self, url: str, *, timeout_s: float = 5.0, pause_s: tuple[float, float] = _PAUSE_S) -> None:
        self._url: Final = url
        self._timeout_s: Final = timeout_s
        self._pause_s: Final = pause_s
        self._waiting: OrderedDict[Checkpoint, bytes] = OrderedDict()
        self._arrived: set[Checkpoint] = set()
        self._more: Final = asyncio.Event()
        self._idle: Final = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._fault = ""
        self.dropped = 0

    async def keep(self, points: Mapping[Checkpoint, bytes]) -> set[Checkpoint]:
        """See `SecondPlace`. Raises `OSError` while the receiver does not take what it is sent."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        arrived = self._arrived & points.keys()
        for point, line in points.items():
            if point not in arrived:
                self._waiting.setdefault(point, line)
        while len(self._waiting) > _MAX_WAITING:  # a later one says more
            self._waiting.popitem(last=False)
            self.dropped += 1
        if self._waiting:
            self._idle.clear()
            self._more.set()
        if self._fault and not arrived:
            raise OSError(self._fault)
        self._arrived.clear()  # whoever keeps checkpoints asks for all that it still lacks
        return arrived

    async def close(self) -> None:
        """Post what waits, for two seconds at most."""
        if self._task is None:
            return
        if self._waiting:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), _CLOSE_S)
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        pause, longest = self._pause_s
        # No redirects; no proxy, cookie or .netrc from the environment. SSL_CERT_FILE and SSL_CERT_DIR are honoured.
        async with httpx.AsyncClient(
            verify=httpx.create_ssl_context(), follow_redirects=False, trust_env=False, timeout=self._timeout_s
        ) as client:
            while True:
                if not self._waiting:
                    self._idle.set()
                    self._more.clear()
                    await self._more.wait()
                point, line = next(iter(self._waiting.items()))
                self._fault = await self._post(client, line)
                if self._fault:
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spread, no secret
                    pause = min(2 * pause, longest)
                    continue
                pause = self._pause_s[0]
                self._waiting.pop(point, None)
                self._arrived.add(point)

    async def _post(self, client: httpx.AsyncClient, line: bytes) -> str:
        try:
            # Of the answer only the status is read, however much follows.
            posted = client.stream("POST", self._url, content=line, headers={"Content-Type": "application/json"})
            async with asyncio.timeout(self._timeout_s), posted as answer:
                return "" if answer.is_success else f"the receiver answered {answer.status_code}"
        except (httpx.HTTPError, TimeoutError) as error:
            return f"the receiver was not reached: {type(error).__name__}"
