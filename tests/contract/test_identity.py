"""Claims, scopes and metadata (JWT-01's metadata, JWT-09)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract.identity import (
    close_implications,
    identity_from_claims,
    missing_scopes,
    read_audience,
    read_time,
    require_scopes,
    resource_metadata,
)
from gateway.contract.passage import Identity, Server
from gateway.contract.refusals import Refusal, Refused

CLAIMS: dict[str, Any] = {"iss": "https://idp.example.com", "sub": "alice", "exp": 2_000_000_000}
NOTHING = close_implications({})
SERVER = Server(
    name="readonly",
    path="/readonly/mcp",
    resource="https://mcp.example.com/readonly/mcp",
    metadata_url="https://mcp.example.com/.well-known/oauth-protected-resource/readonly/mcp",
    scopes=("mcp:use",),
)


def identity(**claims: Any) -> Identity:
    return identity_from_claims({**CLAIMS, **claims})


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({}, set()),
        ({"scope": ""}, set()),
        ({"scope": []}, set()),
        ({"scope": "a b"}, {"a", "b"}),
        ({"scope": " a  b "}, {"a", "b"}),
        ({"scope": ["a", "b"]}, {"a", "b"}),
        ({"scope": ["a b"]}, {"a b"}),
        ({"scope": "a\tb\nc\u00a0d"}, {"a\tb\nc\u00a0d"}),
        ({"scp": "a"}, {"a"}),
        ({"scp": ["a", ""]}, {"a"}),
        ({"scope": "a", "scp": "b"}, {"a"}),
        ({"scope": "", "scp": "b"}, set()),
        ({"scopes": "a", "permissions": ["b"], "roles": ["c"]}, set()),
    ],
)
def test_scopes_are_exact_tokens(claims: dict[str, Any], scopes: set[str]) -> None:
    """`scope`, else `scp`; a text is split at spaces alone, a list is taken as it is; no other claim grants any."""
    assert identity(**claims).scopes == scopes


@pytest.mark.parametrize("value", [None, 7, True, {"a": 1}, ["a", 7], ["a", None], [["a"]]])
@pytest.mark.parametrize("name", ["scope", "scp"])
def test_scopes_of_another_shape_are_no_scopes(name: str, value: Any) -> None:
    """A token whose scopes can't be read is refused, not taken for one without scopes."""
    with pytest.raises(Refused) as refused:
        identity(**{name: value})
    assert refused.value.refusal is Refusal.TOKEN_INVALID


@pytest.mark.parametrize(
    "claims",
    [
        {"client_id": ""},
        {"client_id": 7},
        {"client_id": None},
        {"client_id": None, "azp": "app"},
        {"azp": ["app"]},
        {"client_id": "a\r\nb"},
        {"sub": ""},
        {"sub": None},
        {"iss": 7},
    ],
)
def test_names_are_plain_texts(claims: dict[str, Any]) -> None:
    """Subject, issuer and client are texts of one line; a client that is named at all is named properly."""
    assert identity(client_id="app", azp="other").client_id == "app"
    assert identity(azp="app").client_id == "app"
    assert identity().client_id == ""
    with pytest.raises(Refused):
        identity(**claims)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (["ops", "dev"], {"ops", "dev"}),
        ("ops", {"ops"}),
        ("ops dev", {"ops dev"}),
        ([], set()),
        (None, set()),
        ({"ops": True}, set()),
        (["ops", 7, None, ""], {"ops"}),
        (True, set()),
    ],
)
def test_groups_are_exact_names(groups: Any, expected: set[str]) -> None:
    """A list of names or one name; a text is never split."""
    assert identity(groups=groups).groups == expected


@pytest.mark.parametrize("value", [None, True, False, "1", [1], {}])
def test_a_time_is_a_number(value: Any) -> None:
    """PyJWT takes a text for a number; here it is none, and neither is a boolean."""
    assert read_time({"exp": 1.5}, "exp") == 1.5
    assert read_time({}, "nbf", default=0.0) == 0.0
    with pytest.raises(Refused):
        read_time({"exp": value}, "exp")


