"""Webhooks: each event once, delivered at least once, by whichever replica, and nothing in it that is not cleared."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from approvals import notify, outbox
from approvals.notify import DEAD, DELIVERED, FAILED, Attempt, Courier, NotDelivered
from approvals.outbox import Outbox
from approvals.store import Store
from approvals.telling import Format, Hook, Told, message, read_secrets, signed
from approvals.ticket import Run, State, StoreUnavailable
from gateway.contract.secret_shapes import conceal
from tests.support.approvals import ALICE, BOB, CAROL, KEY, PAGE, TERMS, Bench, Clock, contents, effect
from tests.support.upstream import eventually

SECRET = bytes(range(32))
ALL = frozenset({"new", "decided", "expiring"})
MAIN = Hook("hooks.example/1", ALL, "json", (SECRET,))
OTHER = Hook("other.example/2", ALL, "json", (SECRET,))
CLEARED = replace(TERMS, clear=("/to", "/pin", "/nothing"))
Receive = Callable[[str, bytes, Mapping[str, str]], Any]
FORMS: tuple[Format, ...] = ("json", "slack")
ROOT = Path(__file__).parents[2]


class Post:
    """Plays the wire: keeps what was sent, and answers as `fault` says."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, Mapping[str, str]]] = []
        self.fault: NotDelivered | None = None
        self.hanging: set[str] = set()

    async def __call__(self, hook_id: str, body: bytes, headers: Mapping[str, str]) -> None:
        self.sent.append((hook_id, body, headers))
        if hook_id in self.hanging:
            await asyncio.Event().wait()
        if self.fault is not None:
            raise self.fault

    @property
    def events(self) -> list[tuple[str, str]]:
        """(event, state) of what was sent, in order."""
        bodies = [json.loads(body) for _, body, _ in self.sent]
        return [(body["type"], body["data"]["state"]) for body in bodies]


class Watched(Courier):
    """A courier that counts how often it looked."""

    looks = 0

    async def _look(self) -> None:
        try:
            await super()._look()
        finally:
            self.looks += 1


class Office:
    """A desk whose store has webhooks, and a courier on the same store."""

    def __init__(self, it: Bench, mail: Outbox, clock: Clock) -> None:
        self.it = it
        self.mail = mail
        self.post = Post()
        self.told: list[Attempt] = []
        self.courier = Watched(
            it.store, mail, self.post, self.told.append, clock=clock, poll_s=0.02, chance=lambda: 1.0
        )

    async def looked(self) -> None:
        """Wait until the courier has looked twice more, from its beginning to its end."""
        seen = self.courier.looks
        await eventually(lambda: self.courier.looks >= seen + 3)

    @property
    def outcomes(self) -> list[str]:
        """How the attempts ended."""
        return [attempt.outcome for attempt in self.told]


