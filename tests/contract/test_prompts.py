"""A prompt's arguments against what it declares (server/prompts; issue text "Prompt arguments")."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.contract.prompts import UNREAD, check_prompt, read_prompt
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.schemas import Unusable

REPORT = read_prompt({"name": "report", "arguments": [{"name": "account", "required": True}, {"name": "tone"}]})


@pytest.mark.parametrize("arguments", [{"account": "a"}, {"account": "", "tone": "dry"}])
def test_declared_arguments_pass(arguments: dict[str, Any]) -> None:
    """All that is required, and nothing that is not declared."""
    check_prompt(REPORT, arguments)
    check_prompt(read_prompt({"name": "bare"}), {})
    check_prompt(read_prompt({"name": "bare", "arguments": []}), {})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, ['lacks the required member "account"']),
        ({"tone": "dry"}, ['lacks the required member "account"']),
        ({"account": "a", "Tone": "canary"}, ['has unknown members: "Tone"']),
        ({"account": 5}, ['"arguments/account": must be of type string']),
        ({"account": None}, ['"arguments/account": must be of type string']),
        ({"x": "canary", "tone": 5}, ["lacks the required", 'unknown members: "x"', '"arguments/tone": must be of']),
    ],
)
def test_what_does_not_fit_is_named_and_never_repeated(arguments: dict[str, Any], said: list[str]) -> None:
    """-32602 with what is missing, unknown or of a wrong type; no value comes back or goes to the record."""
    with pytest.raises(Refused) as caught:
        check_prompt(REPORT, arguments)
    refused = caught.value
    assert (refused.refusal, refused.refusal.value.code) == (Refusal.PARAMS_INVALID, -32602)
    assert refused.message is not None
    assert all(each in refused.message for each in said)
    assert len(refused.message.split("\n")) == 1 + len(said)
    assert "canary" not in refused.message + refused.detail
    assert not any(f'"{name}"' in refused.detail for name in arguments)


def test_the_answer_is_bounded() -> None:
    """However many are missing or unknown."""
    many = read_prompt({"arguments": [{"name": f"n{number}", "required": True} for number in range(1000)]})
    with pytest.raises(Refused) as caught:
        check_prompt(many, {"x" * 1000 + str(number): "" for number in range(1000)})
    assert caught.value.message is not None
    assert len(caught.value.message) < 20_000


@pytest.mark.parametrize(
    "declared",
    [{}, "account", [1], [{}], [{"name": 1}], [{"name": "a"}, {"name": "a"}], [{"name": "a", "required": 1}]],
)
def test_a_declaration_that_cant_be_told_is_unusable(declared: Any) -> None:
    """Neither guessed nor ignored: the prompt is left out."""
    with pytest.raises(Unusable):
        read_prompt({"name": "p", "arguments": declared})


def test_where_contracts_are_off_the_server_looks_itself() -> None:
    """`arguments: off` holds nothing."""
    check_prompt(UNREAD, {"anything": 5})
