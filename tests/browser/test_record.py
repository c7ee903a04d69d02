"""The record's pages as auditors and callers use them: real gateway, real issuer, real Chromium."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from gateway.demo.exchange import Answer, ask_tool, send
from gateway.demo.house import Ports
from gateway.demo.stack import Stack
from tests.browser.stage import ARGUMENTS, CHROMIUM, PATIENCE_MS, PLACE, Theatre, picture, words

PHONE = {"width": 360, "height": 740}
EVIL = "</bdi></td><script>alert(1)</script><img src=x onerror=alert(2)>"
KEY = base64.urlsafe_b64encode(os.urandom(32)).decode()
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def stage() -> Iterator[Theatre]:
    """One gateway, whose record has checkpoints elsewhere, and one browser for all stories."""
    audit = {"file": "audit.jsonl", "checkpoints": {"file": "checkpoints.jsonl"}}
    keys = {"OSTIARY_CHECKPOINT_KEY": KEY}
    stack = Stack(ports=Ports.free(1), place=PLACE, settings={"audit": audit}, environment=keys)
    with stack, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield Theatre(stack, browser)
        browser.close()


@pytest.fixture
def theatre(stage: Theatre) -> Iterator[Theatre]:
    """The same, and no trouble at the end."""
    yield stage
    stage.leave()


def approved_and_run(theatre: Theatre, cents: int) -> tuple[str, str]:
    """Alice's transfer, held, approved by Bob and run -> the ticket's id and the id of the decision that ran it."""
    order = {"from_account": "operating", "to_account": "supplier-acme", "amount_cents": cents, "memo": "canary 1041"}
    address = theatre.held("transfer_funds", **order)
    bob = theatre.visit("bob", address)
    bob.get_by_role("button", name="Approve").click()
    expect(bob.locator(".top .state")).to_have_text("Approved")
    ran = theatre.call("transfer_funds", **order)
    assert ran.structured["amount_cents"] == cents
    theatre.stack.await_records(ran.decision_id, "decision", "outcome")
    return address.rpartition("/")[2], ran.decision_id


def short_of_scopes(theatre: Theatre, who: str = "alice") -> Answer:
    """A call with a token that lacks what the tool takes."""
    token = theatre.stack.mint(who, "payments", "mcp:use")
    answer = send(theatre.stack.http, ask_tool(theatre.stack.house.endpoint("payments"), token, "transfer_funds", {}))
    assert answer.code == 40301, answer.text
    theatre.stack.await_records(answer.decision_id, "refusal")
    return answer


def nothing_of_a_strangers(page: Page) -> None:
    """No markup of a stranger's came to be."""
    assert page.locator("img[src=x], style, iframe, a[href^=javascript], form[action*=evil]").count() == 0
    assert page.locator("script").count() == 1


def test_a_requests_whole_story_is_two_clicks_away(theatre: Theatre) -> None:
    """Found by its tool, told from its ticket to its end, with what was redacted and why; nothing of its values."""
    ticket, decision = approved_and_run(theatre, 4200)
    carol = theatre.visit("carol")
    carol.get_by_role("link", name="Record").click()
    carol.locator("summary", has_text="Filter").click()
    carol.get_by_label("Tool, prompt or resource").fill("transfer_funds")
    carol.get_by_label("Kind").select_option("decision")
    carol.get_by_role("button", name="Show").click()
    picture(carol, "record-timeline-filtered")
    rows = carol.locator(".timeline tbody tr")
    expect(rows.first).to_contain_text("alice")
    assert {row.locator(".state").inner_text() for row in rows.all()} == {"approved"}
    carol.locator(f'.timeline a[href*="{decision}"]').first.click()
    text = words(carol)
    for fact in (
        "alice asked for transfer_funds at payments",
        "executed",
        "approve by",
        "not kept",
        "shape only",
        decision,
    ):
        assert fact in text, fact
    steps = re.compile(r"request by|refused: approval_required|approve by|decided: forwarded|ended: executed")
    told = [
        found[0] for one in carol.locator(".history .event div").all() if (found := steps.search(one.inner_text()))
    ]
    assert told == steps.pattern.split("|")
    expect(carol.locator(".link .looks-good").first).to_be_attached()
    assert carol.locator(".link .looks-bad").count() == 0
    assert "canary" not in carol.content()
    picture(carol, "record-story")
    carol.get_by_role("link", name=f"All records of ticket {ticket}").click()
    expect(carol.locator(".timeline tbody tr").first).to_be_visible()
    assert {"asked for", "held", "approved", "executed"} <= {
        one.inner_text() for one in carol.locator(".timeline .state").all()
    }
    nothing_of_a_strangers(carol)


