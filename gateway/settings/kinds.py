"""What settings are made of: kinds of values and what makes one unusable, and the group that is strict about keys."""

from __future__ import annotations

import ipaddress
from datetime import date
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
)

from gateway.contract.methods import UNGUARDED
from gateway.contract.resources import check_prefix


class ConfigError(Exception):
    """The configuration can't be used; the text names each setting and what is wrong with it."""


SERVER_NAME: Final = r"^[a-z0-9][a-z0-9_-]{0,63}$"
SCOPE: Final = r"^[\x21\x23-\x5b\x5d-\x7e]+$"
HEADER_NAME: Final = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"

RESERVED_PATHS = ("/.well-known", "/approvals", "/review")
_NO_ENDPOINT: Final = rf"^({'|'.join(RESERVED_PATHS).replace('.', r'[.]')})(/|$)|//|/[.]{{1,2}}(/|$)"


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
    if not url.isprintable() or " " in url:  # which `urlsplit` would pass over, and who asks there might not
        raise ValueError("must hold no blank, line end or other control character")
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


def as_written(value: Any) -> Any:
    """A bare `2025-06-18` is a date to YAML, and a bare `off` is false: both mean what is written."""
    if isinstance(value, date):
        return value.isoformat()
    return "off" if value is False else value


SecureUrl = Annotated[str, AfterValidator(_https_or_loopback), Field(json_schema_extra={"pattern": "^https?://."})]
HttpUrl = Annotated[str, AfterValidator(_http_url), Field(json_schema_extra={"pattern": "^https?://."})]
Authority = Annotated[
    str, Field(json_schema_extra={"pattern": "^([0-9A-Za-z.-]+|\\[[0-9A-Fa-f:.]+\\])(:[0-9]{1,5})?$"})
]
Origin = Annotated[
    str, AfterValidator(_origin), Field(json_schema_extra={"pattern": "^[A-Za-z][A-Za-z0-9+.-]*://[^/?#]+$"})
]
ServerName = Annotated[str, Field(pattern=SERVER_NAME)]
EndpointPath = Annotated[
    str,
    AfterValidator(_endpoint_path),
    Field(json_schema_extra={"pattern": "^/[^%?#]*[^/%?#]$", "not": {"pattern": _NO_ENDPOINT}}),
]
Port = Annotated[int, Field(ge=0, le=65535)]
Arguments = Annotated[Literal["declared", "strict", "off"], BeforeValidator(as_written)]
Pinning = Annotated[Literal["off", "warn", "enforce"], BeforeValidator(as_written)]
ExtensionMethod = Annotated[
    str,
    Field(min_length=1, json_schema_extra={"not": {"pattern": f"^({UNGUARDED.pattern})$"}}),
    AfterValidator(_can_be_served),
]
Challenging = Literal["auto", "elicitation", "task", "error"]
ResourcePrefix = Annotated[
    str, AfterValidator(check_prefix), Field(json_schema_extra={"pattern": "^[a-z][a-z0-9+.-]*:"})
]
Scope = Annotated[str, Field(pattern=SCOPE, max_length=256)]
HeaderName = Annotated[str, Field(pattern=HEADER_NAME)]
PastVersion = Annotated[Literal["off", "2025-11-25", "2025-06-18", "2025-03-26"], BeforeValidator(as_written)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
Deadline = Annotated[float, Field(gt=0, le=0.9)]
OpaUrl = Annotated[SecureUrl, AfterValidator(_bare_url)]
DATABASES = ("sqlite:///", "postgresql://", "postgres://")


class Group(BaseModel):
    """A room's settings: frozen, and strict about keys."""

    # `defer_build`: who judges is made for the whole configuration, not for each group as well (0.5 MB, 20 ms).
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)
