"""How the evaluators of one bundle come to be: started, loaded, and tried before anybody is judged by them.

Where none can be started, or those that were die before they answer, the next attempt waits longer each time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from policies import frames
from policies.bundles import DECISION, Bundle
from policies.process import LOAD_S, Evaluator, Listener, start_evaluator
from policies.verdict import PolicyUnavailable, read_verdict

LONGEST_BACKOFF_S = 5.0


class Starter:
    """Starts evaluators for `owner`, who hears of their frames and ends, and passes on what belongs here.

    `checks` are questions that the bundle must answer with a well-formed verdict; `ready` is given each evaluator
    that did. `failures` counts those in a row of which nothing came: the owner sets it to 0 with each answer.
    """

    def __init__(
        self,
        bundle: Bundle,
        checks: tuple[str, ...],
        memory_bytes: int,
        owner: Listener,
        ready: Callable[[Evaluator], None],
    ) -> None:
        self.failures = 0
        self._revision = bundle.revision
        self._load = {
            "modules": [[module.name, module.text] for module in bundle.modules],
            "data": bundle.data,
            "rule": DECISION,
            "checks": checks,
            "memory_bytes": memory_bytes,
            "vet": True,
        }
        self._owner = owner
        self._ready = ready
        self._loading: dict[Evaluator, asyncio.Future[None]] = {}
        self._starts: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def under_way(self) -> int:
        """How many are being started, beside the first ones."""
        return len(self._starts)

    @property
    def loading(self) -> list[Evaluator]:
        """Those that run and are not ready."""
        return list(self._loading)

    async def start_first(self, number: int) -> list[BaseException]:
        """Start so many at once -> why some can't judge."""
        told = await asyncio.gather(*(self._start_one() for _ in range(number)), return_exceptions=True)
        self._load["vet"] = False  # the same text for every later one, which should be there soon
        return [one for one in told if isinstance(one, BaseException)]

    def begin(self, *, at_once: bool = False) -> None:
        """Start one more, and try until it is there: after a pause where the last ones failed, unless `at_once`."""
        waits = self.failures > 1 and not at_once
        task = self._loop.create_task(self._keep_starting(self._backoff_s() if waits else 0.0))
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)

    async def close(self) -> None:
        """Start none any more. Those that are `loading` are the owner's to end."""
        for task in self._starts:
            task.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)

    def heard(self, evaluator: Evaluator, kind: int, payload: bytes) -> None:
        """The first frame of one that loads: it is ready, or says why it can't be."""
        loading = self._loading.pop(evaluator, None)
        if loading is None or loading.done():
            return
        try:
            if kind != frames.LOADED:
                raise PolicyUnavailable(payload.decode(errors="replace"))
            for answer in json.loads(payload)["checks"]:
                read_verdict(json.loads(answer), self._revision)
        except (PolicyUnavailable, ValueError, KeyError) as error:
            loading.set_exception(error if isinstance(error, PolicyUnavailable) else PolicyUnavailable(str(error)))
            return
        evaluator.loaded = True
        loading.set_result(None)
        self._ready(evaluator)

    def lost(self, evaluator: Evaluator) -> None:
        """It is gone, and may have been one that loads."""
        loading = self._loading.pop(evaluator, None)
        if loading is not None and not loading.done():
            loading.set_exception(PolicyUnavailable("an evaluator ended while it loaded the bundle"))

    def _backoff_s(self) -> float:
        return min(LONGEST_BACKOFF_S, 0.05 * float(2**self.failures))

    async def _keep_starting(self, delay_s: float) -> None:
        while True:
            await asyncio.sleep(delay_s)
            try:
                await self._start_one()
            except PolicyUnavailable:
                self.failures += 1
                delay_s = self._backoff_s()
            else:
                return

    async def _start_one(self) -> None:
        try:
            evaluator = await start_evaluator(self._owner)
        except OSError as error:
            raise PolicyUnavailable(f"no evaluator could be started: {error.strerror}") from error
        loaded = self._loading[evaluator] = self._loop.create_future()
        evaluator.send(frames.LOAD, 0, json.dumps(self._load).encode())
        try:
            async with asyncio.timeout(LOAD_S):
                await loaded
        except TimeoutError:
            evaluator.kill()
            raise PolicyUnavailable(f"the bundle did not load and answer within {LOAD_S:g} s") from None
        except BaseException:
            evaluator.kill()
            raise
