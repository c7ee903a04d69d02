"""G7: an approval covers one exact effect, whatever its spelling; RFC 8785 is the form that is digested."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import rfc8785
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gateway.contract.fingerprint import canonical, describe_effect, described, digest, digest_definition, effect_text
from gateway.contract.passage import Identity, Tool
from gateway.contract.refusals import Refusal, Refused
from tests.contract.asking import META, SERVER, ask, message

VECTORS = Path(__file__).parents[1] / "vectors" / "jcs"
ALICE = Identity("https://idp.example.com", "alice", "client-1")
TOOL = Tool("read_file", "ab" * 32, {}, {})
SAFE = 2**53 - 1

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-SAFE, SAFE)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["\ue000", "\U00010000", ":1.5", "[1234567890123456", ",1e5", '"'])
)
NAMES = st.text(max_size=4) | st.sampled_from(["\ue000", "\U00010000", "é", "\x7f", "\u2028", ":-1.0"])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4))


@pytest.mark.parametrize("name", sorted(path.name for path in (VECTORS / "input").iterdir()))
def test_the_published_vectors(name: str) -> None:
    """RFC 8785: each input of the reference test data has exactly its output."""
    given_text, expected = ((VECTORS / side / name).read_bytes() for side in ("input", "output"))
    assert canonical(orjson.loads(given_text)) == expected


@given(VALUES)
@example({"\ue000": 1, "\U00010000": 2})
@example([1.0, -0.0, 1e16, 1e21, 1e-7, 5e-324, 2**53 - 1, 1e22, 123456789012345.6])
@example("a:1.5")
def test_the_fast_form_is_the_form(value: Any) -> None:
    """The form by orjson equals the one by the rfc8785 package for every value, so that speed changes no digest."""
    assert canonical(value) == rfc8785.dumps(value)


@given(VALUES)
def test_the_form_means_the_value(value: Any) -> None:
    """What is digested and sent reads as what was asked for; asking with it gives the same form again."""
    try:
        text = effect_text(value)
    except Refused:  # a float whose form is an integer beyond 2^53 - 1, and perhaps not even its exact value
        assert re.search(rb"[0-9]{16}", canonical(value))
        return
    assert json.loads(text) == value
    assert text == canonical(value) == canonical(orjson.loads(text))


@pytest.mark.parametrize("value", [2**53, -(2**53), 2**63, [{"a": 2**64 - 1}]])
def test_numbers_without_a_form_have_none(value: Any) -> None:
    """RFC 8785 has no form for an integer beyond a double's exact range."""
    assert canonical(SAFE) == b"9007199254740991"
    with pytest.raises(ValueError, match="domain"):
        canonical(value)


@pytest.mark.parametrize("value", [2**53, -(2**53), 1e16, -1e20, {"a": [9007199254740993]}, {"a": ":1", "b": 1e17}])
def test_a_gated_call_holds_no_integer_beyond_2_53(value: Any) -> None:
    """400 -32602: also where a float's form would be such an integer. Text of digits and other floats are fine."""
    assert effect_text([SAFE, -SAFE, 1e21, 0.1, "9007199254740993", ":9007199254740993"])
    with pytest.raises(Refused) as caught:
        effect_text(value)
    assert caught.value.refusal is Refusal.PARAMS_INVALID


def effect(arguments: str = '{"path":"/etc/motd","n":[1,2.5,"7"]}', **changes: Any) -> str:
    """The digest of one call; `arguments` as JSON text."""
    identity = replace(ALICE, **changes.pop("identity", {}))
    server = replace(SERVER, **changes.pop("server", {}))
    volatile = changes.pop("volatile", frozenset())
    extra = changes.pop("meta", {})
    request = message(
        meta={**META, **extra}, params={"name": "read_file", "arguments": json.loads(arguments), **changes}
    )
    return describe_effect(identity, server, ask(request), TOOL, volatile).digest


@pytest.mark.parametrize(
    "arguments",
    [
        '{"n":[1,2.5,"7"],"path":"/etc/motd"}',
        ' { "path" : "/etc/motd" , "n" : [ 1 , 2.5 , "7" ] } ',
        '{"p\\u0061th":"\\/etc\\/motd","n":[1,2.5,"7"]}',
        '{"path":"/etc/motd","n":[1.0,2.50,"7"]}',
        '{"path":"/etc/motd","n":[1e0,25e-1,"7"]}',
    ],
)
def test_another_spelling_is_the_same_effect(arguments: str) -> None:
    """APR-04: reordered keys, white space, escapes, and other digits of the same numbers."""
    assert effect(arguments) == effect()


@pytest.mark.parametrize(
    "arguments",
    [
        '{"path":"/etc/motd"}',
        '{"path":"/etc/motd","n":[1,2.5,7]}',
        '{"path":"/etc/motd","n":[1,2.5,"7",null]}',
        '{"path":"/etc/motd","n":[2.5,1,"7"]}',
        '{"path":"/etc/motd","n":[true,2.5,"7"]}',
        '{"path":"/etc/motd ","n":[1,2.5,"7"]}',
        '{"path":"/etc/motd","n":[1,2.5,"7"],"x":null}',
        '{"Path":"/etc/motd","n":[1,2.5,"7"]}',
    ],
)
def test_another_value_is_another_effect(arguments: str) -> None:
    """APR-03: a leaf changed, added, removed, moved or re-typed."""
    assert effect(arguments) != effect()


