"""A page that was read before is not read again; what differs in anything that its reading depends on, is."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import answers, pages
from gateway.answers import Answers
from gateway.contract.guard import guard_answer
from gateway.contract.passage import Admitted, Identity, RequestId, Server
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.resources import Reach
from gateway.handles import Handles
from gateway.pages import Page, Pages, place_of
from gateway.seals import Seals
from policies.question import Candidates
from policies.verdict import Effect, Verdict
from tests.contract.asking import SERVER, ask, message
from tests.contract.walked import KEY
from tests.pipeline.house import ALLOW, PlayedPolicy, inner_house, tool
from tests.support.upstream import Exchange, http, result_of

TOOLS = [tool("pay"), tool("secret")]
IDS: list[RequestId] = [1, -7, 2**53, "", "1", 'a"\\\u00e9', ',"result":{}}']


def asked(request_id: RequestId = 1, server: Server = SERVER, method: str = "tools/list", **params: Any) -> Admitted:
    call = ask(message(method, id=request_id, params=params), server=server)
    return Admitted("d", server, Identity("https://idp.example.com", "alice"), call, b"", ())


def last(text: bytes) -> bytes:
    """The same answer as those write it who put its id last."""
    answer = orjson.loads(text)
    return orjson.dumps({name: answer[name] for name in ("result", "jsonrpc", "id")})


class Reader:
    """Answers with a policy that shows `shown`; `read` counts what was guarded anew."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown: tuple[str, ...] = ("pay",)
        self.read = 0
        self.policy = PlayedPolicy(lambda _: replace(ALLOW, visible=self.shown))
        self.answers = Answers(self.policy, Seals([KEY]), Handles([KEY]))

        def counted(*given: Any) -> Any:
            self.read += 1
            return guard_answer(*given)

        monkeypatch.setattr(answers, "guard_answer", counted)

    async def fit(self, admitted: Admitted, text: bytes) -> bytes:
        return await self.answers._filter_list(admitted, self.answers.guard(admitted, text))


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    return Reader(monkeypatch)


@pytest.mark.parametrize("write", [bytes, last])
async def test_the_same_page_is_read_once_and_each_caller_gets_its_own_id(reader: Reader, write: Any) -> None:
    """Byte for byte what a first reading gives, the policy asked each time, whatever the id is."""
    for request_id in IDS:
        text = write(result_of(request_id, tools=TOOLS, cacheScope="public"))
        told = await reader.fit(asked(request_id), text)
        expected = orjson.loads(text)
        expected["result"] |= {"tools": [tool("pay")], "cacheScope": "private"}
        assert told == orjson.dumps(expected)
    assert (reader.read, len(reader.policy.questions)) == (1, len(IDS))


async def test_who_may_see_something_else_gets_something_else(reader: Reader) -> None:
    """What a page's text is kept by is what is seen of it, and a denial shows nothing."""
    for shown in (("pay",), ("secret",), (), ("pay", "secret"), ("pay",)):
        reader.shown = shown
        told = orjson.loads(await reader.fit(asked(), result_of(1, tools=TOOLS)))
        assert tuple(one["name"] for one in told["result"]["tools"]) == shown
    reader.policy.judge_by = lambda _: Verdict(Effect.DENY, visible=("pay",), revision="r1")
    assert orjson.loads(await reader.fit(asked(), result_of(1, tools=TOOLS)))["result"]["tools"] == []
    assert reader.read == 1


OTHER_REACH = replace(SERVER, reach=Reach(("demo://a/",)))