@asynccontextmanager
async def office(
    where: Path | str,
    *hooks: Hook,
    clock: Clock | None = None,
    carrying: bool = True,
    keys: tuple[bytes, ...] = (KEY,),
) -> AsyncIterator[Office]:
    """On this file; carries at once where it is `carrying`."""
    clock = clock or Clock()
    mail = Outbox(hooks or (MAIN,), PAGE, lambda text: conceal(text)[0])
    url = where if isinstance(where, str) else f"sqlite:///{where}"
    store = Store(url, keys, outbox=mail, limit_s=30)
    await store.start()
    made = Office(Bench(store, clock=clock), mail, clock)
    if carrying:
        made.courier.start()
    try:
        yield made
    finally:
        await made.courier.close()
        await store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the database is."""
    return tmp_path / "approvals.db"


async def test_each_event_is_told_once(where: Path | str) -> None:
    """A held call is told of once, however often it is repeated; so is each decision, in the state after it."""
    async with office(where) as at:
        held = await at.it.held()
        for _ in range(5):
            await at.it.held()
        await eventually(lambda: len(at.told) == 1)
        await at.it.desk.act("approve", BOB, held.ticket.id)
        use = await at.it.claimed()
        await at.it.desk.sent(use)
        await eventually(lambda: len(at.told) == 2)
        await at.it.desk.act("revoke", BOB, held.ticket.id)
        await eventually(lambda: len(at.told) == 3)
        await at.it.desk.finish(use, Run.EXECUTED)
        assert at.post.events == [
            ("ticket.new", "pending"),
            ("ticket.approved", "approved"),
            ("ticket.revoked", "revoked"),
        ]
        assert at.outcomes == [DELIVERED] * 3
        assert len({headers["webhook-id"] for _, _, headers in at.post.sent}) == 3
        body = json.loads(at.post.sent[0][1])["data"]
        assert body["id"] == held.ticket.id
        assert body["page"] == f"{PAGE}/{held.ticket.id}"
        assert body["requester"] == {"issuer": "https://people.example", "subject": "alice", "client": "agent"}
        assert (body["server"], body["environment"], body["name"]) == ("bank", "production", "pay")
        assert body["reasons"] == ["large_payment"]
        assert body["expiresAt"].endswith("Z")


@pytest.mark.parametrize(("verb", "by"), [("deny", BOB), ("withdraw", ALICE)])
async def test_a_no_is_told_as_well(where: Path | str, verb: str, by: Any) -> None:
    """A denial and a withdrawal are decisions; a quorum that only grows is none."""
    async with office(where, replace(MAIN, events=frozenset({"decided"}))) as at:
        held = await at.it.held(terms=replace(TERMS, min_approvers=2))
        await at.it.desk.act("approve", CAROL, held.ticket.id)
        await at.it.desk.act(verb, by, held.ticket.id)
        await eventually(lambda: len(at.told) == 1)
        assert at.post.events == [
            ("ticket.denied", "denied") if verb == "deny" else ("ticket.withdrawn", "withdrawn")
        ]


async def test_what_was_not_recorded_is_not_told(where: Path | str) -> None:
    """The message is part of the transition's transaction: one that is rolled back tells nobody anything."""
    async with office(where) as at:
        at.it.journal.broken = RuntimeError("no record")
        with pytest.raises(RuntimeError):
            await at.it.settle()
        at.it.journal.broken = None
        held = await at.it.held()
        at.it.journal.broken = RuntimeError("no record")
        with pytest.raises(RuntimeError):
            await at.it.desk.act("approve", BOB, held.ticket.id)
        at.it.journal.broken = None
        await at.it.desk.act("deny", BOB, held.ticket.id)
        await eventually(lambda: len(at.told) == 2)
        assert at.post.events == [("ticket.new", "pending"), ("ticket.denied", "denied")]


async def test_expiring_is_told_once_while_it_is_pending(where: Path | str) -> None:
    """When a fifth of its life is left a pending ticket is told of, once; a decided one is not."""
    clock = Clock()
    async with office(where, replace(MAIN, events=frozenset({"expiring"})), clock=clock) as at:
        held = await at.it.held()
        await at.it.approved(effect({"amount": 1}))
        clock.now += TERMS.ttl_s * 0.79
        await at.looked()
        assert at.told == []
        clock.now += TERMS.ttl_s * 0.02
        await eventually(lambda: len(at.told) == 1)
        clock.now += 10
        await at.looked()
        assert at.post.events == [("ticket.expiring", "pending")]
        assert json.loads(at.post.sent[0][1])["data"]["id"] == held.ticket.id


async def test_no_value_leaves_that_is_not_cleared(path: Path) -> None:
    """Only what the policy clears and does not mask is in a message; at rest all of it is sealed."""
    token = "ghp_" + "canary" * 6
    arguments = {
        "to": f"cleared-value {token}",
        "pin": "canary-masked",
        "amount": "canary-plain",
        "deep": {"x": "canary-deep"},
    }
    slack = replace(OTHER, form="slack", secrets=())
    async with office(path, MAIN, slack) as at:
        held = await at.it.held(effect(arguments), terms=CLEARED, mask=("/pin",), justification="canary-why")
        await at.it.desk.act("deny", BOB, held.ticket.id, comment="canary-comment")
        assert b"cleared-value" not in contents(path)
        await eventually(lambda: len(at.told) == 4)
        everything = b"".join(body for _, body, _ in at.post.sent) + repr(at.told).encode()
        assert b"canary" not in everything
        mine = [json.loads(body)["data"]["clear"] for hook, body, _ in at.post.sent if hook == MAIN.id]
        assert mine == [{"/to": "cleared-value [api key removed]", "/pin": "[masked]"}] * 2
        assert not [body for hook, body, _ in at.post.sent if hook == slack.id and b"cleared-value" in body]
        assert b"canary" not in contents(path)


