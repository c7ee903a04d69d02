"""`x-mcp-header` in a tool's `inputSchema` and the `Mcp-Param-*` headers of its calls: they agree, or it is refused.

A balancer may have routed by such a header, so it says exactly what the argument says, on the one path that the
annotation names; a header that no annotation names is nobody's business (contract.md section 3; SEP-2243; HDR-13).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from gateway.contract.headers import decode_value, encode_value
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.schemas import Schema, Unusable, subschemas

ANNOTATION: Final = "x-mcp-header"
PREFIX: Final = "Mcp-Param-"

_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_TYPES: Final = frozenset({"string", "integer", "boolean"})
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,32})?(?:[eE][+-]?[0-9]{1,3})?")
_LARGEST: Final = 2**53 - 1

ParamHeaders = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Binding:
    """An annotated property: its path from the root of `arguments`, its header, lower case and as it is spelled."""

    path: tuple[str, ...]
    header: bytes
    spelled: str


def read_bindings(schema: Schema) -> tuple[Binding, ...]:
    """The annotations of an `inputSchema`, in no order that matters. Raises `Unusable` where one is invalid.

    Valid is an RFC 9110 token, unique in the schema ignoring case, on a property of type string, integer or boolean
    that is reached from the root through `properties` alone. An annotation at any other place is invalid as well.
    """
    found: dict[str, Binding] = {}
    waiting: list[tuple[tuple[str, ...] | None, Any]] = [((), schema)]
    while waiting:
        path, node = waiting.pop()
        if not isinstance(node, dict):
            continue
        if ANNOTATION in node:
            binding = _bind(path, node)
            key = binding.spelled.lower()
            if key in found:
                raise Unusable(f"{ANNOTATION} {binding.spelled!r} stands twice")
            found[key] = binding
        for keyword, name, inner in subschemas(node):
            reached = path is not None and keyword == "properties"
            waiting.append(((*path, name) if reached and path is not None else None, inner))
    return tuple(found.values())


def _bind(path: tuple[str, ...] | None, node: Schema) -> Binding:
    name = node[ANNOTATION]
    if not path:
        raise Unusable(f"{ANNOTATION} where no chain of properties leads")
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise Unusable(f"{ANNOTATION} of {'.'.join(path)[:128]!r} is not a header name's token")
    if not isinstance(kind := node.get("type"), str) or kind not in _TYPES:
        raise Unusable(f"{ANNOTATION} {name!r} on what is not of type string, integer or boolean")
    spelled = PREFIX + name
    return Binding(path, spelled.lower().encode("ascii"), spelled)


def check_bindings(bindings: Sequence[Binding], arguments: Mapping[str, Any], param_headers: ParamHeaders) -> None:
    """Hold each bound header against its argument. Raises `Refused(HEADER_MISMATCH)` naming the header.

    `param_headers` are a call's `Mcp-Param-*` lines, names in lower case, each once. A string is equal once decoded,
    a number numerically and within +-(2^53 - 1), a boolean is `true` or `false`. For what is absent or null, and for
    what no header can say (an object, a list), the header has to be absent as well.
    """
    sent = dict(param_headers)
    for binding in bindings:
        value = _value_at(arguments, binding.path)
        header = sent.get(binding.header)
        if value is None or isinstance(value, (dict, list)):
            if header is not None:
                raise _mismatch(binding, "was sent for an argument without a value that it could say")
            continue
        if header is None:
            raise _mismatch(binding, "is missing")
        try:
            told = decode_value(header)
        except ValueError as error:
            raise _mismatch(binding, f"is malformed: {error}") from None
        if not _says(told, value):
            raise _mismatch(binding, "does not say what the argument says")


def without_nulls(bindings: Sequence[Binding], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments without the bound ones that are null: the revision takes them for absent, whatever their type."""
    for binding in bindings:
        *parents, last = binding.path
        holder = _value_at(arguments, tuple(parents))
        if isinstance(holder, dict) and holder.get(last, last) is None:
            arguments = _without(arguments, binding.path)
    return arguments


def _without(arguments: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    name, *rest = path
    if not rest:
        return {key: value for key, value in arguments.items() if key != name}
    return {**arguments, name: _without(arguments[name], tuple(rest))}


def mirror(bindings: Sequence[Binding], arguments: Mapping[str, Any]) -> tuple[tuple[bytes, bytes], ...]:
    """The headers that a right client sends for these arguments."""
    lines = []
    for binding in bindings:
        value = _value_at(arguments, binding.path)
        if value is not None and not isinstance(value, (dict, list)):
            lines.append((binding.header, encode_value(_text(value))))
    return tuple(lines)


def mirror_anew(
    bindings: Sequence[Binding], arguments: Mapping[str, Any], param_headers: ParamHeaders
) -> tuple[tuple[bytes, bytes], ...]:
    """A call's `Mcp-Param-*` lines for a body that was written anew: bound ones from it, the others as they came."""
    bound = {binding.header for binding in bindings}
    kept = tuple(line for line in param_headers if line[0] not in bound)
    return (*kept, *mirror(bindings, arguments))


def _value_at(arguments: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(arguments, dict):
            return None
        arguments = arguments.get(name)
    return arguments


def _says(told: str, value: Any) -> bool:
    if isinstance(value, str):
        return told == value
    if isinstance(value, bool):
        return told == ("true" if value else "false")
    # Decimal is exact where a double is not: 9007199254740993 is not 9007199254740992, 42.00000000000000001 not 42.
    return abs(value) <= _LARGEST and bool(_NUMBER.fullmatch(told)) and Decimal(told) == Decimal(repr(value))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if value == int(value) else repr(value)


def _mismatch(binding: Binding, what: str) -> Refused:
    text = f"{binding.spelled} header {what}"
    return Refused(Refusal.HEADER_MISMATCH, text, message=f"Header mismatch: {text}.")
