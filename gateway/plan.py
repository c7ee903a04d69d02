"""The settings, judged as a whole and turned into what the rooms take. Nothing is opened, read or asked here.

A plan is what a start rests on: what can be wrong with a configuration by itself is wrong here, with the setting's
name, before a file is locked or a server is asked.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.audit.checkpoints import SigningKey
from gateway.config import ConfigError, OpaPolicySettings, Settings, SignInClient
from gateway.contract.passage import Server
from gateway.contract.redaction import AuditKeys
from gateway.contract.resources import Reach
from gateway.door.framing import DoorLimits
from gateway.issuers import IssuerSettings
from gateway.origins import accepted_hosts
from gateway.sealing import derive_keys, read_keys
from gateway.sign_in.client import CALLBACK, Client
from gateway.upstream.target import ReplicaAddress, UpstreamTarget, check_replica_url
from gateway.webhooks import Webhook, make_webhook
from gateway.wires.pem import Files
from gateway.wires.statements import StatementKey, Stating, read_statement_keys

LISTENER: Final = "listen.tls"
"""The setting that is about the listener's wire."""

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""RFC 9110, 5.6.2."""

_PASSWORD: Final = re.compile(r"(?<=:)[^/]*(?=@)|(?<=password=)[^&]*")
"""In a database's URL, in both places in which one can stand."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The configuration, judged and turned into what the rooms take. Holds secrets: never printed."""

    settings: Settings
    servers: Mapping[str, Server]
    approvals: Server
    sign_in: tuple[Client, ...]
    issuers: tuple[IssuerSettings, ...]
    targets: Mapping[str, UpstreamTarget]
    audit_keys: AuditKeys
    checkpoint_key: SigningKey | None
    audit_database: str | None
    audit_headers: Mapping[str, str]
    trace_headers: Mapping[str, str]
    seal_keys: tuple[bytes, ...] = field(repr=False)
    opa_tokens: tuple[str | None, str | None] = field(repr=False)
    registry_token: str = field(repr=False)
    database: str = field(repr=False)
    hosts: frozenset[str]
    door: DoorLimits
    webhooks: tuple[Webhook, ...] = ()
    wires: tuple[Files, ...] = ()
    statement_keys: tuple[StatementKey, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)
    """By what two gateways are told apart: part -> SHA-256, `""` for one that is not there.

    `settings`: as they are in force, environment included; `seals`: names that are derived from the keys; and the
    files that they were read from, where a supervisor handed those over (`config_file.read_settings`).
    """

    @property
    def digest(self) -> str:
        """The configuration's text, `""` where nobody handed one over."""
        return self.parts.get("configuration", "")

    @property
    def page_url(self) -> str:
        """Under which each ticket's page lies."""
        return f"{self.settings.base_url}/review/tickets"


def metadata_path(path: str) -> str:
    """Where the RFC 9728 document of the resource at `path` lies."""
    return f"/.well-known/oauth-protected-resource{path}"


def _server(settings: Settings, name: str) -> Server:
    server = settings.servers[name]
    return Server(
        name=name,
        path=server.path,
        resource=settings.resource(name),
        metadata_url=settings.base_url + metadata_path(server.path),
        environment=server.environment,
        issuers=frozenset(server.issuers or (issuer.issuer for issuer in settings.identity.issuers)),
        scopes=server.scopes,
        allowed_origins=frozenset(server.allowed_origins),
        methods=frozenset(server.methods),
        legacy_clients=server.legacy_clients,
        challenge=server.challenge,
        idempotent_tools=frozenset(server.retries.idempotent_tools),
        quirks=frozenset(server.quirks),
        past="" if server.legacy_servers == "off" else server.legacy_servers,
        extensions=frozenset(server.extensions),
        reach=None if server.resources.allow is None else Reach(server.resources.allow),
    )


def _issuers(settings: Settings) -> tuple[IssuerSettings, ...]:
    return tuple(
        IssuerSettings(
            issuer=issuer.issuer,
            algorithms=issuer.algorithms,
            jwks_uri=issuer.jwks_uri,
            jwks_file=issuer.jwks_file,
            token_types=issuer.token_types,
            tenant_claim=issuer.tenant_claim,
            groups_claim=issuer.groups_claim,
        )
        for issuer in settings.identity.issuers
    )


def _approvals(settings: Settings) -> Server:
    """The approvals API, as a resource that tokens are made for."""
    return Server(
        name="approvals",
        path="/approvals",
        resource=settings.approvals_resource,
        metadata_url=settings.base_url + metadata_path("/approvals"),
        issuers=frozenset(settings.approvals.issuers or (issuer.issuer for issuer in settings.identity.issuers)),
        scopes=("approvals:read", "approvals:request", "approvals:decide"),
    )


