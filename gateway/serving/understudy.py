"""A process that loads what a worker serves with while its supervisor still judges the configuration.

Once that is judged and the sockets are bound it is told whom to play: the worker's own command line, environment and
descriptors. Until then it has opened nothing and reads nothing but its supervisor's word; one that is never told
ends. Only a start has them: a worker that replaces another one begins like any process.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final

from gateway.serving.plain import load_plain

AHEAD: Final = (
    "uvloop",
    "gateway.config_file",
    "approvals.desk",
    "gateway.plan",
    "gateway.upstream.legacy",
    "gateway.serving.worker",
)
"""What is loaded ahead. Nothing that looks at the environment when it is loaded, as prometheus_client does."""

_LONGEST: Final = 1 << 20


class Understudy:
    """One such process, as its supervisor sees it."""

    def __init__(self, process: asyncio.subprocess.Process, hand: socket.socket) -> None:
        self._process: Final = process
        self._hand: Final = hand

    @classmethod
    async def call(cls) -> Understudy:
        """Start one. Raises `OSError`."""
        hand, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "gateway.serving.understudy", str(theirs.fileno()), "worker",
                    pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
        except BaseException:
            hand.close()
            raise
        return cls(process, hand)

    def play(
        self, arguments: Sequence[str], fd: int, status_fd: int, environment: Mapping[str, str]
    ) -> asyncio.subprocess.Process:
        """Be the worker with these arguments, to which its descriptors are added. Raises `OSError` if it is gone."""
        told = json.dumps({"arguments": arguments, "environment": dict(environment)}).encode() + b"\n"
        with self._hand as hand:
            # A few hundred bytes into an empty buffer: they leave as a whole, and nobody waits.
            socket.send_fds(hand, [told], [fd, status_fd])
        return self._process

    async def dismiss(self) -> None:
        """It is not needed any more."""
        self._hand.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


def main(fd: int) -> None:
    """The process: load, wait for the supervisor's word, and be the worker."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # by which it ends with its supervisor, with nothing to say
    gc.disable()  # until the house is open, as in every worker
    load_plain(*AHEAD)
    with socket.socket(fileno=fd) as hand:
        told, descriptors, _, _ = socket.recv_fds(hand, _LONGEST, 2)
    if not told.endswith(b"\n") or len(descriptors) != 2:
        return
    for one in descriptors:
        os.set_inheritable(one, False)
    word = json.loads(told)
    os.environ.update(word["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    listener, status = map(str, descriptors)
    arguments = [*word["arguments"], "--fd", listener, "--status-fd", status]
    import_module("gateway.cli").main(arguments, prog_name="ostiary")


if __name__ == "__main__":
    main(int(sys.argv[1]))
