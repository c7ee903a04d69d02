"""Frozen settings, one group per room: what may be set, and what goes together.

Unknown keys, unsafe combinations and missing secrets refuse to start, and the error names the setting. How they are
read from a file and the environment is config_file.py's; known to it, plan.py, app.py and cli.py only.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.contract.methods import UNGUARDED
from gateway.contract.quirks import Quirk
from gateway.contract.resources import check_prefix

ASYMMETRIC = ("ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "EdDSA", "Ed25519")
RESERVED_PATHS = ("/.well-known", "/approvals", "/review")
SIGN_IN_SCOPES = ("openid", "approvals:read", "approvals:request", "approvals:decide")


class ConfigError(Exception):
    """The configuration can't be used; the text names each setting and what is wrong with it."""


def is_loopback(host: str | None) -> bool:
    """Whether `host` (a name or an address literal) can only be this machine."""
    if host is None:
        return False
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split_http_url(url: str) -> tuple[str, str]:
    """An absolute http(s) URL without user information, fragment or query -> (scheme, host)."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("must be an absolute http:// or https:// URL")
    if parts.username is not None or parts.fragment or parts.query or "?" in url or "#" in url:
        raise ValueError("must carry neither user information, query nor fragment")
    try:
        _ = parts.port
    except ValueError as error:
        raise ValueError("has no valid port") from error
    return parts.scheme, parts.hostname


def _https_or_loopback(url: str) -> str:
    scheme, host = _split_http_url(url)
    if scheme != "https" and not is_loopback(host):
        raise ValueError("must be https:// (plain http:// is accepted on loopback only)")
    return url


def _http_url(url: str) -> str:
    _split_http_url(url)
    return url


def _origin(value: str) -> str:
    parts = urlsplit(value)
    if value == "*" or not parts.scheme or not parts.netloc or parts.path or parts.query or parts.fragment:
        raise ValueError("must be an origin as a browser sends it: scheme://host[:port], never *")
    return value


def _asymmetric(name: str) -> str:
    if name not in ASYMMETRIC:
        raise ValueError(f"only asymmetric algorithms are accepted: {', '.join(ASYMMETRIC)}")
    return name


def _endpoint_path(path: str) -> str:
    if not path.startswith("/") or path.endswith("/") or "//" in path or "%" in path or "?" in path or "#" in path:
        raise ValueError("must start with /, end without one, and hold no %, ? or #")
    if any(part in {".", ".."} for part in path.split("/")):
        raise ValueError("must hold no dot segment")
    if any(path == reserved or path.startswith(reserved + "/") for reserved in RESERVED_PATHS):
        raise ValueError(f"must not lie under {', '.join(RESERVED_PATHS)}")
    return path


def _can_be_served(method: str) -> str:
    if UNGUARDED.fullmatch(method):
        raise ValueError(f"{method} is not served, whatever is listed here")
    return method


def _bare_url(url: str) -> str:
    if urlsplit(url).path not in {"", "/"}:
        raise ValueError("must have no path: the decision's is always the same")
    return url


def _known_engine(value: Any) -> Any:
    if value != "embedded":
        raise ValueError("must be embedded or opa")
    return value


def _as_written(value: Any) -> Any:
    """A bare `2025-06-18` is a date to YAML, and a bare `off` is false: both mean what is written."""
    if isinstance(value, date):
        return value.isoformat()
    return "off" if value is False else value


SecureUrl = Annotated[str, AfterValidator(_https_or_loopback)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
Origin = Annotated[str, AfterValidator(_origin)]
Algorithm = Annotated[str, AfterValidator(_asymmetric)]
ServerName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
EndpointPath = Annotated[str, AfterValidator(_endpoint_path)]
Port = Annotated[int, Field(ge=0, le=65535)]
Arguments = Annotated[Literal["declared", "strict", "off"], BeforeValidator(_as_written)]
Pinning = Annotated[Literal["off", "warn", "enforce"], BeforeValidator(_as_written)]
ExtensionMethod = Annotated[str, Field(min_length=1), AfterValidator(_can_be_served)]
Challenging = Literal["auto", "elicitation", "task", "error"]
ResourcePrefix = Annotated[str, AfterValidator(check_prefix)]
Scope = Annotated[str, Field(pattern=r"^[\x21\x23-\x5b\x5d-\x7e]+$", max_length=256)]
PastVersion = Annotated[Literal["off", "2025-11-25", "2025-06-18", "2025-03-26"], BeforeValidator(_as_written)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
Deadline = Annotated[float, Field(gt=0, le=0.9)]
OpaUrl = Annotated[SecureUrl, AfterValidator(_bare_url)]


class Group(BaseModel):
    """A room's settings: frozen, and strict about keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Listen(Group):
    """An address to listen on. Port 0 lets the system choose; the log says which."""

    host: str = "127.0.0.1"
    port: Port = 8080


