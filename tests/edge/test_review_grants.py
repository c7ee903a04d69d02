"""A grant's page: shown as what it is, with both schemas, and decided on exactly those."""

from __future__ import annotations

import html
import re
from dataclasses import replace

from tests.edge.test_review_pages import TOOL, Site, site
from tests.support.approvals import ALICE, TERMS, effect, grant_of

__all__ = ["site"]

SCHEMA = {"properties": {"amount": {"maximum": 100}, "to": {"const": "<b>IBAN</b>\u202e"}}}
BOUNDS = {"properties": {"amount": {"maximum": 50}}}


async def test_a_grant_is_shown_as_what_it_is(site: Site) -> None:
    """How many calls, within which schemas, whose each is; no "exactly this call"; decided on what was shown."""
    await site.it.approved(replace(effect({"amount": 7}), tool=TOOL))
    asked = replace(grant_of(effect(), SCHEMA, BOUNDS), tool=TOOL)
    shown, _ = await site.it.desk.request(ALICE, asked, replace(TERMS, uses=5), reasons=("rule",), mask=())
    path = f"/review/tickets/{shown['id']}"
    page = await site.get(path)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.unescape(page.text)))
    for fact in (
        "for a grant of up to 5 calls", "calls that nobody has seen yet", "As it is asked for",
        "As far as the policy goes",
        "5 uses of this tool, with arguments that fit the schemas", "no arguments to compare",
    ):  # fmt: skip
        assert fact in text, fact
    assert "exactly this call" not in text
    assert "<b>IBAN" not in page.text
    assert "\u202e" not in page.text
    schema, bounds = page.text.split("As far as the policy goes")
    assert "100" in schema[schema.index("As it is asked for") :]
    assert "50" in bounds
    whole = (await site.get(f"{path}/arguments.json")).json()
    assert whole["vary"] == {"schema": SCHEMA, "bounds": BOUNDS}
    queue = await site.get("/review")
    assert "Grant: many calls" in queue.text
    assert (await site.act("approve", shown["id"])).status_code == 303
    assert (await site.it.desk.show(ALICE, shown["id"]))["state"] == "approved"


async def test_a_single_call_is_not_called_a_grant(site: Site) -> None:
    """The twin: an ordinary request has no such words, and its file no `vary`."""
    ticket_id = await site.ticket()
    page = await site.get(f"/review/tickets/{ticket_id}")
    assert "exactly this call" in page.text
    assert "grant" not in page.text.lower()
    assert "vary" not in (await site.get(f"/review/tickets/{ticket_id}/arguments.json")).json()