def _door(settings: Settings) -> DoorLimits:
    limits = settings.limits
    return DoorLimits(
        head_bytes=limits.head_bytes,
        head_lines=limits.head_lines,
        body_bytes=limits.body_bytes,
        head_s=limits.head_s,
        body_s=limits.body_s,
        quiet_s=limits.keep_alive_s,
    )


def _target(settings: Settings, name: str) -> UpstreamTarget:
    server = settings.servers[name]
    where = f"servers.{name}"
    try:
        replicas = _replicas(server.replicas)
        stating = None
        if server.forward_identity is not None:
            own = (settings.base_url, settings.resource(name))
            stating = Stating(server.forward_identity.header, _statement_keys(settings, name), *own)
        if server.credentials is None:
            return UpstreamTarget(replicas, stating=stating)
        value = settings.secret(server.credentials.value_env, f"{where}.credentials.value_env")
        return UpstreamTarget(replicas, server.credentials.header, value, stating=stating)
    except ValueError as error:
        raise ValueError(f"{where}.{error}") from error


def _replicas(urls: Sequence[str]) -> tuple[ReplicaAddress, ...]:
    """Where a server's calls may go. Raises `ValueError`."""
    try:
        return tuple(check_replica_url(url) for url in urls)
    except ValueError as error:
        raise ValueError(f"replicas: {error}") from error


def _statement_keys(settings: Settings, name: str) -> tuple[StatementKey, ...]:
    """What signs the statements of who calls to a server; none where it gets none."""
    stated = settings.servers[name].forward_identity
    if stated is None:
        return ()
    text = settings.secret(stated.key_env, f"servers.{name}.forward_identity.key_env")
    try:
        return read_statement_keys(text, stated.key_env)
    except ValueError as error:
        raise ValueError(f"forward_identity.key_env: {error}") from error


def _wires(settings: Settings) -> tuple[Files, ...]:
    """Every place where certificates are shown or asked for, the listener's first."""
    own, servers = settings.listen.tls, settings.servers.items()
    listener = () if own is None else (Files(LISTENER, own.cert, own.key, own.client_ca, serves=True),)
    towards = [(tls_of(name), one.tls) for name, one in servers if one.tls is not None]
    return (*listener, *(Files(setting, tls.cert, tls.key, tls.ca) for setting, tls in towards))


def tls_of(server: str) -> str:
    """The setting that is about the wire to a server."""
    return f"servers.{server}.tls"


def _bearer(settings: Settings, variable: str | None, setting: str) -> str | None:
    if variable is None:
        return None
    token = settings.secret(variable, setting)
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{setting}: {variable} does not hold a bearer token")
    return token


def _tokens_for_opa(settings: Settings) -> tuple[str | None, str | None]:
    """The tokens of the policy that judges and of its shadow."""
    policy, shadow = settings.policy, settings.policy.shadow
    return (
        _bearer(settings, policy.token_env if isinstance(policy, OpaPolicySettings) else None, "policy.token_env"),
        _bearer(settings, shadow.token_env if shadow else None, "policy.shadow.token_env"),
    )


def _registry_token(settings: Settings) -> str:
    registry = settings.registry
    if registry.url is not None:
        return _bearer(settings, registry.token_env, "registry.token_env") or ""
    if registry.token_env:
        raise ConfigError("registry.token_env: is for a registry at registry.url, which is not set")
    for name, server in settings.servers.items():
        if server.registry is not None and server.registry.file is None:
            raise ConfigError(f"servers.{name}.registry.record: is one of a registry, and registry.url is not set")
    return ""


def _client(settings: Settings, client: SignInClient) -> Client:
    variable = client.client_secret_env
    return Client(
        issuer=client.issuer,
        client_id=client.client_id,
        redirect_uri=settings.base_url + CALLBACK,
        audience=settings.approvals_resource,
        scopes=client.scopes,
        secret=settings.secret(variable, "sign_in.client_secret_env") if variable else "",
        resource_indicator=client.resource_indicator,
    )


def _webhooks(settings: Settings) -> tuple[Webhook, ...]:
    made: dict[str, Webhook] = {}
    for number, one in enumerate(settings.approvals.webhooks):
        where = f"approvals.webhooks[{number}]"
        url = settings.secret(one.url_env, f"{where}.url_env") if one.url_env else one.url
        secrets = settings.secret(one.secret_env, f"{where}.secret_env") if one.secret_env else ""
        webhook = make_webhook(url, secrets, events=one.events, form=one.format, where=where)
        if webhook.hook.id in made:
            raise ValueError(f"{where}.url: is that of another webhook already")
        made[webhook.hook.id] = webhook
    return tuple(made.values())


