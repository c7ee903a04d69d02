"""The reviewer's pages as people use them: real gateway, real issuer, real Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.browser.stage import ARGUMENTS, CHROMIUM, PATIENCE_MS, Theatre, a_stack, picture, words

PHONE = {"width": 360, "height": 740}
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def stage() -> Iterator[Theatre]:
    """One gateway and one browser for all stories."""
    with a_stack() as stack, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield Theatre(stack, browser)
        browser.close()


@pytest.fixture
def theatre(stage: Theatre) -> Iterator[Theatre]:
    """The same, and no trouble at the end."""
    yield stage
    stage.leave()


def state_is(page: Page, label: str) -> None:
    """The ticket's page says so; live pages come to it by themselves."""
    expect(page.locator(".top .state")).to_have_text(label)


def test_from_a_held_call_to_a_run_call_in_two_browsers(theatre: Theatre) -> None:
    """The requester opens the page from the error, says why; the reviewer sees all of it and approves; the repeated
    call runs once, and the requester's page has followed every step without being loaded again.
    """
    order = {"from_account": "operating", "to_account": "supplier-acme", "amount_cents": 4200, "memo": "secret 1041"}
    address = theatre.held("transfer_funds", **order)
    alice = theatre.visit("alice", address)
    state_is(alice, "Waiting for a decision")
    assert "You ask to call transfer_funds" in words(alice)
    assert "Somebody else has to decide" in words(alice)
    expect(alice.get_by_role("button", name="Approve")).to_have_count(0)
    alice.get_by_label("Say why you need this").fill("Invoice 1041 is due today.")
    alice.get_by_role("button", name="Add").click()
    expect(alice.locator(".quoted")).to_have_text("Invoice 1041 is due today.")
    picture(alice, "story-requester")

    bob = theatre.visit("bob")
    bob.get_by_role("link", name="transfer_funds").first.click()
    assert bob.url == address
    text = words(bob)
    for fact in ("alice asks to call transfer_funds on payments", "This can't be undone", "may delete or overwrite"):
        assert fact in text
    for fact in ("supplier-acme", "4200", "hidden by the policy", "Invoice 1041 is due today.", "alice-agent"):
        assert fact in text
    assert "secret 1041" not in bob.content()
    picture(bob, "story-reviewer")
    shown = bob.locator('input[name="seen"]').first.input_value()
    bob.get_by_label("Comment").fill("Checked against the invoice.")
    bob.get_by_role("button", name="Approve").click()
    state_is(bob, "Approved")
    assert "you approved" in words(bob)

    (record,) = [
        one
        for one in theatre.stack.audit_records()
        if one.get("ticket") == address.rpartition("/")[2] and one.get("transition") == "approve"
    ]
    assert (record["by"].rpartition("|")[2], record["seen"]) == ("bob", shown)

    state_is(alice, "Approved")
    expect(alice.locator(".history")).to_contain_text("Checked against the invoice.")
    before = len(theatre.stack.books.transfers())
    ran = theatre.call("transfer_funds", **order)
    assert ran.structured["amount_cents"] == 4200
    assert len(theatre.stack.books.transfers()) == before + 1
    state_is(alice, "Used")
    expect(alice.locator(".history")).to_contain_text("The call ran")
    picture(alice, "story-used")

    second = theatre.held("transfer_funds", **{**order, "amount_cents": 999_900})
    theatre.go(bob, second)
    changed = bob.locator(".diff tbody tr")
    expect(changed).to_have_count(1)
    expect(changed).to_contain_text("4200")
    expect(changed).to_contain_text("999900")
    picture(bob, "story-changed")

    theatre.forget("bob")
    bob.get_by_role("button", name="Sign out").click()
    expect(bob.get_by_role("link", name="To decide")).to_have_count(0)
    gone = bob.context.request.get(theatre.origin + "/review/mine", max_redirects=0)
    assert (gone.status, gone.headers["location"]) == (303, "/review/sign-in?next=%2Freview%2Fmine")


