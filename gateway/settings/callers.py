"""Who calls: listeners, issuers and what their tokens imply, and how people sign in to the pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    Field,
    model_validator,
)

from gateway.settings.kinds import (
    Group,
    Port,
    Scope,
    SecureUrl,
)
from gateway.settings.wires import ListenTls

ASYMMETRIC = ("ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "EdDSA", "Ed25519")


def _asymmetric(name: str) -> str:
    if name not in ASYMMETRIC:
        raise ValueError(f"only asymmetric algorithms are accepted: {', '.join(ASYMMETRIC)}")
    return name


Algorithm = Annotated[str, AfterValidator(_asymmetric), Field(json_schema_extra={"enum": list(ASYMMETRIC)})]
SIGN_IN_SCOPES = ("openid", "approvals:read", "approvals:request", "approvals:decide", "audit:read")


class Listen(Group):
    """An address to listen on. Port 0 lets the system choose; the log says which."""

    host: str = "127.0.0.1"
    port: Port = 8080
    tls: ListenTls | None = None


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
