"""The SSE grammar, and the rules of one response stream (contract.md section 1; WHATWG HTML, section 9.2.6).

What leaves is written anew, event by event, from what a WHATWG parser sees in the upstream's bytes: no line ending,
field or byte order mark can make one parser see an event that another does not. Each event is one JSON-RPC message:
notifications that belong to the call, then exactly one response, then nothing (requirements UPS-03, UPS-05, UPS-07).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gateway.contract.guard import Guarded, guard_message
from gateway.contract.passage import Call
from gateway.contract.refusals import Refused
from gateway.contract.strict_json import NotStrict, read_strictly

BOM = b"\xef\xbb\xbf"
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
_LINE_COST = 8
"""What a line of data weighs besides its bytes, so that a million empty lines are no small event."""

_NOTIFICATION_MEMBERS = frozenset({"jsonrpc", "method", "params"})


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Bounds of one stream: bytes of one event, and how many events and comments a call's stream may have in all.

    A subscription has no end, and so no total.
    """

    event_bytes: int = 4_194_304
    events: int = 100_000


class TooLarge(Exception):  # noqa: N818 - what was found
    """An event, or a line, beyond the limit."""


@dataclass(frozen=True, slots=True)
class Event:
    """What a WHATWG parser dispatches; `kind` is empty for the default type `message`. Data holds LF, never CR."""

    kind: bytes
    data: bytes
    last_id: bytes

    @property
    def is_message(self) -> bool:
        """Whether a conforming client reads it."""
        return self.kind in (b"", b"message")


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment line, without its colon."""

    text: bytes


class EventParser:
    """Bytes, cut anywhere -> events and comments. Raises `TooLarge`; holds at most one event and one line."""

    __slots__ = ("_after_cr", "_data", "_held", "_kind", "_last_id", "_limit", "_start", "_tail", "_waiting")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._start: bytes | None = b""
        self._after_cr = False
        self._tail: list[bytes] = []
        self._waiting = 0
        self._held = 0
        self._kind = b""
        self._data: list[bytes] = []
        self._last_id = b""

    def feed(self, data: bytes) -> Iterator[Event | Comment]:
        """Whatever is complete now, in order. What follows `TooLarge` is undefined."""
        if self._start is not None:
            data = self._start + data
            if len(data) < len(BOM) and BOM.startswith(data):
                self._start = data
                return
            self._start = None
            data = data.removeprefix(BOM)
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if end:
            self._after_cr = data[end - 1 :] == b"\r"
            self._tail.append(data[:end])
            lines = b"".join(self._tail)
            self._tail.clear()
            self._waiting = 0
            for line in lines.splitlines():
                self._bound(len(line))
                found = self._read(line)
                if found is not None:
                    yield found
            data = data[end:]
        if data:
            self._waiting += len(data)
            self._bound(self._waiting)
            self._tail.append(data)

    def _bound(self, line: int) -> None:
        if self._held + line > self._limit:
            raise TooLarge

    def _read(self, line: bytes) -> Event | Comment | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        if not name:
            return Comment(value) if line[:1] == b":" else None
        value = value.removeprefix(b" ")
        if name == b"data":
            self._held += len(value) + _LINE_COST
            self._data.append(value)
        elif name == b"event":
            self._kind = value
        elif name == b"id" and b"\0" not in value:
            self._last_id = value
        return None

    def _dispatch(self) -> Event | None:
        kind, data = self._kind, self._data
        self._kind, self._data, self._held = b"", [], 0
        return Event(kind, b"\n".join(data), self._last_id) if data else None


def encode_event(text: bytes, *, kind: bytes = b"", last_id: bytes | None = None) -> bytes:
    """One event with `text` (UTF-8, no CR) as its data. `last_id` is written only where it changes."""
    head = b"event: " + kind + b"\n" if kind else b""
    if last_id is not None:
        head += b"id: " + last_id + b"\n"
    return head + b"data: " + text.replace(b"\n", b"\ndata: ") + b"\n\n"


class ResponseStream:
    """The answer stream of one call. `feed` it and relay what it returns, until `fault` or `final` is set.

    `final` is the guarded response; it is not among what `feed` returns, as the caller may get another text of it:
    `encode_final`. `fault` says why the stream can't go on: then no response may be delivered but an error.
    """

    __slots__ = ("_call", "_count", "_final_event", "_limits", "_parser", "_sent_id", "fault", "final")

    def __init__(self, call: Call, limits: StreamLimits | None = None) -> None:
        self._call = call
        self._limits = limits or StreamLimits()
        self._parser = EventParser(self._limits.event_bytes)
        self._count = 0
        self._sent_id = b""
        self._final_event: Event | None = None
        self.final: Guarded | None = None
        self.fault = ""

    def feed(self, data: bytes) -> list[bytes]:
        """Bytes from the upstream -> what may be relayed now, in order. After a fault, nothing."""
        ready: list[bytes] = []
        if self.fault:
            return ready
        try:
            for found in self._parser.feed(data):
                self._take(found, ready)
        except TooLarge:
            self._break("an event is too large")
        except _BrokenError as broken:
            self._break(str(broken))
        return ready

    def finish(self) -> None:
        """The upstream's end: a fault unless the response was there."""
        if self.final is None and not self.fault:
            self.fault = "the stream ended without a response"

    def encode_final(self, text: bytes) -> bytes:
        """The last event, with `text` as the response."""
        event = self._final_event
        if event is None:
            raise ValueError("there is no response yet")
        return encode_event(text, kind=event.kind, last_id=self._changed_id(event))

    def _break(self, why: str) -> None:
        self.fault = why
        self.final = None

    def _take(self, found: Event | Comment, ready: list[bytes]) -> None:
        self._count += 1
        if self._count > self._limits.events and self._call.kind != "subscription":
            raise _BrokenError("too many events")
        if isinstance(found, Comment):
            ready.append(b":" + found.text + b"\n\n")
            return
        if self.final is not None:
            raise _BrokenError("an event after the response")
        if found.data:
            try:
                message = read_strictly(found.data)
            except NotStrict as why:
                raise _BrokenError(f"an event that is not strict JSON: {why}") from None
            if type(message) is not dict or "method" not in message:
                self._conclude(found, message)
                return
            self._check_notification(message)
        ready.append(encode_event(found.data, kind=found.kind, last_id=self._changed_id(found)))

    def _conclude(self, event: Event, message: Any) -> None:
        if not event.is_message:
            raise _BrokenError("a response in an event that clients do not read")
        try:
            self.final = guard_message(self._call, message, event.data)
        except Refused as refused:
            raise _BrokenError(refused.detail) from None
        self._final_event = event

    def _changed_id(self, event: Event) -> bytes | None:
        if event.last_id == self._sent_id:
            return None
        self._sent_id = event.last_id
        return event.last_id

    def _check_notification(self, message: dict[str, Any]) -> None:
        """A notification that belongs to this call; requests are never relayed."""
        if "id" in message:
            raise _BrokenError("a request from the server")
        method, params = message["method"], message.get("params", {})
        if not message.keys() <= _NOTIFICATION_MEMBERS or message.get("jsonrpc") != "2.0":
            raise _BrokenError("not a JSON-RPC notification")
        if type(method) is not str or "notifications/" not in method or type(params) is not dict:
            raise _BrokenError("not a notification of the protocol or of an extension")
        envelope = self._call.envelope
        if method == "notifications/progress" and not _same(
            params.get("progressToken"), envelope.meta.get("progressToken")
        ):
            raise _BrokenError("progress of another request")
        if method == "notifications/cancelled" and not (
            self._call.kind == "subscription" and _same(params.get("requestId"), envelope.id)
        ):
            raise _BrokenError("a cancellation that is not this subscription's")
        meta = params.get("_meta")
        if type(meta) is dict and SUBSCRIPTION_ID in meta and not _same(meta[SUBSCRIPTION_ID], envelope.id):
            raise _BrokenError("a notification of another subscription")


class _BrokenError(Exception):
    """The stream broke a rule; the text says which."""


def _same(found: Any, asked: Any) -> bool:
    return found is not None and type(found) is type(asked) and bool(found == asked)