@pytest.mark.parametrize(
    ("admitted", "text"),
    [
        (asked(), result_of(1, tools=[tool("pay"), tool("secreu")])),
        (asked(), result_of(1, tools=TOOLS, _meta={})),
        (asked(), result_of(1, tools=TOOLS) + b"\n"),
        (asked(), result_of(1, tools=TOOLS).replace(b'"id":1', b'"id": 1')),
        (asked("\u00e9"), result_of(1, tools=TOOLS).replace(b'"id":1', b'"id":"\\u00e9"')),
        (asked(server=replace(SERVER, name="others")), result_of(1, tools=TOOLS)),
        (asked(server=replace(SERVER)), result_of(1, tools=TOOLS)),
        (asked(server=OTHER_REACH), result_of(1, tools=TOOLS)),
    ],
    ids=["a byte", "a member", "a line feed", "a space", "an id spelt otherwise", "server", "settings", "reach"],
)
async def test_what_differs_is_read_anew(reader: Reader, admitted: Admitted, text: bytes) -> None:
    """Bytes, server, and the server's settings are each a part of what a page is found by."""
    await reader.fit(asked(), result_of(1, tools=TOOLS))
    await reader.fit(asked(), result_of(1, tools=TOOLS))
    assert reader.read == 1
    await reader.fit(admitted, text)
    assert reader.read == 2


async def test_another_list_is_another_page(reader: Reader) -> None:
    """One text may hold the members of two lists; each list is read by its own rules."""
    text = result_of(1, tools=TOOLS, prompts=[{"name": "pay"}, {"name": "ask"}])
    for method, names in (("tools/list", ["pay"]), ("prompts/list", ["pay"]), ("tools/list", ["pay"])):
        told = orjson.loads(await reader.fit(asked(method=method), text))["result"]
        assert [one["name"] for one in told[method.partition("/")[0]]] == names
    assert reader.read == 2


