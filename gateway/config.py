"""The whole configuration, frozen: what may be set, and what goes together.

Unknown keys, unsafe combinations and missing secrets refuse to start, and the error names the setting. The groups are
`gateway/settings/`'s; how they are read from a file and the environment is config_file.py's. No room knows them: they
are plan.py's, app.py's, engines.py's and the commands'.
"""

from __future__ import annotations

import os
from typing import Self
from urllib.parse import urlsplit

from pydantic import model_validator

from gateway.settings.bounds import Limits
from gateway.settings.callers import ASYMMETRIC, Admin, Identity, Listen, SignInClient, SignInSettings
from gateway.settings.judging import (
    EmbeddedPolicySettings,
    OpaPolicySettings,
    PolicySettings,
    ShadowSettings,
)
from gateway.settings.keeping import (
    ApprovalSettings,
    AuditSettings,
    BudgetSettings,
    IdempotencySettings,
    SealSettings,
)
from gateway.settings.kinds import (
    DATABASES,
    HEADER_NAME,
    SCOPE,
    SERVER_NAME,
    Authority,
    ConfigError,
    Group,
    Pinning,
    SecureUrl,
    ServerName,
)
from gateway.settings.servers import PinSettings, PublishedAs, RegistrySettings, ServerSettings
from gateway.settings.telemetry import TelemetrySettings
from gateway.settings.wires import ListenTls, TlsSettings

__all__ = [
    "ASYMMETRIC",
    "HEADER_NAME",
    "SCOPE",
    "SERVER_NAME",
    "ApprovalSettings",
    "AuditSettings",
    "ConfigError",
    "EmbeddedPolicySettings",
    "Group",
    "Limits",
    "ListenTls",
    "OpaPolicySettings",
    "PublishedAs",
    "RegistrySettings",
    "ServerSettings",
    "Settings",
    "ShadowSettings",
    "SignInClient",
    "TlsSettings",
]


class Settings(Group):
    """The whole configuration (design.md, "Public face")."""

    public_url: SecureUrl
    listen: Listen = Listen()
    admin: Admin = Admin()
    identity: Identity
    servers: dict[ServerName, ServerSettings]
    policy: PolicySettings
    approvals: ApprovalSettings = ApprovalSettings()
    budgets: BudgetSettings = BudgetSettings()
    idempotency: IdempotencySettings = IdempotencySettings()
    audit: AuditSettings
    seals: SealSettings = SealSettings()
    sign_in: SignInSettings | None = None
    pins: PinSettings = PinSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    registry: RegistrySettings = RegistrySettings()
    limits: Limits = Limits()
    allowed_hosts: tuple[Authority, ...] = ()

    @model_validator(mode="after")
    def _serve(self) -> Self:
        if not self.servers and self.registry.servers is None:
            raise ValueError("servers: must not be empty")
        return self

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if urlsplit(self.public_url).path not in {"", "/"}:
            raise ValueError("public_url: must have no path")
        if self.listen.port and (self.listen.host, self.listen.port) == (self.admin.host, self.admin.port):
            raise ValueError("admin.port: is that of listen already")
        if self.listen.tls is not None and urlsplit(self.public_url).scheme != "https":
            raise ValueError("listen.tls: public_url must be https:// then, for that is where clients will come")
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
