"""What of a caller's data the audit may hold: shapes, sizes and keyed HMACs.

Invariant: no argument's value leaves here in clear unless the policy's `clear` names it and `mask` does not, and no
member's name that is not the protocol's or the tool's own. Sizes are bounded whatever comes in (AUD-02, AUD-04).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from gateway.contract.printable import printable
from gateway.contract.secret_shapes import conceal, is_card_number

KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
"""HMAC-SHA256 is cut to 128 bits: enough to compare values, half the space of every record."""

MAX_LEAVES: Final = 48
MAX_DEPTH: Final = 8
MAX_MEMBERS: Final = 48
MAX_ITEMS: Final = 16
MAX_CLEAR: Final = 32
MAX_SHAPE_BYTES: Final = 8192
MAX_REPLICAS: Final = 1024
_MAX_KEY = 64
_MAX_COPIED: Final = 16_384
"""Up to this size, to copy a value behind its purpose takes less time than to digest them apart."""
_MAX_CLEAR_TEXT = 256
_SAFE_INTEGER = 2**53 - 1

# Members that the protocol itself names in the params of methods without `arguments`; every other name is data.
# fmt: off
_PROTOCOL_MEMBERS: Final[Mapping[str, str]] = {name: name for name in (
    "argument", "arguments", "context", "cursor", "inputResponses", "name", "notifications", "promptsListChanged",
    "ref", "resource", "resourceSubscriptions", "resourcesListChanged", "taskId", "taskIds", "toolsListChanged",
    "type", "uri", "value",
)}
# fmt: on


class AuditKeys:
    """The keys of the audit's HMACs: the first one works, the others are kept so that older records can be compared.

    `text` is the content of the environment variable `variable`: 32 bytes each, base64url, padded or not, several
    separated by commas. Raises `ValueError` that names the variable and never quotes it.
    """

    __slots__ = ("key_ids", "keys")

    def __init__(self, text: str, variable: str = "OSTIARY_AUDIT_KEY") -> None:
        if not text.strip():
            raise ValueError(f"{variable} is empty: 32 bytes in base64url are needed")
        keys = [_decode_key(part.strip(), f"{variable}, key {n}") for n, part in enumerate(text.split(","), 1)]
        if len(set(keys)) != len(keys):
            raise ValueError(f"{variable} holds the same key twice")
        self.keys: Final = tuple(keys)
        self.key_ids: Final = tuple(hmac.digest(key, b"ostiary audit key id", "sha256")[:8].hex() for key in keys)

    def __repr__(self) -> str:
        return f"AuditKeys(key_ids={self.key_ids!r})"


def _decode_key(text: str, where: str) -> bytes:
    bare = text[:-1] if text.endswith("=") and len(text) == 44 else text
    try:
        key = base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        key = b""
    # The last character of 43 has two unused bits: a key has one spelling, or two keys could be one.
    if len(key) != KEY_BYTES or base64.urlsafe_b64encode(key).rstrip(b"=") != bare.encode("ascii", "replace"):
        raise ValueError(f"{where}: not 32 bytes in base64url")
    return key


class Redactor:
    """Turns values into what the audit may hold. One per process; not bound to a request.

    `key_id` names the key in use. HMACs are HMAC-SHA256(key, purpose + NUL + data), their first 16 bytes in hex.
    """

    __slots__ = ("_declared", "_inner", "_outer", "_replicas", "key_id")

    def __init__(self, keys: AuditKeys) -> None:
        # HMAC by its definition (RFC 2104) from prepared states: half the time of `hmac.digest`, six times a call.
        block = keys.keys[0].ljust(64, b"\0")
        self._inner: Final = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer: Final = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))
        self.key_id: Final = keys.key_ids[0]
        self._declared: dict[str, Mapping[str, str]] = {}
        self._replicas: dict[str, str] = {}

    def tag(self, purpose: bytes, data: bytes) -> str:
        """The keyed HMAC of `data`, apart from those of every other purpose."""
        inner = self._inner.copy()
        if len(data) < _MAX_COPIED:
            inner.update(purpose + b"\0" + data)
        else:
            inner.update(purpose + b"\0")
            inner.update(data)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.hexdigest()[: 2 * TAG_BYTES]

    def whole(self, arguments: Any) -> str:
        """The HMAC of a whole value."""
        return self.tag(b"arguments", text_of(arguments))

    def result(self, digest: bytes) -> str | None:
        """The HMAC of a result, over its SHA-256 `digest`; `None` where there is no result."""
        return self.tag(b"result", digest) if digest else None

    def uri(self, uri: str) -> str:
        """A resource's URI without what may be secret in it: userinfo, query, fragment, `data:` become HMACs."""
        if uri[:5].lower() == "data:":
            media, comma, data = uri[5:].partition(",")
            kind = media if comma and re.fullmatch(r"[\w.+/;=-]{0,64}", media, re.ASCII) else ""
            hidden = self.tag(b"uri", (data if kind == media else uri[5:]).encode("utf-8", "surrogatepass"))
            return f"{uri[:5]}{kind}{comma}hmac:{hidden}"
        cut = min((at for at in (uri.find("?"), uri.find("#")) if at >= 0), default=len(uri))
        path, tail = uri[:cut], uri[cut:]
        if len(tail) > 1:
            tail = f"{tail[0]}hmac:{self.tag(b'uri', tail.encode('utf-8', 'surrogatepass'))}"
        start = path.find("//") + 2
        end = path.find("/", start) if start > 1 else -1
        authority = path[start : end if end >= 0 else None] if start > 1 else ""
        at = authority.rfind("@")
        if at >= 0:
            hidden = self.tag(b"uri", authority[:at].encode("utf-8", "surrogatepass"))
            path = f"{path[:start]}hmac:{hidden}{path[start + at :]}"
        return path + tail

    def replica(self, url: str) -> str:
        """The same of a configured server's URL: there are few, and each has one answer for the key's whole life."""
        shown = self._replicas.get(url)
        if shown is None:
            if len(self._replicas) >= MAX_REPLICAS:
                self._replicas.clear()
            shown = self._replicas[url] = self.uri(url)
        return shown

    def shape(
        self,
        arguments: Mapping[str, Any],
        clear: Sequence[str] = (),
        mask: Sequence[str] = (),
        tool: tuple[str, Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """JSON pointer -> `{type, size?, hmac? | value?}` for each leaf; `size` counts characters, members or items.

        What is deep or large is one leaf; what has too many leaves as a whole is one entry at `""`, beside what is
        clear. Member names that neither the protocol nor `tool` (digest, definition) declares appear as `#HMAC`.
        """
        shape: dict[str, Any] = {}
        fits = self._walk(shape, arguments, "", MAX_DEPTH, self._names(*tool) if tool else _PROTOCOL_MEMBERS)
        if not fits or (len(shape) > MAX_ITEMS and len(orjson.dumps(shape)) > MAX_SHAPE_BYTES):
            shape = {"": {"type": "object", "size": len(arguments)}}
        if clear:
            self._disclose(shape, arguments, clear, mask)
        return shape

    def _walk(self, shape: dict[str, Any], value: Any, pointer: str, depth: int, names: Mapping[str, str]) -> bool:
        """Add the leaves of `value`; False once they are too many."""
        if not depth or not 0 < len(value) <= (MAX_ITEMS if isinstance(value, list) else MAX_MEMBERS):
            tag = self.tag(b"value", text_of(value))
            shape[pointer] = {"type": _type_of(value), "size": len(value), "hmac": tag}
            return True
        for key, item in enumerate(value) if isinstance(value, list) else value.items():
            shown = names.get(key) if isinstance(key, str) else str(key)
            if shown is None:
                shown = "#" + self.tag(b"name", _utf8(str(key)))[:16]
            here = f"{pointer}/{shown}"
            if isinstance(item, str):
                shape[here] = {"type": "string", "size": len(item), "hmac": self.tag(b"value", text_of(item))}
            elif isinstance(item, (dict, list)):
                if not self._walk(shape, item, here, depth - 1, names):
                    return False
            elif item is None:
                shape[here] = {"type": "null"}
            else:
                shape[here] = {"type": _type_of(item), "hmac": self.tag(b"value", text_of(item))}
        return len(shape) <= MAX_LEAVES

    def _disclose(self, shape: dict[str, Any], arguments: Any, clear: Sequence[str], mask: Sequence[str]) -> None:
        room = MAX_SHAPE_BYTES
        masks = [_normal(pointer) for pointer in mask]
        for wanted in clear[:MAX_CLEAR]:
            for pointer, value in _scalars(*_resolve(arguments, wanted), MAX_DEPTH):
                # A member's name may be a secret as well as a value: then it stays as its HMAC.
                if (
                    len(pointer) > 2 * _MAX_KEY
                    or conceal(pointer)[1]
                    or any(_covers(masked, pointer) for masked in masks)
                ):
                    continue
                leaf = {"type": _type_of(value), **_clear_form(value)}
                room -= len(pointer) * 4 + len(orjson.dumps(leaf))
                if room < 0:
                    return
                shape[printable(pointer, 4 * _MAX_KEY)] = leaf

    def _names(self, digest: str, definition: Mapping[str, Any]) -> Mapping[str, str]:
        """The names that a tool's inputSchema declares at any place -> as pointer tokens; kept by its digest."""
        names = self._declared.get(digest)
        if names is None:
            if len(self._declared) >= 1024:  # a bound, not a cache policy: definitions change a few times a day
                self._declared.clear()
            found = _declared(definition.get("inputSchema"), 32)
            names = self._declared[digest] = {name: _token(name) for name in found}
        return names


_ABSENT: Final = object()


def _scalars(value: Any, pointer: str, depth: int) -> Iterator[tuple[str, Any]]:
    """The scalars below `value` with their pointers as they are; what is deep or large is left out."""
    if isinstance(value, dict):
        if depth and len(value) <= MAX_MEMBERS:
            for key, item in value.items():
                yield from _scalars(item, f"{pointer}/{_token(key)}", depth - 1)
    elif isinstance(value, list):
        if depth and len(value) <= MAX_ITEMS:
            for n, item in enumerate(value):
                yield from _scalars(item, f"{pointer}/{n}", depth - 1)
    elif value is not _ABSENT:
        yield pointer, value


def _declared(schema: Any, depth: int) -> Iterator[str]:
    if not depth:
        return
    if isinstance(schema, dict):
        properties = schema.get("properties")
        if isinstance(properties, dict):
            yield from (
                name for name in properties if len(name) <= _MAX_KEY and name.isprintable() and "\\" not in name
            )
        for item in schema.values():
            yield from _declared(item, depth - 1)
    elif isinstance(schema, list):
        for item in schema:
            yield from _declared(item, depth - 1)


def text_of(value: Any) -> bytes:
    """The bytes that stand for a JSON value: compact JSON with sorted members (else, only after a defect, its text).

    That is RFC 8785 but for numbers with a fraction or an exponent, which keep their own form. RFC 8785 itself takes
    Python seconds for megabytes of numbers, and a caller chooses those.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except (ValueError, TypeError):
        return repr(value).encode("utf-8", "surrogatepass")


_TYPES: Final = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
}


def _type_of(value: Any) -> str:
    return _TYPES.get(type(value), "object")


def _clear_form(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        shown, masked = conceal(value)
        told = {"masked": list(masked)} if masked else {}
        return {"size": len(value), "value": printable(shown, _MAX_CLEAR_TEXT), **told}
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    if type(whole) is int and is_card_number(str(abs(whole))):
        return {"value": "[card number removed]", "masked": ["card number"]}
    if isinstance(value, float) or (isinstance(value, int) and abs(value) > _SAFE_INTEGER):
        return {"value": repr(value)[:_MAX_CLEAR_TEXT]}  # as text: numbers that not every reader reads alike
    return {"value": value}


def _token(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _covers(masked: str, pointer: str) -> bool:
    return not masked or pointer == masked or pointer.startswith(masked + "/")


def _normal(pointer: str) -> str:
    """A pointer in its one spelling; what is none covers everything."""
    return "".join("/" + _token(_untoken(token)) for token in pointer.split("/")[1:]) if pointer[:1] == "/" else ""


def _untoken(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")


def _resolve(document: Any, pointer: str) -> tuple[Any, str]:
    """RFC 6901, read strictly: the value there, or `_ABSENT`, and the pointer in its one spelling."""
    if pointer and not pointer.startswith("/"):
        return _ABSENT, pointer
    value = document
    for token in pointer.split("/")[1:]:
        if isinstance(value, dict):
            value = value.get(_untoken(token), _ABSENT)
        elif isinstance(value, list) and re.fullmatch(r"0|[1-9][0-9]{0,8}", token) and int(token) < len(value):
            value = value[int(token)]
        else:
            return _ABSENT, pointer
    return value, _normal(pointer)
