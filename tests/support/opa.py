"""The real OPA as a process of its own, for tests that ask it, end it and bring it back."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.support.ports import free_port

READY_S = 30.0


@dataclass
class Opa:
    """One `opa run --server` on a bundle's folder, on a port that stays its own over restarts."""

    program: Path
    bundle: Path | None
    log: Path
    options: Sequence[str] = ()
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """As `policy.url` has it."""
        return f"http://127.0.0.1:{self.port}"

    def spawn(self) -> Self:
        """Start it; it is not there yet."""
        bundle = () if self.bundle is None else ("--bundle", str(self.bundle))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    str(self.program), "run", "--server", "--addr", f"127.0.0.1:{self.port}",
                    "--disable-telemetry", "--log-level", "error", *self.options, *bundle,
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        return self

    @property
    def answers(self) -> bool:
        """Whether it is there, with its bundles."""
        try:
            # No proxy of the environment is asked for the way to loopback.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"{self.url}/health?bundles", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def start(self) -> Self:
        """Start it and wait until it is there."""
        self.spawn()
        end = time.monotonic() + READY_S
        while not self.answers:
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise AssertionError(f"OPA did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.02)
        return self

    async def started(self) -> Self:
        """`start`, beside an event loop."""
        return await asyncio.to_thread(self.start)

    def pause(self) -> None:
        """It hangs: connections stand and nothing answers, until `resume()`."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on where it hung."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it without a word."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
