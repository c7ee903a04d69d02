"""`params.arguments` of `prompts/get` against what the prompt declares: a name each, required or not.

What is declared as required has to be there, what is not declared must not, and every value is a text. The refusal
says what is missing or unknown, and never what was sent as a value (server/prompts; schema `PromptArgument`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.contract.complaints import MOST, missing, mistyped, unknown
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.schemas import Unusable

_SENTENCE = "The prompt was not asked for: its arguments do not fit what it declares."


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a prompt declares: argument -> whether it is required; `None`: its arguments are not looked at."""

    arguments: Mapping[str, bool] | None


UNREAD = Prompt(None)
"""A prompt whose server is trusted to look at arguments itself."""


def read_prompt(item: Mapping[str, Any]) -> Prompt:
    """An item of `prompts/list`, which has a name. Raises `Unusable` where what it declares can't be told."""
    declared = item.get("arguments")
    if declared is None:
        return Prompt({})
    if not isinstance(declared, list):
        raise Unusable("arguments is not an array")
    arguments: dict[str, bool] = {}
    for one in declared:
        name = one.get("name") if isinstance(one, dict) else None
        if not isinstance(name, str) or not isinstance(required := one.get("required", False), bool):
            raise Unusable("an argument without a name, or that is required in no known way")
        if name in arguments:
            raise Unusable("an argument that is declared twice")
        arguments[name] = required
    return Prompt(arguments)


def check_prompt(prompt: Prompt, arguments: Mapping[str, Any]) -> None:
    """Raise `Refused(PARAMS_INVALID)` unless `arguments` are what the prompt takes."""
    declared = prompt.arguments
    if declared is None:
        return
    absent = [name for name, required in declared.items() if required and name not in arguments]
    strange = [name for name in arguments if name not in declared]
    no_text = [name for name, value in arguments.items() if name in declared and not isinstance(value, str)]
    if not absent and not strange and not no_text:
        return
    lines = [missing(name) for name in absent] + ([unknown(strange)] if strange else [])
    lines += [mistyped((name,), "string") for name in no_text]
    told = "\n".join(f"- {line}" for line in lines[:MOST])
    more = f"\n- and {len(lines) - MOST} more" if len(lines) > MOST else ""
    found = {"missing": absent, "unknown": strange, "type": no_text}
    detail = " ".join(f"{len(names)} {what}" for what, names in found.items() if names)
    raise Refused(Refusal.PARAMS_INVALID, f"prompt: {detail}", message=f"{_SENTENCE}\n{told}{more}")
