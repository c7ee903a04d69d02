"""What is sealed opens in its place and nowhere else."""

from __future__ import annotations

import pytest

from approvals.ticket import StoreUnavailable
from approvals.vault import Vault, join
from tests.support.approvals import KEY, effect

NEW = bytes(range(32, 64))


def test_sealed_text_opens_only_in_its_place() -> None:
    """Ciphertext is bound to its ticket and its column: a row's contents can't be moved."""
    vault = Vault([KEY])
    sealed = vault.seal(b"text", "ticket", "shown")
    assert vault.open(sealed, "ticket", "shown") == b"text"
    for ticket, column in (("other", "shown"), ("ticket", "bond"), ("ticketshown", ""), ("", "ticketshown")):
        with pytest.raises(StoreUnavailable):
            vault.open(sealed, ticket, column)


def test_every_changed_byte_is_found() -> None:
    """Each flipped bit, cut and extension of what is sealed is refused, and never read as something else."""
    vault = Vault([KEY])
    sealed = vault.seal(b"text", "ticket", "shown")
    assert vault.open(sealed, "ticket", "shown") == b"text"
    changed = [sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :] for at in range(len(sealed))]
    for one in [*changed, sealed + b"\0", *(sealed[:end] for end in range(len(sealed)))]:
        with pytest.raises(StoreUnavailable):
            vault.open(one, "ticket", "shown")


def test_the_first_key_seals_and_all_open() -> None:
    """Keys rotate: old tickets open and are found while their key is listed, new ones use the first."""
    old, both, new = Vault([KEY]), Vault([NEW, KEY]), Vault([NEW])
    assert both.open(old.seal(b"text", "t", "c"), "t", "c") == b"text"
    assert new.open(both.seal(b"text", "t", "c"), "t", "c") == b"text"
    assert old.lookups(effect())[0] in both.lookups(effect())
    assert both.lookups(effect())[0] == new.lookups(effect())[0]
    assert both.stamped(b"shown", old.stamp(b"shown"))
    assert not new.stamped(b"shown", old.stamp(b"shown"))
    with pytest.raises(StoreUnavailable):
        new.open(old.seal(b"text", "t", "c"), "t", "c")


def test_a_lookup_confirms_no_guess() -> None:
    """The digest that finds a ticket is keyed, and another one for every key; so is the digest of what was shown."""
    assert effect().digest not in Vault([KEY]).lookups(effect())[0]
    assert Vault([KEY]).lookups(effect()) != Vault([NEW]).lookups(effect())
    assert Vault([KEY]).stamp(b"x") != Vault([NEW]).stamp(b"x")


def test_joined_texts_can_be_told_apart() -> None:
    """No two lists of texts share their bytes, wherever the borders are."""
    assert len({join("a", "b"), join("ab", ""), join("ab"), join("", "ab"), join("a", "b", "")}) == 5


@pytest.mark.parametrize("keys", [[], [b"short"], [KEY, KEY + b"x"]])
def test_keys_have_32_bytes(keys: list[bytes]) -> None:
    """A missing or short key is a start-up error."""
    assert Vault([KEY]).key_id
    with pytest.raises(ValueError, match="32 bytes"):
        Vault(keys)
