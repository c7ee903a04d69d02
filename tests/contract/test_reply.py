"""What leaves: status, JSON-RPC body, challenge and headers of every refusal, and the headers of good answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.contract.headers import CAPABILITIES_KEY, VERSION_KEY
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.reply import accepted_reply, refusal_reply, result_reply, stream_headers
from tests.contract.asking import SERVER

SPEC_CODES = {-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022}
METADATA = f'resource_metadata="{SERVER.metadata_url}"'.encode()
ID = "0123456789abcdef0123456789abcdef"


def reply_to(
    refused: Refused, request_id: Any = 1, server: Any = SERVER
) -> tuple[int, dict[bytes, bytes], dict[str, Any]]:
    """(status, headers, body) of a refusal; headers are each there once."""
    reply = refusal_reply(refused, request_id=request_id, server=server, decision_id=ID)
    assert len(dict(reply.headers)) == len(reply.headers)
    return reply.status, dict(reply.headers), orjson.loads(reply.body)


@pytest.mark.parametrize("refusal", Refusal)
def test_every_refusal_has_its_reply(refusal: Refusal) -> None:
    """RPC-07: the row's status, code and sentence; the decision's id; never a word of the detail."""
    status, headers, body = reply_to(Refused(refusal, "canary-detail", note="n"), "x")
    row = refusal.value
    assert status == row.status
    assert body["jsonrpc"] == "2.0"
    assert body["id"] == "x"
    assert row.code in SPEC_CODES or not -32768 <= row.code <= -32000
    if row.result:
        told = [{"type": "text", "text": row.sentence}]
        assert body["result"] == {"resultType": "complete", "content": told, "isError": True}
    else:
        assert (body["error"]["code"], body["error"]["message"]) == (row.code, row.sentence)
        assert body["error"]["data"]["note"] == "n"
        assert body["error"]["data"].get("decisionId") == (None if refusal is Refusal.VERSION_UNSUPPORTED else ID)
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"cache-control"] == b"no-store"
    assert headers[b"ostiary-decision"] == ID.encode()
    assert "canary" not in str(headers) + str(body)
    assert (b"retry-after" in headers) == (row.retry_after_s > 0)
    assert (b"www-authenticate" in headers) == (row.challenge is not None)
    assert (status in {429, 503}) <= (b"retry-after" in headers)
    assert refusal_reply(Refused(refusal), request_id=1, server=None, decision_id=ID).close == row.close


def test_a_result_may_stand_in_for_the_error() -> None:
    """What asks its caller instead leaves as a result with 200: the caller's id, the decision's, and not the row."""
    asks = {"resultType": "input_required", "requestState": "s"}
    refused = Refused(Refusal.APPROVAL_REQUIRED, "canary", instead=asks, ticket={"id": "t"})
    reply = refusal_reply(refused, request_id="x", server=None, decision_id=ID)
    assert orjson.loads(reply.body) == {"jsonrpc": "2.0", "id": "x", "result": asks}
    headers = dict(reply.headers)
    assert (reply.status, headers[b"ostiary-decision"], headers[b"cache-control"]) == (200, ID.encode(), b"no-store")


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (Refusal.META_MISSING, (VERSION_KEY, CAPABILITIES_KEY)),
        (Refusal.STATE_NOT_ACCEPTED, ("start the call anew",)),
        (Refusal.TOKEN_INVALID, ("get a new one",)),
        (Refusal.SESSION_UNKNOWN, ("begin with initialize",)),
        (Refusal.APPROVAL_REQUIRED, ("repeat the identical call",)),
        (Refusal.ACCEPT_UNSUPPORTED, ("application/json", "text/event-stream")),
        (Refusal.CONTENT_UNSUPPORTED, ("application/json",)),
    ],
)
def test_a_sentence_that_can_say_what_to_do_says_it(refusal: Refusal, words: tuple[str, ...]) -> None:
    """Whoever has only the answer on the screen knows what to send next."""
    assert all(word in refusal.value.sentence for word in words)


@pytest.mark.parametrize(
    ("definition", "refused"),
    [
        ("UnsupportedProtocolVersionError", Refused(Refusal.VERSION_UNSUPPORTED, supported=["a"], requested="b")),
        ("HeaderMismatchError", Refused(Refusal.HEADER_MISMATCH, message="Header mismatch: Mcp-Name.")),
        ("MissingRequiredClientCapabilityError", Refused(Refusal.CAPABILITY_MISSING, requiredCapabilities={})),
        ("JSONRPCErrorResponse", Refused(Refusal.POLICY_DENIED)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("request_id", [1, "x", None])
def test_errors_are_those_of_the_published_schema(definition: str, refused: Refused, request_id: Any) -> None:
    """The bodies validate against the revision's own JSON Schema, with an id and without."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = orjson.loads((Path(__file__).parents[1] / "vectors" / "mcp-2026-07-28.schema.json").read_bytes())
    _, _, body = reply_to(refused, request_id)
    jsonschema.validate(body, {**schema, "$ref": f"#/$defs/{definition}"})


