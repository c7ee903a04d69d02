"""Keys and checkpoints that a command was given, or that its configuration names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from gateway.audit.checkpoints import SigningKey, VerifyKey, read_checkpoints, read_verify_key
from gateway.audit.place import give_up, place_of
from gateway.contract.chain import Checkpoint


def anchors_of(ctx: click.Context, config: Path | None, key: SigningKey | None) -> list[Checkpoint]:
    """The configured second place's checkpoints: a chain whose oldest files are gone begins at one of them."""
    place = place_of(ctx, config) if config else None
    if place is None or place.checkpoints is None:
        return []
    return checkpoints_in(place.checkpoints, (key.public,) if key else (), configured=True)


def checkpoints_in(file: Path, trusted: Sequence[VerifyKey], *, configured: bool) -> list[Checkpoint]:
    """The file's checkpoints. Ends the program where they can't be read.

    Also where a configured place holds none: whoever cut the record may have taken them away.
    """
    try:
        points = read_checkpoints(file, trusted)
    except (OSError, ValueError) as error:
        give_up(f"checkpoints: {error}")
    if configured and not points:
        give_up(f"checkpoints: {file} holds none, and audit.checkpoints.file says that they are there")
    return points


def signing_key(ctx: click.Context, config: Path | None, key_env: str | None) -> SigningKey | None:
    """The key in the named variable, or the configuration's."""
    if key_env is None:
        return place_of(ctx, config).key if config else None
    try:
        return SigningKey(os.environ.get(key_env, ""), key_env)
    except ValueError as error:
        give_up(str(error))


def public_key(text: str) -> VerifyKey:
    """From base64url, or from a file that holds it."""
    try:
        return read_verify_key(text)
    except ValueError:
        pass
    try:
        return read_verify_key(Path(text).read_text("ascii"))
    except (OSError, ValueError):
        give_up("--public-key: neither 32 bytes in base64url nor a file that holds them")