def test_normal_forms_of_unicode_are_told_apart() -> None:
    """APR-03: NFC against NFD is another effect; nothing is folded."""
    assert effect('{"path":"\\u00e9"}') != effect('{"path":"e\\u0301"}')


@given(VALUES, VALUES)
def test_different_arguments_have_different_digests(one: Any, other: Any) -> None:
    """APR-03 as a property: equal digests mean equal values, types included (but 1 and 1.0 are one number)."""
    assume(json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True))
    if digest(one) == digest(other):
        assert one == other


@pytest.mark.parametrize(
    "change",
    [
        {"identity": {"issuer": "https://other.example.com"}},
        {"identity": {"subject": "bob"}},
        {"identity": {"client_id": "client-2"}},
        {"identity": {"tenant": "globex"}},
        {"server": {"name": "other"}},
        {"server": {"resource": "https://mcp.example.com/other/mcp"}},
        {"server": {"environment": "staging"}},
        {"name": "write_file"},
        {"inputResponses": {}},
        {"inputResponses": {"q": {"action": "accept"}}},
        {"meta": {"com.example/tenant": "t"}},
        {"meta": {"io.modelcontextprotocol/role": "admin"}},
    ],
)
def test_every_bound_member_changes_the_digest(change: dict[str, Any]) -> None:
    """APR-07: who, client, tenant, server, resource, environment, name, input responses, bound `_meta`."""
    assert effect(**change) != effect()
    assert effect(**change) == effect(**change)


def test_the_method_is_bound() -> None:
    """APR-07: a prompt and a tool of one name, with the same arguments, are two effects."""
    params = {"name": "x", "arguments": {}}
    calls = [ask(message(method, params=params)) for method in ("tools/call", "prompts/get")]
    assert len({describe_effect(ALICE, SERVER, call, None, frozenset()).digest for call in calls}) == 2


@pytest.mark.parametrize(
    "meta",
    [
        {"progressToken": 7},
        {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"},
        {"io.modelcontextprotocol/clientInfo": {"name": "admin-console", "version": "2"}},
        {"com.example/request": "r-1"},
    ],
)
def test_what_is_the_protocols_own_or_volatile_is_not_bound(meta: dict[str, Any]) -> None:
    """A repeated call has other progress tokens and traces; keys named as volatile are left out as well."""
    assert effect(meta=meta, volatile=frozenset({"com.example/request"})) == effect()


def test_fields_cannot_run_into_each_other() -> None:
    """Length-safe: moving a character from one bound member to the next gives another digest."""
    pairs = [
        ({"subject": "ab", "client_id": "c"}),
        ({"subject": "a", "client_id": "bc"}),
        ({"subject": 'ab","client":"c', "client_id": ""}),
    ]
    assert len({effect(identity=pair) for pair in pairs}) == 3


def test_what_reviewers_are_shown_is_what_is_digested() -> None:
    """The ticket shows the arguments, the input responses and the bound `_meta` keys, and names the tool's digest."""
    request = message(
        meta={**META, "com.example/tenant": "t", "com.example/request": "r-1"},
        params={"name": "read_file", "arguments": {"path": "/"}, "inputResponses": {"q": {}}},
    )
    asked = describe_effect(ALICE, SERVER, ask(request), TOOL, frozenset({"com.example/request"}))
    assert asked.arguments == {"path": "/"}
    assert asked.shown_meta == {"inputResponses": {"q": {}}, "_meta": {"com.example/tenant": "t"}}
    assert asked.tool_digest == TOOL.digest
    assert (asked.method, asked.name, asked.environment) == ("tools/call", "read_file", "production")


def test_a_definitions_digest_covers_all_of_it() -> None:
    """Any change of a definition shows, numbers without a canonical form included; the order of members does not."""
    definition: dict[str, Any] = {
        "name": "t",
        "description": "d",
        "inputSchema": {"type": "object", "maximum": 2**63},
    }
    assert digest_definition(definition) == digest_definition(dict(reversed(definition.items())))
    changed: list[dict[str, Any]] = [
        {**definition, "description": "e"},
        {**definition, "inputSchema": {"type": "object", "maximum": 2**63 - 1}},
        {"name": "t"},
    ]
    assert len({digest_definition(item) for item in [definition, *changed]}) == 4
    assert digest_definition({"name": "t"}) == digest({"name": "t"})


def test_what_a_definition_says_is_kept_for_people_and_bounded() -> None:
    """Title, description and annotations as listed; a long text is cut and says so, large annotations left out."""
    said = {"title": "Pay", "description": "Moves money.", "annotations": {"destructiveHint": True}}
    assert described({"name": "pay", "inputSchema": {}, **said}) == said
    assert described({"name": "pay", "title": 3, "description": None, "annotations": []}) == {}
    cut = described({"description": "x" * 20_000, "annotations": {"title": "y" * 5000}})
    assert cut == {"description": "x" * 16_384, "description_characters": 20_000}
