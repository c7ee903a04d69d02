"""Which variables of the environment are settings, and which only look like it: those would silently do nothing.

One that begins with the product's prefix may also hold a secret that a setting ending in `_env` names, or be a
command's own (`OSTIARY_TOKEN`): what is neither a setting nor near to one is left alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from gateway.config import ConfigError, Group, Settings

PREFIX: Final = "OSTIARY_"

NEAR: Final = 0.8
"""How alike (0 to 1, difflib's ratio) a name is to a setting's that was meant to be it: `LISTN` is 0.91 `LISTEN`."""

_SECRET: Final = re.compile(r".*(KEYS?|TOKENS?|SECRETS?|PASSWORDS?|DATABASE(_URL|_DSN)?)", re.ASCII)
"""What variables that hold a secret end in. A reload can drop the setting that names one, and not unset it."""


def is_setting(name: str) -> bool:
    """Whether the variable sets a setting, or something within one; in capitals or not."""
    return name.upper().startswith(PREFIX) and _group(name) in Settings.model_fields


def check_variables(document: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a variable that is spelt like a setting's and is none.

    `document`: the file's settings, whose `…_env` name what holds their secrets.
    """
    ours = [name for name in os.environ if name.upper().startswith(PREFIX)]
    named = {text.upper() for text in _named_in(document)} if ours else set()
    for name in ours:
        if name.upper() in named:
            continue
        spelt = f"the environment variable {name}"
        if name.upper() in _NEARLY:
            raise ConfigError(f"{spelt}: is no setting; {_NEARLY[name.upper()]} is one")
        if is_setting(name):
            continue
        if "__" in name:
            raise ConfigError(f"{spelt}: there is no setting {_group(name)}{_meant(name)}")
        if mend := _meant(name):
            raise ConfigError(f"{spelt}: is no setting{mend}")


def _group(name: str) -> str:
    """The setting at the top that a variable is about, if there is one of this name."""
    return name[len(PREFIX) :].partition("__")[0].lower()


def _meant(name: str) -> str:
    """What to write instead of a variable, where a setting's is near; for what may hold a secret, nothing."""
    from difflib import get_close_matches  # noqa: PLC0415 - for who has misspelt something

    group, nested, rest = name.upper()[len(PREFIX) :].partition("__")
    tops = [top.upper() for top in Settings.model_fields]
    if nested:
        nearest = get_close_matches(group, tops, 1)
        return f" -> did you mean {PREFIX}{nearest[0]}__{rest}?" if nearest else ""
    deeper = {nearly[len(PREFIX) :]: right for nearly, right in _NEARLY.items() if not nearly.endswith("_ENV")}
    variables = {**deeper, **{top: f"{PREFIX}{top}" for top in tops}}
    found = get_close_matches(group, variables, 1, NEAR)
    return f" -> did you mean {variables[found[0]]}?" if found and not _SECRET.fullmatch(group) else ""


def _named_in(settings: Any) -> Iterator[str]:
    """The variables that settings ending in `_env` name, however deep."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            if str(key).endswith("_env") and isinstance(value, str):
                yield value
            else:
                yield from _named_in(value)
    elif isinstance(settings, Sequence) and not isinstance(settings, str):
        for one in settings:
            yield from _named_in(one)


def _settings_in_groups() -> Iterator[tuple[str, str]]:
    for group, field in Settings.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):
            for one in (kind, *get_args(kind)):
                if isinstance(one, type) and issubclass(one, Group):
                    for name in one.model_fields:
                        yield group.upper(), name.upper()


_NEARLY: Final = {f"{PREFIX}{group}_{name}": f"{PREFIX}{group}__{name}" for group, name in _settings_in_groups()}
"""Variables with one underscore where two would make them a setting."""
