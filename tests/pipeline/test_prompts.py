"""Prompts and completions through the whole corridor: what is not offered, or does not fit, reaches no server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from policies.verdict import Verdict
from tests.contract.asking import message
from tests.pipeline.house import ALLOW, DENY, InnerHouse, inner_house, tool
from tests.support.upstream import Exchange, http, result_of

REPORT = {"name": "report", "arguments": [{"name": "account", "required": True}]}
BROKEN = {"name": "broken", "arguments": [{"name": "a"}, {"name": "a"}]}


def judge(question: Mapping[str, Any]) -> Verdict:
    """Everything but what is called secret."""
    if question["phase"] == "list":
        return replace(ALLOW, visible=tuple(each["id"] for each in question["candidates"] if each["id"] != "secret"))
    asked = question["request"]
    return DENY if "secret" in (asked["name"], asked["arguments"].get("ref", {}).get("name")) else ALLOW


async def got(house: InnerHouse, name: str, **arguments: Any) -> tuple[int, Any]:
    """A `prompts/get` -> status, and error without its decision or result."""
    return await told(house, "prompts/get", {"name": name, "arguments": arguments})


async def told(house: InnerHouse, method: str, params: Mapping[str, Any]) -> tuple[int, Any]:
    """A request -> status, and error without its decision or result."""
    reply = await house.serve(house.request(message(method, params=params)))
    body = orjson.loads(reply.body)
    if "error" in body:
        body["error"]["data"].pop("decisionId")
    return reply.status, body.get("error", body.get("result"))


async def test_denied_absent_and_unusable_prompts_are_one_refusal(tmp_path: Path) -> None:
    """A caller can't tell a hidden prompt from one that does not exist; nothing is forwarded."""
    async with inner_house(tmp_path, judge) as house:
        house.prompts = [REPORT, {"name": "secret"}, BROKEN]
        assert (await got(house, "report", account="a"))[0] == 200
        replies = [await got(house, name) for name in ("secret", "absent", "broken")]
        assert replies[0] == replies[1] == replies[2]
        assert (replies[0][0], replies[0][1]["code"]) == (403, 40302)
        assert len(house.forwarded) == 1


async def test_arguments_that_do_not_fit_reach_no_server(tmp_path: Path) -> None:
    """400 -32602 that says what is missing and what is unknown; the record says where it ended."""
    async with inner_house(tmp_path, judge) as house:
        house.prompts = [REPORT]
        assert (await got(house, "report", account="a"))[0] == 200
        status, error = await got(house, "report", tone="canary")
        assert (status, error["code"], error["data"]) == (400, -32602, {})
        assert 'required member "account"' in error["message"]
        assert 'unknown members: "tone"' in error["message"]
        assert len(house.forwarded) == 1
        (record,) = house.sink.of("refusal")
        assert record["reasons"] == ["params_invalid", "allowed"]
        assert "canary" not in orjson.dumps(record).decode()


async def test_a_list_shows_no_prompt_that_could_not_be_asked_for(tmp_path: Path) -> None:
    """Listed is what can be called: hidden, doubled and unusable ones are left out."""
    async with inner_house(tmp_path, judge) as house:
        twice = {"name": "twice"}
        house.prompts = [twice, {"name": "z"}, {"name": "secret"}, BROKEN, {**twice, "title": "other"}, REPORT]

        async def lists(exchange: Exchange) -> None:
            await exchange.send(http(200, result_of(exchange.id, prompts=house.prompts)))

        house.script = lists
        status, result = await told(house, "prompts/list", {})
        assert (status, result["prompts"]) == (200, [{"name": "z"}, REPORT])
        assert (await got(house, "twice"))[0] == 403
        house.script = None
        assert (await got(house, "z"))[0] == 200


async def test_a_completion_is_of_what_the_caller_may_have(tmp_path: Path) -> None:
    """A hidden prompt, an absent one and an absent template: one refusal, and nothing is forwarded."""
    async with inner_house(tmp_path, judge) as house:
        house.prompts, house.templates = [REPORT, {"name": "secret"}], [{"uriTemplate": "file:///{x}"}]
        argument = {"name": "account", "value": "a"}

        async def complete(**ref: str) -> tuple[int, Any]:
            return await told(house, "completion/complete", {"ref": {"type": "t", **ref}, "argument": argument})

        assert (await complete(name="report"))[0] == 200
        assert (await complete(uri="file:///{x}"))[0] == 200
        replies = [await complete(name="secret"), await complete(name="absent"), await complete(uri="file:///{y}")]
        assert replies[0] == replies[1] == replies[2]
        assert (replies[0][0], replies[0][1]["code"]) == (403, 40302)
        assert len(house.forwarded) == 2


@pytest.mark.parametrize("kind", ["tools", "prompts"])
async def test_what_two_pages_name_is_on_neither(tmp_path: Path, kind: str) -> None:
    """AZ-05 across pages: what can't be called, because another page names it too, is not listed.

    Once the server names it only once, it is listed again.
    """
    async with inner_house(tmp_path, judge) as house:
        one, twice, two = (tool(name) if kind == "tools" else {"name": name} for name in ("one", "twice", "two"))
        pages = {None: [one, twice], "next": [{**twice, "title": "other"}, two]}
        setattr(house, kind, pages[None] + pages["next"])

        async def lists(exchange: Exchange) -> None:
            cursor = orjson.loads(exchange.seen.body)["params"].get("cursor")
            more = {} if cursor else {"nextCursor": "next"}
            await exchange.send(http(200, result_of(exchange.id, **{kind: pages[cursor]}, **more)))

        async def listed() -> list[str]:
            house.script = lists
            found = [await told(house, f"{kind}/list", params) for params in ({}, {"cursor": "next"})]
            house.script = None
            return [item["name"] for _, result in found for item in result[kind]]

        async def called(name: str) -> int:
            method = "tools/call" if kind == "tools" else "prompts/get"
            return (await told(house, method, {"name": name, "arguments": {}}))[0]

        assert await listed() == ["one", "two"]
        assert [await called(name) for name in ("one", "twice", "two")] == [200, 403, 200]
        pages["next"] = [two]
        house.later(6)
        setattr(house, kind, [one, twice, two])
        assert await listed() == ["one", "twice", "two"]
        assert await called("twice") == 200
