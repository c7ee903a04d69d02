"""What stands behind the gateway: servers, their credentials and resources, and the pins of their tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    Field,
    model_validator,
)

from gateway.contract.quirks import Quirk
from gateway.settings.kinds import (
    Arguments,
    Challenging,
    EndpointPath,
    ExtensionMethod,
    Group,
    HttpUrl,
    Origin,
    PastVersion,
    Pinning,
    ResourcePrefix,
    Scope,
)
from gateway.settings.replicas import Deadlines, HealthSettings, LoadSettings, RetrySettings
from gateway.settings.wires import TlsSettings


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
    scopes: tuple[Scope, ...] = ()
    replicas: Annotated[tuple[HttpUrl, ...], Field(min_length=1)]
    allowed_origins: tuple[Origin, ...] = ()
    credentials: Credentials | None = None
    tls: TlsSettings | None = None
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
    health: HealthSettings = HealthSettings()
    load: LoadSettings = LoadSettings()
    retries: RetrySettings = RetrySettings()
    deadlines: Deadlines = Field(default_factory=dict)

    @model_validator(mode="after")
    def _can_happen(self) -> Self:
        if Quirk.SESSION_WITHOUT_VERSION in self.quirks and not self.legacy_clients:
            raise ValueError("quirks: session_without_version is one of legacy_clients, which is off")
        if self.retries.idempotent_tools and self.pins == "off":
            raise ValueError("retries.idempotent_tools: only an accepted definition can say so, and pins is off")
        if self.health.probe == "discover" and self.legacy_servers != "off":
            raise ValueError("health.probe: no server of an earlier revision knows server/discover")
        if self.tls is not None and not all(replica.startswith("https:") for replica in self.replicas):
            raise ValueError("tls: is for https:// replicas")
        return self


class PinSettings(Group):
    """Where the accepted definitions of tools are kept."""

    file: Path = Path("pins.json")
