"""What the environment sets: `OSTIARY_` and the setting's name, `__` between levels, lists and maps as JSON.

pydantic-settings reads it, and is loaded for nothing else: most gateways set everything in the file, and then no
process holds it (1.4 MB, 20 ms).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

from gateway.config import ConfigError, Settings


def read_environment() -> dict[str, Any]:
    """The settings that variables hold, in their groups, not judged yet. No .env file and no secrets folder is read.

    Raises `ConfigError` for text that is no JSON where a list or a map is wanted.
    """
    try:
        return _source()()
    except SettingsError as error:
        raise ConfigError("\n".join(_not_json())) from error


def _source() -> EnvSettingsSource:
    # Of the class it reads only the fields and their kinds, which every model has.
    return EnvSettingsSource(
        cast("type[BaseSettings]", Settings), env_prefix="OSTIARY_", env_nested_delimiter="__", case_sensitive=False
    )


def _not_json() -> Iterator[str]:
    """The variables whose text is no JSON although their setting is a list or a map."""
    for name, text in _source().env_vars.items():
        one = _source()
        one.env_vars = {name: text}
        try:
            one()
        except SettingsError:
            yield f"the environment variable {name.upper()}: lists and maps are written as JSON there"
