"""Shapes of secrets are masked wherever a record would show text: cleared values, details (AUD-02)."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract.passage import Call, Envelope, Passage
from gateway.contract.record import decision_record, refusal_record
from gateway.contract.refusals import Refusal
from gateway.contract.secret_shapes import conceal, is_card_number
from policies.verdict import Effect, Verdict
from tests.contract.walked import REDACTOR, turned_away, walked

JWT = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl"
LINE = "MHcCAQEEIIrYSSNQFaA2Hwf1duRSxKtLYX5CB04fSeQ6tF1aY/PuoAoGCCqGSM49"
PEM = f"-----BEGIN EC PRIVATE KEY-----\n{LINE}\n-----END EC PRIVATE KEY-----"
SECRETS: dict[str, tuple[str, str]] = {
    "a JWT": (JWT, "token"),
    "a bearer token": ("Bearer abcdef0123456789abcdef", "token"),
    "basic credentials": ("basic dXNlcjpwYXNzd29yZA==", "token"),
    "a private key": (PEM, "key"),
    "half a private key": (PEM[:70], "key"),
    "an OpenPGP key": (PEM.replace("EC PRIVATE KEY", "PGP PRIVATE KEY BLOCK"), "key"),
    "a model provider's key": ("sk-" + "proj-abcDEF0123456789xyz", "api key"),
    "a payment key": ("sk_" + "live_4eC39HqLyjWDarjtT1zdp7dc", "api key"),
    "a GitHub token": ("ghp" + "_16C7e42F292c6912E7710c838347Ae178B4a", "api key"),
    "a GitLab token": ("glpat" + "-20charsOfRandomness", "api key"),
    "a Slack token": ("xoxb" + "-17653672481-19874698323-pdFZKVeTuE8sk7oO", "api key"),
    "an AWS key id": ("AKIA" + "IOSFODNN7EXAMPLE", "api key"),
    "a Google key": ("AIza" + "SyDaGmWKa4JsXZ-HjGw7ISLn_3namBGewQe", "api key"),
    "a SendGrid key": ("SG." + "ngeVfQFYQlKU0ufo8x5d1A.TwL2iGABf9DHoTf-09kqeF8tAmbihYzr", "api key"),
    "a card number": ("4111111111111111", "card number"),
    "a card number in groups": ("5555 5555-5555 4444", "card number"),
    "a long card number": ("6304000000000000000", "card number"),
    "an e-mail address": ("alice.o+tag@mail.example.co.uk", "e-mail address"),
    "an address at a domain of another script": ("jörg@bücher.example", "e-mail address"),
    "a password in a URL": ("postgresql://app:hun%ter$2!x@db.internal:5432/orders", "password"),
}


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("around", ["{}", "say {} twice", "key={};", '{{"k":"{}"}}', "(see {})"])
def test_a_secret_is_masked_wherever_it_stands(name: str, around: str) -> None:
    """Each shape goes, alone or inside of other text; what stands around it stays, and its kind is told."""
    secret, kind = SECRETS[name]
    if name == "half a private key":
        around = around.partition("}")[0] + "}"  # what follows an unfinished key belongs to it
        around = around if around != "{{" + '"k":"{}' else '"k":"{}'
    shown, masked = conceal(around.format(secret))
    assert secret not in shown
    assert kind in masked
    assert f"[{kind} removed]" in shown
    assert shown.startswith(around.format("\0").partition("\0")[0])


@pytest.mark.parametrize(
    "text",
    [
        "", "SELECT 1", "/srv/report-2026-11-30.txt", "4111111111111112", "0000000000000000", "1234567890123",
        "sk-short", "-----BEGIN CERTIFICATE-----", "eyJ", "a@b", "bearer of news", "1.2.3.4",
        "2026-11-30T10:15:00.000Z",
        "550e8400-e29b-41d4-a716-446655440000", "task-force-1234567890", "skip_test_everything_else_here",
    ],
)  # fmt: skip
def test_what_is_none_stays_as_it_is(text: str) -> None:
    """An ordinary value that a policy clears is readable."""
    assert conceal(text) == (text, ())


def test_the_check_digit_decides() -> None:
    """Luhn: one digit changed, or two neighbours swapped, is no card number."""
    good = "4539148803436467"
    assert is_card_number(good)
    for place in range(len(good)):
        changed = f"{good[:place]}{(int(good[place]) + 1) % 10}{good[place + 1 :]}"
        assert not is_card_number(changed)
    assert not is_card_number("79927398713"), "too short"


def cleared(**arguments: Any) -> str:
    verdict = Verdict(Effect.ALLOW, reasons=("r",), revision="1", clear=("",))
    return json.dumps(decision_record(walked(arguments, verdict=verdict), REDACTOR))


@pytest.mark.parametrize("name", SECRETS)
def test_a_member_whose_name_is_a_secret_is_not_cleared(name: str) -> None:
    """AUD-02: a caller may use one as a member's name: below what is cleared it stays an HMAC."""
    secret, _ = SECRETS[name]
    record = cleared(path={secret: 1, "plain": 2}, deep=[{f"x {secret}": {"inner": "y"}}])
    assert json.dumps(secret)[1:-1] not in record
    assert json.dumps(secret.replace("/", "~1"))[1:-1] not in record
    assert '"/path/plain"' in record