def test_an_unsupported_version_says_exactly_what_is_supported() -> None:
    """RPC-05: `data` is exactly `supported` and `requested`."""
    refused = Refused(Refusal.VERSION_UNSUPPORTED, supported=["2026-07-28"], requested="v9")
    assert reply_to(refused)[2]["error"]["data"] == {"supported": ["2026-07-28"], "requested": "v9"}


@pytest.mark.parametrize(
    "request_id", [9007199254740993, 2**64 - 1, -(2**63), "007", 0, -1, "", "x" * 200, "\u00e9\u2028"]
)
def test_ids_come_back_as_they_came(request_id: Any) -> None:
    """RPC-08: same type, same digits."""
    body = refusal_reply(Refused(Refusal.POLICY_DENIED), request_id=request_id, server=SERVER, decision_id=ID).body
    echoed = orjson.loads(body)["id"]
    assert (echoed, type(echoed)) == (request_id, type(request_id))


def test_an_unknown_id_is_left_out() -> None:
    """RPC-03: no id could be read, so the error has none (the revision's schema knows no null id)."""
    assert "id" not in reply_to(Refused(Refusal.BODY_NOT_JSON), None)[2]


def test_the_challenge_without_a_token() -> None:
    """contract.md section 6: metadata and the server's scopes, and no `error`."""
    assert reply_to(Refused(Refusal.TOKEN_MISSING))[1][b"www-authenticate"] == (
        b"Bearer " + METADATA + b', scope="mcp:use"'
    )


def test_the_challenge_of_a_token_that_was_not_accepted() -> None:
    """contract.md section 6: the same with `error="invalid_token"`."""
    assert reply_to(Refused(Refusal.TOKEN_INVALID))[1][b"www-authenticate"] == (
        b'Bearer error="invalid_token", ' + METADATA + b', scope="mcp:use"'
    )


def test_the_challenge_of_missing_scopes_names_all_that_are_needed() -> None:
    """JWT-09: 403 with `insufficient_scope`, every required scope once, and the metadata's URL."""
    status, headers, body = reply_to(
        Refused(Refusal.SCOPE_INSUFFICIENT, requiredScopes=["files:read", "files:write", "files:read"])
    )
    assert status == 403
    assert headers[b"www-authenticate"] == (
        b'Bearer error="insufficient_scope", ' + METADATA + b', scope="files:read files:write"'
    )
    assert body["error"]["code"] == 40301


def test_a_challenge_without_scopes_or_server() -> None:
    """Nothing is made up: no `scope` where none is needed, no metadata where the path is no server's."""
    assert (
        b"scope="
        not in reply_to(Refused(Refusal.TOKEN_MISSING), server=replace(SERVER, scopes=()))[1][b"www-authenticate"]
    )
    assert reply_to(Refused(Refusal.TOKEN_MISSING), server=None)[1][b"www-authenticate"] == b"Bearer"


@pytest.mark.parametrize("scope", ['a"', "a\\", "a b", "a\r\nX: y", "é", "", "a\x00"])
def test_nothing_hostile_enters_a_challenge(scope: str) -> None:
    """A scope that RFC 6749 has no token for is left out; a URL that ends quotes or lines is escaped or an error."""
    headers = reply_to(Refused(Refusal.SCOPE_INSUFFICIENT, requiredScopes=["good", scope]))[1]
    assert headers[b"www-authenticate"].endswith(b', scope="good"')
    quoted = reply_to(Refused(Refusal.TOKEN_MISSING), server=replace(SERVER, metadata_url='https://x/"\\'))[1]
    assert quoted[b"www-authenticate"].startswith(b'Bearer resource_metadata="https://x/\\"\\\\", ')
    with pytest.raises(ValueError, match="visible ASCII"):
        reply_to(Refused(Refusal.TOKEN_MISSING), server=replace(SERVER, metadata_url="https://x/\r\nX: y"))


def test_the_headers_of_single_rows() -> None:
    """405 names POST, 415 the only coding, 429 and 503 say when to come back."""
    assert reply_to(Refused(Refusal.METHOD_NOT_POST))[1][b"allow"] == b"POST"
    assert reply_to(Refused(Refusal.CONTENT_UNSUPPORTED))[1][b"accept-encoding"] == b"identity"
    assert reply_to(Refused(Refusal.RATE_LIMITED))[1][b"retry-after"] == b"60"


def test_good_answers() -> None:
    """JSON as it is, 202 without a body, and a stream that nobody on the way may buffer; none may be stored."""
    reply = result_reply(200, b'{"a":1}', ID)
    assert (reply.status, reply.body, dict(reply.headers)[b"content-type"]) == (200, b'{"a":1}', b"application/json")
    accepted = accepted_reply(ID)
    assert (accepted.status, accepted.body) == (202, b"")
    assert b"content-type" not in dict(accepted.headers)
    stream = dict(stream_headers(ID))
    assert stream[b"content-type"] == b"text/event-stream"
    assert stream[b"x-accel-buffering"] == b"no"
    for headers in (reply.headers, accepted.headers, stream_headers(ID)):
        assert dict(headers)[b"cache-control"] == b"no-store"
        assert dict(headers)[b"ostiary-decision"] == ID.encode()