def test_evidence_from_the_page_verifies_elsewhere(theatre: Theatre, tmp_path: Path) -> None:
    """The downloaded file verifies by the command, in another process, with the public key alone; changed, not."""
    ticket, decision = approved_and_run(theatre, 77)
    carol = theatre.visit("carol", f"/review/audit/{decision}")
    with carol.expect_download() as download:
        carol.get_by_role("button", name="Download its ticket").click()
    assert download.value.suggested_filename == f"evidence-{ticket[:32]}.jsonl"
    file = tmp_path / "evidence.jsonl"
    download.value.save_as(file)
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert {one.get("ticket") for one in records if "kind" in one} == {ticket}
    assert {"approval", "refusal", "decision", "outcome"} <= {one.get("kind") for one in records}
    assert records[-1]["export"]["filter"]["ticket"] == ticket
    key = tmp_path / "public-key"
    key.write_text(_public_key())
    whole = theatre.stack.run("audit", "verify", "--file", str(file), "--public-key", str(key))
    assert (whole.returncode, "BROKEN" in whole.stdout) == (0, False), whole.stdout + whole.stderr
    forged = tmp_path / "forged.jsonl"
    forged.write_text(file.read_text().replace('"transfer_funds"', '"transfer_fundz"', 1))
    assert theatre.stack.run("audit", "verify", "--file", str(forged), "--public-key", str(key)).returncode == 1
    taken = [one for one in theatre.stack.audit_records() if one.get("act") == "evidence_taken"]
    assert (taken[-1]["by"].rpartition("|")[2], taken[-1]["facts"]["ticket"]) == ("carol", ticket)


def _public_key() -> str:
    from gateway.audit.checkpoints import SigningKey

    return SigningKey(KEY, "KEY").public.text


def test_charts_say_in_shapes_what_their_tables_say_in_numbers(theatre: Theatre) -> None:
    """Each verdict is counted by tool and by reason; the drawing has a shape for each, and the table its number."""
    approved_and_run(theatre, 88)
    short_of_scopes(theatre)
    theatre.call("no_such_tool")
    carol = theatre.visit("carol", "/review/audit")
    carol.get_by_role("link", name="Charts").click()
    expect(carol.locator("svg.chart")).to_be_visible()
    picture(carol, "record-charts")
    row = carol.locator("table.figures tr", has_text="transfer_funds")
    numbers = dict(
        zip(
            ("allowed", "approved", "held", "refused"),
            map(int, row.locator("td.number").all_inner_texts()),
            strict=True,
        )
    )
    assert (numbers["approved"] >= 1, numbers["held"] >= 1, numbers["refused"] >= 1, numbers["allowed"]) == (
        True,
        True,
        True,
        0,
    )
    reason = carol.locator("table.figures tr", has_text="scope_insufficient")
    assert int(reason.locator("td.number").nth(3).inner_text()) >= 1
    assert {"bar-approved", "bar-held", "bar-refused"} <= {
        rect.get_attribute("class") for rect in carol.locator("svg.chart rect").all()
    }
    fill = carol.locator("svg.chart rect").first.evaluate("one => getComputedStyle(one).fill")
    assert fill != "rgb(0, 0, 0)"
    carol.locator("summary", has_text="The numbers").click()
    expect(carol.locator(".card table.figures").first).to_be_visible()
    reason.get_by_role("link").click()
    expect(carol.locator(".timeline tbody tr").first).to_contain_text("scope_insufficient")


