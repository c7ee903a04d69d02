"""Sealed requestState: only its owner, for the same request, before its expiry, in one spelling (contract.md 5)."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from approvals.ticket import Claimed
from gateway.contract.passage import Call, Envelope, Identity, OpenedState, Server, Waits
from gateway.contract.refusals import Refusal, Refused
from gateway.sealing import derive_keys, read_keys
from gateway.seals import Seals

KEYS = (b"k" * 32, b"l" * 32)
SERVER = Server("s", "/s/mcp", "https://gw/s/mcp", "https://gw/.well-known/x")
IDENTITY = Identity("https://i", "alice")
ENVELOPE = Envelope(b"{}", 1, "tools/call", {}, {})
STATE = OpenedState("s")
GATED = OpenedState("s", 3, Claimed("ticket-1", "use-1", 2, 10.0, "e" * 64))
CALL = Call(ENVELOPE, "tool", "tools/call", "buy", {"amount": 5}, {})


def refused(seals: Seals, text: str, *, now: float = 0.0, **changed: Any) -> str:
    who, where, what = changed.get("identity", IDENTITY), changed.get("server", SERVER), changed.get("call", CALL)
    with pytest.raises(Refused) as caught:
        seals.open_state(text, who, where, what, now)
    assert caught.value.refusal is Refusal.STATE_NOT_ACCEPTED
    return caught.value.detail


@given(state=st.none() | st.text())
def test_what_was_sealed_is_opened(state: str | None) -> None:
    """The upstream gets its own state back, byte for byte; `None` says that it gave none."""
    seals = Seals(KEYS)
    text = seals.seal_state(OpenedState(state), IDENTITY, SERVER, CALL, 10.0)
    assert seals.open_state(text, IDENTITY, SERVER, CALL, 9.9) == OpenedState(state)


def test_a_seal_says_which_leg_it_is_and_which_approval_it_runs_under() -> None:
    """Leg, ticket, use and the approved effect come back as they were sealed; nothing in the text tells of them."""
    seals = Seals(KEYS)
    text = seals.seal_state(GATED, IDENTITY, SERVER, CALL, 10.0)
    assert seals.open_state(text, IDENTITY, SERVER, CALL, 9.9) == GATED
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    assert not [word for word in (b"ticket-1", b"use-1", b"leg", b"e" * 64) if word in raw]


@given(answers=st.none() | st.dictionaries(st.text(), st.text() | st.integers(-(2**53), 2**53) | st.none()))
def test_a_seal_says_what_is_waited_for(answers: dict[str, Any] | None) -> None:
    """Ticket, effect and the answers that were held come back as they were sealed; an end is told with them."""
    seals = Seals(KEYS)
    held = replace(GATED, waits=Waits("ticket-2", "f" * 64, answers))
    found = seals.open_state(seals.seal_state(held, IDENTITY, SERVER, CALL, 10.0), IDENTITY, SERVER, CALL, 9.9)
    assert (found, found.expires_at) == (held, 10.0)


@pytest.mark.parametrize("size", [1, 65_536, 1_000_000])
def test_what_a_server_may_send_comes_back(size: int) -> None:
    """The gateway hands out no seal that it would not open again: bodies have their limit, states have none."""
    seals = Seals(KEYS)
    state = OpenedState("s" * size)
    assert seals.open_state(seals.seal_state(state, IDENTITY, SERVER, CALL, 9), IDENTITY, SERVER, CALL, 1) == state


FOREIGN: dict[str, dict[str, Any]] = {
    "another subject": {"identity": replace(IDENTITY, subject="bob")},
    "the same subject of another issuer": {"identity": replace(IDENTITY, issuer="https://j")},
    "the same subject in another tenant": {"identity": replace(IDENTITY, tenant="globex")},
    "another server": {"server": replace(SERVER, name="t")},
    "another resource": {"server": replace(SERVER, resource="https://gw/t/mcp")},
    "another method": {"call": replace(CALL, method="prompts/get")},
    "another tool": {"call": replace(CALL, name="sell")},
    "another argument": {"call": replace(CALL, arguments={"amount": 6})},
    "an argument of another type": {"call": replace(CALL, arguments={"amount": "5"})},
    "parts that join to the same text": {
        "identity": Identity("https://i", "ali"),
        "server": replace(SERVER, name="ces"),
    },
}


@pytest.mark.parametrize("state", [STATE, GATED], ids=["free", "approved"])
@pytest.mark.parametrize("changed", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_foreign_seal_is_refused(changed: dict[str, Any], state: OpenedState) -> None:
    """A seal opens for the same issuer, subject, server, method, name and arguments only."""
    seals = Seals(KEYS)
    text = seals.seal_state(state, IDENTITY, SERVER, CALL, 10.0)
    assert seals.open_state(text, IDENTITY, SERVER, CALL, 0.0) == state
    refused(seals, text, **changed)


def test_an_expired_seal_is_refused() -> None:
    """The expiry is inside the seal; the moment itself is too late."""
    seals = Seals(KEYS)
    text = seals.seal_state(STATE, IDENTITY, SERVER, CALL, 10.0)
    assert seals.open_state(text, IDENTITY, SERVER, CALL, 9.999) == STATE
    assert "expired" in refused(seals, text, now=10.0)


def test_every_changed_character_is_refused() -> None:
    """One character anywhere, cut, extended or spelt in another alphabet: not accepted (APR-11)."""
    seals = Seals(KEYS)
    text = seals.seal_state(STATE, IDENTITY, SERVER, CALL, 10.0)
    assert seals.open_state(text, IDENTITY, SERVER, CALL, 0.0) == STATE
    for index, char in enumerate(text):
        refused(seals, text[:index] + ("A" if char != "A" else "B") + text[index + 1 :])
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    for other in (
        text[:-1],
        text + "A",
        text + "=",
        " " + text,
        "",
        "A",
        "é",
        base64.b64encode(raw + b"\xff").decode(),
    ):
        refused(seals, other)
    refused(seals, "A" * 70_000)


def test_keys_rotate_without_breaking_open_conversations() -> None:
    """The first key seals, all open; a key that is gone opens nothing more."""
    old, both, new = Seals(KEYS[:1]), Seals((KEYS[1], KEYS[0])), Seals(KEYS[1:])
    text = old.seal_state(STATE, IDENTITY, SERVER, CALL, 10.0)
    assert both.open_state(text, IDENTITY, SERVER, CALL, 0.0) == STATE
    assert new.open_state(both.seal_state(GATED, IDENTITY, SERVER, CALL, 10.0), IDENTITY, SERVER, CALL, 0.0) == GATED
    assert "unknown key" in refused(new, text)


def test_purposes_have_keys_of_their_own() -> None:
    """A seal of one purpose is nothing in another; derived keys differ per label and per key."""
    assert len({*derive_keys(KEYS, "a"), *derive_keys(KEYS, "b"), *KEYS}) == 6
    text = Seals(KEYS, label="other").seal_state(STATE, IDENTITY, SERVER, CALL, 10.0)
    refused(Seals(KEYS), text)


def test_keys_are_read_strictly() -> None:
    """Keys are 32 bytes in base64url; the error names setting and position, never the text."""
    good = base64.urlsafe_b64encode(KEYS[0]).decode()
    assert read_keys(f"{good}, {good[:-1].replace('a', 'b')}", "seals")[0] == KEYS[0]
    for text, why in ((good[:8], "bytes"), ("", "bytes"), (f"{good},{good}", "twice"), ("!" + good, "base64url")):
        with pytest.raises(ValueError, match=f"seals: .*{why}") as caught:
            read_keys(text, "seals")
        assert good not in str(caught.value)