def test_a_denial_holds_and_says_why(theatre: Theatre) -> None:
    """The same call is refused with it, and the requester reads the reviewer's words."""
    address = theatre.held("get_balance", "readonly", account="payroll")
    dora = theatre.visit("dora", address)
    dora.get_by_label("Comment").fill("Payroll is not yours to look at.")
    dora.get_by_role("button", name="Deny").click()
    state_is(dora, "Denied")
    assert theatre.call("get_balance", "readonly", account="payroll").code == 40304
    alice = theatre.visit("alice", address)
    state_is(alice, "Denied")
    assert "Payroll is not yours to look at." in words(alice)
    picture(alice, "denied")


def test_an_approval_can_be_taken_back(theatre: Theatre) -> None:
    """Revoked before it was used, it is worth nothing: the call is held anew."""
    order = {"from_account": "operating", "to_account": "supplier-globex", "amount_cents": 77}
    address = theatre.held("transfer_funds", **order)
    dora = theatre.visit("dora", address)
    dora.get_by_role("button", name="Approve").click()
    state_is(dora, "Approved")
    dora.get_by_role("button", name="Revoke the approval").click()
    state_is(dora, "Revoked")
    again = theatre.held("transfer_funds", **order)
    assert again != address
    alice = theatre.visit("alice", again)
    alice.get_by_role("button", name="Withdraw the request").click()
    state_is(alice, "Withdrawn")


def test_two_have_to_agree(theatre: Theatre) -> None:
    """Each sees how many are there; nobody is asked twice; the second one approves it."""
    address = theatre.held("list_transfers", account="operating")
    dora = theatre.visit("dora", address)
    expect(dora.locator(".top .quorum")).to_have_text("0 of 2 approvals")
    dora.get_by_role("button", name="Approve").click()
    expect(dora.locator(".top .quorum")).to_have_text("1 of 2 approvals")
    expect(dora.get_by_role("button", name="Approve")).to_have_count(0)
    assert "You have approved this" in words(dora)
    assert theatre.call("list_transfers", account="operating").code == 40303
    bob = theatre.visit("bob", address)
    expect(bob.locator(".top .quorum")).to_have_text("1 of 2 approvals")
    picture(bob, "quorum")
    bob.get_by_role("button", name="Approve").click()
    state_is(bob, "Approved")
    assert "result" in theatre.call("list_transfers", account="operating").document


def test_what_is_over_can_not_be_approved(theatre: Theatre) -> None:
    """The open page says that the time is over and that it changed; looked at again, it has no buttons."""
    address = theatre.held("list_transfers", "readonly", account="operating")
    bob = theatre.visit("bob", address)
    expect(bob.locator(".left")).to_have_text("(over)")
    expect(bob.locator("[data-told]")).to_be_visible()
    bob.get_by_role("button", name="Approve").click()
    expect(bob.locator("h1")).to_have_text("Nothing was done")
    bob.get_by_role("link", name="Look again").click()
    state_is(bob, "Expired")
    expect(bob.get_by_role("button", name="Approve")).to_have_count(0)
    picture(bob, "expired")


def test_a_page_of_before_decides_nothing(theatre: Theatre) -> None:
    """What happened since is on the page that refuses, with what was written; looked at again, it is decided."""
    address = theatre.held("get_balance", "readonly", account="operating")
    bob, alice = theatre.visit("bob", address), theatre.visit("alice", address)
    alice.get_by_label("Say why you need this").fill("Because of <b>this</b>")
    alice.get_by_role("button", name="Add").click()
    expect(alice.locator(".quoted")).to_be_visible()
    bob.get_by_label("Comment").fill("Fine by me")
    bob.get_by_role("button", name="Approve").click()
    expect(bob.locator("h1")).to_have_text("Nothing was done")
    assert "added to the justification Because of <b>this</b>" in words(bob)
    assert "Fine by me" in words(bob)
    picture(bob, "stale")
    state_is(alice, "Waiting for a decision")
    bob.get_by_role("link", name="Look again").click()
    bob.get_by_role("button", name="Approve").click()
    state_is(bob, "Approved")