async def test_a_failed_attempt_is_tried_again_later_and_later(where: Path | str) -> None:
    """The same id and the same body at every attempt; waits grow to hours; after twelve it is dead, told once."""
    clock = Clock()
    async with office(where, clock=clock) as at:
        at.post.fault = NotDelivered("status_500")
        await at.it.held()
        waits = []
        for attempt in range(1, notify.MOST_ATTEMPTS + 1):
            await eventually(lambda seen=attempt: len(at.told) == seen)  # type: ignore[misc]
            waits.append(notify.wait_after(attempt))
            clock.now += waits[-1] - 0.5
            await at.looked()
            assert len(at.told) == attempt, "tried before its time"
            clock.now += 0.5
        await at.looked()
        assert at.outcomes == [FAILED] * (notify.MOST_ATTEMPTS - 1) + [DEAD]
        assert at.told[-1].why == "status_500"
        assert len({(headers["webhook-id"], body) for _, body, headers in at.post.sent}) == 1
        assert len({headers["webhook-timestamp"] for _, _, headers in at.post.sent}) == notify.MOST_ATTEMPTS
        assert waits == sorted(waits)
        assert (waits[0], waits[-1]) == (10.0, 6 * 3600.0)
        assert sum(waits[:-1]) < 86_400


@pytest.mark.parametrize(
    ("fault", "outcomes"),
    [(NotDelivered("status_410", final=True), [DEAD]), (NotDelivered("status_429", retry_after_s=500), [FAILED])],
)
async def test_what_the_receiver_says_is_heeded(where: Path | str, fault: NotDelivered, outcomes: list[str]) -> None:
    """One that is gone is not asked again; one that asks for time gets it."""
    clock = Clock()
    async with office(where, clock=clock) as at:
        at.post.fault = fault
        await at.it.held()
        await eventually(lambda: bool(at.told))
        clock.now += 499
        await at.looked()
        assert at.outcomes == outcomes


async def test_a_receiver_that_hangs_delays_nobody(where: Path | str) -> None:
    """Neither a call, nor a decision, nor another receiver waits for it; the courier stops at once all the same."""
    async with office(where, MAIN, OTHER) as at:
        at.post.hanging = {MAIN.id}
        for amount in range(20):
            held = await at.it.held(effect({"amount": amount}))
        await at.it.desk.act("approve", BOB, held.ticket.id)
        await eventually(lambda: len(at.told) == 21)
        assert {attempt.message.hook_id for attempt in at.told} == {OTHER.id}
        assert 1 <= sum(hook == MAIN.id for hook, _, _ in at.post.sent) <= notify.AT_ONCE
        async with asyncio.timeout(2):
            await at.courier.close()


async def test_many_replicas_tell_once(where: Path | str) -> None:
    """Whichever courier comes first holds the message; the other one does not send it too."""
    clock = Clock()
    async with office(where, clock=clock) as here, office(where, clock=clock) as there:
        for amount in range(30):
            desk = (here, there)[amount % 2]
            await desk.it.held(effect({"amount": amount}))
        await eventually(lambda: len(here.told) + len(there.told) == 30)
        ids = [headers["webhook-id"] for _, _, headers in here.post.sent + there.post.sent]
        assert len(ids) == len(set(ids)) == 30


async def test_what_a_replica_left_is_told_by_another(where: Path | str) -> None:
    """A courier that died in the middle: after its lease another one sends the same message, under the same id."""
    clock = Clock()
    async with office(where, clock=clock) as first:
        first.post.hanging = {MAIN.id}
        await first.it.held()
        await eventually(lambda: len(first.post.sent) == 1)
    async with office(where, clock=clock) as second:
        clock.now += notify.LEASE_S - 1
        await second.looked()
        assert second.post.sent == []
        clock.now += 1
        await eventually(lambda: second.outcomes == [DELIVERED])
        assert second.post.sent[0][1] == first.post.sent[0][1]
        assert second.post.sent[0][2]["webhook-id"] == first.post.sent[0][2]["webhook-id"]


async def test_a_late_word_of_a_lost_lease_changes_nothing(where: Path | str) -> None:
    """Who comes back after their lease lapsed can't put off what another one has delivered."""
    clock = Clock()
    async with office(where, clock=clock, carrying=False) as slow, office(where, clock=clock) as quick:
        await slow.it.held()
        await eventually(lambda: quick.outcomes == [DELIVERED])
        late = replace(quick.told[0].message, attempts=0)

        async def put_off(ledger: Any) -> None:
            await outbox.put_off(ledger.connection, late, clock.now)

        await slow.it.store.write(put_off)
        await quick.looked()
        assert quick.outcomes == [DELIVERED]


