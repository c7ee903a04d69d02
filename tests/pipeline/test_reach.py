"""A server's prefixes through the whole corridor: nothing outside is asked for, shown or delivered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.contract.resources import Reach
from gateway.contract.subscription import ACKNOWLEDGED, RESOURCE_UPDATED, SUBSCRIPTION_ID
from policies.verdict import Verdict
from tests.contract.asking import message
from tests.pipeline.house import ALLOW, DENY, SERVER, InnerHouse, inner_house
from tests.pipeline.test_subscriptions import chunks_of, events, relayed
from tests.support.upstream import SSE_HEAD, Exchange, chunk, http, result_of

GOOD, BAD, HIDDEN = "file:///srv/data/x", "file:///srv/data/%2e%2e/x", "file:///srv/data/hidden"
RESOURCES = [
    {"uri": uri, "name": uri, "mimeType": "Text/PLAIN; charset=x"} for uri in (BAD, GOOD, "file:///etc/x", HIDDEN)
]
TEMPLATES = [{"uriTemplate": uri, "name": uri} for uri in ("file:///srv/data/{x}", "file:///{x}")]


def judge(question: Mapping[str, Any]) -> Verdict:
    """Everything is open but one resource."""
    if question["phase"] == "list":
        return replace(ALLOW, visible=tuple(each["id"] for each in question["candidates"] if each["id"] != HIDDEN))
    return DENY if question["request"]["name"] == HIDDEN else ALLOW


async def asked(house: InnerHouse, method: str, params: Mapping[str, Any]) -> tuple[int, Any]:
    """A request to the server as it is configured with prefixes -> status, result or error without its decision."""
    good = house.request(message(method, params=params))
    server = replace(SERVER, reach=Reach(("file:///srv/data/",)))
    reply = await house.serve(replace(good, server=server, received=replace(good.received, server=server)))
    told = orjson.loads(reply.body)
    if "error" in told:
        told["error"].get("data", {}).pop("decisionId", None)
    return reply.status, told.get("result", told.get("error"))


async def test_lists_show_what_is_inside_as_the_server_said_it(tmp_path: Path) -> None:
    """Order and MIME types are the server's; the policy is not even asked about the others."""
    async with inner_house(tmp_path, judge) as house:

        async def lists(exchange: Exchange) -> None:
            await exchange.send(http(200, result_of(exchange.id, resources=RESOURCES, resourceTemplates=TEMPLATES)))

        house.script = lists
        status, result = await asked(house, "resources/list", {})
        assert (status, result["resources"]) == (200, [RESOURCES[1]])
        assert [each["id"] for each in house.policy.questions[-1]["candidates"]] == [GOOD, HIDDEN]
        status, result = await asked(house, "resources/templates/list", {})
        assert (status, result["resourceTemplates"]) == (200, TEMPLATES[:1])


async def test_a_resource_outside_is_refused_like_one_that_is_denied(tmp_path: Path) -> None:
    """One reply for outside, denied and absent, and no request to the server."""
    async with inner_house(tmp_path, judge) as house:

        async def contents(exchange: Exchange) -> None:
            await exchange.send(http(200, result_of(exchange.id, contents=[{"uri": GOOD, "text": "t"}])))

        house.script = contents
        assert (await asked(house, "resources/read", {"uri": GOOD}))[0] == 200
        replies = [await asked(house, "resources/read", {"uri": uri}) for uri in (HIDDEN, BAD, "file:///etc/x")]
        assert replies[0] == replies[1] == replies[2]
        assert (replies[0][0], replies[0][1]["code"]) == (403, 40302)
        assert len(house.forwarded) == 1


@pytest.mark.parametrize("uri", [BAD, "file:///etc/x"])
async def test_an_answer_of_another_resource_is_not_delivered(tmp_path: Path, uri: str) -> None:
    """The request was inside, the answer is not: nothing of it leaves; a part of what was asked for does."""
    async with inner_house(tmp_path, judge) as house:
        given = [{"uri": GOOD + "/part", "mimeType": "X/Y;Z=\u00fc", "text": "canary"}]

        async def contents(exchange: Exchange) -> None:
            await exchange.send(http(200, result_of(exchange.id, contents=given)))

        house.script = contents
        status, result = await asked(house, "resources/read", {"uri": GOOD})
        assert (status, result["contents"]) == (200, given)
        given.append({"uri": uri, "mimeType": "text/plain", "text": "canary"})
        status, error = await asked(house, "resources/read", {"uri": GOOD})
        assert (status, error["code"]) == (502, 50202)
        assert "canary" not in str(error)


async def test_a_subscription_hears_of_nothing_outside(tmp_path: Path) -> None:
    """A server that tells of a part of what was subscribed to, spelt so that it lies elsewhere, is not relayed."""
    async with inner_house(tmp_path, judge) as house:
        known = {"_meta": {SUBSCRIPTION_ID: 1}}
        uris = ["file:///srv/data/x", "file:///srv/data/x/part", "file:///srv/data/x//part", "file:///srv/data/x/%00"]

        async def script(exchange: Exchange) -> None:
            ack = {"jsonrpc": "2.0", "method": ACKNOWLEDGED, "params": {**known, "notifications": wanted}}
            told = [{"jsonrpc": "2.0", "method": RESOURCE_UPDATED, "params": {**known, "uri": uri}} for uri in uris]
            end = {"jsonrpc": "2.0", "id": 1, "result": {"resultType": "complete", **known}}
            await exchange.send(SSE_HEAD + events(ack, *told, end) + chunk(b""))

        house.script = script
        wanted = {"resourceSubscriptions": [GOOD]}
        good = house.request(message("subscriptions/listen", params={"notifications": wanted}))
        heard = []
        for server in (SERVER, replace(SERVER, reach=Reach(("file:///srv/data/",)))):
            reply = await house.serve(replace(good, server=server, received=replace(good.received, server=server)))
            out = relayed([piece async for piece in chunks_of(reply)])
            heard.append([one["params"]["uri"] for one in out if one.get("method") == RESOURCE_UPDATED])
        assert heard == [[GOOD] * 4, [GOOD] * 2]
