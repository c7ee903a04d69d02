"""Lists and what is learnt from them, through the whole gateway: pages, their time, discovery, and nobody's cache."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.rows.asking import tool
from tests.rows.conftest import furnish, opened, served, settings_of
from tests.rows.proof import passes
from tests.rows.stage import PATIENCE_S, SECOND, House, Server, Stage, is_own, listed
from tests.support.http_raw import Answer
from tests.support.stack import ISSUER, Stack, body
from tests.support.upstream import Exchange, http, result_of

MANY = [f"many-{number:02}" for number in range(60)]
PAGES: dict[str | None, tuple[list[str], str | None]] = {
    # cursor -> the tools of this page, and the cursor of the next
    None: (["hidden", "hid"], "hidden alone"),
    "hidden alone": (["b", "hidden-too", "a"], ""),
    "": ([], "nothing"),
    "nothing": (MANY, "many"),
    "many": (["rare"], None),
}
READS = {"effect": "read"}
DATA = {
    "methods": {"server/discover": {}},
    "tools": {
        **dict.fromkeys(("a", "b", *MANY[1:]), READS),
        "rare": {"effect": "read", "scopes": ["files:rare"]},
    },
}


class Paged(Server):
    """Lists its tools page by page."""

    def result(self, exchange: Exchange) -> bytes:
        """The good answer to a request."""
        message = json.loads(exchange.seen.body)
        if message["method"] != "tools/list":
            return super().result(exchange)
        names, following = PAGES[message["params"].get("cursor")]
        more = {} if following is None else {"nextCursor": following}
        page = listed(**{name: {} for name in names})
        return result_of(exchange.id, tools=page, ttlMs=60_000, cacheScope="public", **more)


def asks_for(member: str) -> list[dict[str, Any]]:
    """One tool, whose argument has this name."""
    schema = {"type": "object", "properties": {member: {"type": "integer"}}, "required": [member]}
    return [{"name": "a", "inputSchema": schema}]


@pytest.fixture(scope="module")
def house(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A gateway for two issuers, before a server of several pages and two whose lists live for different times."""
    behind: dict[str, list[Server]] = {
        "plain": [Paged([])],
        "short": [Server(asks_for("old"), ttl_ms=2_000)],
        "long": [Server(asks_for("old"), ttl_ms=300_000)],
    }
    stack = Stack(tmp_path_factory.mktemp("lists"), {}, data=DATA)
    issuers = [
        {"issuer": ISSUER, "jwks_file": "jwks.json", "algorithms": ["ES256"]},
        {"issuer": SECOND, "jwks_file": "second.json", "algorithms": ["ES256"]},
    ]
    with opened(stage, (one for replicas in behind.values() for one in replicas)):
        furnish(stack, settings_of(behind), identity={"issuers": issuers})
        house = House(stage, stack, behind)
        house.second.write(stack.folder / "second.json")
        with served(stage, stack), house.http:
            yield house


def test_every_page_is_filtered_by_one_question_and_keeps_its_cursor(house: House) -> None:
    """Whatever a page holds it is judged at once; an empty one leads on; order and cursors are the server's."""
    passes(house, house.good(tool("a")))
    cursor, told, asked = None, [], set()
    for _ in PAGES:
        before = house.evaluations()
        page = house.call("plain", body("tools/list", {} if cursor is None else {"cursor": cursor}, 7))
        asked.add(house.evaluations() - before)
        result = page.json()["result"]
        assert result["cacheScope"] == "private"
        told.append([one["name"] for one in result["tools"]])
        cursor = result.get("nextCursor")
        assert cursor == PAGES[json.loads(house.forwarded("plain")[-1].body)["params"].get("cursor")][1]
    assert cursor is None
    assert told == [[], ["b", "a"], [], MANY[1:], ["rare"]]
    assert asked == {2}, "whether to list at all, and what is shown: never one question an item"


def listings(server: Server) -> int:
    """How often the gateway has asked it for its tools."""
    return len([seen for seen in server.wire.seen if is_own(seen) and b'"tools/list"' in seen.body])