def _otlp_headers(settings: Settings, variable: str, setting: str) -> dict[str, str]:
    """`NAME=VALUE` pairs, separated by commas."""
    if not variable:
        return {}
    parts = [part.partition("=") for part in settings.secret(variable, setting).split(",")]
    if not all(
        _HEADER_NAME.fullmatch(name.strip()) and value.isascii() and value.strip().isprintable()
        for name, _, value in parts
    ):
        raise ConfigError(f"{setting}: {variable} does not hold NAME=VALUE, separated by commas")
    return {name.strip(): value.strip() for name, _, value in parts}


def _audit_database(settings: Settings) -> str | None:
    audit, url = settings.audit, settings.audit_database_url
    if url is not None and (audit.rotate_bytes or audit.rotate_s or audit.keep_s):
        raise ConfigError("audit.rotate_bytes, rotate_s and keep_s are for files: a database rotates nothing")
    return url


def _checkpoint_key(settings: Settings) -> SigningKey | None:
    audit, chosen = settings.audit, settings.audit.checkpoints
    if audit.keep_s and (chosen is None or not (audit.rotate_bytes or audit.rotate_s)):
        raise ConfigError(
            "audit.keep_s: only rotated files whose end a checkpoint holds go: set up both, or leave it"
        )
    if chosen is None:
        return None
    if chosen.file is None and chosen.webhook is None:
        raise ConfigError("audit.checkpoints: name a file, a webhook, or both")
    return SigningKey(settings.secret(chosen.key_env, "audit.checkpoints.key_env"), chosen.key_env)


def _parts(settings: Settings, seal_keys: Sequence[bytes], texts: Mapping[str, str]) -> dict[str, str]:
    """What the configuration adds to `Plan.parts`. Nothing secret can be had from it: a key is 32 random bytes, and a
    password, which could be guessed until the digest is right, is left out."""
    names = b"".join(sorted(derive_keys(seal_keys, "likeness")))  # who opens alike is alike, whichever key seals
    told = settings.model_dump(mode="json")
    for room in ("approvals", "audit"):
        told[room]["database"] = _PASSWORD.sub("", told[room]["database"])
    whole = json.dumps(told, sort_keys=True)
    return {**texts, "settings": _sha256(whole.encode()), "seals": _sha256(names)}


def _sha256(of: bytes) -> str:
    return hashlib.sha256(of).hexdigest()


def make_plan(settings: Settings, texts: Mapping[str, str] | None = None) -> Plan:
    """Judge the whole configuration. Raises `ConfigError` or `ValueError` naming the setting; opens nothing.

    `texts`: the SHA-256 of each file that it was read from.
    """
    issuers, traces = _issuers(settings), settings.telemetry.traces
    audit_text = settings.secret(settings.audit.hmac_key_env, "audit.hmac_key_env")
    seal_text = settings.secret(settings.seals.keys_env, "seals.keys_env")
    audit_keys = AuditKeys(audit_text, settings.audit.hmac_key_env)
    seal_keys = read_keys(seal_text, settings.seals.keys_env)
    if set(audit_keys.keys) & set(seal_keys):
        # Who compares values in the record would be able to open tickets and make states.
        raise ConfigError("audit.hmac_key_env and seals.keys_env: the audit and the seals must not share a key")
    return Plan(
        settings=settings,
        servers={server.path: _server(settings, name) for name, server in settings.servers.items()},
        approvals=_approvals(settings),
        sign_in=tuple(_client(settings, client) for client in settings.sign_in.clients) if settings.sign_in else (),
        issuers=issuers,
        targets={name: _target(settings, name) for name in settings.servers},
        audit_keys=audit_keys,
        checkpoint_key=_checkpoint_key(settings),
        audit_database=_audit_database(settings),
        audit_headers=_otlp_headers(settings, settings.audit.otlp.headers_env, "audit.otlp.headers_env"),
        trace_headers=_otlp_headers(settings, traces.headers_env, "telemetry.traces.headers_env"),
        seal_keys=seal_keys,
        opa_tokens=_tokens_for_opa(settings),
        registry_token=_registry_token(settings),
        database=settings.database_url,
        hosts=accepted_hosts(settings.public_url, settings.listen.host, settings.listen.port, settings.allowed_hosts),
        door=_door(settings),
        webhooks=_webhooks(settings),
        wires=_wires(settings),
        statement_keys=tuple(key for name in settings.servers for key in _statement_keys(settings, name)),
        parts=_parts(settings, seal_keys, texts or {}),
    )
