"""People sign in to a real gateway at the demo's issuer, both as processes: the whole way, and what is left of it."""

from __future__ import annotations

from gateway.demo.stack import Stack
from tests.support.browsing import Browser


def test_a_person_signs_in_and_is_where_they_wanted_to_be(stack: Stack) -> None:
    """The code flow from begin to end; one durable record of it, without a code, a token or a cookie in it."""
    with Browser() as browser:
        signs_in(stack, browser)


def signs_in(stack: Stack, browser: Browser) -> None:
    there = browser.begin(stack.house.review_url, "/review/tickets/abc?x=1")
    back = browser.pick(there, "bob")
    landed = browser.get(back)
    assert (landed.status_code, landed.headers["location"]) == (303, "/review/tickets/abc?x=1")
    secret = browser.cookie("ostiary-")
    assert secret
    (record,) = stack.await_records(landed.headers["ostiary-decision"], "admin")
    assert (record["act"], record["by"]) == ("signed_in", f"{stack.house.issuer_url}|bob")
    written = "".join(path.read_text(errors="replace") for path in stack.house.directory.glob("*.*l*"))
    written += (stack.house.directory / "ostiary.db").read_bytes().decode("latin-1")
    code = back.partition("code=")[2].partition("&")[0]
    for planted in (secret, code, "eyJhbGciOi"):
        assert len(planted) > 8
        assert planted not in written
