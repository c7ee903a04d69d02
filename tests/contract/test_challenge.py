"""Which challenge a held call gets: what its client declared, what the server's setting prefers, who makes it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from gateway.challenge import Challenge, choose, say_where
from gateway.contract.passage import Call, Envelope

ELICITATION, TASK, ERROR = Challenge.ELICITATION, Challenge.TASK, Challenge.ERROR
URL: dict[str, Any] = {"elicitation": {"url": {}}}
TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
CALL = Call(Envelope(b"{}", 1, "tools/call", {}, {}), "tool", "tools/call", "pay", {}, {})


def chosen(preferred: str, declared: dict[str, Any], made: Collection[Challenge] = tuple(Challenge)) -> Challenge:
    return choose(preferred, replace(CALL, capabilities=declared), made)


@pytest.mark.parametrize(
    ("preferred", "declared", "kind"),
    [
        ("auto", {}, ERROR),
        ("auto", URL, ELICITATION),
        ("auto", TASKS, TASK),
        ("auto", URL | TASKS, ELICITATION),
        ("elicitation", URL | TASKS, ELICITATION),
        ("elicitation", TASKS, ERROR),
        ("task", URL | TASKS, TASK),
        ("task", URL, ERROR),
        ("error", URL | TASKS, ERROR),
    ],
)
def test_the_kind_follows_setting_and_declaration(preferred: str, declared: dict[str, Any], kind: Challenge) -> None:
    """`auto` prefers a page, then a task; a forced kind that was not declared is the error, never another kind."""
    assert chosen(preferred, declared) is kind


@pytest.mark.parametrize(
    "declared",
    [
        {"elicitation": {}},
        {"elicitation": {"form": {}}},
        {"elicitation": {"url": None}},
        {"elicitation": {"url": True}},
        {"elicitation": ["url"]},
        {"elicitation": "url"},
        {"Elicitation": {"url": {}}},
    ],
)
def test_what_is_only_nearly_a_declaration_is_none(declared: dict[str, Any]) -> None:
    """Specification, client/elicitation: an empty declaration is of forms alone; nothing is guessed."""
    assert chosen("auto", declared) is ERROR
    assert chosen("elicitation", declared) is ERROR


def test_what_nobody_makes_is_not_chosen() -> None:
    """Without its maker a kind is as if the client had not declared it."""
    assert chosen("auto", URL | TASKS, {TASK}) is TASK
    assert chosen("auto", URL | TASKS, ()) is ERROR
    assert chosen("task", TASKS, {ELICITATION}) is ERROR


@pytest.mark.parametrize("method", ["resources/read", "prompts/get"])
def test_only_a_tools_call_becomes_a_task(method: str) -> None:
    """The extension gives a task to `tools/call` alone; a page is there for all three."""
    call = replace(CALL, method=method, capabilities=URL | TASKS)
    assert choose("task", call, tuple(Challenge)) is ERROR
    assert choose("auto", call, tuple(Challenge)) is ELICITATION


def test_the_sentence_names_page_and_end() -> None:
    """What a model passes on: where, until when, and what then."""
    said = say_where({"page": "https://gw.example/review/tickets/T", "expiresAt": "2026-07-28T12:34:56.000Z"})
    assert "https://gw.example/review/tickets/T (open until 2026-07-28 12:34 UTC)" in said
    assert said.endswith("repeat the identical call.")
