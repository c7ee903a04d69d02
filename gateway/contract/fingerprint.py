"""The canonical form of a value (RFC 8785), its digest, and the exact effect that an approval covers (rule G7).

Everything that a person approves enters the digest, each part length-safe as a JSON string of its own: no two
different effects share a text to be hashed, and another spelling of the same effect gives the same digest.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
import rfc8785

from approvals.ticket import Asked
from gateway.contract.passage import Call, Identity, OpenedState, Server, Tool
from gateway.contract.refusals import Refusal, Refused

_EXACT = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_FLOAT_OR_BIG = re.compile(rb"(?:\A|[:,\[])-?(?:[0-9]{16}|[0-9]+[.e])")
_BIG = re.compile(rb"(?:\A|[:,\[])-?[0-9]{16}")
_LARGEST = 2**53 - 1
MOST_TITLE = 512
MOST_DESCRIPTION = 16_384
MOST_ANNOTATIONS = 4096
"""Characters, and for annotations bytes, of a definition that a ticket keeps for those who look at it."""


def canonical(value: Any) -> bytes:
    """The RFC 8785 text of a value that was read from JSON. Raises `ValueError` for an integer beyond +-(2^53 - 1).

    orjson's sorted form is that text wherever it holds neither a number that the two write differently (any float,
    any integer of 16 digits) nor a character that they order differently (beyond ASCII); a string that only looks so
    costs the slower way, never another result.
    """
    text = orjson.dumps(value, option=_EXACT)
    if text.isascii() and not _FLOAT_OR_BIG.search(text):
        return text
    return rfc8785.dumps(value)


def digest(value: Any) -> str:
    """SHA-256 (hex) of the canonical form. Raises `ValueError` like `canonical`."""
    return hashlib.sha256(canonical(value)).hexdigest()


def digest_definition(definition: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of a tool's whole definition as its server lists it: name, description, schemas, annotations.

    A definition may hold any JSON number (`"maximum": 1e300`, a 64-bit bound); one that RFC 8785 has no form for is
    digested in the sorted form of orjson under a prefix of its own, so that it can change unseen just as little.
    """
    try:
        text = canonical(definition)
    except ValueError:
        text = b"not RFC 8785:" + spelling(definition)
    return hashlib.sha256(text).hexdigest()


def spelling(definition: Mapping[str, Any]) -> bytes:
    """A text of a definition that is another for every other definition, and found a hundred times sooner than the
    canonical one, which takes Python 3 s for 4 MB of floats. The same definition may have several.
    """
    return orjson.dumps(definition, option=_EXACT)


def effect_text(value: Any) -> bytes:
    """The canonical text that a gated call sends. Raises `Refused(PARAMS_INVALID)` where readers could disagree.

    That is: an integer beyond +-(2^53 - 1), also one that was written as a float (`1e16` becomes 10000000000000000).
    """
    try:
        text = canonical(value)
        if _BIG.search(text):
            json.loads(text, parse_int=_exact)
    except ValueError:
        raise Refused(Refusal.PARAMS_INVALID, "a gated call holds an integer beyond 2^53 - 1") from None
    return text


def _exact(digits: str) -> int:
    number = int(digits)
    if abs(number) > _LARGEST:
        raise ValueError("not exact in a double")
    return number


def bound_meta(call: Call, volatile_meta: frozenset[str]) -> Mapping[str, Any]:
    """The `_meta` keys that an approval covers: those that are neither the protocol's own nor named as volatile."""
    return {key: value for key, value in call.extra_meta.items() if key not in volatile_meta}


def describe_effect(  # noqa: PLR0917 - all that an effect is made of
    identity: Identity,
    server: Server,
    call: Call,
    tool: Tool | None,
    volatile_meta: frozenset[str],
    opened: OpenedState | None = None,
) -> Asked:
    """The exact effect of a call that a person must approve. Raises `Refused(PARAMS_INVALID)` like `effect_text`.

    `opened` is what the call continues: the server's answer depends on its state, so another is another effect; and
    answers that were approved are so for one leg of one conversation.
    """
    meta = bound_meta(call, volatile_meta)
    parts = _who_asks_for_what(identity, server, call) | {"arguments": _sha256(call.arguments)}
    shown: dict[str, Any] = {}
    if call.input_responses is not None:
        parts["inputResponses"] = _sha256(call.input_responses)
        shown["inputResponses"] = call.input_responses
    if opened is not None:
        parts["requestState"] = _sha256(opened.value)
        parts["leg"] = str(opened.leg)
        parts["use"] = "" if opened.use is None else opened.use.use_id
    if meta:
        parts["_meta"] = _sha256(meta)
        shown["_meta"] = meta
    return Asked(
        issuer=identity.issuer,
        subject=identity.subject,
        client=identity.client_id,
        server=server.name,
        resource=server.resource,
        environment=server.environment,
        method=call.method,
        name=parts["name"],
        arguments=call.arguments,
        digest=digest(parts),
        tool_digest=tool.digest if tool is not None else "",
        shown_meta=shown,
        tenant=identity.tenant,
        tool={} if tool is None else described(tool.definition),
    )


def described(definition: Mapping[str, Any]) -> dict[str, Any]:
    """What a definition says of its tool, for a person: `{title, description, annotations}`, as far as it says it.

    Bounded: a longer text is cut and its length told (`description_characters`), larger annotations are left out.
    """
    said: dict[str, Any] = {}
    title, description = definition.get("title"), definition.get("description")
    if isinstance(title, str) and title:
        said["title"] = title[:MOST_TITLE]
    if isinstance(description, str) and description:
        said["description"] = description[:MOST_DESCRIPTION]
        if len(description) > MOST_DESCRIPTION:
            said["description_characters"] = len(description)
    annotations = definition.get("annotations")
    if isinstance(annotations, Mapping) and annotations and len(spelling(annotations)) <= MOST_ANNOTATIONS:
        said["annotations"] = annotations
    return said


def describe_grant(
    identity: Identity, server: Server, call: Call, tool: Tool | None, vary: Mapping[str, Any]
) -> Asked:
    """What people approve of a grant: the call without its arguments, and the schemas that these have to fit.

    `vary` is `{schema, bounds}`. Its digest is that of no call. Raises `Refused(PARAMS_INVALID)` like `effect_text`.
    """
    parts = _who_asks_for_what(identity, server, call) | {"vary": _sha256(vary)}
    whole = describe_effect(identity, server, replace(call, arguments={}), tool, frozenset())
    return replace(whole, digest=digest(parts), shown_meta={}, vary=vary)


def _who_asks_for_what(identity: Identity, server: Server, call: Call) -> dict[str, str]:
    """What every effect is made of, a grant's as well; the tenant where the caller has one."""
    parts = {
        "issuer": identity.issuer,
        "subject": identity.subject,
        "client": identity.client_id,
        "server": server.name,
        "resource": server.resource,
        "environment": server.environment,
        "method": call.method,
        "name": call.name or "",
    }
    return parts | {"tenant": identity.tenant} if identity.tenant else parts


def _sha256(value: Any) -> str:
    return hashlib.sha256(effect_text(value)).hexdigest()
