"""The official Python SDK writes parameters' headers and judges annotations as the gateway does: HDR-13, SEP-2243."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map

from gateway.contract.bindings import check_bindings, mirror, read_bindings
from gateway.contract.schemas import Unusable
from tests.contract.test_bindings import SCALARS

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
        "where": {"type": "object", "properties": {"flag": {"type": "boolean", "x-mcp-header": "Flag"}}},
    },
}
BINDINGS = read_bindings(SCHEMA)
ANNOTATED = st.sampled_from(
    [
        {"type": kind, "x-mcp-header": name}
        for kind in ("string", "integer", "boolean", "number", "array", ["string"])
        for name in ("A", "a", "B", "", "a b", 5)
    ]
)
SCHEMAS = st.recursive(
    ANNOTATED,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["a", "b", "x-mcp-header"]), inner, max_size=2).map(
            lambda one: {"properties": one}
        ),
        st.sampled_from(["items", "not", "if", "additionalProperties"]).flatmap(
            lambda key: inner.map(lambda one: {key: one})
        ),
        st.sampled_from(["allOf", "anyOf", "prefixItems"]).flatmap(lambda key: inner.map(lambda one: {key: [one]})),
        st.sampled_from(["$defs", "default", "const"]).flatmap(lambda key: inner.map(lambda one: {key: {"a": one}})),
    ),
    max_leaves=4,
)


def lines(arguments: dict[str, Any]) -> tuple[tuple[bytes, bytes], ...]:
    """The headers of the SDK's client, as they arrive."""
    written = mcp_param_headers(x_mcp_header_map(SCHEMA), arguments)
    return tuple((name.lower().encode(), value.encode()) for name, value in written.items())


@given(st.none() | SCALARS, st.none() | SCALARS, st.none() | SCALARS)
def test_what_the_sdk_sends_is_accepted(region: Any, count: Any, flag: Any) -> None:
    """Any scalar at any path: the client's headers agree with the arguments, and the gateway would name the same."""
    arguments = {"region": region, "count": count, "where": {"flag": flag}}
    check_bindings(BINDINGS, arguments, lines(arguments))
    assert {name for name, _ in mirror(BINDINGS, arguments)} == {name for name, _ in lines(arguments)}


@given(SCHEMAS)
def test_the_sdk_finds_the_same_tools_invalid(schema: dict[str, Any]) -> None:
    """No tool that a right client keeps is left out by the gateway, and none that it drops is listed."""
    wrong = find_invalid_x_mcp_header(schema)
    if wrong is None:
        assert {binding.path for binding in read_bindings(schema)} == set(x_mcp_header_map(schema))
    else:
        with pytest.raises(Unusable):
            read_bindings(schema)
