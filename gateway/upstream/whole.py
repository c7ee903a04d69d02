"""Answers that are read whole before anything is made of them: errors, results of the house's questions, retries."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.contract.guard import EXECUTED, RPC_ERROR, Guarded, guard_answer
from gateway.contract.passage import Call
from gateway.contract.refusals import Refused
from gateway.upstream.port import UpstreamInvalid
from gateway.upstream.wire import Exchange


@dataclass(slots=True)
class Whole:
    """An answer whose body was read already: only that says whether it is one, or whether it is asked for again."""

    status: int
    replica: str
    body: bytes
    streaming: bool = False
    retries: int = 0

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The body, in one piece."""
        yield self.body

    async def whole(self) -> bytes:
        """The body."""
        return self.body

    def interrupt(self) -> None:
        """Nothing is open any more."""

    def release(self) -> None:
        """Nothing is open any more."""

    async def close(self) -> None:
        """Nothing is open any more."""


@dataclass(slots=True)
class Told:
    """What a question of the house was answered with."""

    result: Mapping[str, Any]
    replica: str
    status: int = 200
    retries: int = 0


def result_of(call: Call, exchange: Exchange, guarded: Guarded) -> Mapping[str, Any]:
    """The result of a question of the house. Raises `UpstreamInvalid` for any other answer to it."""
    if guarded.outcome != EXECUTED:
        detail = f"{call.method}: {guarded.outcome} {guarded.code or ''}".rstrip()
        raise UpstreamInvalid(detail, sent=True, replica=exchange.replica, code=guarded.code)
    return guarded.result


async def read_error(exchange: Exchange, call: Call) -> Whole:
    """The answer whose status says that it is an error. Raises `UpstreamInvalid` where its body is no JSON-RPC error
    with the call's id."""
    body = await exchange.whole()
    status, replica = exchange.status, exchange.replica
    if call.envelope.id is None:
        raise UpstreamInvalid(f"status {status} to a notification", sent=True, replica=replica, status=status)
    try:
        guarded = guard_answer(call, body)
    except Refused as refused:
        detail = f"status {status}: {refused.detail}"
        raise UpstreamInvalid(detail, sent=True, replica=replica, status=status) from None
    if guarded.outcome != RPC_ERROR:
        raise UpstreamInvalid(f"status {status} with a result", sent=True, replica=replica)
    return Whole(status, replica, body)
