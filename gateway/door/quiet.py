"""uvicorn's server without its signals: what whoever serves runs, in the supervisor and in a worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import uvicorn


class QuietServer(uvicorn.Server):
    """uvicorn without its own signal handlers: the supervisor and the worker each have one place for signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's handlers alone."""
        yield
