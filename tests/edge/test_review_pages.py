"""The reviewer's pages on a real server, without a browser: who sees what, what a form may do, how it all leaves."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from approvals.approvers import Person
from approvals.review.api import Planned, TurnedAway
from approvals.review.app import review_pages
from approvals.review.asking import Offer, Told
from approvals.ticket import Run, StoreUnavailable
from tests.edge.test_approvals_api import served
from tests.support.approvals import ALICE, BOB, CAROL, MALLORY, TERMS, Bench, bench, effect, person
from tests.support.visitors import ByName

ORIGIN = "https://mcp.example"
FROM_HERE = {"origin": ORIGIN, "sec-fetch-site": "same-origin"}
TOOL = {"title": "Pay", "description": "Moves money.", "annotations": {"destructiveHint": True}}
PAID = {"server": "bank", "tool": "pay", "arg.amount": "1"}
PAY = {
    "type": "object",
    "properties": {"amount": {"type": "integer"}, "to": {"type": "string"}},
    "required": ["amount"],
}


class Closed(Exception):  # noqa: N818 - like the house's Refused
    """The house's own refusal."""


class Shop:
    """The house's part: one server, whose tool `pay` anybody may call and Bob or Carol approve."""

    def __init__(self) -> None:
        self.planned: list[tuple[str, Mapping[str, Any]]] = []
        self.schema: Any = PAY
        self.refuses = False

    def servers(self, person: Person) -> Sequence[tuple[str, str]]:  # noqa: ARG002 - the port's
        """One."""
        return [("bank", "production")]

    async def tools(self, person: Person, server: str) -> Sequence[Offer]:  # noqa: ARG002 - the port's
        """One."""
        if server != "bank":
            raise Closed
        return [Offer("pay", "Pay", "Moves money.", self.schema)]

    async def plan(
        self,
        person: Person,
        server: str,  # noqa: ARG002 - the port's
        method: str,  # noqa: ARG002
        name: str,  # noqa: ARG002
        arguments: Mapping[str, Any],
    ) -> Planned:
        """The policy holds it."""
        if self.refuses:
            raise Closed
        self.planned.append((person.client, arguments))
        return effect(arguments, subject=person.subject, client=person.client), TERMS, ("rule",), ("/pin",)


class Site:
    """The pages before a fresh store, and one client that is whom it says."""

    def __init__(self, it: Bench, client: httpx.AsyncClient, visitors: ByName, shop: Shop) -> None:
        self.it = it
        self.client = client
        self.visitors = visitors
        self.shop = shop
        self.turned: list[TurnedAway] = []

    async def get(self, path: str, who: str = "bob", **headers: str) -> httpx.Response:
        """A page, held to what every answer is held to."""
        answer = await self.client.get(path, headers={"authorization": f"Bearer {who}"} | headers)
        self._hold(answer)
        return answer

    async def post(self, path: str, fields: Mapping[str, str], who: str = "bob", **headers: str) -> httpx.Response:
        """A form of one's own session, sent from here; `headers` replace, or (empty) leave out."""
        merged = {"authorization": f"Bearer {who}"} | FROM_HERE
        merged |= {name.replace("_", "-"): value for name, value in headers.items()}
        chosen = {name: value for name, value in merged.items() if value}
        answer = await self.client.post(path, data={"form_key": f"key-of-{who}", **fields}, headers=chosen)
        self._hold(answer)
        return answer

    def _hold(self, answer: httpx.Response) -> None:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert "form-action 'self'" in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"

    async def seen(self, ticket_id: str, who: str = "bob") -> str:
        """The digest that this person's page carries."""
        page = await self.get(f"/review/tickets/{ticket_id}", who)
        return hidden(page.text, "seen")

    async def act(
        self, verb: str, ticket_id: str, who: str = "bob", comment: str = "", **more: str
    ) -> httpx.Response:
        """Decide on the page as it is now."""
        fields = {"seen": await self.seen(ticket_id, who), "comment": comment, "at": "1800000000000", **more}
        return await self.post(f"/review/tickets/{ticket_id}/{verb}", fields, who)

    async def ticket(self, arguments: Mapping[str, Any] | None = None, **more: Any) -> str:
        """Alice's pending ticket."""
        asked = replace(effect({"amount": 1, "pin": "canary"} if arguments is None else arguments), tool=TOOL)
        return (await self.it.held(asked, mask=("/pin",), **more)).ticket.id


