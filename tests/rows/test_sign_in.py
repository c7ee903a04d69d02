"""The refusals of the sign-in: a page for whoever is there, a record like any other, and nobody else is asked."""

from __future__ import annotations

import httpx
import pytest

from gateway.contract.refusals import Refusal
from tests.rows.proof import passes
from tests.rows.stage import House


def look(house: House, path: str) -> httpx.Response:
    """A browser's look at a place below `/review`."""
    host, port = house.address
    return house.http.get(f"http://{host}:{port}/review/{path}")


def held_to(house: House, answer: httpx.Response, refusal: Refusal) -> None:
    """The row's status, one record of this decision, and no word of the request or of the detail on the page."""
    row = refusal.value
    assert answer.status_code == row.status
    assert answer.headers["content-type"].startswith("text/html")
    assert ("retry-after" in answer.headers) == bool(row.retry_after_s)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    decision = answer.headers["ostiary-decision"]
    assert decision in answer.text
    passes(house)
    (record,) = house.records_of(decision)
    assert (record["kind"], record["reasons"], record["code"]) == ("refusal", [refusal.reason], row.code)
    assert record["detail"]
    assert record["detail"] not in answer.text


@pytest.mark.provokes(Refusal.SIGN_IN_REFUSED)
def test_an_answer_that_nobody_here_asked_for_is_refused(house: House) -> None:
    """A browser that began no sign-in can't end one: nothing it brings is looked at, nor repeated."""
    answer = look(house, "callback?code=planted-code&state=planted-state&error=planted%3Cb%3E")
    held_to(house, answer, Refusal.SIGN_IN_REFUSED)
    assert "planted" not in answer.text
    assert not [record for record in house.records() if "planted-code" in str(record)]


@pytest.mark.provokes(Refusal.SIGN_IN_UNAVAILABLE)
def test_an_issuer_that_is_away_signs_nobody_in(house: House) -> None:
    """Its own row, at once, and calls go on."""
    held_to(house, look(house, "sign-in?next=/review"), Refusal.SIGN_IN_UNAVAILABLE)
