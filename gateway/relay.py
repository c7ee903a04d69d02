"""An answer's stream on its way back, held to the grammar event by event, and concluded however it ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import Protocol

from gateway.answers import Answers
from gateway.contract.passage import Admitted, Passage
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.retelling import reply_of
from gateway.contract.stream import ResponseStream, encode_event
from gateway.streams import Place, Streams
from gateway.upstream.port import Answer, UpstreamFault


class Delivering(Protocol):
    """What a relay leaves to the house's delivery."""

    @property
    def answers(self) -> Answers:
        """What makes a response fit for its caller."""
        ...

    @property
    def streams(self) -> Streams:
        """All that is open."""
        ...

    def refusal_of(self, passage: Passage, error: Exception) -> Refused:
        """What an exception means for its request."""
        ...

    async def conclude(self, passage: Passage, outcome: str, text: bytes = b"") -> None:
        """Write the outcome down, once; `text` is the whole answer."""
        ...

    def abandon(self, passage: Passage) -> None:
        """The client has gone."""
        ...


class Relay:
    """An answer's stream on its way back, event by event; concludes the call however it ends.

    An iterator rather than a generator: one that is dropped before its first step must conclude as well. Nothing is
    read ahead: the next piece of the upstream is asked for when the client took the last. Only a subscription has a
    `place`, and only a subscription can be ended by the gateway without a fault.
    """

    __slots__ = (
        "_admitted",
        "_answer",
        "_closed",
        "_delivery",
        "_ended",
        "_events",
        "_passage",
        "_place",
        "_stream",
        "_text",
        "_turn",
        "identity",
    )

    def __init__(
        self,
        delivery: Delivering,
        passage: Passage,
        admitted: Admitted,
        answer: Answer,
        stream: ResponseStream,
        *,
        place: Place | None = None,
    ) -> None:
        self.identity = admitted.identity
        self._delivery = delivery
        self._passage = passage
        self._admitted = admitted
        self._answer = answer
        self._stream = stream
        self._place = place
        self._ended = ""
        self._closed = False
        self._text = b""
        self._events = self._run()
        self._turn = None
        if place is None:
            delivery.streams.calls += 1
            self._turn, passage.turn = passage.turn, None
        else:
            delivery.streams.add(self)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    def __anext__(self) -> Awaitable[bytes]:
        return self._events.__anext__()

    def end(self, why: str) -> None:
        """End a subscription gracefully: its server is let go at once, its client gets the result that says so."""
        if not self._ended:
            self._ended = why
            self._answer.interrupt()

    async def whole(self) -> bytes:
        """The response's text alone, once it is there; what came before it is dropped."""
        try:
            async for _ in self._events:
                pass
            return self._text
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """The client has gone, or has got everything: the upstream's stream is aborted if it still runs."""
        self._leave()
        await self._events.aclose()
        await self._answer.close()
        if not self._passage.outcome:
            self._delivery.abandon(self._passage)

    def _leave(self) -> None:
        if self._closed:
            return
        self._closed = True
        streams = self._delivery.streams
        streams.dropped += self._stream.dropped
        if self._place is None:
            streams.calls -= 1
            if self._turn is not None:
                self._turn()
        else:
            streams.discard(self)
            self._place.leave()

    async def _run(self) -> AsyncGenerator[bytes, None]:
        passage, delivery, stream = self._passage, self._delivery, self._stream
        before = b""  # what came along with the response: whoever leaves there does not make its outcome unknown
        try:
            try:
                async for chunk in self._answer.chunks():
                    # One name for what came and what leaves: nothing is kept twice while the client is slow.
                    chunk = b"".join(stream.feed(chunk))  # noqa: PLW2901
                    if stream.final is not None:
                        before = chunk
                        break
                    if chunk:
                        yield chunk
                    if stream.fault:
                        break
            except UpstreamFault:
                if not self._ended:
                    raise
            if self._ended and stream.final is None:
                passage.ended = self._ended
                await delivery.conclude(passage, "executed")
                yield stream.encode_farewell()
                return
            stream.finish()
            if stream.final is not None:
                self._answer.release()
            else:
                raise Refused(Refusal.UPSTREAM_INVALID, stream.fault)
            text = await delivery.answers.fit(passage, self._admitted, stream.final)
            await delivery.conclude(passage, stream.final.outcome, text)
            self._text = text
            yield before + stream.encode_final(text)
        except Exception as error:  # noqa: BLE001 - the corridor's own broad except, for what it left to this stream
            yield before + await self._break_off(delivery.refusal_of(passage, error))

    async def _break_off(self, refused: Refused) -> bytes:
        """The stream can't go on: an error with the caller's id, so that nobody takes the end for a success."""
        passage = self._passage
        passage.refused = refused
        passage.code = refused.refusal.value.code
        await self._delivery.conclude(passage, "unknown")
        self._text = reply_of(passage, refused).body
        return encode_event(self._text)