def hidden(text: str, name: str) -> str:
    """The value of a form's hidden field."""
    found = re.search(rf'name="{name}" value="([^"]*)"', text)
    assert found is not None
    return html.unescape(found[1])


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """Alice asks, Bob and Carol may decide, Mallory may nothing, a reader may only look."""
    people = {one.subject: one for one in (ALICE, BOB, CAROL, MALLORY)}
    people["reader"] = replace(person("reader", groups=["payers"]), scopes=frozenset({"approvals:read"}))
    people["nobody"] = replace(person("nobody"), scopes=frozenset())
    async with bench(tmp_path / "approvals.db") as it:
        shop, visitors, turned = Shop(), ByName(people), list[TurnedAway]()

        async def explain(request: Any, error: Exception) -> Told:
            return Told(403, "The house says no.", {"ostiary-decision": "d1"})

        def tell(one: TurnedAway) -> Mapping[str, str]:
            turned.append(one)
            return {"ostiary-decision": "d2"}

        app = review_pages(
            it.desk, visitors, shop, origin=ORIGIN, clock=it.clock, words=(Closed,), explain=explain, tell=tell
        )
        async with served(app) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
            made = Site(it, client, visitors, shop)
            made.turned = turned
            yield made


async def test_whoever_did_not_sign_in_is_sent_there_and_back(site: Site) -> None:
    """303 to the sign-in with the page as `next`, whatever the page; a form that comes too late is told so."""
    for path in ("/review", "/review/mine?state=denied", "/review/tickets/x", "/review/request"):
        answer = await site.get(path, "stranger")
        assert answer.status_code == 303
        wanted = httpx.QueryParams({"next": path})
        assert answer.headers["location"] == f"/review/sign-in?{wanted}"
    answer = await site.get("/review?server=" + "x" * 3000, "stranger")
    assert answer.headers["location"] == "/review/sign-in?next=%2Freview"
    ticket_id = await site.ticket()
    late = await site.post(f"/review/tickets/{ticket_id}/approve", {"seen": "x"}, "stranger")
    assert (late.status_code, "nothing was done" in late.text) == (403, True)


async def test_a_page_shows_who_what_where_why_and_nothing_that_is_masked(site: Site) -> None:
    """The facts of a decision stand on it; a masked value is visibly hidden, and nowhere in the answer."""
    await site.it.approved(replace(effect({"amount": 7, "pin": "canary"}), tool=TOOL), mask=("/pin",))
    ticket_id = await site.ticket(justification="invoice 1041")
    page = await site.get(f"/review/tickets/{ticket_id}")
    assert page.status_code == 200
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.unescape(page.text)))
    for fact in (
        "alice asks", "pay", "bank", "production", ALICE.issuer, "agent", "https://mcp.example/bank/mcp",
        "Moves money.", "may delete or overwrite", "invoice 1041", "large_payment", "15 Jan 2027, 09:00:00 UTC",
        "hidden by the policy", "1 of its values differs", "Then Now", "group payers",
    ):  # fmt: skip
        assert fact in text, fact
    assert "canary" not in page.text
    whole = await site.get(f"/review/tickets/{ticket_id}/arguments.json")
    assert whole.json()["arguments"] == {"amount": 1, "pin": "[masked]"}
    assert "attachment" in whole.headers["content-disposition"]


