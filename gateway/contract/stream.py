"""The SSE grammar, and the rules of one response stream (contract.md section 1; WHATWG HTML, section 9.2.6).

What leaves is written anew, event by event, from what a WHATWG parser sees in the upstream's bytes: no line ending,
field or byte order mark can make one parser see an event that another does not. Each event is one JSON-RPC message:
notifications that belong to the call, then exactly one response, then nothing (requirements UPS-03, UPS-05, UPS-07).
What subscriptions have of their own is in subscription.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

import orjson

from gateway.contract.guard import RPC_ERROR, Guarded, guard_message
from gateway.contract.levels import LOG_MESSAGE, is_wanted, lowest_wanted
from gateway.contract.passage import Call
from gateway.contract.refusals import Refused
from gateway.contract.strict_json import NotStrict, read_strictly
from gateway.contract.subscription import (
    CANCELLED,
    SUBSCRIBED,
    SUBSCRIPTION_ID,
    TASK_CHANGED,
    BrokenError,
    Rewrite,
    Subscription,
    acknowledgement_of_nothing,
    farewell,
    refuse_variants,
    same,
)

BOM = b"\xef\xbb\xbf"
_DATA = b"data: "
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

    __slots__ = ("_after_cr", "_data", "_held", "_kind", "_last_id", "_limit", "_start", "_tail")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._start: bytes | None = b""
        self._after_cr = False
        self._tail = bytearray()
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
            if data.find(b"\r", 0, end) < 0:
                yield from self._read_plainly(data, end)
            else:
                lines, self._tail = bytes(self._tail) + data[:end], bytearray()
                for line in lines.splitlines():
                    self._bound(len(line))
                    found = self._read(line)
                    if found is not None:
                        yield found
            data = data[end:]
        if data:
            self._bound(len(self._tail) + len(data))
            self._tail += data  # one buffer: a line that comes two bytes at a time costs no more than its size

    def _read_plainly(self, data: bytes, end: int) -> Iterator[Event | Comment]:
        """The lines up to `end`, each of which LF ends."""
        at, find, startswith, limit = 0, data.find, data.startswith, self._limit
        if self._tail:
            line, self._tail = self._tail, bytearray()
            line += data[: find(b"\n")]
            at = find(b"\n") + 1
            self._bound(len(line))
            if line.startswith(_DATA):
                self._add(bytes(memoryview(line)[len(_DATA) :]))  # one copy of what may be long
            elif (found := self._read(bytes(line))) is not None:
                yield found
        while at < end:
            stop = find(b"\n", at)
            if not startswith(_DATA, at):
                self._bound(stop - at)
                if (found := self._read(data[at:stop])) is not None:
                    yield found
            elif not self._data and startswith(b"\n", stop + 1):
                # One line of data and an empty one, as nearly every writer has it: an event without further ado.
                if stop - at - len(_DATA) + _LINE_COST > limit:
                    raise TooLarge
                kind, self._kind = self._kind, b""
                yield Event(kind, data[at + len(_DATA) : stop], self._last_id)
                stop += 1
            else:
                self._bound(stop - at)
                self._add(data[at + len(_DATA) : stop])
            at = stop + 1

    def _bound(self, line: int) -> None:
        if self._held + line > self._limit:
            raise TooLarge

    def _read(self, line: bytes) -> Event | Comment | None:
        if not line:
            return self._dispatch()
        if line.startswith(_DATA):
            self._add(line[len(_DATA) :])
            return None
        name, _, value = line.partition(b":")
        if not name:
            return Comment(value) if line[:1] == b":" else None
        value = value.removeprefix(b" ")
        if name == b"data":
            self._add(value)
        elif name == b"event":
            self._kind = value
        elif name == b"id" and b"\0" not in value:
            self._last_id = value
        return None

    def _add(self, value: bytes) -> None:
        self._held += len(value) + _LINE_COST
        self._data.append(value)

    def _dispatch(self) -> Event | None:
        kind, data = self._kind, self._data
        self._kind, self._data, self._held = b"", [], 0
        return Event(kind, b"\n".join(data), self._last_id) if data else None


def encode_event(text: bytes, *, kind: bytes = b"", last_id: bytes | None = None) -> bytes:
    """One event with `text` (UTF-8, no CR) as its data. `last_id` is written only where it changes."""
    head = b"event: " + kind + b"\n" if kind else b""
    if last_id is not None:
        head += b"id: " + last_id + b"\n"
    return b"".join((head, _DATA, text.replace(b"\n", b"\ndata: "), b"\n\n"))


class ResponseStream:
    """The answer stream of one call. `feed` it and relay what it returns, until `fault` or `final` is set.

    `dropped` counts the notifications that are no fault of the stream but not the caller's either: kinds that only
    subscriptions carry or that this one did not ask for, log messages below the level that the request names (or
    where it names none), and progress that does not move on.

    `final` is the guarded response; it is not among what `feed` returns, as the caller may get another text of it:
    `encode_final`. `fault` says why the stream can't go on: then no response may be delivered but an error.
    """

    __slots__ = (
        "_call", "_count", "_final_event", "_limits", "_log_level", "_parser", "_progress", "_sent_id",
        "_subscription", "dropped", "fault", "final",
    )  # fmt: skip

    def __init__(self, call: Call, limits: StreamLimits | None = None, rewrite: Rewrite | None = None) -> None:
        """`rewrite` is for a subscription's notifications: see subscription.py."""
        self._call = call
        self._limits = limits or StreamLimits()
        self._parser = EventParser(self._limits.event_bytes)
        self._count = 0
        self._sent_id = b""
        self._progress = -math.inf
        self._log_level = lowest_wanted(call.envelope.meta)
        self._subscription = Subscription(call, rewrite) if call.kind == "subscription" else None
        self._final_event: Event | None = None
        self.dropped = 0
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
        except BrokenError as broken:
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

    def encode_farewell(self) -> bytes:
        """What ends a subscription gracefully, whatever its server still has to say.

        One that its server did not acknowledge yet is acknowledged, of nothing: that comes first on every stream.
        """
        begun = self._subscription is None or self._subscription.acknowledged
        opening = b"" if begun else encode_event(acknowledgement_of_nothing(self._call))
        return opening + encode_event(farewell(self._call))

    def _break(self, why: str) -> None:
        self.fault = why
        self.final = None

    def _take(self, found: Event | Comment, ready: list[bytes]) -> None:
        self._count += 1
        if self._count > self._limits.events and self._subscription is None:
            raise BrokenError("too many events")
        if isinstance(found, Comment):
            ready.append(b":" + found.text + b"\n\n")
            return
        if self.final is not None:
            raise BrokenError("an event after the response")
        text: bytes | None = found.data
        if found.data:
            try:
                message = read_strictly(found.data)
            except NotStrict as why:
                raise BrokenError(f"an event that is not strict JSON: {why}") from None
            if type(message) is not dict or "method" not in message:
                self._conclude(found, message)
                return
            text = self._admit(found, message)
        if text is None:
            self.dropped += 1
        else:
            ready.append(encode_event(text, kind=found.kind, last_id=self._changed_id(found)))

    def _conclude(self, event: Event, message: Any) -> None:
        if not event.is_message:
            raise BrokenError("a response in an event that clients do not read")
        try:
            final = guard_message(self._call, message, event.data)
        except Refused as refused:
            raise BrokenError(refused.detail) from None
        if self._subscription is not None and final.outcome != RPC_ERROR:
            self._subscription.check_end()
        self.final = final
        self._final_event = event

    def _changed_id(self, event: Event) -> bytes | None:
        if event.last_id == self._sent_id:
            return None
        self._sent_id = event.last_id
        return event.last_id

    def _admit(self, event: Event, message: dict[str, Any]) -> bytes | None:
        """A message with a method -> the text to relay, or `None` for what the caller does not get."""
        _check_notification(message)
        if self._subscription is None:
            return event.data if self._belongs(message) else None
        if not event.is_message:
            raise BrokenError("a subscription's notification in an event that clients do not read")
        taken = self._subscription.take(message)
        if taken is None or taken is message:
            return None if taken is None else event.data
        return orjson.dumps(taken)

    def _belongs(self, message: dict[str, Any]) -> bool:
        """Whether a notification is this call's; one of another call breaks the stream."""
        method, params = message["method"], message.get("params", {})
        if method == CANCELLED:
            raise BrokenError("a cancellation on a stream that is no subscription")
        meta = params.get("_meta")
        if type(meta) is dict:
            refuse_variants(meta)
            if SUBSCRIPTION_ID in meta:
                raise BrokenError("a subscription's notification on the stream of a call")
        if method == "notifications/progress":
            return self._moves_on(params)
        if method == LOG_MESSAGE:
            return is_wanted(message, self._log_level)
        return method not in SUBSCRIBED and not method.startswith(TASK_CHANGED + "/")  # reserved for tasks

    def _moves_on(self, params: dict[str, Any]) -> bool:
        """Progress counts for the token that was asked for, and only upwards: a step back is not shown."""
        if not same(params.get("progressToken"), self._call.envelope.meta.get("progressToken")):
            raise BrokenError("progress of another request")
        progress, total = params.get("progress"), params.get("total", 0)
        if not (_is_number(progress) and _is_number(total)):
            raise BrokenError("progress that is not a number")
        if progress <= self._progress:
            return False
        self._progress = progress
        return True


def _check_notification(message: dict[str, Any]) -> None:
    """The form of a notification; requests are never relayed."""
    if "id" in message:
        raise BrokenError("a request from the server")
    method, params = message["method"], message.get("params", {})
    if not message.keys() <= _NOTIFICATION_MEMBERS or message.get("jsonrpc") != "2.0":
        raise BrokenError("not a JSON-RPC notification")
    if type(method) is not str or "notifications/" not in method or type(params) is not dict:
        raise BrokenError("not a notification of the protocol or of an extension")
    refuse_variants(params)


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) is int or (type(value) is float and math.isfinite(value))
