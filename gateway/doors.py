"""From `--config` to rooms: what is opened for the commands of those who administer a gateway here."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.config import ConfigError, EmbeddedPolicySettings
from gateway.config_file import load_settings

if TYPE_CHECKING:
    from approvals.desk import Desk
    from gateway.audit.place import Place
    from gateway.pins.acceptance import Acceptance
    from gateway.registry.room import RegistryRoom


def door_of(command: str, audit_place: Callable[[Path], Place]) -> object:
    """What the group of commands of this name gets as `ctx.obj`. Its room is loaded here, and no other."""
    if command == "approvals":
        from approvals.clerks import LocalDoor  # noqa: PLC0415 - see cli.House

        return LocalDoor(open_desk, database=database_of)
    if command == "pins":
        from gateway.pins.commands import PinDoor  # noqa: PLC0415

        return PinDoor(open_pins)
    if command == "policy":
        from gateway.rehearsal.commands import PolicyDoor  # noqa: PLC0415

        return PolicyDoor(bundle_of, shadow_file_of, audit_place)
    from gateway.registry.room import RegistryDoor  # noqa: PLC0415

    return RegistryDoor(open_registry)


def bundle_of(config: Path) -> Path:
    """The folder of a configuration's bundle. Raises `ValueError` where it can't be read, or there is none."""
    try:
        policy = load_settings(config).policy
    except ConfigError as error:
        raise ValueError(str(error)) from error
    if not isinstance(policy, EmbeddedPolicySettings):
        raise ValueError("policy.engine is opa: name the bundle's folder")  # noqa: TRY004 - a value of the file
    return policy.path


def shadow_file_of(config: Path) -> Path:
    """Where a configuration's shadow keeps its disagreements. Raises `ValueError` as above."""
    try:
        shadow = load_settings(config).policy.shadow
    except ConfigError as error:
        raise ValueError(str(error)) from error
    if shadow is None:
        raise ValueError("policy.shadow is not set: nobody looks on")
    return shadow.file


def database_of(config: Path) -> str:
    """Where a configuration keeps its tickets. Raises `ValueError` where it can't be read."""
    try:
        return load_settings(config).database_url
    except ConfigError as error:
        raise ValueError(str(error)) from error


@asynccontextmanager
async def open_desk(config: Path) -> AsyncIterator[Desk]:
    """A desk on the configured store, for a local administrator; its acts are records of a writer of their own."""
    from gateway.lobbies import desk_lobby  # noqa: PLC0415
    from gateway.opening import CannotStart  # noqa: PLC0415
    from gateway.plan import make_plan  # noqa: PLC0415

    try:
        async with desk_lobby(make_plan(load_settings(config))) as desk:
            yield desk
    except (ConfigError, ValueError, CannotStart) as error:
        raise click.ClickException(str(error)) from error


@asynccontextmanager
async def open_pins(config: Path, recorded: bool) -> AsyncIterator[Acceptance]:
    """The pins beside what the configured servers offer, for a local administrator."""
    from gateway.contract.pins import PinsUnreadable  # noqa: PLC0415
    from gateway.lobbies import pin_lobby  # noqa: PLC0415
    from gateway.logs import set_up_logs  # noqa: PLC0415
    from gateway.opening import CannotStart  # noqa: PLC0415
    from gateway.plan import make_plan  # noqa: PLC0415

    set_up_logs(logging.ERROR)
    try:
        async with pin_lobby(make_plan(load_settings(config)), recorded=recorded) as acceptance:
            yield acceptance
    except PinsUnreadable:
        raise
    except (ConfigError, ValueError, CannotStart) as error:
        raise click.ClickException(str(error)) from error


@asynccontextmanager
async def open_registry(config: Path, recorded: bool) -> AsyncIterator[RegistryRoom]:
    """Published records beside live servers and the private registry, for a local administrator."""
    from gateway.lobbies import registry_lobby  # noqa: PLC0415
    from gateway.logs import set_up_logs  # noqa: PLC0415
    from gateway.opening import CannotStart  # noqa: PLC0415
    from gateway.plan import make_plan  # noqa: PLC0415

    set_up_logs(logging.ERROR)

    def unfit(stanzas: bytes) -> str:
        try:
            make_plan(load_settings(config, admitted=False, stanzas=stanzas))
        except ConfigError as error:
            return str(error)
        return ""

    try:
        plan = make_plan(load_settings(config, admitted=False))
        async with registry_lobby(plan, unfit, recorded=recorded) as room:
            yield room
    except (ConfigError, CannotStart) as error:
        raise click.ClickException(str(error)) from error