@pytest.mark.parametrize("verb", ["approve", "deny"])
async def test_a_decision_is_one_form_and_ends_in_a_redirect(site: Site, verb: str) -> None:
    """303 back to the ticket; the comment and the digest of what was shown stand in the store; twice is once."""
    ticket_id = await site.ticket()
    seen = await site.seen(ticket_id)
    answer = await site.act(verb, ticket_id, comment="looked at the invoice\r\nin full")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/review/tickets/{ticket_id}")
    shown = await site.it.desk.show(BOB, ticket_id)
    assert shown["decisions"][0]["comment"] == "looked at the invoice\nin full"
    assert site.it.journal.kept[-1].seen == seen
    again = await site.post(f"/review/tickets/{ticket_id}/{verb}", {"seen": seen})
    assert again.status_code == 409
    page = await site.get(f"/review/tickets/{ticket_id}")
    assert "looked at the invoice" in page.text
    assert 'name="seen"' not in page.text.replace("/revoke", "") or verb == "approve"


async def test_that_a_request_changed_is_said_aloud(site: Site) -> None:
    """A screen reader tells what comes into a region that was there before: not one that was hidden itself."""
    page = await site.get(f"/review/tickets/{await site.ticket()}")
    assert '<div role="status"><p class="notice" data-told hidden>' in page.text
    assert not re.search(r"<[^>]*role=\"status\"[^>]*hidden", page.text)


async def test_a_ticket_that_changed_is_not_decided_on_the_page_of_before(site: Site) -> None:
    """409 with what happened since and a way to look again; the ticket is as it was."""
    ticket_id = await site.ticket()
    seen = await site.seen(ticket_id)
    site.it.clock.now += 60
    await site.it.desk.act("justify", ALICE, ticket_id, comment="it is <b>urgent</b>")
    stale = await site.post(
        f"/review/tickets/{ticket_id}/approve",
        {"seen": seen, "comment": "fine by me", "at": "1800000000500"},
    )
    assert stale.status_code == 409
    assert "added to the justification" in stale.text
    assert "it is &lt;b&gt;urgent&lt;/b&gt;" in stale.text
    assert "asked for this" not in stale.text
    assert "fine by me" in stale.text
    assert f'href="/review/tickets/{ticket_id}"' in stale.text
    assert (await site.it.desk.show(BOB, ticket_id))["state"] == "pending"
    turned = site.turned[-1]
    assert (turned.name, turned.verb, turned.ticket_id) == ("moved_on: stale", "approve", ticket_id)
    assert (await site.act("approve", ticket_id)).status_code == 303


async def test_a_page_without_its_digest_decides_nothing(site: Site) -> None:
    """What was seen has to be said: no form acts blindly."""
    ticket_id = await site.ticket()
    answer = await site.post(f"/review/tickets/{ticket_id}/approve", {"comment": ""})
    assert answer.status_code == 400
    assert (await site.it.desk.show(BOB, ticket_id))["state"] == "pending"


@pytest.mark.parametrize(
    ("fields", "headers", "status"),
    [
        ({}, {"origin": "https://evil.example", "sec_fetch_site": "cross-site"}, 403),
        ({}, {"origin": "null", "sec_fetch_site": ""}, 403),
        ({}, {"origin": "null"}, 403),
        ({}, {"origin": ""}, 403),
        ({}, {"origin": "", "sec_fetch_site": ""}, 403),
        ({}, {"origin": ORIGIN, "sec_fetch_site": "same-site"}, 403),
        ({}, {"origin": ORIGIN, "sec_fetch_site": "none"}, 403),
        ({}, {"origin": ORIGIN + ":444", "sec_fetch_site": ""}, 403),
        ({"form_key": ""}, {}, 403),
        ({"form_key": "key-of-alice"}, {}, 403),
        ({"form_key": "key-of-böb"}, {}, 403),
        ({"extra": "1"}, {}, 400),
        ({"comment": "x" * 5000}, {}, 400),
        ({"comment": "x" * 100_000}, {}, 413),
        ({}, {"content_type": "text/plain"}, 415),
        ({}, {"content_type": "multipart/form-data; boundary=x"}, 415),
        ({}, {"content_encoding": "gzip"}, 415),
    ],
)
async def test_a_form_from_elsewhere_does_nothing(
    site: Site, fields: dict[str, str], headers: dict[str, str], status: int
) -> None:
    """Another origin, no origin at all, another session's key, other fields or another kind of body: refused."""
    ticket_id = await site.ticket()
    sent = {"seen": await site.seen(ticket_id), "comment": "", **fields}
    answer = await site.post(f"/review/tickets/{ticket_id}/approve", sent, **headers)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")
    assert (await site.it.desk.show(BOB, ticket_id))["state"] == "pending"
    for fine in (FROM_HERE, {"origin": ORIGIN, "sec_fetch_site": ""}):
        another = await site.ticket({"amount": 2, "n": str(fine)})
        sent = {"seen": await site.seen(another)}
        assert (await site.post(f"/review/tickets/{another}/approve", sent, **fine)).status_code == 303


