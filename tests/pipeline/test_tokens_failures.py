"""What if verification itself breaks? (JWT-12): 401 or 503, never a 500, never an identity."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import gateway.contract.identity
import gateway.contract.strict_json
import gateway.issuers
import gateway.keys
import gateway.remembered
import gateway.signatures
import gateway.tokens
from gateway.contract.refusals import Refusal, Refused
from gateway.issuers import IssuerSettings
from gateway.keys import KeyUpkeep
from gateway.signatures import _read_short_header
from gateway.tokens import Tokens
from tests.support.issuer import Issuer, JwksServer, signing_key

RESOURCE = "https://mcp.example.com/readonly/mcp"
ROOMS = frozenset(
    str(module.__file__)
    for module in (
        gateway.contract.identity,
        gateway.contract.strict_json,
        gateway.issuers,
        gateway.keys,
        gateway.remembered,
        gateway.signatures,
        gateway.tokens,
    )
)
FAULTS = (
    RuntimeError,
    KeyError,
    MemoryError,
    RecursionError,
    UnicodeError,
    AttributeError,
    TimeoutError,
    StopIteration,
)


class Saboteur:
    """Traces the lines of the room's modules and raises at the one that is chosen (none: it only counts)."""

    def __init__(self, at: int = -1, fault: type[Exception] = RuntimeError) -> None:
        self.at, self.fault, self.lines, self.struck = at, fault, 0, False
        self._before: Any = None

    def __enter__(self) -> Saboteur:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename not in ROOMS:
            return None
        if event == "line":
            if not self.struck and self.lines == self.at:
                self.struck = True
                raise self.fault("injected")
            self.lines += 1
        return self._trace


@pytest.fixture
async def server() -> AsyncIterator[JwksServer]:
    async with JwksServer() as started:
        yield started


@pytest.fixture
async def issuer() -> Issuer:
    return Issuer(keys=[signing_key("ES256"), signing_key("RS256")])


@pytest.fixture
async def room(server: JwksServer, issuer: Issuer) -> AsyncIterator[Tokens]:
    server.routes["/jwks"] = issuer.jwks()
    settings = IssuerSettings(issuer=issuer.name, jwks_uri=server.url + "/jwks")
    tokens = Tokens([settings], upkeep=KeyUpkeep(cooldown_s=0))
    await tokens.start()
    yield tokens
    await tokens.close()


async def attempt(room: Tokens, issuer: Issuer, token: str) -> Refusal | None:
    _read_short_header.cache_clear()  # each attempt runs through the same lines
    try:
        identity = await room.identify(
            [f"Bearer {token}".encode()], resource=RESOURCE, issuers=frozenset({issuer.name})
        )
    except Refused as refused:
        return refused.refusal
    assert identity.subject == "alice"
    return None


@pytest.mark.parametrize("kind", ["new", "remembered", "unknown key"])
async def test_jwt_12_a_fault_at_any_line_is_a_refusal(room: Tokens, issuer: Issuer, kind: str) -> None:
    """Raise at each line that verification runs through, one after the other: always 401 or 503, never an identity,
    and the next good request is served."""
    unknown = {"kid": "unknown"} if kind == "unknown key" else None

    def token(number: int) -> str:
        return issuer.mint(RESOURCE, header=unknown, jti="same" if kind == "remembered" else f"{kind} {number}")

    if kind == "remembered":
        fixed = token(0)
        assert await attempt(room, issuer, fixed) is None
    with Saboteur() as counted:
        expected = await attempt(room, issuer, fixed if kind == "remembered" else token(-1))
    assert expected is (Refusal.TOKEN_INVALID if unknown else None)
    assert counted.lines > 12
    # Line 0 is the word `try`; where a refusal is expected, the last two lines are the handler that passes it on.
    for line in range(1, counted.lines - (2 if unknown else 0)):
        text = fixed if kind == "remembered" else token(line)
        with Saboteur(line, FAULTS[line % len(FAULTS)]) as saboteur:
            refusal = await attempt(room, issuer, text)
        assert saboteur.struck
        assert refusal in (Refusal.TOKEN_INVALID, Refusal.KEYS_UNAVAILABLE), line
        assert await attempt(room, issuer, issuer.mint(RESOURCE)) is None, line