async def test_other_pins_are_another_reading(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is quarantined or pinned is judged anew as soon as other pins are in force."""
    pins: object = {}
    monkeypatch.setattr(reader.answers.definitions.pins, "in_force", lambda: pins)
    reader.answers.pages = Pages(reader.answers.definitions.pins.in_force)
    for read, now in ((1, pins), (1, pins), (2, {}), (3, {})):
        pins = now
        await reader.fit(asked(), result_of(1, tools=TOOLS))
        assert reader.read == read


@pytest.mark.parametrize(
    "text",
    [
        result_of(2, tools=TOOLS),
        result_of("1", tools=TOOLS),
        result_of(1, tools=TOOLS).replace(b'"id":1', b'"id":1,"id":1'),
        result_of(1, tools=TOOLS)[:-1] + b',"id":2}',
        result_of(1, tools=TOOLS)[:-1],
        result_of(1, tools=TOOLS).replace(b'"id":1,', b'"id":1'),
    ],
)
async def test_what_was_never_let_pass_is_not_let_pass_beside_a_known_page(reader: Reader, text: bytes) -> None:
    """Another's id, an id twice, a text that is none: refused as ever, and remembered by nobody."""
    await reader.fit(asked(), result_of(1, tools=TOOLS))
    for _ in range(2):
        with pytest.raises(Refused) as caught:
            await reader.fit(asked(), text)
        assert caught.value.refusal is Refusal.UPSTREAM_INVALID
    assert reader.read == 3


ID = st.one_of(st.integers(-(2**63), 2**64 - 1), st.text(st.characters(exclude_categories=["Cs"])))
PIECE = st.sampled_from(['"', "\\", "{", "}", ",", ":", "1", '"id":1', '"result":{}', '"jsonrpc":"2.0"', " "])


@given(ID, ID, st.lists(PIECE).map("".join), st.booleans())
def test_where_an_id_may_stand_any_may(first: RequestId, second: RequestId, noise: str, at_the_end: bool) -> None:
    """A text that passes with one id in its place passes with every other one, and differs in that alone."""
    spelt = orjson.dumps(first)
    middle = b'{"x":"%b"}' % noise.encode()
    text = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (spelt, middle)
    if at_the_end:
        text = b'{"result":%b,"jsonrpc":"2.0","id":%b}' % (middle, spelt)
    place = place_of(text, first)
    assert place is not None
    before, behind = place
    assert text == b"%b%b%b" % (before, spelt, behind)
    other = b"%b%b%b" % (before, orjson.dumps(second), behind)
    found: list[Any] = []
    for one, request_id in ((text, first), (other, second)):
        try:
            guarded = guard_answer(asked(request_id).call, one)
        except Refused as refused:
            found.append(refused.refusal)
        else:
            assert guarded.message["id"] == request_id
            found.append((guarded.outcome, guarded.result))
    assert found[0] == found[1]


def test_pages_are_bounded() -> None:
    """By how many there are, by their bytes with all that is kept of each, and by what is seen of one."""

    def read(kept: Pages, length: int) -> tuple[Admitted, bytes]:
        admitted, text = asked(), result_of(1, tools=[], x="x" * length)
        guarded = guard_answer(admitted.call, text)
        page = Page(SERVER, pins, guarded.message, frozenset(), (), frozenset(), Candidates(()))
        kept.keep(admitted, guarded, page)
        return admitted, text

    pins = object()
    few = Pages(lambda: pins, pages=2)
    first, second = read(few, 1), read(few, 2)
    assert few.find(*first)
    third = read(few, 3)
    assert [few.find(*one) is not None for one in (first, second, third)] == [True, False, True]
    assert few.find(*read(few, pages.LARGEST)) is None
    small = Pages(lambda: pins, total_bytes=pages.READ * 3000)
    first, second = read(small, 1200), read(small, 1201)
    assert small.find(*first)
    assert small.find(*second)
    third = read(small, 1202)
    assert [small.find(*one) is not None for one in (first, second, third)] == [False, True, True]
    for number in range(pages.TEXTS * 4):
        if (page := small.find(*third)) is not None:
            small.text_of(third[0], guard_answer(third[0].call, third[1]), page, {str(number)})
            assert len(page.texts) <= pages.TEXTS
    assert small.find(*second) is None, "what is kept of a page counts as well"
    read(small, 1)
    one = Pages(lambda: pins)
    admitted, text = read(one, 1)
    page = one.find(admitted, text)
    assert page is not None
    guarded = guard_answer(admitted.call, text)
    for number in range(pages.TEXTS + 5):
        one.text_of(admitted, guarded, page, {str(number)})
    assert len(page.texts) == pages.TEXTS
    assert page.weight == one._weight
    before, name = page.weight, "\U0001f511" * 100_000
    one.text_of(admitted, guarded, page, {name})
    assert page.weight - before > sys.getsizeof(name) - 1000, "the names by which a text is found count, too"


async def test_records_are_the_same_for_a_page_that_is_known(tmp_path: Path) -> None:
    """The digest is of the bytes that came, and every caller's own; so are decision, outcome and status."""

    def judge(question: Mapping[str, Any]) -> Verdict:
        return replace(ALLOW, visible=("pay",) if question["subject"]["id"] == "alice" else ("secret",))

    async with inner_house(tmp_path, judge) as house:
        texts: list[bytes] = []

        async def listing(exchange: Exchange) -> None:
            texts.append(result_of(exchange.id, tools=house.tools))
            await exchange.send(http(200, texts[-1]))

        house.script = listing
        for request_id, who, name in ((1, "alice", "pay"), ("b", "bob", "secret"), (3, "alice", "pay")):
            reply = await house.serve(house.request(message("tools/list", id=request_id), sub=who))
            told = orjson.loads(reply.body)
            assert (told["id"], [one["name"] for one in told["result"]["tools"]]) == (request_id, [name])
        outcomes = house.sink.of("outcome")
        digests = [house.corridor.redactor.result(hashlib.sha256(text).digest()) for text in texts]
        assert [one["result_hmac"] for one in outcomes] == digests
        assert [(one["outcome"], one["status"], one["code"]) for one in outcomes] == [("executed", 200, None)] * 3