async def test_what_one_may_not_know_has_one_page(site: Site) -> None:
    """Absent, foreign, malformed or guessed: the same 404, to the byte, and each is recorded as which it was."""
    ticket_id = await site.ticket()
    texts = set()
    for path in (
        f"/review/tickets/{ticket_id}", f"/review/tickets/{'A' * 24}", "/review/tickets/x", "/review/tickets/%00",
        f"/review/tickets/{ticket_id}/arguments.json", f"/review/tickets/{ticket_id}/standing",
    ):  # fmt: skip
        answer = await site.get(path, "mallory")
        assert answer.status_code == 404
        texts.add(answer.text)
    for verb in ("approve", "withdraw", "nothing"):
        answer = await site.post(f"/review/tickets/{ticket_id}/{verb}", {"seen": "x"}, "mallory")
        assert answer.status_code == 404
        if verb != "nothing":
            texts.add(answer.text)
    assert len(texts) == 1
    assert (await site.get("/review/nothing", "mallory")).status_code == 404
    assert (await site.get("/review/assets/review.0.css", "mallory")).status_code == 404
    whys = [one.name for one in site.turned]
    foreign, absent, malformed = (
        "not_found: not_theirs: approver_nowhere",
        "not_found: absent",
        "not_found: malformed",
    )
    assert whys[:6] == [foreign, absent, malformed, malformed, foreign, foreign]
    assert whys[6:] == [foreign, foreign, "not_found", "not_found", "not_found"]
    assert (await site.get(f"/review/tickets/{ticket_id}", "bob")).status_code == 200


async def test_whoever_asked_sees_it_and_can_not_decide_it(site: Site) -> None:
    """Their own view: no approving, a sentence why, and what they can do; a form that tries all the same is 403."""
    ticket_id = await site.ticket()
    page = await site.get(f"/review/tickets/{ticket_id}", "alice")
    assert "You asked for this yourself" in page.text
    assert "/approve" not in page.text
    assert "/deny" not in page.text
    answer = await site.act("approve", ticket_id, "alice")
    assert answer.status_code == 403
    assert site.turned[-1].name == "own_request"
    assert (await site.act("justify", ticket_id, "alice", comment="because")).status_code == 303
    assert "because" in (await site.get(f"/review/tickets/{ticket_id}")).text
    assert (await site.act("withdraw", ticket_id, "alice")).status_code == 303
    assert (await site.it.desk.show(BOB, ticket_id))["state"] == "withdrawn"


async def test_without_the_right_to_decide_there_is_no_button(site: Site) -> None:
    """A reader sees the page and the reason; whoever may not even read gets a page that names the scope."""
    ticket_id = await site.ticket()
    page = await site.get(f"/review/tickets/{ticket_id}", "reader")
    assert (page.status_code, "/approve" in page.text) == (200, False)
    assert "does not carry the right" in page.text
    answer = await site.get(f"/review/tickets/{ticket_id}", "nobody")
    assert (answer.status_code, "approvals:read" in answer.text) == (403, True)


async def test_a_quorum_is_counted_on_the_page(site: Site) -> None:
    """What is there and what is needed, in the queue and on the ticket; nobody approves twice."""
    ticket_id = await site.ticket(terms=replace(TERMS, min_approvers=2))
    assert "0 of 2 approvals" in (await site.get(f"/review/tickets/{ticket_id}")).text
    await site.act("approve", ticket_id)
    mine = await site.get(f"/review/tickets/{ticket_id}")
    assert "1 of 2 approvals" in mine.text
    assert "You have approved this" in mine.text
    assert "1 of 2 approvals" in (await site.get("/review", "carol")).text
    await site.act("approve", ticket_id, "carol")
    assert (await site.it.desk.show(BOB, ticket_id))["state"] == "approved"