def test_an_absent_audience_is_nobody_s() -> None:
    """A token for everybody does not exist."""
    assert read_audience({"aud": ["a", "b"]}) == {"a", "b"}
    for claims in ({}, {"aud": None}, {"aud": ""}, {"aud": [""]}, {"aud": {"a": 1}}, {"aud": ["a", 1]}):
        with pytest.raises(Refused):
            read_audience(claims)
    assert read_audience({"aud": []}) == frozenset()


@pytest.mark.parametrize(
    "scope",
    [
        "",
        "tools:callx",
        "xtools:call",
        "Tools:call",
        "TOOLS:CALL",
        "tools",
        "tools:",
        "tools:*",
        "*",
        "tools:call:all",
        "tools:call,mcp:use",
        "tools:call\u200b",
        ["tools:callx"],
        ["mcp:use tools:call"],
        [],
    ],
)
def test_jwt_09_a_scope_is_matched_exactly(scope: Any) -> None:
    """No prefix, no suffix, no case, no wildcard: 403 naming all scopes that the operation needs."""
    needed = ["mcp:use", "tools:call"]
    require_scopes(identity(scope="tools:call mcp:use other"), needed, NOTHING)
    require_scopes(identity(scope=["tools:call", "mcp:use"]), needed, NOTHING)
    with pytest.raises(Refused) as refused:
        require_scopes(identity(scope=scope), needed, NOTHING)
    assert refused.value.refusal is Refusal.SCOPE_INSUFFICIENT
    assert refused.value.data == {"requiredScopes": needed}


def test_jwt_09_all_needed_scopes_are_named_once_and_in_order() -> None:
    """The client asks for one token that will do: held scopes are named too, each once."""
    with pytest.raises(Refused) as refused:
        require_scopes(identity(scope="a"), ["b", "a", "b"], NOTHING)
    assert refused.value.data["requiredScopes"] == ["b", "a"]
    assert refused.value.detail == "missing scopes: b b"
    require_scopes(identity(), [], NOTHING)


def test_a_scope_may_imply_others() -> None:
    """`files:write` implies `files:read`, and what that implies; never the other way round."""
    implies = close_implications(
        {"files:write": ["files:read"], "files:read": ["files:list"], "admin": ["files:write"]}
    )
    for held, missing in {
        "admin": (),
        "files:write": (),
        "files:read": ("files:write",),
        "files:list": ("files:write", "files:read"),
        "files": ("files:write", "files:read", "files:list"),
    }.items():
        assert missing_scopes(frozenset({held}), ("files:write", "files:read", "files:list"), implies) == missing


def test_a_circle_of_implications_ends() -> None:
    """Scopes that imply each other are one scope under several names."""
    implies = close_implications({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["d"]})
    for held in "abc":
        assert missing_scopes(frozenset({held}), ("a", "b", "c"), implies) == ()
    assert missing_scopes(frozenset("abc"), ("d",), implies) == ("d",)


SCOPES = st.sampled_from("abcdef")


@given(st.dictionaries(SCOPES, st.lists(SCOPES, max_size=3)), st.frozensets(SCOPES), st.lists(SCOPES, unique=True))
def test_implications_are_the_transitive_closure(
    scope_implies: dict[str, list[str]], held: frozenset[str], required: list[str]
) -> None:
    """What is covered is exactly what can be reached from the scopes that are held."""
    reached = set(held)
    while True:
        more = {implied for scope in reached for implied in scope_implies.get(scope, ())} - reached
        if not more:
            break
        reached |= more
    missing = missing_scopes(held, tuple(required), close_implications(scope_implies))
    assert missing == tuple(scope for scope in required if scope not in reached)


def test_jwt_01_metadata_says_what_configuration_says() -> None:
    """RFC 9728 section 2: the canonical resource, its authorization servers, header only, no `offline_access`."""
    document = resource_metadata(
        SERVER, ["https://b.example.com", "https://a.example.com"], ["mcp:use", "offline_access", "mcp:use"]
    )
    assert json.loads(json.dumps(document)) == {
        "resource": SERVER.resource,
        "authorization_servers": ["https://a.example.com", "https://b.example.com"],
        "scopes_supported": ["mcp:use"],
        "bearer_methods_supported": ["header"],
    }


def test_metadata_names_an_authorization_server() -> None:
    """A resource that names nobody who could issue its tokens can't be used: an error at start, not a document."""
    with pytest.raises(ValueError, match="no authorization server"):
        resource_metadata(SERVER, [], [])