def test_a_list_is_asked_for_again_when_its_time_is_over(house: House) -> None:
    """`ttlMs`: what the server lists by then is what arguments are held to; until then it is not asked again."""
    short, long = house.behind["short"][0], house.behind["long"][0]

    def takes(server: str, member: str) -> bool:
        before = len(house.forwarded(server))
        answer = house.call(server, tool("a", **{member: 1}))
        assert answer.status == 200
        assert answer.json()["result"]["isError"] == (len(house.forwarded(server)) == before)
        return len(house.forwarded(server)) > before

    assert takes("short", "old")
    assert takes("long", "old")
    assert not takes("long", "new")
    short.tools = long.tools = asks_for("new")
    end = time.monotonic() + PATIENCE_S
    while not takes("short", "new"):
        assert time.monotonic() < end, "the list has long expired"
        time.sleep(0.05)
    assert not takes("short", "old")
    assert takes("long", "old")
    assert listings(long) == 1
    assert listings(short) > 1


def discovering(house: House, versions: list[str]) -> Answer:
    """What a client is told by a server that offers more than the gateway serves."""

    async def script(exchange: Exchange) -> None:
        offers = {
            "tools": {"listChanged": True, "else": True},
            "logging": {},
            "sampling": {},
            "extensions": {"io.modelcontextprotocol/tasks": {}, "com.example/else": {}},
        }
        result = result_of(exchange.id, supportedVersions=versions, capabilities=offers, ttlMs=9, cacheScope="public")
        await exchange.send(http(200, result))

    with house.behind["long"][0].playing(script):
        return house.call("long", body("server/discover", {}, 7))


def test_a_discovery_is_the_intersection_of_server_and_gateway(house: House) -> None:
    """`server/discover`: versions and capabilities that both have, for this caller; none in common is -32022."""
    result = discovering(house, ["2027-01-01", "2026-07-28", "2025-11-25"]).json()["result"]
    assert (result["supportedVersions"], result["cacheScope"]) == (["2026-07-28"], "private")
    assert result["capabilities"]["tools"] == {"listChanged": True}
    assert result["capabilities"]["extensions"] == {"io.modelcontextprotocol/tasks": {}}
    assert not {"sampling", "com.example/else"} & result["capabilities"].keys()
    answer = discovering(house, ["2027-01-01"])
    assert (answer.status, answer.json()["error"]["code"], answer.json()["id"]) == (400, -32022, 7)


def test_equal_requests_of_other_rights_are_other_requests(house: House) -> None:
    """CCH-02: the same subject with another scope set, of another issuer, with another argument: each is judged by
    itself, as itself, each time, and gets the answer to its own request."""
    endpoint = house.stack.endpoint("plain")
    claims: dict[str, Any] = {"sub": "alice", "client_id": "tests"}
    wide = house.plant(house.stack.issuer.mint(endpoint, scope="mcp:use files:rare", **claims))
    narrow = house.plant(house.stack.issuer.mint(endpoint, scope="mcp:use", **claims))
    namesake = house.plant(house.second.mint(endpoint, scope="mcp:use files:rare", **claims))

    async def echo(exchange: Exchange) -> None:
        arguments = json.loads(exchange.seen.body)["params"]["arguments"]
        await exchange.send(http(200, result_of(exchange.id, structuredContent=arguments)))

    with house.behind["plain"][0].playing(echo):
        for value in (1, 2, 1):
            for token, issuer in ((wide, ISSUER), (narrow, None), (namesake, SECOND), (wide, ISSUER)):
                before = len(house.forwarded("plain"))
                answer = house.ask(house.good(tool("rare", value=value), token=token))
                assert len(house.forwarded("plain")) == before + (issuer is not None)
                if issuer is None:
                    assert (answer.status, answer.json()["error"]["code"]) == (403, 40301)
                    continue
                assert answer.json()["result"]["structuredContent"] == {"value": value}
                decision, _ = house.await_records(answer.values("ostiary-decision")[0], "decision", "outcome")
                assert decision["actor"]["issuer"] == issuer
