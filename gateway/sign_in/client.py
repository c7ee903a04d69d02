"""The gateway as issuers that sign people in know it: what the configuration says, not what is done with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

CALLBACK: Final = "/review/callback"
"""Where an issuer sends the browser back to."""


@dataclass(frozen=True, slots=True)
class Client:
    """The gateway as one issuer knows it. `resource` is the approvals API's, empty where the issuer is not told."""

    issuer: str
    client_id: str
    redirect_uri: str
    audience: str
    scopes: tuple[str, ...]
    secret: str = field(default="", repr=False)
    resource_indicator: bool = True

    @property
    def resource(self) -> dict[str, str]:
        """RFC 8707's parameter."""
        return {"resource": self.audience} if self.resource_indicator else {}