@pytest.mark.parametrize("name", SECRETS)
def test_what_a_caller_names_shows_no_secret(name: str) -> None:
    """AUD-02: a name that no server offers, a resource's URI, a request's id: what has a shape is removed."""
    secret, kind = SECRETS[name]
    wanted = f"[{kind} removed]"
    stranger = decision_record(walked(name=f"x {secret}", tool=None), REDACTOR)
    assert wanted in stranger["name"]
    asked = decision_record(walked(request_id=f"x {secret}"), REDACTOR)
    assert wanted in asked["request_id"]
    envelope = Envelope(b"{}", 1, "resources/read", {"uri": f"mem:x {secret}"}, {})
    passage = Passage("d", 0.0, 0.0, envelope=envelope)
    passage.call = Call(envelope, "resource", "resources/read", f"mem:x {secret}", {}, {})
    if kind == "password":
        wanted = "://hmac:"  # as userinfo of any URI is
    for record in (decision_record(passage, REDACTOR), refusal_record(passage, REDACTOR)):
        assert wanted in record["name"]
        assert secret not in record["name"]
        passage.call = None


@pytest.mark.parametrize("name", SECRETS)
def test_clearing_everything_clears_no_secret(name: str) -> None:
    """AUD-02: a policy that clears all arguments still shows no secret; the leaf tells what was masked."""
    secret, kind = SECRETS[name]
    record = cleared(path=secret, deep={"inner": [f"x {secret}"]})
    assert json.dumps(secret)[1:-1] not in record
    assert secret[:24] not in record or kind == "e-mail address"
    assert f'"masked": ["{kind}"' in record
    assert "plain text" in cleared(path="plain text")


def test_a_card_number_as_a_number_is_masked_too() -> None:
    """JSON has numbers: those are looked at as well."""
    assert "4111111111111111" not in cleared(path=4111111111111111)
    assert "4111111111111112" in cleared(path=4111111111111112)
    assert "4111111111111111" not in cleared(path=4111111111111111.0)
    assert "41111" not in cleared(path=4.111111111111111e15)
    assert "41111" not in cleared(path=-4111111111111111)
    assert "2.5" in cleared(path=2.5)


def test_a_secret_at_the_cut_is_not_half_shown() -> None:
    """A long text is cut after it was masked, and before the word at the cut."""
    for length in (200, 240, 250, 4040, 4080, 4090):
        shown, _ = conceal("x" * 9 + " " + " " * length + JWT)
        assert "eyJ" not in shown
        assert "eyJhbGciOi" not in cleared(path="." * length + " " + JWT)


def test_a_detail_shows_no_secret() -> None:
    """AUD-02: a room's sentence that quotes one is masked like a value."""
    for secret, kind in SECRETS.values():
        passage = turned_away(Refusal.TOKEN_INVALID, f"it said {secret}")
        detail = refusal_record(passage, REDACTOR)["detail"]
        assert secret not in detail
        assert f"[{kind} removed]" in detail


@given(st.text(max_size=300))
def test_no_text_breaks_it(text: str) -> None:
    """Whatever is written, it ends, and masking twice changes nothing more."""
    shown, masked = conceal(text)
    assert bool(masked) == (shown != text)
    assert conceal(shown)[0] == shown


@pytest.mark.parametrize(
    "unit", ["a", "a.", "@", "a@", "1 ", "1-", "-----BEGIN KEY-----", "eyJ", "sk-", "a@b.", "://a:", "://:@"]
)
def test_hostile_text_takes_no_time(unit: str) -> None:
    """A megabyte of what nearly matches is done at once."""
    began = time.perf_counter()
    conceal(unit * (1_000_000 // len(unit)))
    assert time.perf_counter() - began < 1