def test_why_was_i_refused(theatre: Theatre) -> None:
    """One's own refusal in words, with the scope that is missing; another's is as absent as one that never was."""
    answer = short_of_scopes(theatre)
    alice = theatre.visit("alice")
    alice.get_by_role("link", name="Refusals").click()
    picture(alice, "refusals")
    alice.locator(f'a[href*="{answer.decision_id}"]').click()
    text = words(alice)
    assert "The token lacks a scope that this operation needs." in text
    assert "What was missing: payments:write" in text
    assert answer.decision_id in text
    picture(alice, "refusals-why")
    bob = theatre.visit("bob", "/review/refusals")
    expect(bob.locator(f'a[href*="{answer.decision_id}"]')).to_have_count(0)
    expect(bob.get_by_role("link", name="Record")).to_have_count(0)
    pages = []
    for one in (answer.decision_id, "0" * 32):
        theatre.go(bob, f"/review/why/{one}")
        pages.append(re.sub(r"<code>[0-9a-f]{32}</code>", "", bob.content()))
    assert pages[0] == pages[1]
    assert "Nothing here" in pages[0]
    theatre.go(bob, "/review/audit")
    assert "audit:read" in words(bob)


def test_hostile_names_in_the_record_do_nothing(theatre: Theatre) -> None:
    """A tool's name that a caller made up is text on every page that shows it, to the auditor and to the caller."""
    answer = theatre.call(EVIL)
    assert answer.code == 40302, answer.text
    theatre.stack.await_records(answer.decision_id, "refusal")
    for who, place in (
        ("carol", "/review/audit"), ("carol", "/review/audit/charts"),
        ("carol", f"/review/audit/{answer.decision_id}"),
        ("carol", "/review/audit?tool=%3Cscript%3Ealert(1)%3C%2Fscript%3E"),
        ("alice", "/review/refusals"), ("alice", f"/review/why/{answer.decision_id}"),
    ):  # fmt: skip
        page = theatre.visit(who, place)
        nothing_of_a_strangers(page)
        if "?" not in place:
            assert "<script>alert(1)</script>" in words(page), place
        picture(page, f"record-hostile-{who}-{place.count('/')}-{place.rpartition('/')[2][:6]}")


def test_reading_the_record_is_recorded_once(theatre: Theatre) -> None:
    """Who looked at what: the first look at once, the same again not anew."""
    carol = theatre.visit("carol", "/review/audit?reason=planted_reason")
    for _ in range(5):
        carol.reload()
    looks = [one for one in _read(theatre) if one["facts"].get("reason") == "planted_reason"]
    assert [(one["by"].rpartition("|")[2], one["facts"]["page"], one["count"]) for one in looks] == [
        ("carol", "timeline", 1)
    ]


def _read(theatre: Theatre) -> list[dict[str, Any]]:
    return [one for one in theatre.stack.audit_records() if one.get("act") == "record_read"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_without_scripts_is_enough(theatre: Theatre, scheme: str) -> None:
    """At 360 px nothing is scrolled sideways, in either light, and every page works by links and forms alone."""
    _, decision = approved_and_run(theatre, 99 if scheme == "dark" else 98)
    answer = short_of_scopes(theatre)
    for name, who, path in (
        ("timeline", "carol", "/review/audit"), ("charts", "carol", "/review/audit/charts"),
        ("story", "carol", f"/review/audit/{decision}"), ("refusals", "alice", "/review/refusals"),
        ("why", "alice", f"/review/why/{answer.decision_id}"),
    ):  # fmt: skip
        page = theatre.visit(who, path, color_scheme=scheme, viewport=PHONE, scripts=False)
        expect(page.locator("h1")).to_be_visible()
        picture(page, f"record-phone-{scheme}-{name}")
        for one in page.locator("main details").all():
            one.locator("summary").click()
        picture(page, f"record-phone-{scheme}-{name}-open")
        assert (
            page.locator("main").evaluate("one => one.ownerDocument.documentElement.scrollWidth") <= PHONE["width"]
        ), name
        for button in page.locator("main button").all():
            box = button.bounding_box()
            assert box is not None
            assert box["height"] >= 44
