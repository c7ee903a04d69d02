"""Who judges: the embedded engine or an OPA server, and a candidate in the shadow of either."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from gateway.settings.kinds import (
    Deadline,
    Group,
    OpaUrl,
)
from gateway.settings.wires import TlsSettings


def _known_engine(value: Any) -> Any:
    if value != "embedded":
        raise ValueError("must be embedded or opa")
    return value


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
