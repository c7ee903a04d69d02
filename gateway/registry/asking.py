"""One exchange with a registry whose answer is JSON: bounded in bytes and time, and every refusal in our words.

No redirect is followed, nothing is decompressed, and a token leaves on `https://` (or loopback) alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.contract.differences import visible
from gateway.contract.strict_json import NotStrict, read_strictly
from gateway.upstream.target import ReplicaRefused, check_replica_url

if TYPE_CHECKING:
    import httpx

_LONGEST: Final = 20_000
"""Characters of a text of an error that are looked at: more than a token has."""

_JSON: Final = ("application/json", "application/problem+json")


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Bounds of what a registry can make us read (counts, bytes) and of its answers (seconds)."""

    pages: int = 200
    entries: int = 10_000
    page_bytes: int = 8_388_608
    all_bytes: int = 67_108_864
    cursor: int = 4_096
    connect_s: float = 3.0
    answer_s: float = 15.0
    all_s: float = 120.0


class RegistryFault(Exception):  # noqa: N818 - a fault of the registry, told apart by its subclasses
    """The registry gave no acceptable answer. The text is ours; what it quotes is made visible and cut."""


class RegistryUnavailable(RegistryFault):
    """It could not be asked, or not now."""


class RegistryInvalid(RegistryFault):
    """Its answer is none."""


class RegistryRefused(RegistryFault):
    """It said no. `status` is that of HTTP."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class Answered:
    """A whole answer: its status, and its JSON value (`None` for an empty body)."""

    status: int
    value: Any
    size: int = 0


async def ask_json(
    http: httpx.AsyncClient,
    method: str,
    url: str,
    limits: ClientLimits,
    *,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str],
    body: bytes | None = None,
) -> Answered:
    """One exchange whose answer is JSON with one reading, within the limits. Raises `RegistryFault` subclasses."""
    import httpx  # noqa: PLC0415 - loaded by who made `http`

    try:
        async with (
            asyncio.timeout(limits.answer_s),
            http.stream(method, url, params=query, headers=headers, content=body) as answer,
        ):
            if answer.is_redirect or answer.has_redirect_location:
                raise RegistryInvalid(f"answers {answer.status_code}: a redirect is not followed")
            text = bytearray()
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise RegistryInvalid("its answer is compressed")
            async for piece in answer.aiter_raw(65_536):
                text += piece
                if len(text) > limits.page_bytes:
                    raise RegistryInvalid(f"its answer has more than {limits.page_bytes} bytes")
            status, kind = answer.status_code, answer.headers.get("content-type", "")
            pause = answer.headers.get("retry-after", "")
    except (TimeoutError, httpx.TimeoutException):
        raise RegistryUnavailable("did not answer in time") from None
    except httpx.HTTPError as error:
        raise RegistryUnavailable(f"can't be asked ({type(error).__name__})") from None
    is_json = kind.partition(";")[0].strip().lower() in _JSON
    if status >= 400:
        value = await asyncio.to_thread(_read, bytes(text)) if is_json else None
        raise _refusal(status, value, pause, headers.get("authorization", "").rpartition(" ")[2])
    if not is_json:
        raise RegistryInvalid("its answer is not application/json")
    return Answered(status, await asyncio.to_thread(_read, bytes(text)), len(text))


def check_source(url: str) -> bool:
    """Whether a registry's URL is secure. Raises `RegistryInvalid` for one that is not, unless it is loopback."""
    try:
        address = check_replica_url(url)
    except ReplicaRefused as error:
        raise RegistryInvalid(f"its URL: {str(error).replace('replica', 'registry')}") from None
    if not address.secure and not address.on_loopback:
        raise RegistryInvalid("its URL must be https:// (plain http:// is accepted on loopback only)")
    return address.secure


def is_bearer(token: str) -> bool:
    """Whether a text can be sent as a bearer token."""
    return bool(token) and token.isascii() and token.isprintable() and " " not in token and len(token) <= 16_384


def _read(text: bytes) -> Any:
    try:
        return read_strictly(text)
    except NotStrict as error:
        raise RegistryInvalid(f"its answer is not JSON with one reading: {error}") from None


_WORDS: Final[Mapping[int, str]] = {
    401: "does not take the token: it is missing, wrong or has expired",
    403: "does not let this token do that: the namespace is not its",
    404: "has nothing there",
    405: "does not do that",
    409: "has that already, or something in its way",
    413: "finds it too large",
    429: "is asked too often",
    501: "only reads: it publishes nothing",
}


def _refusal(status: int, value: Any, pause: str, token: str) -> RegistryFault:
    """A status in our words, with the registry's own behind them, without the token that it may have sent back."""
    words = _WORDS.get(status, "fails" if status >= 500 else "does not take it")
    said = "; ".join(_said(value))
    said = said.replace(token, "[the token]") if token else said
    told = f"{words} ({status})" + (f": {visible(said)[:1000]}" if said else "")
    if pause.isascii() and pause.isdigit() and len(pause) < 6:
        told += f"; again in {pause} s"
    return RegistryUnavailable(told) if status >= 500 and status != 501 else RegistryRefused(status, told)


def _said(value: Any) -> list[str]:
    """The texts of an error: `error` as the API describes it, RFC 9457's as the official registry sends it."""
    if not isinstance(value, dict):
        return []
    found = [value.get(name) for name in ("error", "detail", "message")]
    errors = value.get("errors")
    if isinstance(errors, list):
        found += [one.get("message") for one in errors[:10] if isinstance(one, dict)]
    return [one[:_LONGEST] for one in found if isinstance(one, str) and one]
