"""What may be sent a second time: one question, asked by admission of every call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.contract.methods import METHODS
from gateway.contract.passage import Call, Server, Tool
from gateway.contract.repeating import is_repeatable
from tests.support.upstream import SERVER, a_call

AGREED = replace(SERVER, idempotent_tools=frozenset({"add"}))
TOOL = Tool("add", "0" * 64, {"idempotentHint": True}, {}, pinned=True)
READS = {
    "server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read",
    "prompts/get",
}  # fmt: skip


def ask(call: Call, server: Server = AGREED, tool: Tool | None = TOOL, *, gated: bool = False) -> bool:
    return is_repeatable(server, call, tool, once=gated)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_discovery_lists_and_reads_may_be_repeated_and_no_other_method(method: str) -> None:
    """Of all methods of the revision exactly seven; `tools/call` needs more than its name."""
    kind = "tool" if method == "tools/call" else "other"
    assert ask(a_call(method=method, kind=kind), server=SERVER) is (method in READS)


def test_a_read_that_a_person_approved_is_not_repeated() -> None:
    """A use is of one execution, of a resource or prompt as well."""
    for method in sorted(READS):
        assert ask(a_call(method=method, kind="other"))
        assert not ask(a_call(method=method, kind="other"), gated=True)


def test_a_tool_needs_its_accepted_definition_and_the_configuration() -> None:
    """`idempotentHint` of a pinned definition, and the tool's name in the settings: without either, once."""
    assert ask(a_call())
    assert not ask(a_call(), server=SERVER)
    assert not ask(a_call(), server=replace(SERVER, idempotent_tools=frozenset({"ad", "addd", "ADD"})))
    assert not ask(a_call(), tool=None)
    assert not ask(a_call(), tool=replace(TOOL, pinned=False))
    for hints in (
        {},
        {"idempotentHint": False},
        {"idempotentHint": 1},
        {"idempotentHint": "true"},
        {"readOnlyHint": True},
    ):
        assert not ask(a_call(), tool=replace(TOOL, annotations=hints)), hints


def test_a_call_that_consumed_an_approval_is_sent_once() -> None:
    """Whatever tool and configuration say; a grant's use is one as well."""
    assert ask(a_call())
    assert not ask(a_call(), gated=True)


@pytest.mark.parametrize("method", ["tools/call", "resources/read", "prompts/get"])
def test_what_goes_on_with_an_earlier_request_is_sent_once(method: str) -> None:
    """A server may take a state or an answer once."""
    first = a_call(method=method, kind="tool" if method == "tools/call" else "other")
    assert ask(first)
    assert not ask(replace(first, request_state="s"))
    assert not ask(replace(first, input_responses={}))


def test_a_notification_is_sent_once() -> None:
    """Nobody waits for what would be repeated."""
    assert not ask(a_call(None, method="tools/list", kind="list"))