async def test_an_unknown_outcome_is_shown_and_can_be_looked_into(site: Site) -> None:
    """To whoever asked and to whoever decides; it waits in the queue, and a note is needed to set it aside."""
    asked = effect({"amount": 5})
    ticket_id = await site.it.approved(asked)
    use = await site.it.claimed(asked)
    await site.it.desk.sent(use)
    await site.it.desk.finish(use, Run.UNKNOWN)
    for who in ("alice", "bob"):
        assert "Nobody knows how this call ended" in (await site.get(f"/review/tickets/{ticket_id}", who)).text
    assert "/resolve" not in (await site.get(f"/review/tickets/{ticket_id}", "alice")).text
    assert "Outcome unknown" in (await site.get("/review")).text
    assert "Outcome unknown" in (await site.get("/review/mine", "alice")).text
    assert (await site.act("resolve", ticket_id)).status_code == 400
    assert (await site.act("resolve", ticket_id, comment="the bank never had it")).status_code == 303
    after = await site.get(f"/review/tickets/{ticket_id}", "alice")
    assert "Nobody knows how this call ended</h2>" not in after.text
    assert "the bank never had it" in after.text


async def test_the_queue_is_filtered_paged_and_strict(site: Site) -> None:
    """Filters narrow it, pages follow each other without gaps, and what is no filter is 400."""
    ids = []
    for number in range(30):
        site.it.clock.now += 1
        ids.append(await site.ticket({"n": number}))
    first = await site.get("/review")
    found = re.findall(r'href="/review/tickets/([\w-]+)"', first.text)
    assert found == ids[:4:-1]
    following = re.search(r'href="(/review\?cursor=[^"]+)"', first.text)
    assert following is not None
    second = await site.get(html.unescape(following[1]))
    assert re.findall(r'href="/review/tickets/([\w-]+)"', second.text) == ids[4::-1]
    for query, count in (
        ("server=bank", 25), ("server=other", 0), ("name=pay&requester=alice", 25), ("requester=bob", 0),
        ("state=denied", 0), ("age=under-1h", 25), ("age=over-1h", 0), ("state=all", 25), ("server=%C3%A4%22%3E", 0),
    ):  # fmt: skip
        answer = await site.get(f"/review?{query}")
        assert answer.status_code == 200
        assert len(re.findall(r'class="ask"', answer.text)) == count, query
    for query in ("state=odd", "age=1", "x=1", "server=a&server=b", "cursor=!", "server=%00", f"name={'x' * 600}"):
        assert (await site.get(f"/review?{query}")).status_code == 400, query
    assert "Nothing waits for you" in (await site.get("/review", "alice")).text
    assert "Nothing waits for you" in (await site.get("/review", "mallory")).text


async def test_the_lines_are_sent_again_only_when_they_changed(site: Site) -> None:
    """304 by ETag while nothing moves; another body and tag once something did."""
    ticket_id = await site.ticket()
    first = await site.get("/review/lines")
    assert ticket_id in first.text
    assert "<html" not in first.text
    tag = first.headers["etag"]
    same = await site.get("/review/lines", **{"if-none-match": tag})
    assert (same.status_code, same.content) == (304, b"")
    await site.it.desk.act("deny", BOB, ticket_id)
    moved = await site.get("/review/lines", **{"if-none-match": tag})
    assert (moved.status_code, ticket_id in moved.text) == (200, False)
    assert ticket_id in (await site.get("/review/lines?of=mine", "alice")).text
    stands = (await site.get(f"/review/tickets/{ticket_id}/standing")).json()
    assert stands == {"state": "denied", "digest": await _digest(site, ticket_id)}


async def _digest(site: Site, ticket_id: str) -> str:
    shown = await site.it.desk.show(BOB, ticket_id)
    return str(shown["digest"])