def test_without_a_right_there_is_nothing_to_see(theatre: Theatre) -> None:
    """Whoever is named by nothing reads the page of what does not exist; without the scope, that it is missing."""
    address = theatre.held("get_balance", "readonly", account="supplier-acme")
    carol = theatre.visit("carol", address)
    expect(carol.locator("h1")).to_have_text("Nothing here")
    missing = carol.content()
    theatre.go(carol, "/review/tickets/" + "A" * 24)
    assert carol.content() == missing
    picture(carol, "nothing-here")
    turned = [
        one
        for one in theatre.stack.audit_records()
        if one["ticket"] == address.rpartition("/")[2] and one["method"] == "approvals/show"
    ]
    assert [(one["actor"]["subject"], one["method"], one["status"]) for one in turned] == [
        ("carol", "approvals/show", 404)
    ]
    eve = theatre.visit("eve", address)
    expect(eve.locator("h1")).to_have_text("You may not do this")
    assert "approvals:read" in words(eve)
    picture(eve, "no-right")


def test_hostile_texts_do_nothing_and_are_seen(theatre: Theatre) -> None:
    """No markup, script or link of a stranger's comes to be; what is invisible is written out."""
    evil = (
        "</bdi></td><script>alert(1)</script><img src=x onerror=alert(2)><style>*{display:none}</style>"
        '<a href="javascript:alert(3)">x</a><form action="https://evil.example"><button>Approve</button></form>'
        "\"'><svg onload=alert(4)>\u202egpj.exe\u202c\u200bp\u0430ypal {{7*7}}\x1b[2J" + "W" * 20_000
    )
    address = theatre.held("get_balance", "readonly", account=evil)
    bob = theatre.visit("bob", address)
    theatre.visit("alice", address).close()
    expect(bob.get_by_role("button", name="Approve")).to_have_count(1)
    assert bob.locator("img[src=x], svg, style, iframe, a[href^=javascript], form[action*=evil]").count() == 0
    value = bob.locator(".rows .value", has_text="onerror").first
    expect(value).to_contain_text("<script>alert(1)</script>")
    expect(value.locator(".mark").first).to_have_text("U+202E")
    assert "shows 600 of 20," in words(bob)
    with bob.expect_download() as download:
        bob.get_by_role("link", name="download all as JSON").click()
    assert download.value.suggested_filename.endswith(".json")
    picture(bob, "hostile")
    alice = theatre.visit("alice", "/review/request?server=payments&tool=transfer_funds")
    alice.get_by_label("memo").fill(evil[:300])
    alice.get_by_label("amount_cents").fill("not a number")
    alice.get_by_label("from_account").fill("<script>alert(5)</script>")
    alice.get_by_role("button", name="Ask for approval").click()
    expect(alice.get_by_role("alert")).to_contain_text("amount_cents: not a number")
    assert alice.get_by_label("from_account").input_value() == "<script>alert(5)</script>"


def test_everything_works_without_scripts(theatre: Theatre) -> None:
    """List, filters, page, decision, reason: plain links and forms; the time that is left was right when written."""
    address = theatre.held("get_balance", "readonly", account="supplier-globex")
    alice = theatre.visit("alice", address, scripts=False)
    alice.get_by_label("Say why you need this").fill("No scripts here")
    alice.get_by_role("button", name="Add").click()
    expect(alice.locator(".quoted")).to_have_text("No scripts here")
    bob = theatre.visit("bob", scripts=False)
    bob.locator("summary").click()
    bob.get_by_label("Tool").fill("get_balance")
    bob.get_by_role("button", name="Show").click()
    bob.locator(f'a[href="{address.removeprefix(theatre.origin)}"]').click()
    assert re.search(r"\(\d+ (min|s).* left when this page was made\)", words(bob))
    bob.get_by_role("button", name="Approve").click()
    state_is(bob, "Approved")
    alice.reload()
    state_is(alice, "Approved")


