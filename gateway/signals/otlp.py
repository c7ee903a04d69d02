"""A bounded queue to an OpenTelemetry receiver (OTLP over HTTP): it may lag, and counts what it loses.

`take` never waits: what finds no room, or is still waiting at the end, is counted (`lost`) and told. A thread of its
own sends: the exporter blocks. What is sent, and in which words its troubles are told, is the adapters' business
(gateway/audit/otlp.py, gateway/signals/span_export.py).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

import requests

T = TypeVar("T")

MAX_WAITING: Final = 10_000
TIMEOUT_S: Final = 5.0
_MAX_BYTES: Final = 16 * 1024 * 1024
_BATCH: Final = 256
_GROWS_AFTER: Final = 64
_AGAIN_S: Final = 1.0
_CLOSE_S: Final = 2.0


def own_session() -> requests.Session:
    """For the exporters: no proxy and no .netrc from the environment, no redirect."""
    session = requests.Session()
    session.trust_env = False
    session.max_redirects = 0
    return session


class Export(ABC, Generic[T]):
    """What waits, and the thread that sends it."""

    def __init__(self, name: str, max_waiting: int = MAX_WAITING) -> None:
        self._max: Final = max_waiting
        self._waiting: Final[deque[T]] = deque()
        self._taken_bytes = self._given_bytes = 0  # each is counted by one thread only
        self._more: Final = threading.Event()
        self._closing = False
        self._failing = False
        self._thread: Final = threading.Thread(target=self._run, name=name, daemon=True)
        self.lost = self.sent = 0

    @property
    def waiting(self) -> int:
        """What the receiver does not have yet."""
        return len(self._waiting)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def take(self, items: Sequence[T]) -> None:
        """Queued, or counted as lost. Never waits."""
        for taken, item in enumerate(items):
            size = self.size_of(item)
            if len(self._waiting) >= self._max or self._taken_bytes - self._given_bytes + size > _MAX_BYTES:
                if not self.lost:
                    self.tell_overflow()
                self.lost += len(items) - taken
                break
            self._taken_bytes += size
            self._waiting.append(item)
        self._more.set()

    def close(self) -> None:
        """Send what waits, for two seconds at most; the rest is counted and told. Blocks."""
        self._closing = True
        self._more.set()
        self._thread.join(_CLOSE_S)
        self.lost += len(self._waiting)
        if self.lost:
            self.tell_lost()

    def _run(self) -> None:
        size, fitted = _BATCH, 0
        while True:
            if not self._waiting:
                if self._closing:
                    break
                self._more.clear()
                if not self._waiting and not self._closing:
                    self._more.wait()
                continue
            batch = [self._waiting[n] for n in range(min(size, len(self._waiting)))]
            if self._export(batch):
                for item in batch:
                    self._waiting.popleft()
                    self._given_bytes += self.size_of(item)
                self.sent += len(batch)
                fitted += 1
                if fitted % _GROWS_AFTER == 0:
                    size = min(2 * size, _BATCH)
            elif self._closing:
                break
            else:
                size, fitted = max(1, len(batch) // 2), 0  # the receiver may take fewer at a time
                self._more.clear()
                self._more.wait(_AGAIN_S)
        self.shut()

    def _export(self, batch: Sequence[T]) -> bool:
        try:
            done = self.send(batch)
        except requests.RequestException:
            done = False
        if done is self._failing:
            self._failing = not done
            if done:
                self.tell_again()
            else:
                self.tell_failure()
        return done

    @abstractmethod
    def send(self, batch: Sequence[T]) -> bool:
        """Whether the receiver has it now. Blocks, within `TIMEOUT_S`."""

    @abstractmethod
    def size_of(self, item: T) -> int:
        """About how many bytes it holds."""

    @abstractmethod
    def shut(self) -> None:
        """The end of the exporter."""

    @abstractmethod
    def tell_overflow(self) -> None:
        """The first one found no room."""

    @abstractmethod
    def tell_lost(self) -> None:
        """At the end: how many are lost in all."""

    @abstractmethod
    def tell_failure(self) -> None:
        """The receiver takes none; once until it does again."""

    @abstractmethod
    def tell_again(self) -> None:
        """It does again."""
