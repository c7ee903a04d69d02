"""Ports that no other process of a run takes, from the moment at which they are chosen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

CHOICE = random.SystemRandom()
"""`random` is seeded alike in all processes of a run."""
_ours: set[int] = set()
_opened: dict[int, int] = {}


def free_port() -> int:
    """A port of this process alone until it ends, below those that the system gives to whoever asks for any.

    Whoever asks here, in any process, gets another one: each is claimed by a lock on its byte of a shared file, which
    the system takes back. Somebody who does not ask can still take it.
    """
    claims = _claims()
    while True:
        port = CHOICE.randrange(10_000, 32_768)
        with contextlib.suppress(OSError), socket.socket() as probe:
            if port in _ours:
                continue
            fcntl.lockf(claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            _ours.add(port)
            probe.bind(("127.0.0.1", port))
            return port


def _claims() -> int:
    """The file, once a process: closing any other descriptor of it would give up all locks."""
    pid = os.getpid()
    if pid not in _opened:
        _ours.clear()  # of the process that this one was forked from
        path = Path(tempfile.gettempdir()) / f"ostiary-ports-{os.getuid()}"
        _opened[pid] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    return _opened[pid]