async def test_hostile_texts_are_shown_as_what_they_are(site: Site) -> None:
    """HTML is text, what is invisible is written out, a megabyte is cut, and the page stays small."""
    evil = "<script>alert(1)</script>\u202e\u200b" + "A" * 900_000
    nasty = replace(
        effect({evil[:40]: evil, "deep": {"a": [[[{"b": evil}]]]}}, subject="al<i>ce\u202e", name="p\u0430y<b>"),
        tool={"title": evil[:200], "description": evil[:9000], "annotations": {"destructiveHint": "yes"}},
    )
    held = await site.it.held(nasty, justification=evil[:2000], reasons=(evil[:100],))
    for path in (f"/review/tickets/{held.ticket.id}", "/review"):
        page = await site.get(path)
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "<i>ce" not in page.text
        assert "\u202e" not in page.text
        assert "\u200b" not in page.text
        assert "U+202E" in page.text
        assert "look" in page.text
        assert len(page.text) < 60_000
    page = await site.get(f"/review/tickets/{held.ticket.id}")
    assert "characters" in page.text
    assert "download all as JSON" in page.text
    assert (await site.get(f"/review/tickets/{held.ticket.id}/arguments.json")).json()["arguments"][evil[:40]] == evil


async def test_asking_ahead_makes_the_ticket_of_the_very_call(site: Site) -> None:
    """Server, tool, fields, the program that will call, and why: one ticket, which that program's call finds."""
    assert "bank" in (await site.get("/review/request", "alice")).text
    assert "Moves money." in (await site.get("/review/request?server=bank", "alice")).text
    form = await site.get("/review/request?server=bank&tool=pay", "alice")
    for name in ("arg.amount", "arg.to", "client", "justification", "form_key"):
        assert f'name="{name}"' in form.text
    fields = {"server": "bank", "tool": "pay", "arg.amount": "12", "arg.to": "DE", "client": "agent"}
    made = await site.post("/review/request", {**fields, "justification": "invoice 7"}, "alice")
    assert made.status_code == 303
    assert site.shop.planned == [("agent", {"amount": 12, "to": "DE"})]
    again = await site.post("/review/request", fields, "alice")
    assert again.headers["location"] == made.headers["location"]
    held = await site.it.held(effect({"amount": 12, "to": "DE"}), mask=("/pin",))
    assert made.headers["location"].endswith(held.ticket.id)
    assert "invoice 7" in (await site.get(made.headers["location"])).text
    form = await site.get("/review/request?server=bank&tool=pay", "alice")
    assert 'name="client" value="agent"' in form.text


@pytest.mark.parametrize(
    ("typed", "status", "said"),
    [
        ({"arg.amount": "twelve"}, 422, "amount: not a number"),
        ({"arg.amount": ""}, 422, "amount: this has to be given"),
        ({"arguments": "{"}, 422, "not JSON"),
        ({"arg.amount": "1", "arg.other": "1"}, 400, ""),
        ({"arg.amount": "1", "arguments": "{}"}, 400, ""),
        ({"arg.amount": "1", "client": "a\u202eb"}, 400, ""),
        ({"arg.amount": "1", "client": " "}, 422, "the program that will make the call: this has to be given"),
        ({"arg.amount": "1", "tool": "other"}, 404, ""),
        ({"arg.amount": "1", "server": "other"}, 403, "The house says no."),
    ],
)
async def test_what_can_not_be_asked_for_is_said_where_it_was_typed(
    site: Site, typed: dict[str, str], status: int, said: str
) -> None:
    """The form comes back with what was typed and what is wrong; nothing was opened."""
    fields = {"server": "bank", "tool": "pay", "client": "agent", "justification": "kept words", **typed}
    answer = await site.post("/review/request", fields, "alice")
    assert answer.status_code == status
    assert said in html.unescape(answer.text)
    if status == 422:
        assert "kept words" in answer.text
    assert site.it.journal.kept == []


