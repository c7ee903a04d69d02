"""Certificates and keys, by the files that hold them, and what servers are told of who calls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from gateway.settings.kinds import Group


class ListenTls(Group):
    """What the listener shows, in PEM, and whose client certificates it asks for, if anybody's."""

    cert: Path
    key: Path
    client_ca: Path | None = None


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


class ForwardIdentity(Group):
    """A signed statement of who calls, for a server that authorises per user: in which header, signed with what."""

    header: Annotated[str, Field(max_length=64)] = "Ostiary-Identity"
    key_env: str
