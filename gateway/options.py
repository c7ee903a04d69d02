"""What the commands of the house share: `--config`, and how they say that something could not be asked."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NoReturn

import click

COULD_NOT_ASK: Final = 2
INTERRUPTED: Final = 130
"""By Ctrl-C: what a shell says of a process that SIGINT ended (128 and the signal's number)."""
config_option = click.option(
    "--config",
    "config",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The configuration file (YAML).",
)


def fail(message: object) -> NoReturn:
    """Say on standard error what could not be asked, and exit 2."""
    click.echo(str(message), err=True)
    raise SystemExit(COULD_NOT_ASK)
