"""Settings from a YAML file, overridden by the environment (`OSTIARY_` prefix, `__` between levels).

A doubled key is an error like an unknown one, and every mistake is told at once. Relative paths are taken from the
configuration file's folder, so that every command sees the same files wherever it is run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from gateway.config import (
    AuditSettings,
    ConfigError,
    EmbeddedPolicySettings,
    ListenTls,
    OpaPolicySettings,
    PublishedAs,
    RegistrySettings,
    ServerSettings,
    Settings,
    ShadowSettings,
    TlsSettings,
)
from gateway.inclusion import hold_to_lock, include, read_servers
from gateway.variables import check_variables, is_setting


class _StrictLoader(yaml.SafeLoader):
    """YAML with one reading: a doubled key is an error, and so is what is none of its kind (a 30th of February)."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, OverflowError):  # what the library's constructors let out
            raise yaml.constructor.ConstructorError(
                None, None, "the value is none of its kind", node.start_mark
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _anchor_policy(
    policy: EmbeddedPolicySettings | OpaPolicySettings, folder: Path
) -> EmbeddedPolicySettings | OpaPolicySettings:
    shadow = None if policy.shadow is None else _anchor_files(policy.shadow, folder, "path", "file")
    if isinstance(policy, EmbeddedPolicySettings):
        return _anchor_files(policy.model_copy(update={"shadow": shadow}), folder, "path")
    return _anchor_files(policy.model_copy(update={"shadow": shadow}), folder)


_Files = TypeVar(
    "_Files",
    EmbeddedPolicySettings,
    ListenTls,
    OpaPolicySettings,
    RegistrySettings,
    ServerSettings,
    ShadowSettings,
    TlsSettings,
)


def _anchor_files(settings: _Files, folder: Path, *names: str) -> _Files:
    """The files of these names, where there are any, and those of `tls`."""
    changed: dict[str, Any] = {name: folder / file for name in names if (file := getattr(settings, name, None))}
    if tls := getattr(settings, "tls", None):
        changed["tls"] = _anchor_files(tls, folder, "ca", "cert", "key")
    return settings.model_copy(update=changed)


def _anchor(settings: Settings, folder: Path, home: Path) -> Settings:
    """Relative paths, taken from the configuration file's folder; what must not be forgotten, from `home`."""
    scheme, _, file = settings.approvals.database.partition(":///")
    database = f"sqlite:///{home / file}" if scheme == "sqlite" else settings.approvals.database
    issuers = tuple(
        issuer.model_copy(update={"jwks_file": folder / issuer.jwks_file}) if issuer.jwks_file else issuer
        for issuer in settings.identity.issuers
    )
    servers = {name: _anchor_server(server, folder) for name, server in settings.servers.items()}
    tls = settings.listen.tls
    tls = None if tls is None else _anchor_files(tls, folder, "cert", "key", "client_ca")
    return settings.model_copy(
        update={
            "listen": settings.listen.model_copy(update={"tls": tls}),
            "servers": servers,
            "identity": settings.identity.model_copy(update={"issuers": issuers}),
            "policy": _anchor_policy(settings.policy, folder),
            "pins": settings.pins.model_copy(update={"file": folder / settings.pins.file}),
            "audit": _anchor_audit(settings.audit, home),
            "approvals": settings.approvals.model_copy(update={"database": database}),
            "registry": _anchor_files(settings.registry, folder, "lock", "servers"),
        }
    )


def _anchor_server(server: ServerSettings, folder: Path) -> ServerSettings:
    """A server's files, its record's included."""
    published = server.registry
    if published is not None and published.file is not None:
        published = PublishedAs(record=str(folder / published.file))
    return _anchor_files(server.model_copy(update={"registry": published}), folder)


def _anchor_audit(audit: AuditSettings, folder: Path) -> AuditSettings:
    chosen = audit.checkpoints
    if chosen is not None and chosen.file is not None:
        chosen = chosen.model_copy(update={"file": folder / chosen.file})
    return audit.model_copy(update={"file": folder / audit.file, "checkpoints": chosen})


def _under_environment(document: dict[str, Any]) -> dict[str, Any]:
    """The file's settings and the environment's, which win. Raises `ConfigError`."""
    if not any(is_setting(name) for name in os.environ):
        return document
    from gateway.environment import read_environment  # noqa: PLC0415 - a library for this alone

    return _merged(document, read_environment())


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`under` and `over`, which wins; maps within each other are merged as well."""
    both = {name for name in over if isinstance(over[name], dict) and isinstance(under.get(name), dict)}
    return {**under, **over, **{name: _merged(under[name], over[name]) for name in both}}


def read_yaml(file: Path, content: bytes | None = None) -> tuple[dict[str, Any], str]:
    """A YAML file with one reading -> the mapping, and its text. Raises `OSError` and `ConfigError`."""
    try:
        text = (file.read_bytes() if content is None else content).decode("utf-8")
        document = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        # Without the piece of text that the library would show: it may be a secret.
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{file}{line}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file}: not YAML: {type(error).__name__}") from None
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise ConfigError(f"{file}: must be a mapping of settings")
    return document, text


def read_stanzas(file: Path) -> dict[str, Any]:
    """The servers of a file that `registry.servers` names; none where there is no file. Raises `ConfigError`."""
    return read_servers(file, read_yaml)[0]


def load_settings(
    file: Path,
    content: bytes | None = None,
    *,
    admitted: bool = True,
    home: Path | None = None,
    stanzas: bytes | None = None,
) -> Settings:
    """`read_settings` without the digests."""
    return read_settings(file, content, admitted=admitted, home=home, stanzas=stanzas)[0]


def read_settings(
    file: Path,
    content: bytes | None = None,
    *,
    admitted: bool = True,
    home: Path | None = None,
    stanzas: bytes | None = None,
) -> tuple[Settings, Mapping[str, str]]:
    """The YAML file and the environment -> settings, and the SHA-256 of each file's text that was read for them
    (`configuration`, `registry.servers`, `registry.lock`; `""` for one that there is none of).

    Raises `ConfigError` naming every setting that is wrong.

    `content`: what `file` held when it was read, where that was done already.
    `admitted`: servers from a registry have to be as they were admitted; only who admits them anew passes over that.
    `home`: where the record and the database are, should `file` be a link that led elsewhere when the gateway began.
    `stanzas`: what the file of those servers is to hold, where that is not there yet.
    """
    folder = file.resolve().parent
    try:
        document, text = read_yaml(file, content)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    check_variables(document)
    included = include(document, folder, read_yaml if stanzas is None else lambda file: read_yaml(file, stanzas))
    try:
        settings = Settings(**_under_environment(document))
    except ValidationError as error:
        from gateway.mistakes import mistakes_in  # noqa: PLC0415 - with what it needs to guess what was meant

        place = (file, yaml.compose(text, Loader=_StrictLoader))
        theirs = included.file and (included.file, yaml.compose(included.text, Loader=_StrictLoader))
        others = dict.fromkeys(included.names, theirs) if theirs else {}
        raise ConfigError("\n".join(one.line() for one in mistakes_in(error, *place, others))) from error
    anchored = _anchor(settings, folder, home or folder)
    texts = {"configuration": _digest(text), "registry.servers": _digest(included.text) if included.text else ""}
    texts["registry.lock"] = hold_to_lock(anchored, included) if admitted else ""
    return anchored, texts


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