STEPS = (
    "gateway.tokens._bearer",
    "gateway.tokens.sha256",
    "gateway.tokens.read_compact",
    "gateway.issuers.strict_object",
    "gateway.issuers.Issuer.check_type",
    "gateway.tokens.Turns.take",
    "gateway.tokens.check_signature",
    "gateway.tokens.identity_from_claims",
    "gateway.keys.KeySource.find",
    "gateway.keys.KeySource._pick",
    "gateway.remembered.Remembered.find",
    "gateway.remembered.Remembered.recall",
    "gateway.tokens.Tokens._judge",
    "gateway.tokens.Tokens._verify",
    "gateway.signatures.read_strictly",
)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("step", STEPS)
async def test_jwt_12_a_step_that_raises(
    room: Tokens, issuer: Issuer, monkeypatch: pytest.MonkeyPatch, step: str, fault: type[Exception]
) -> None:
    """Whatever a step raises, and of whatever kind, is 401; when it works again, so does the token."""
    token = issuer.mint(RESOURCE)

    def broken(*_: Any, **__: Any) -> Any:
        raise fault("injected")

    with monkeypatch.context() as patch:
        patch.setattr(step, broken)
        assert await attempt(room, issuer, token) is Refusal.TOKEN_INVALID
    assert await attempt(room, issuer, token) is None


@pytest.mark.parametrize("answer", [None, 0, 1, "yes", [], object()])
async def test_jwt_12_only_true_is_true(
    room: Tokens, issuer: Issuer, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    """A verifier that answers with anything but True did not verify."""
    method = gateway.signatures.ALGORITHMS["ES256"].check
    monkeypatch.setattr(type(method), "verify", lambda *_: answer)
    assert await attempt(room, issuer, issuer.mint(RESOURCE)) is Refusal.TOKEN_INVALID


async def test_jwt_12_before_start_nobody_is_known(tmp_path: Path, issuer: Issuer) -> None:
    """A room that was not started has no keys: not ready, 503."""
    room = Tokens([IssuerSettings(issuer=issuer.name, jwks_file=issuer.write(tmp_path / "jwks.json"))])
    assert not room.issuers.ready
    assert await attempt(room, issuer, issuer.mint(RESOURCE)) is Refusal.KEYS_UNAVAILABLE
    await room.start()
    assert room.issuers.ready
    assert await attempt(room, issuer, issuer.mint(RESOURCE)) is None
    await room.close()


async def test_a_refusal_tells_nothing_of_the_token(room: Tokens, issuer: Issuer) -> None:
    """The detail goes to the record and holds no text that a stranger chose; the caller gets the fixed sentence."""
    canary = "c4n4ry"
    lines = [
        f"Bearer {issuer.mint(RESOURCE, header={'kid': canary})}",
        f"Bearer {issuer.mint(RESOURCE, header={'typ': canary})}",
        f"Bearer {issuer.mint(RESOURCE, header={'alg': canary})}",
        f"Bearer {issuer.mint(RESOURCE, iss=canary)}",
        f"Bearer {issuer.mint(canary)}",
        f"Bearer {issuer.mint(RESOURCE, exp=canary)}",
        f"Bearer {issuer.mint(RESOURCE, scope={canary: 1})}",
        f"Bearer {canary}",
        f"Basic {canary}",
    ]
    for line in lines:
        with pytest.raises(Refused) as refused:
            await room.identify([line.encode()], resource=RESOURCE, issuers=frozenset({issuer.name}))
        assert canary not in f"{refused.value.detail}{refused.value}{refused.value.data}{refused.value.message}"
