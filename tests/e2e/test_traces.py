"""One trace through a real gateway: the caller's span, the gateway's two, and what the server behind is told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.rows.stage import is_own, listed
from tests.support.otlp import Receiver, receiving, texts
from tests.support.processes import eventually
from tests.support.stack import Stack, body, call
from tests.support.upstream import SSE_HEAD, Exchange, ScriptedUpstream, Seen, chunk, http, result_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


async def play(exchange: Exchange) -> None:
    """A server with a tool that fails and one that streams."""
    asked = json.loads(exchange.seen.body)
    name = asked["params"].get("name")
    if asked["method"] == "tools/list":
        cached = {"ttlMs": 60_000, "cacheScope": "public"}
        await exchange.send(http(200, result_of(exchange.id, tools=listed(read={}, write={}), **cached)))
    elif name == "read" and asked["params"]["arguments"].get("stream"):
        event = b"data: " + result_of(exchange.id) + b"\n\n"
        await exchange.send(SSE_HEAD + chunk(event) + chunk(b""))
    else:
        fails = bool(asked["params"]["arguments"].get("fail"))
        await exchange.send(http(200, result_of(exchange.id, isError=fails)))


class Scene:
    """The gateway that exports, its server and its receiver."""

    def __init__(self, stack: Stack, server: ScriptedUpstream, receiver: Receiver, client: httpx.AsyncClient) -> None:
        self.stack, self.server, self.receiver, self.client = stack, server, receiver, client

    async def ask(self, message: dict[str, Any], **headers: str) -> tuple[httpx.Response, str]:
        """Its answer, and the trace that its records name: one and the same in all of them."""
        answer = await self.stack.post("bank", message, client=self.client, **headers)
        decision, traces = answer.headers["ostiary-decision"], list[str]()

        def told() -> bool:
            found = [one for one in self.stack.records() if one["decision_id"] == decision]
            traces[:] = [one["trace_id"] or "" for one in found]
            return bool(found) and found[-1]["kind"] in {"outcome", "refusal"}

        await eventually("the end is recorded", told)
        assert len(set(traces)) == 1
        return answer, traces[0]

    async def spans(self, trace: str, many: int) -> dict[int, Any]:
        """The spans of a trace by their kind, once so many are there."""
        await eventually(f"{many} spans", lambda: len(self._of(trace)) >= many)
        found = self._of(trace)
        assert len(found) == many
        return {span.kind: span for span in found}

    def _of(self, trace: str) -> list[Any]:
        return [span for span in self.receiver.spans if span.trace_id.hex() == trace]

    @property
    def calls(self) -> list[Seen]:
        """What the server got for a caller: the gateway asks for itself as well."""
        return [seen for seen in self.server.seen if not is_own(seen)]

    def forwarded(self) -> tuple[str, str]:
        """The `traceparent` of what reached the server last: in the headers, and in the body."""
        seen = self.calls[-1]
        return seen.values("traceparent")[0], json.loads(seen.body)["params"]["_meta"]["traceparent"]


@asynccontextmanager
async def a_scene(folder: Path) -> AsyncIterator[Scene]:
    with receiving() as receiver:
        traces = {"endpoint": receiver.traces_url}
        async with (
            ScriptedUpstream(play) as server,
            Stack(folder, {"bank": [server.url]}, changes={"telemetry": {"traces": traces}}) as stack,
            httpx.AsyncClient(trust_env=False, timeout=30) as client,
        ):
            yield Scene(stack, server, receiver, client)


def traced(parent: str = PARENT, **arguments: Any) -> dict[str, Any]:
    """A call whose body names the caller's span."""
    message = call("read", arguments)
    message["params"]["_meta"]["traceparent"] = parent
    return message


async def test_a_trace_leads_from_the_caller_through_the_gateway_to_the_server(tmp_path: Path) -> None:
    """Parent and child are who they say; the record names the same trace; a refusal has a span and no child."""
    async with a_scene(tmp_path) as scene:
        answer, trace = await scene.ask(traced())
        assert (answer.status_code, trace) == (200, TRACE)
        spans = await scene.spans(trace, 2)
        assert spans[2].parent_span_id.hex() == SPAN
        assert spans[3].parent_span_id == spans[2].span_id
        ours = f"00-{TRACE}-{spans[3].span_id.hex()}-01"
        assert scene.forwarded() == (ours, ours)
        assert spans[2].start_time_unix_nano <= spans[3].start_time_unix_nano
        assert spans[3].end_time_unix_nano <= spans[2].end_time_unix_nano
        assert texts(spans[3])["server.port"] == str(scene.server.port)

        _, trace = await scene.ask(call("read", {"stream": True}), Traceparent=PARENT.replace("0af7", "1af7"))
        assert trace == TRACE.replace("0af7", "1af7")
        spans = await scene.spans(trace, 2)
        assert scene.forwarded() == (f"00-{trace}-{spans[3].span_id.hex()}-01",) * 2

        _, trace = await scene.ask(call("read", {"fail": True}))
        spans = await scene.spans(trace, 2)
        assert spans[2].parent_span_id == b""
        assert {texts(span)["error.type"] for span in spans.values()} == {"tool_error"}
        assert scene.forwarded()[0].split("-")[1] == trace

        before = len(scene.calls)
        _, trace = await scene.ask(call("made-up"))
        (span,) = (await scene.spans(trace, 1)).values()
        assert (span.name, texts(span)["ostiary.reason"]) == ("tools/call", "policy_denied")
        held, trace = await scene.ask(call("write"))
        (span,) = (await scene.spans(trace, 1)).values()
        assert texts(span)["ostiary.ticket"] == held.json()["error"]["data"]["ticket"]["id"]
        assert len(scene.calls) == before

        listing = body("tools/list")
        answer, trace = await scene.ask(listing)
        assert (await scene.spans(trace, 2))[2].name == "tools/list"

        stranger, trace = await scene.ask(traced(PARENT.replace("0af7", "2af7")), Authorization="Bearer x")
        assert (stranger.status_code, trace) == (401, "")
        unsampled = traced(PARENT.replace("0af7", "3af7")[:-1] + "0")
        _, trace = await scene.ask(unsampled)
        assert trace == TRACE.replace("0af7", "3af7")
        assert scene.forwarded() == (unsampled["params"]["_meta"]["traceparent"],) * 2
        assert scene.calls[-1].body == json.dumps(unsampled, separators=(",", ":")).encode()
        total = len(scene.receiver.spans)
        assert await scene.stack.stop() == 0
        assert len(scene.receiver.spans) == total == 10, "neither the stranger nor what is not sampled made any"
