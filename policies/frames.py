"""How the gateway and its evaluators talk: frames of length, kind, question id and payload on a local stream.

Both ends use this one reader and writer. A frame that is longer than agreed ends the conversation.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

# Gateway to evaluator.
LOAD = (
    1  # payload: JSON {"modules": [[name, text]], "data", "rule", "checks": [text], "memory_bytes", "vet", "cover"}
)
ASK = 2  # payload: the input document, JSON text
TEST = 3  # payload: the path of a rule to evaluate without input
REPORT = 4  # no payload: which lines were evaluated since the LOAD that said `cover`

# Evaluator to gateway.
LOADED = 11  # payload: JSON {"checks": [answer text], "tests": [rule path]}
UNLOADABLE = 12  # payload: why, UTF-8 text about the bundle
ANSWER = 13  # payload: the decision, or to a REPORT {file: {"covered": [line], "not_covered": [line]}}; JSON text
FAILED = 14  # payload: why there is no decision, UTF-8 text that holds nothing of the question

LONGEST_LOAD = 128 * 1024 * 1024
LONGEST_ANSWER = 4 * 1024 * 1024

_HEAD = struct.Struct("<IIB")
HEAD_BYTES = _HEAD.size


class FrameError(Exception):
    """The other end does not speak frames."""


def pack_frame(kind: int, ident: int, payload: bytes) -> bytes:
    """One frame, ready to be written. `ident` is an unsigned 32-bit number, echoed in the answer."""
    return _HEAD.pack(len(payload), ident, kind) + payload


class FrameReader:
    """Cuts a byte stream into frames; holds at most one unfinished frame."""

    __slots__ = ("_held", "_longest")

    def __init__(self, longest: int) -> None:
        """`longest` is the longest payload in bytes that is agreed to."""
        self._held = bytearray()
        self._longest = longest

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """More bytes of the stream -> the frames that are whole now, as (kind, ident, payload)."""
        held = self._held
        if held:
            held += data
            if len(held) < HEAD_BYTES or len(held) < HEAD_BYTES + _HEAD.unpack_from(held)[0]:
                self._refuse_length(held)
                return
            data = bytes(held)
            held.clear()
        at, size = 0, len(data)
        while size - at >= HEAD_BYTES:
            length, ident, kind = _HEAD.unpack_from(data, at)
            if length > self._longest:
                raise FrameError("a frame is longer than agreed")
            end = at + HEAD_BYTES + length
            if end > size:
                break
            yield kind, ident, data[at + HEAD_BYTES : end]
            at = end
        if at < size:
            held += data[at:]

    def _refuse_length(self, held: bytearray) -> None:
        if len(held) >= HEAD_BYTES and _HEAD.unpack_from(held)[0] > self._longest:
            raise FrameError("a frame is longer than agreed")
