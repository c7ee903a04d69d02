"""What stands behind the gateway: servers, their credentials and resources, and the pins of their tools."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import (
    Field,
    model_validator,
)

from gateway.contract.quirks import Quirk
from gateway.registry.namespaces import PUBLISHER, NoPublisher, namespace_for
from gateway.settings.kinds import (
    Arguments,
    Challenging,
    EndpointPath,
    ExtensionMethod,
    Group,
    HeaderName,
    HttpUrl,
    Origin,
    PastVersion,
    Pinning,
    ResourcePrefix,
    Scope,
    SecureUrl,
)
from gateway.settings.replicas import Deadlines, HealthSettings, LoadSettings, RetrySettings
from gateway.settings.wires import ForwardIdentity, TlsSettings

IN_REGISTRY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*/[A-Za-z0-9._-]+@[^@/\\]+")


class Credentials(Group):
    """The gateway's own credential towards a server: a header whose value is in the environment."""

    header: HeaderName = "Authorization"
    value_env: str


class ResourceSettings(Group):
    """Which of a server's resources may be named: URI prefixes. Absent: as far as the policy goes."""

    allow: tuple[ResourcePrefix, ...] | None = None


class PublishedAs(Group):
    """Which record says what this server is: a file, or `NAME@VERSION` in the registry."""

    record: Annotated[str, Field(min_length=1)]

    @property
    def file(self) -> Path | None:
        """The file; `None` for one in the registry."""
        return None if IN_REGISTRY.fullmatch(self.record) else Path(self.record)


STATED_QUEUE_S = 30
"""How long a call may wait for a place with a statement of who calls that is good for a minute."""


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
    forward_identity: ForwardIdentity | None = None
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
    registry: PublishedAs | None = None

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
        if self.forward_identity is not None and self.load.queue_s > STATED_QUEUE_S:
            raise ValueError(f"load.queue_s: at most {STATED_QUEUE_S} with forward_identity, which is good for 60 s")
        return self


class RegistrySettings(Group):
    """A private registry: where its API is, what was admitted of it, and how often records are compared."""

    url: SecureUrl | None = None
    token_env: str | None = None
    publisher: Annotated[str, Field(json_schema_extra={"pattern": PUBLISHER})] = ""
    private_addresses: bool = False
    lock: Path = Path("registry.lock")
    servers: Path | None = None
    interval_s: Annotated[float, Field(ge=1, le=604800)] = 3600.0

    @model_validator(mode="after")
    def _can_happen(self) -> Self:
        if self.publisher:
            try:
                namespace_for(self.publisher)
            except NoPublisher as error:
                raise ValueError(f"publisher: {error}") from error
        return self


class PinSettings(Group):
    """Where the accepted definitions of tools are kept."""

    file: Path = Path("pins.json")