async def test_what_was_typed_comes_back_to_the_letter(site: Site) -> None:
    """A browser drops one line end at the start of a text area: that one is ours, or the second try would ask for
    another call than the first."""
    long = {"type": "string", "maxLength": 500}
    amount = {"type": "integer"}
    site.shop.schema = {"type": "object", "properties": {"amount": amount, "note": long}, "required": ["amount"]}
    fields = {"server": "bank", "tool": "pay", "client": "agent", "arg.note": "\n\nNote\n", "arg.amount": "x"}
    whole = {"server": "bank", "tool": "pay", "client": "agent", "arguments": "\n["}
    for typed, name in ((fields, "arg.note"), (whole, "arguments")):
        page = await site.post("/review/request", {**typed, "justification": "\nwhy"}, "alice")
        assert page.status_code == 422
        for area, text in ((name, typed[name]), ("justification", "why")):
            found = re.search(rf'<textarea name="{area}"[^>]*>\n([^<]*)</textarea>', page.text)
            assert found is not None
            assert html.unescape(found[1]) == text


async def test_the_house_s_own_no_stands_on_the_form(site: Site) -> None:
    """Its sentence, its status and the record's id; and the form is still there. A reader may not ask at all."""
    site.shop.refuses = True
    answer = await site.post("/review/request", {**PAID, "client": "agent"}, "alice")
    assert (answer.status_code, answer.headers["ostiary-decision"]) == (403, "d1")
    assert "The house says no." in answer.text
    assert 'name="arg.amount"' in answer.text
    assert (await site.get("/review/request", "reader")).status_code == 403
    site.shop.schema = {"type": "object", "properties": {"x": {"type": "object", "title": "<script>"}}}
    form = await site.get("/review/request?server=bank&tool=pay", "alice")
    assert 'name="arguments"' in form.text
    assert "<script>" not in form.text.replace("<script src=", "")


async def test_a_house_that_fails_is_a_page_that_says_so(site: Site, tmp_path: Path) -> None:
    """No store, no keys, no record: the right status, words for people, and nothing was done."""
    ticket_id = await site.ticket()
    site.visitors.broken = Closed()
    refused = await site.get("/review")
    assert (refused.status_code, "The house says no." in refused.text) == (403, True)
    site.visitors.broken = StoreUnavailable("away")
    away = await site.get("/review")
    assert (away.status_code, away.headers["retry-after"]) == (503, "5")
    assert away.headers["content-type"].startswith("text/html")
    site.visitors.broken = None
    site.it.journal.broken = Closed("the record can't be written")
    refused = await site.act("approve", ticket_id)
    assert (refused.status_code, "The house says no." in refused.text) == (403, True)
    site.it.journal.broken = None
    assert (await site.it.desk.show(BOB, ticket_id))["state"] == "pending"
    assert (await site.client.post("/review", headers={"authorization": "Bearer bob"})).status_code == 405
    (tmp_path / "approvals.db").rename(tmp_path / "gone.db")
    assert (await site.act("approve", ticket_id)).status_code == 503


async def test_nothing_of_the_pages_comes_from_elsewhere_or_runs_inline(site: Site) -> None:
    """One style sheet, one script, one icon, all ours and named by their content; nothing inline."""
    ticket_id = await site.ticket()
    for path in ("/review", "/review/mine", f"/review/tickets/{ticket_id}", "/review/request?server=bank&tool=pay"):
        page = await site.get(path)
        links = re.findall(r'(?:src|href|action|formaction)="([^"]*)"', page.text)
        assert links
        assert all(link.startswith(("/review", "#")) for link in links)
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<script(?! src=)", page.text)
        assert '<html lang="en">' in page.text
        assert page.text.count("<h1") == 1
        assert page.text.count("<main") == 1
    ours = set(re.findall(r'"(/review/assets/[^"]+)"', page.text))
    assert len(ours) == 3
    for path in ours:
        answer = await site.client.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_where_nobody_can_sign_in_the_pages_say_so(tmp_path: Path) -> None:
    """A gateway without sign-in serves no page, and says what to use instead."""
    async with bench(tmp_path / "approvals.db") as it:
        app = review_pages(it.desk, None, Shop(), origin=ORIGIN)
        async with served(app) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
            answer = await client.get("/review")
            assert (answer.status_code, "ostiary approvals" in answer.text) == (404, True)