async def test_the_queue_is_bounded_and_tells_what_it_dropped(
    where: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound a message is not kept: it is told as dead, and no call waits or fails for it."""
    monkeypatch.setattr(outbox, "MOST_WAITING", 3)
    async with office(where, carrying=False) as at:
        for amount in range(5):
            await at.it.held(effect({"amount": amount}))
        at.courier.start()
        await eventually(lambda: len(at.told) == 5)
        dropped = [attempt.why for attempt in at.told if attempt.outcome == DEAD]
        assert dropped == ["queue_full"] * 2
        assert len(at.post.sent) == 3


async def test_a_message_whose_key_is_gone_is_told_to_be_lost(where: Path | str) -> None:
    """What can't be opened is never sent and never forgotten: it is dead, with the reason."""
    async with office(where, carrying=False) as at:
        held = await at.it.held()
        await at.it.desk.act("withdraw", ALICE, held.ticket.id)
    async with office(where, keys=(bytes(32),)) as later:
        await eventually(lambda: len(later.told) == 2)
        assert [(one.outcome, one.why) for one in later.told] == [(DEAD, "not_readable")] * 2
        assert later.post.sent == []


async def test_what_nobody_delivers_any_more_is_given_up(where: Path | str) -> None:
    """A webhook that was taken out of the configuration leaves nothing that waits for ever."""
    clock = Clock()
    async with office(where, clock=clock, carrying=False) as at:
        await at.it.held()
    clock.now += outbox.GIVEN_UP_S + 1
    async with office(where, OTHER, clock=clock) as later:
        await eventually(lambda: len(later.told) == 1)
        assert (later.told[0].outcome, later.told[0].why) == (DEAD, "given_up")
        assert later.told[0].message.hook_id == MAIN.id


async def test_what_nobody_could_deliver_for_days_is_still_told(where: Path | str) -> None:
    """After a long weekend without a gateway a receiver that is configured hears of what waited for it."""
    clock = Clock()
    async with office(where, clock=clock, carrying=False) as at:
        await at.it.held()
    clock.now += outbox.GIVEN_UP_S + 1
    async with office(where, clock=clock) as later:
        await eventually(lambda: later.outcomes == [DELIVERED])


async def test_a_ticket_that_was_changed_in_the_database_silences_nobody(path: Path) -> None:
    """Of one that can't be believed nobody is reminded; what is to be told of others is told."""
    clock = Clock()
    async with office(path, clock=clock) as at:
        broken = await at.it.held(effect({"n": 1}))
        sound = await at.it.held(effect({"n": 2}))
        await eventually(lambda: at.outcomes == [DELIVERED] * 2)
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE tickets SET name = 'other' WHERE id = ?", (broken.ticket.id,))
        clock.now += TERMS.ttl_s * 0.9
        await eventually(lambda: len(at.outcomes) == 3)
        await at.it.held(effect({"n": 3}))
        await eventually(lambda: len(at.outcomes) == 4)
        assert [(one.message.event, one.message.ticket_id == sound.ticket.id) for one in at.told[2:]] == [
            ("expiring", True),
            ("new", False),
        ]


def move(old: Path, new: Path) -> None:
    """Rename a file."""
    old.rename(new)


async def test_a_lost_store_is_tried_again(path: Path) -> None:
    """The courier outlives a store that fails for a while."""
    async with office(path) as at:
        assert at.courier.well
        away = path.with_suffix(".away")
        move(path, away)
        with pytest.raises(StoreUnavailable):
            await at.it.held()
        await at.looked()
        move(away, path)
        await at.it.held()
        await eventually(lambda: at.outcomes == [DELIVERED])
        assert at.courier.well


# ------------------------------------------------------------------ what a message says


def snippet() -> Callable[..., bool]:
    """The receiver of docs/approvals.md."""
    page = (ROOT / "docs/approvals.md").read_text()
    code = re.search(r"```python\n(.*?)```", page[page.index("## Webhooks") :], re.DOTALL)
    assert code is not None
    scope: dict[str, Any] = {}
    exec(code[1], scope)  # the documentation is under test
    verify: Callable[..., bool] = scope["is_genuine"]
    return verify


async def test_the_documented_receiver_believes_us_and_nobody_else(path: Path) -> None:
    """The lines of docs/approvals.md verify what is sent, during a rotation too; not what was changed or is old."""
    async with office(path, replace(MAIN, secrets=(bytes(32), SECRET))) as at:
        await at.it.held()
        await eventually(lambda: bool(at.told))
        _, body, headers = at.post.sent[0]
        now = int(headers["webhook-timestamp"])
    verify = snippet()
    for secret in (SECRET, bytes(32)):
        assert verify("whsec_" + base64.b64encode(secret).decode(), headers, body, now)
    good = "whsec_" + base64.b64encode(SECRET).decode()
    assert not verify("whsec_" + base64.b64encode(b"x" * 32).decode(), headers, body, now)
    assert not verify(good, headers, body + b" ", now)
    assert not verify(good, {**headers, "webhook-id": "msg_other"}, body, now)
    assert not verify(good, headers, body, now + 301)
    assert not verify(good, {**headers, "webhook-timestamp": str(now + 1)}, body, now)


def test_the_signature_is_the_standards() -> None:
    """Standard Webhooks: HMAC-SHA256 of `ID.TIMESTAMP.BODY`, base64, one `v1,` for each secret."""
    headers = signed([SECRET], "msg_1", 1_614_265_330, b'{"a":1}')
    digest = hmac.new(SECRET, b'msg_1.1614265330.{"a":1}', hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
    assert "webhook-signature" not in signed([], "msg_1", 1, b"")


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_%%%", "whsec_c2hvcnQ=", "plain", "whsec_" + "QUFB" * 40])
def test_a_secret_that_is_none_is_refused(text: str) -> None:
    """Base64 of 24 to 64 bytes, and the message does not quote it."""
    assert read_secrets("whsec_" + base64.b64encode(SECRET).decode()) == (SECRET,)
    with pytest.raises(ValueError, match="secret 1") as caught:
        read_secrets(text)
    assert not text or text not in str(caught.value)


async def test_hostile_text_is_only_text(path: Path) -> None:
    """In chat a stranger's text formats, mentions and links nothing, and what can't be seen is written out."""
    hostile = "<!channel> *b* `x` <https://evil.example|here> \u202egnp.exe\u200b\n@all&"
    async with office(path) as at:
        held = await at.it.held(effect(name=hostile, subject="<@U1>`", client="c"), reasons=("large",))
        text = json.loads(message("slack", "new", held.ticket, Told(PAGE), 0.0))["text"]
    assert len(text.splitlines()) == 5
    assert "<!" not in text
    assert "<@" not in text
    assert "\u202e" not in text
    assert "\\u{202e}" in text
    assert "\\u{200b}" in text
    assert "&amp;" in text
    assert text.splitlines()[-1] == f"<{PAGE}/{held.ticket.id}>"
    spans = re.sub(r"`[^`\n]*`", "", text.rpartition("\n")[0])  # what stands outside of code spans is ours
    assert not re.search(r"evil|channel|all|U1|\*", spans)


async def test_a_resource_is_named_without_what_can_be_secret_in_it(path: Path) -> None:
    """User, query and fragment of a URI stay at home."""
    uri = "https://user:canary@files.example/a?key=canary#canary"
    async with office(path) as at:
        held = await at.it.held(effect({}, name=uri, method="resources/read"))
        for form in FORMS:
            body = message(form, "new", held.ticket, Told(PAGE), 0.0)
            assert b"canary" not in body
            assert b"https://files.example/a?" in body


@pytest.mark.parametrize(
    "uri", ["data:text/plain,CANARY", "DATA:;base64,CANARY", "vault://keys/CANARY/latest", "vault:CANARY"]
)
async def test_nor_is_its_content_or_a_secret_in_its_path(path: Path, uri: str) -> None:
    """A `data:` URI is what it holds; a token in a path is hidden like one in a value."""
    canary = "ghp_" + "aB3dE6gH9jK2mN5pQ8sT" + "1vW4xY7zA0cD3fG6"
    async with office(path) as at:
        held = await at.it.held(effect({}, name=uri.replace("CANARY", canary), method="resources/read"))
        for form in FORMS:
            body = message(form, "new", held.ticket, at.mail._told, 0.0).decode()
            assert canary not in body
            assert uri.partition(":")[0].lower() + ":" in body


async def test_a_message_is_small_whatever_the_call(path: Path) -> None:
    """Names, values and pointers are cut: a receiver gets no megabytes."""
    arguments = {str(number): "x" * 100_000 for number in range(100)}
    terms = replace(TERMS, clear=tuple(f"/{number}" for number in range(100)))
    async with office(path) as at:
        held = await at.it.held(effect(arguments, name="n" * 5000, subject="s" * 5000), terms=terms)
        assert held.ticket.state is State.PENDING
        for form in FORMS:
            assert len(message(form, "new", held.ticket, Told(PAGE), 0.0)) < 4096