class Admin(Group):
    """The operators' listener: /livez, /readyz, /metrics. It checks no Host and no token: keep it private."""

    host: str = "127.0.0.1"
    port: Port = 9090


class Issuer(Group):
    """An OAuth authorization server whose tokens are accepted."""

    issuer: SecureUrl
    jwks_uri: SecureUrl | None = None
    jwks_file: Path | None = None
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("ES256", "RS256")
    token_types: tuple[str, ...] = ()
    tenant_claim: str = ""
    groups_claim: str = "groups"

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if "|" in self.issuer:
            raise ValueError("issuer must hold no |: approvers and records write ISSUER|SUBJECT")
        if self.jwks_uri and self.jwks_file:
            raise ValueError("jwks_uri and jwks_file exclude each other")
        return self


class Identity(Group):
    """Whose tokens are believed, and what their scopes imply."""

    issuers: Annotated[tuple[Issuer, ...], Field(min_length=1)]
    leeway_s: Annotated[float, Field(ge=0, le=60)] = 30.0
    scope_implies: dict[str, tuple[str, ...]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _unique(self) -> Self:
        names = [issuer.issuer for issuer in self.issuers]
        if len(names) != len(set(names)):
            raise ValueError("an issuer is configured twice")
        return self


class Credentials(Group):
    """The gateway's own credential towards a server: a header whose value is in the environment."""

    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")] = "Authorization"
    value_env: str


class ResourceSettings(Group):
    """Which of a server's resources may be named: URI prefixes. Absent: as far as the policy goes."""

    allow: tuple[ResourcePrefix, ...] | None = None


class ServerSettings(Group):
    """A fronted MCP server."""

    path: EndpointPath
    resource: HttpUrl | None = None
    environment: str = ""
    issuers: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    replicas: Annotated[tuple[HttpUrl, ...], Field(min_length=1)]
    allowed_origins: tuple[Origin, ...] = ()
    credentials: Credentials | None = None
    methods: tuple[ExtensionMethod, ...] = ()
    extensions: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    arguments: Arguments = "declared"
    tool_arguments: dict[str, Arguments] = Field(default_factory=dict)
    pins: Pinning = "off"
    resources: ResourceSettings = ResourceSettings()
    challenge: Challenging = "auto"
    legacy_servers: PastVersion = "off"
    legacy_clients: bool = False
    quirks: tuple[Quirk, ...] = ()

    @model_validator(mode="after")
    def _can_happen(self) -> Self:
        if Quirk.SESSION_WITHOUT_VERSION in self.quirks and not self.legacy_clients:
            raise ValueError("quirks: session_without_version is one of legacy_clients, which is off")
        return self


class TlsSettings(Group):
    """Whom the gateway believes, and how it shows itself: files in PEM. Without `ca` the system's authorities."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert is None) is not (self.key is None):
            raise ValueError("cert and key go together")
        return self


def _tls_can_happen(url: str | None, tls: TlsSettings | None) -> None:
    if tls is not None and not (url or "").startswith("https:"):
        raise ValueError("tls: is for an https:// url")


class ShadowSettings(Group):
    """A candidate beside the policy that judges: a bundle at `path`, or an OPA server at `url`."""

    path: Path | None = None
    url: OpaUrl | None = None
    token_env: str | None = None
    tls: TlsSettings | None = None
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0
    file: Path = Path("shadow.jsonl")

    @model_validator(mode="after")
    def _can_happen(self) -> Self:
        if (self.path is None) is (self.url is None):
            raise ValueError("either path or url says where the candidate is")
        if self.url is None and (self.token_env or self.tls):
            raise ValueError("token_env and tls are for a candidate at a url")
        _tls_can_happen(self.url, self.tls)
        return self


class EmbeddedPolicySettings(Group):
    """Rego in processes of the gateway's own, and its bundle."""

    engine: Annotated[Literal["embedded"], BeforeValidator(_known_engine)] = "embedded"
    path: Path
    deadline_s: Deadline = 0.5
    evaluators: Annotated[int, Field(ge=1, le=16)] = 2
    shadow: ShadowSettings | None = None


class OpaPolicySettings(Group):
    """An OPA server, and the gateway's credential towards it."""

    engine: Literal["opa"]
    url: OpaUrl
    token_env: str | None = None
    tls: TlsSettings | None = None
    deadline_s: Deadline = 0.5
    shadow: ShadowSettings | None = None

    @model_validator(mode="after")
    def _can_happen(self) -> Self:
        _tls_can_happen(self.url, self.tls)
        return self


def _engine_of(value: Any) -> str:
    """Which engine's settings these are; those of an engine that does not exist are judged as the default's."""
    engine = value.get("engine") if isinstance(value, dict) else getattr(value, "engine", None)
    return "opa" if engine == "opa" else "embedded"


PolicySettings = Annotated[
    Annotated[EmbeddedPolicySettings, Tag("embedded")] | Annotated[OpaPolicySettings, Tag("opa")],
    Discriminator(_engine_of),
]


DATABASES = ("sqlite:///", "postgresql://", "postgres://")


class WebhookSettings(Group):
    """Who is told of tickets: a URL (in the environment where it is itself a secret), its secrets, and of what."""

    url: str = ""
    url_env: str = ""
    secret_env: str = ""
    events: Annotated[tuple[Literal["new", "decided", "expiring"], ...], Field(min_length=1)] = (
        "new",
        "decided",
        "expiring",
    )
    format: Literal["json", "slack"] = "json"

    @model_validator(mode="after")
    def _one_url(self) -> Self:
        if bool(self.url) == bool(self.url_env):
            raise ValueError("give either url or url_env")
        return self


class ApprovalSettings(Group):
    """Where tickets are kept, and who may be asked. `issuers` defaults to all issuers.

    `database_env` names a variable with the whole URL, instead of `database`: a password has no place in a file.
    `hold_s` is how long a retry of a call that waits for a person is kept before it is answered.
    """

    database: Annotated[str, Field(repr=False)] = "sqlite:///ostiary.db"
    database_env: str = ""
    migrate: bool = True
    issuers: tuple[str, ...] = ()
    volatile_meta: tuple[str, ...] = ()
    keep_s: Annotated[float, Field(ge=604_800)] = 7_776_000.0
    task_keep_s: Annotated[float, Field(ge=60, le=604_800)] = 3600.0
    local_approve: bool = False
    hold_s: Annotated[float, Field(ge=0, le=60)] = 25.0
    webhooks: Annotated[tuple[WebhookSettings, ...], Field(max_length=16)] = ()

    @model_validator(mode="after")
    def _one_database(self) -> Self:
        if not self.database.startswith(DATABASES):
            raise ValueError("database must be sqlite:///PATH or postgresql://USER@HOST/DATABASE")
        if self.database_env and "database" in self.model_fields_set:
            raise ValueError("database and database_env are two answers to one question")
        return self


def _never_or(least: int) -> Callable[[float], float]:
    def judge(value: float) -> float:
        if value != 0 and not value >= least:
            raise ValueError(f"must be 0 (never) or at least {least}")
        return value

    return judge


class CheckpointSettings(Group):
    """Where the signed ends of the chains are kept, out of the writers' reach: a file, a webhook, or both."""

    file: Path | None = None
    webhook: SecureUrl | None = None
    key_env: str = "OSTIARY_CHECKPOINT_KEY"
    every_s: Annotated[float, Field(ge=1, le=86400)] = 300.0


class OtlpSettings(Group):
    """Where committed records are sent as OpenTelemetry logs: the whole URL; headers `NAME=VALUE,…` in a variable."""

    endpoint: SecureUrl | None = None
    headers_env: str = ""


class AuditSettings(Group):
    """The durable record. `file` is writer 0's; writer k appends `.k`. Files rotate by size or age; 0: never.

    With a database (`database`, or by `database_env` a variable's whole URL) the record is there, and no file is.
    """

    file: Path
    database: Annotated[str, Field(repr=False)] = ""
    database_env: str = ""
    hmac_key_env: str = "OSTIARY_AUDIT_KEY"
    rotate_bytes: Annotated[int, Field(le=1 << 40), AfterValidator(_never_or(65_536))] = 0
    rotate_s: Annotated[float, Field(le=31_622_400), AfterValidator(_never_or(60))] = 0.0
    keep_s: Annotated[float, Field(ge=0, le=1e10)] = 0.0
    checkpoints: CheckpointSettings | None = None
    otlp: OtlpSettings = OtlpSettings()

    @model_validator(mode="after")
    def _one_database(self) -> Self:
        if self.database and not self.database.startswith(DATABASES[1:]):
            raise ValueError("database must be postgresql://USER@HOST/DATABASE")
        if self.database and self.database_env:
            raise ValueError("database and database_env are two answers to one question")
        return self


class PinSettings(Group):
    """Where the accepted definitions of tools are kept."""

    file: Path = Path("pins.json")


class SealSettings(Group):
    """Keys of everything that is sealed or kept encrypted. `state_s` is how long a sealed `requestState` lives."""

    keys_env: str = "OSTIARY_SEAL_KEYS"
    state_s: Seconds = 3600.0


class SignInClient(Group):
    """What the gateway is to an issuer that signs people in. Without a secret: a public client, by PKCE alone."""

    issuer: str
    client_id: Annotated[str, Field(min_length=1, max_length=1024)]
    client_secret_env: str | None = None
    scopes: tuple[Scope, ...] = SIGN_IN_SCOPES
    resource_indicator: bool = True


class SignInSettings(SignInClient):
    """How people sign in to the pages under `/review`, and how long a session lasts."""

    session_s: Annotated[float, Field(ge=60, le=86400)] = 3600.0
    idle_s: Annotated[float, Field(ge=60, le=86400)] = 1800.0
    others: tuple[SignInClient, ...] = ()

    @model_validator(mode="after")
    def _once_each(self) -> Self:
        names = [client.issuer for client in self.clients]
        if len(names) != len(set(names)):
            raise ValueError("others: an issuer is there twice")
        for client in self.clients:
            if "openid" not in client.scopes:
                raise ValueError("scopes: must hold openid, without which nobody is signed in")
        return self

    @property
    def clients(self) -> tuple[SignInClient, ...]:
        """Every issuer's, this one's first."""
        return (self, *self.others)


class Limits(Group):
    """Bounds of one worker. Bytes, counts and seconds."""

    body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 4_194_304
    result_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 16_777_216
    head_bytes: Annotated[int, Field(ge=4096, le=1 << 20)] = 65_536
    head_lines: Annotated[int, Field(ge=16, le=1000)] = 100
    head_s: Annotated[float, Field(gt=0, le=15)] = 10.0
    body_s: Annotated[float, Field(gt=0, le=30)] = 25.0
    concurrent: Annotated[int, Field(ge=1)] = 1000
    answer_s: Seconds = 120.0
    quiet_s: Seconds = 300.0
    event_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 8_388_608
    keep_alive_s: Annotated[float, Field(gt=0, le=15)] = 10.0
    subscriptions: Annotated[int, Field(ge=1, le=100_000)] = 12_000
    subscriptions_per_subject: Annotated[int, Field(ge=1, le=100_000)] = 1000
    legacy_session_s: Annotated[float, Field(ge=60, le=604800)] = 43_200.0
    tickets_per_hour: Annotated[int, Field(ge=1)] = 100
    held_tasks_per_subject: Annotated[int, Field(ge=0, le=10_000)] = 100
    held_result_bytes: Annotated[int, Field(ge=1024, le=1 << 28)] = 4_194_304
    grace_s: Annotated[float, Field(ge=0, le=600)] = 25.0


class Settings(BaseSettings):
    """The whole configuration (design.md, "Public face")."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix="OSTIARY_", env_nested_delimiter="__", hide_input_in_errors=True
    )

    public_url: SecureUrl
    listen: Listen = Listen()
    admin: Admin = Admin()
    identity: Identity
    servers: Annotated[dict[ServerName, ServerSettings], Field(min_length=1)]
    policy: PolicySettings
    approvals: ApprovalSettings = ApprovalSettings()
    audit: AuditSettings
    seals: SealSettings = SealSettings()
    sign_in: SignInSettings | None = None
    pins: PinSettings = PinSettings()
    limits: Limits = Limits()
    allowed_hosts: tuple[str, ...] = ()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is the library's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file; no .env file and no secrets folder is read."""
        return env_settings, init_settings

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if urlsplit(self.public_url).path not in {"", "/"}:
            raise ValueError("public_url: must have no path")
        if self.listen.port and (self.listen.host, self.listen.port) == (self.admin.host, self.admin.port):
            raise ValueError("admin.port: is that of listen already")
        known = {issuer.issuer for issuer in self.identity.issuers}
        paths: dict[str, str] = {}
        resources: dict[str, str] = {self.approvals_resource: "approvals"}
        for name, server in self.servers.items():
            for issuer in server.issuers:
                if issuer not in known:
                    raise ValueError(f"servers.{name}.issuers: {issuer} is not one of identity.issuers")
            for seen, value, key in ((paths, server.path, "path"), (resources, self.resource(name), "resource")):
                if value in seen:
                    raise ValueError(f"servers.{name}.{key}: {value} is that of {seen[value]} already")
                seen[value] = f"servers.{name}"
        for issuer in self.approvals.issuers:
            if issuer not in known:
                raise ValueError(f"approvals.issuers: {issuer} is not one of identity.issuers")
        for client in self.sign_in.clients if self.sign_in else ():
            if client.issuer not in (self.approvals.issuers or known):
                raise ValueError(f"sign_in: {client.issuer} is not one of approvals.issuers")
        return self

    @property
    def base_url(self) -> str:
        """`public_url` without a trailing slash."""
        return self.public_url.rstrip("/")

    @property
    def approvals_resource(self) -> str:
        """The audience of the approvals API's tokens."""
        return f"{self.base_url}/approvals"

    @property
    def pin_modes(self) -> dict[str, Pinning]:
        """How each server's tools are held to their accepted definitions."""
        return {name: server.pins for name, server in self.servers.items()}

    def resource(self, name: str) -> str:
        """The canonical OAuth resource URI of a server."""
        server = self.servers[name]
        return server.resource or self.base_url + server.path

    @property
    def database_url(self) -> str:
        """Where tickets are kept, credentials included. Raises `ConfigError`."""
        if not (variable := self.approvals.database_env):
            return self.approvals.database
        url = self.secret(variable, "approvals.database_env")
        if not url.startswith(DATABASES):
            raise ConfigError(f"approvals.database_env: {variable} holds neither sqlite:///PATH nor postgresql://…")
        return url

    @property
    def audit_database_url(self) -> str | None:
        """Where the record lies if not in `audit.file`, credentials included. Raises `ConfigError`."""
        if not (variable := self.audit.database_env):
            return self.audit.database or None
        url = self.secret(variable, "audit.database_env")
        if not url.startswith(DATABASES[1:]):
            raise ConfigError(f"audit.database_env: {variable} does not hold postgresql://…")
        return url

    def secret(self, variable: str, setting: str) -> str:
        """A secret from the environment. Raises `ConfigError` naming the setting where it is absent or empty."""
        value = os.environ.get(variable, "")
        if not value:
            raise ConfigError(f"{setting}: the environment variable {variable} is not set")
        return value