def test_the_list_follows_by_itself(theatre: Theatre) -> None:
    """A new request appears in an open list, and one that is decided elsewhere leaves it."""
    bob = theatre.visit("bob")
    address = theatre.held("transfer_funds", from_account="operating", to_account="payroll", amount_cents=31)
    row = bob.locator(f'a[href="{address.removeprefix(theatre.origin)}"]')
    expect(row).to_be_visible()
    dora = theatre.visit("dora", address)
    dora.get_by_role("button", name="Deny").click()
    state_is(dora, "Denied")
    expect(row).to_have_count(0)
    bob.context.clear_cookies()
    expect(bob.locator("[data-told]")).to_have_text("You are signed out. Load this page again to sign in.")


def test_asked_for_on_a_page_it_runs_at_the_first_call(theatre: Theatre) -> None:
    """The form of the tool's own schema, for the program that will call: approved ahead, the call is never held."""
    alice = theatre.visit("alice", "/review/request")
    alice.get_by_role("link", name="payments").click()
    alice.get_by_role("link", name="transfer_funds").click()
    picture(alice, "ask-ahead")
    alice.get_by_label("from_account").fill("operating")
    alice.get_by_label("to_account").fill("supplier-acme")
    alice.get_by_label("amount_cents").fill("1234")
    alice.get_by_label("The program that will make the call").fill("alice-agent")
    alice.get_by_label("Why?").fill("The rent")
    alice.get_by_role("button", name="Ask for approval").click()
    state_is(alice, "Waiting for a decision")
    dora = theatre.visit("dora", alice.url)
    dora.get_by_role("button", name="Approve").click()
    state_is(dora, "Approved")
    order = {"from_account": "operating", "to_account": "supplier-acme", "amount_cents": 1234}
    assert theatre.call("transfer_funds", **order).structured["amount_cents"] == 1234


def test_a_keyboard_is_enough(theatre: Theatre) -> None:
    """The first stop leads past the frame; from there the comment and then the approval are reached, visibly."""
    address = theatre.held("transfer_funds", from_account="operating", to_account="payroll", amount_cents=55)
    bob = theatre.visit("bob", address)
    bob.keyboard.press("Tab")
    expect(bob.get_by_role("link", name="Skip to the content")).to_be_focused()
    bob.keyboard.press("Enter")
    for _ in range(12):
        bob.keyboard.press("Tab")
        if bob.evaluate("document.activeElement.tagName") == "TEXTAREA":
            break
    bob.keyboard.type("By keyboard")
    bob.keyboard.press("Tab")
    approve = bob.get_by_role("button", name="Approve")
    expect(approve).to_be_focused()
    assert approve.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
    bob.keyboard.press("Enter")
    state_is(bob, "Approved")
    assert "By keyboard" in words(bob)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_is_enough_in_either_light(theatre: Theatre, scheme: str) -> None:
    """At 360 px nothing has to be scrolled sideways, and what is to be touched is large enough; dark is dark."""
    address = theatre.held(
        "transfer_funds", from_account="operating", to_account="x" * 90, amount_cents=1, memo=scheme * 60
    )
    for name, path in (
        ("queue", "/review?state=all"), ("ticket", address),
        ("form", "/review/request?server=payments&tool=transfer_funds"),
        ("nothing", "/review/tickets/x"),
    ):  # fmt: skip
        page = theatre.visit("dora", path, color_scheme=scheme, viewport=PHONE)
        picture(page, f"phone-{scheme}-{name}")
        widths = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert widths[0] <= widths[1], (name, widths)
        for button in page.locator("main button").all():
            box = button.bounding_box()
            assert box is not None
            assert box["height"] >= 44
        red = int(re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[0])
        assert (red < 60) is (scheme == "dark")
