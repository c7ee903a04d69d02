"""The record's pages on a real server: who may read what of it, within which bounds, and what reading leaves."""

from __future__ import annotations

import asyncio
import html
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from approvals.approvers import Person
from approvals.review.api import TurnedAway
from approvals.review.app import review_pages
from approvals.review.asking import Told
from approvals.review.pages import Room
from gateway.audit.place import Place
from gateway.audit.postgres import PostgresSettings, PostgresSink
from gateway.audit.query import Query
from gateway.contract.record import admin_record, approval_record
from gateway.contract.refusals import Refusal, Refused
from gateway.review_audit.charts import Tally
from gateway.review_audit.reader import BOUNDS, Bounds
from gateway.review_audit.readings import Readings
from gateway.review_audit.room import AuditPages
from tests.contract.walked import REDACTOR, transition
from tests.edge.test_approvals_api import served
from tests.edge.test_review_pages import FROM_HERE, ORIGIN, Shop
from tests.pipeline.house import KeptRecord
from tests.ports.test_audit import decision, outcome, refusal
from tests.ports.test_audit_search import written
from tests.support.approvals import ALICE, BOB, bench, person
from tests.support.postgres import Postgres
from tests.support.visitors import ByName

ISSUER = "https://idp.example.com"
AUDITOR = replace(person("carol"), scopes=frozenset({"audit:read"}))
PLAIN = replace(ALICE, issuer=ISSUER, subject="alice", scopes=frozenset())
SAME_NAME = replace(PLAIN, issuer="https://other.example")
PAGES = ("/review/audit", "/review/audit/charts", f"/review/audit/{9:032x}")
KEY = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"


def at(seconds_ago: float, record: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """The record, so long ago."""
    then = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    return {**record, "time": then.isoformat(timespec="milliseconds").replace("+00:00", "Z"), **changed}


def refused(n: int, who: str = "alice", issuer: str = ISSUER, **changed: Any) -> dict[str, Any]:
    """A refusal of somebody known, with what its caller was never told."""
    actor = {"issuer": issuer, "subject": who, "client": "agent"}
    told = {
        "actor": actor,
        "reasons": ["policy_denied", "planted_rule"],
        "detail": "planted detail",
        "verdict": "deny",
    }
    return {**refusal(n, Refusal.POLICY_DENIED), **told, "name": "read_file", "server": "readonly", **changed}


@dataclass
class Hall:
    """The pages over a record of the test's, before visitors whom the test knows."""

    client: httpx.AsyncClient
    visitors: ByName
    sink: KeptRecord
    file: Path
    turned: list[TurnedAway] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    async def get(self, path: str, who: str = "carol") -> httpx.Response:
        """A page, under the headers that every page has."""
        answer = await self.client.get(path, headers={"authorization": f"Bearer {who}"})
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert (answer.headers["cache-control"], answer.headers["x-content-type-options"]) == ("no-store", "nosniff")
        assert "style=" not in answer.text
        return answer

    async def post(self, fields: Mapping[str, str], who: str = "carol", **headers: str) -> httpx.Response:
        """The form for evidence, from one of these pages."""
        sent = {"authorization": f"Bearer {who}"} | FROM_HERE | headers
        return await self.client.post(
            "/review/audit/evidence", data={"form_key": f"key-of-{who}", **fields}, headers=sent
        )


@asynccontextmanager
async def hall_over(
    file: Path,
    *,
    bounds: Bounds = BOUNDS,
    key: str = KEY,
    people: Mapping[str, Person] | None = None,
    database: str | None = None,
) -> AsyncIterator[Hall]:
    """The pages, beside those of the approvals."""
    known = {"carol": AUDITOR, "alice": PLAIN, "other": SAME_NAME, "bob": replace(BOB, issuer=ISSUER)}
    visitors, sink = ByName({**known, **(people or {})}), KeptRecord()
    turned: list[TurnedAway] = []
    refusals: list[Refused] = []

    async def explain(request: Any, error: Exception) -> Told:
        assert isinstance(error, Refused)
        refusals.append(error)
        return Told(error.refusal.value.status, error.message or error.refusal.value.sentence, {})

    def tell(one: TurnedAway) -> Mapping[str, str]:
        turned.append(one)
        return {"ostiary-decision": "d"}

    async with bench(file.parent / "approvals.db") as it:
        app = review_pages(it.desk, visitors, Shop(), origin=ORIGIN, words=(Refused,), explain=explain, tell=tell)
        pages = AuditPages(Room(it.desk, visitors, ORIGIN), Place(file, database), sink, key=key, bounds=bounds)
        pages.add_to(app)
        async with served(app) as url, httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
            yield Hall(client, visitors, sink, file, turned, refusals)
        await pages.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two writers: a call under a ticket, refusals of three people, a stranger's, an administrator's act."""
    file = tmp_path / "audit.jsonl"
    moved = approval_record(transition(), REDACTOR)
    written(
        file,
        [
            at(50, moved, ticket="t-1"),
            at(40, decision(1), ticket="t-1", verdict="approve"),
            at(30, outcome(1), ticket="t-1"),
            at(20, refused(9)),
            at(19, refused(8, issuer="https://other.example")),
            at(18, refused(7, who="mallory")),
        ],
        cut=(2,),
    )
    written(file, [at(45, refusal(5)), at(10, admin_record("mark", "local:0@host"))], writer=1)
    return file


@pytest.fixture
async def hall(file: Path) -> AsyncIterator[Hall]:
    """The pages over that record."""
    async with hall_over(file) as hall:
        yield hall


def shown(page: httpx.Response) -> str:
    """What a reader reads."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page.text)))


async def test_the_whole_record_takes_its_scope(hall: Hall) -> None:
    """Who has `audit:read` sees every page of it; who has not is told the scope and nothing else, whatever the id."""
    for path in PAGES:
        assert (await hall.get(path)).status_code == 200
    assert "mallory" in (await hall.get("/review/audit")).text
    answers = [await hall.get(path, "alice") for path in (*PAGES, f"/review/audit/{'f' * 32}")]
    assert {answer.status_code for answer in answers} == {403}
    assert all("audit:read" in answer.text and "mallory" not in answer.text for answer in answers)
    assert {(one.verb, one.name, one.status) for one in hall.turned} == {("audit", "insufficient_scope", 403)}
    for path in (*PAGES, "/review/refusals", f"/review/why/{9:032x}"):
        answer = await hall.get(path, "nobody")
        assert (answer.status_code, "/review/sign-in?" in answer.headers["location"]) == (303, True)


async def test_everybody_sees_their_own_refusals_and_no_others(hall: Hall) -> None:
    """By issuer and subject, with no scope at all: a namesake of another issuer is somebody else."""
    for who, mine in (("alice", 9), ("other", 8)):
        listed = await hall.get("/review/refusals", who)
        assert re.findall(r"/review/why/([0-9a-f]{32})", listed.text) == [f"{mine:032x}"]
        assert "The policy does not allow this operation." in shown(await hall.get(f"/review/why/{mine:032x}", who))
    assert "Nothing was refused to you" in (await hall.get("/review/refusals", "bob")).text


async def test_a_namesake_of_another_tenant_is_somebody_else(tmp_path: Path) -> None:
    """One issuer, one subject, two tenants: each sees what was refused there; what names no tenant is of both."""
    people = {one: replace(PLAIN, tenant=one) for one in ("red", "blue")}
    actor = {"issuer": ISSUER, "subject": "alice", "client": "agent"}
    file = tmp_path / "audit.jsonl"
    red, blue = ({**actor, "tenant": one} for one in people)
    of_tenants = [at(30, refused(9), actor=red), at(20, refused(8), actor=blue)]
    written(file, [*of_tenants, at(10, refused(7))])
    async with hall_over(file, people=people) as hall:
        for who, mine in (("red", [7, 9]), ("blue", [7, 8]), ("alice", [7])):
            listed = await hall.get("/review/refusals", who)
            assert re.findall(r"/review/why/([0-9a-f]{32})", listed.text) == [f"{n:032x}" for n in mine]
            for n in (7, 8, 9):
                assert (await hall.get(f"/review/why/{n:032x}", who)).status_code == (200 if n in mine else 404)


@pytest.mark.parametrize("with_time", [False, True])
async def test_a_foreign_refusal_is_as_absent_as_none(hall: Hall, with_time: bool) -> None:
    """The same 404, whether the id is another's, nobody's, or no id; with the right time in the link as well."""
    hint = f"?at={at(20, {})['time']}" if with_time else ""
    assert (await hall.get(f"/review/why/{9:032x}{hint}", "alice")).status_code == 200
    answers = [
        await hall.get(f"/review/why/{one}{hint}", "alice") for one in (f"{8:032x}", f"{7:032x}", "f" * 32, "x" * 65)
    ]
    assert {(answer.status_code, answer.text) for answer in answers} == {(404, answers[0].text)}
    assert {(one.verb, one.status) for one in hall.turned} == {("explain", 404)}


async def test_own_pages_say_nothing_that_the_answer_did_not(hall: Hall) -> None:
    """No detail, no rule and no verdict of the policy; where it was disclosed to the caller, its reasons."""
    whole = shown(await hall.get(f"/review/audit/{9:032x}"))
    assert ("planted_rule" in whole, "planted detail" in whole) == (True, True)
    for path in ("/review/refusals", f"/review/why/{9:032x}"):
        page = await hall.get(path, "alice")
        assert "planted" not in page.text
        assert "deny" not in page.text
    written(hall.file, [at(5, refused(3, disclosed=True)), at(4, refused(2, disclosed="yes"))], writer=2)
    assert "planted_rule" in (await hall.get(f"/review/why/{3:032x}", "alice")).text
    assert "planted" not in (await hall.get(f"/review/why/{2:032x}", "alice")).text


@pytest.mark.parametrize(
    ("reason", "detail", "told"),
    [
        (
            "scope_insufficient",
            "missing scopes: files:write files:admin",
            "What was missing: files:write files:admin",
        ),
        ("header_mismatch", "Mcp-Name header does not agree", "Mcp-Name header does not agree"),
    ],
)
async def test_what_the_caller_can_mend_is_said(hall: Hall, reason: str, detail: str, told: str) -> None:
    """The missing scope and how to get it; the header that disagreed: their answer said so, and so does the page."""
    written(hall.file, [at(5, refused(3, reasons=[reason, "planted_rule"], detail=detail))], writer=2)
    page = await hall.get(f"/review/why/{3:032x}", "alice")
    assert told in shown(page)
    assert "planted" not in page.text


async def test_names_that_records_cut_belong_to_nobody(hall: Hall, tmp_path: Path) -> None:
    """Two people whose long names begin alike look the same in the record: neither sees the other's."""
    long = replace(PLAIN, subject="a" * 256)
    hall.visitors.people = {"fits": long, "longer": replace(long, subject="a" * 257)}
    written(hall.file, [at(5, refused(3, who="a" * 256))], writer=2)
    assert (await hall.get(f"/review/why/{3:032x}", "fits")).status_code == 200
    assert (await hall.get(f"/review/why/{3:032x}", "longer")).status_code == 404
    assert f"{3:032x}" not in (await hall.get("/review/refusals", "longer")).text


async def test_a_story_is_the_ticket_the_decision_and_the_end(hall: Hall) -> None:
    """Told over rotated files, with each record's place in its chain; one whose content was changed says so."""
    page = await hall.get(f"/review/audit/{1:032x}")
    text = shown(page)
    steps = [text.index(word) for word in ("approve by", "decided: forwarded", "ended: executed")]
    assert steps == sorted(steps)
    assert text.count("matches its hash") == 3
    assert "shape only" in text
    forged = hall.file.read_bytes().replace(b'"outcome":"executed"', b'"outcome":"answered"')
    hall.file.write_bytes(forged)
    again = shown(await hall.get(f"/review/audit/{1:032x}"))
    assert (again.count("matches its hash"), again.count("its content does not match its hash")) == (2, 1)


async def test_filters_are_read_strictly(hall: Hall) -> None:
    """One that holds finds its records; one that is unknown, doubled, no time or no place in the record is none."""
    found = await hall.get("/review/audit?who=mallory&kind=refusal&reason=planted_rule&since=1h")
    assert found.text.count('class="when"') == 1
    for query in (
        "nobody=x", "who=a&who=b", "kind=planted", "verdict=maybe", "since=yesterday", "until=1e9", "cursor=x",
        "cursor=0-1.", "who=" + "x" * 513, "who=a%00", "since=9999999d",
    ):  # fmt: skip
        assert (await hall.get(f"/review/audit?{query}")).status_code == 400, query
    assert (await hall.get("/review/refusals?who=mallory", "alice")).status_code == 400
    assert (await hall.get(f"/review/why/{9:032x}?at=now", "alice")).status_code == 400


async def test_charts_go_back_as_far_as_time(hall: Hall) -> None:
    """Whatever window is a window has its charts: also the first day that there is, and all days."""
    for query in ("since=2026-11-30", "since=0001-01-01", "since=0001-01-01&until=9999-12-31", "until=0001-01-01"):
        assert (await hall.get(f"/review/audit/charts?{query}")).status_code == 200, query


def test_what_a_flood_mixed_is_counted_for_no_reason_that_only_some_of_it_had() -> None:
    """A shared record of several reasons does not say how many had which: they are among all others, each once."""
    moment = "2026-11-30T10:02:00.000Z"
    flood = {"kind": "refusal", "time": moment, "count": 7, "first": moment, "last": moment, "status": 400}
    tally = Tally(Query(since="2026-11-30T00:00:00.000Z", until="2026-12-01T00:00:00.000Z"))
    tally.read(orjson.dumps(flood | {"reasons": ["header_mismatch"]}))
    tally.read(orjson.dumps(flood | {"reasons": ["header_mismatch", "meta_missing"], "status": None}))
    charts = tally.charts()
    assert charts.totals == {"refused": 14}
    assert [(row.name, row.counts) for row in charts.reasons] == [
        ("header_mismatch", {"refused": 7}),
        ("", {"refused": 7}),
    ]


async def test_a_bound_ends_a_look_and_says_where_to_go_on(tmp_path: Path) -> None:
    """However little one look reads, going on from page to page meets each record once, in order."""
    file = tmp_path / "audit.jsonl"
    written(file, [at(2000 - n, refused(n)) for n in range(150)], cut=(40, 90))
    written(file, [at(2000.5 - n, refused(1000 + n)) for n in range(150)], writer=1, cut=(70,))
    async with hall_over(file, bounds=Bounds(read_bytes=30_000)) as hall:
        path, met, pages = "/review/audit?reason=planted_rule", [], 0
        while path:
            page = await hall.get(path)
            assert page.status_code == 200
            assert ("One look reads so much" in page.text) is ('rel="next"' in page.text)
            met += re.findall(r'class="when"><a href="/review/audit/([0-9a-f]{32})', page.text)
            following = re.search(r'rel="next" href="([^"]+)"', page.text)
            path, pages = (html.unescape(following[1]), pages + 1) if following else ("", pages)
    wanted = [f"{number:032x}" for n in range(149, -1, -1) for number in (n, 1000 + n)]
    assert met == wanted
    assert pages >= 8


async def test_a_window_in_the_past_is_found_without_reading_what_is_newer(tmp_path: Path) -> None:
    """A bound that is far smaller than what came since: the old records are there all the same."""
    file = tmp_path / "audit.jsonl"
    old = [at(86_400 * 9 + n, refused(n)) for n in range(20, 0, -1)]
    written(file, [*old, *(at(6000 - n, refused(100 + n)) for n in range(3000))], cut=(2000,))
    async with hall_over(file, bounds=Bounds(read_bytes=60_000)) as hall:
        window = f"since={at(86_400 * 10, {})['time']}&until={at(86_400 * 8, {})['time']}"
        page = await hall.get(f"/review/audit?{window}")
        assert page.text.count('class="when"') == 20
        assert "One look reads so much" not in page.text
        story = await hall.get(f"/review/audit/{7:032x}?at={old[13]['time']}")
        assert story.status_code == 200
        assert (await hall.get(f"/review/audit/{7:032x}")).status_code == 404  # hunted for, and not come to


async def test_the_loop_goes_on_while_the_record_is_read(tmp_path: Path) -> None:
    """A look over tens of megabytes holds up nobody else in the process for long."""
    file = tmp_path / "audit.jsonl"
    written(file, [at(3000 - n / 100, refused(n)) for n in range(20_000)])
    file.write_bytes(file.read_bytes())
    gaps: list[float] = []

    async def beat() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.005)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    async with hall_over(file) as hall:
        beating = asyncio.create_task(beat())
        page = await hall.get("/review/audit/charts?since=2h")
        beating.cancel()
    assert "20,000" in page.text
    assert len(gaps) > 10
    assert sorted(gaps)[len(gaps) // 2] < 0.1


async def test_one_look_each_and_few_in_a_row(tmp_path: Path) -> None:
    """A second look of the same person is refused while the first one reads; so is everybody beyond the line."""
    file = tmp_path / "audit.jsonl"
    written(file, [at(3000 - n / 100, refused(n)) for n in range(8000)])
    people = {f"p{n}": replace(AUDITOR, subject=f"p{n}") for n in range(3)}
    async with hall_over(file, people=people, bounds=Bounds(waiting=2)) as hall:
        slow = "/review/audit/charts"
        answers = await asyncio.gather(*(hall.get(slow, who) for who in ("p0", "p0", "p1", "p2")))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 503]
        assert {one.refusal for one in hall.refused} == {Refusal.RATE_LIMITED, Refusal.OVERLOADED}
        assert (await hall.get(slow, "p0")).status_code == 200


async def test_a_part_that_cant_be_read_is_named(hall: Hall) -> None:
    """An auditor reads which writer's part is missing, and what is there; a caller that something may be missing."""
    (hall.file.parent / "audit.jsonl.1").unlink()
    (hall.file.parent / "audit.jsonl.1").mkdir()
    page = await hall.get("/review/audit")
    assert "Not all of the record is here" in page.text
    assert "writer 1" in page.text
    assert "mallory" in page.text
    own = await hall.get("/review/refusals", "alice")
    assert "something may be missing" in own.text
    assert f"{9:032x}" in own.text


GARBAGE: tuple[Any, ...] = (
    None,
    7,
    -1.5,
    True,
    "\u202e</td><script>alert(1)</script>",
    [],
    [1, ["x"]],
    [["x"], {}],
    {},
    {"a": {"b": 1}},
)


@pytest.mark.parametrize("value", GARBAGE, ids=lambda value: type(value).__name__)
async def test_whatever_the_files_hold_is_a_page(tmp_path: Path, value: Any) -> None:
    """AUD-04: records may be anybody's: each member is replaced by what it never is, and no page breaks."""
    file, kinds = (
        tmp_path / "audit.jsonl",
        (refused(9), decision(9), outcome(9), approval_record(transition(), REDACTOR)),
    )
    lines = []
    for kind in (*kinds, admin_record("x", "y", {"a": 1})):
        record = at(5, {**kind, "seq": 1, "writer": 0, "prev": "0" * 64, "decision_id": f"{9:032x}", "hash": "x"})
        for name in (*record, "facts", "by", "requester"):
            if name not in ("decision_id", "kind"):
                lines.append(orjson.dumps({**record, name: value}, option=orjson.OPT_SORT_KEYS))
    lines += [orjson.dumps(value), b"{", b"\xff\xfe", b'{"time":"2026"}']
    file.write_bytes(b"\n".join(lines) + b"\n")
    async with hall_over(file) as hall:
        for path in (*PAGES, f"/review/audit/{9:032x}?at={at(5, {})['time']}", "/review/audit?kind=admin"):
            answer = await hall.get(path)
            assert (answer.status_code, "<script>alert" in answer.text) == (200, False), path
        for path in ("/review/refusals", f"/review/why/{9:032x}"):
            assert (await hall.get(path, "alice")).status_code == 200


async def test_evidence_is_taken_by_form_and_judged_by_the_command(hall: Hall, tmp_path: Path) -> None:
    """The session's own form gives a signed file that verifies; it is recorded before it leaves, and has a scope."""
    answer = await hall.post({"decision": f"{1:032x}"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"] == f'attachment; filename="evidence-{1:032x}.jsonl"'
    took = hall.sink.records[-1]
    assert (took["act"], took["by"], took["facts"]) == ("evidence_taken", AUDITOR.by, {"decision": f"{1:032x}"})
    (tmp_path / "e.jsonl").write_bytes(answer.content)
    command = [sys.executable, "-m", "gateway.cli", "audit", "verify", "--file", str(tmp_path / "e.jsonl"), "--json"]
    judged = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)
    assert judged.returncode == 0, judged.stderr
    assert orjson.loads(answer.content.splitlines()[-1])["signature"]
    assert (await hall.post({"decision": f"{1:032x}"}, "alice")).status_code == 403
    assert (await hall.post({"decision": "x", "form_key": "planted"})).status_code == 403
    assert (await hall.post({"decision": "x"}, origin="https://evil.example")).status_code == 403
    assert (await hall.post({"decision": "x", "planted": "y"})).status_code == 400
    assert [one["act"] for one in hall.sink.records].count("evidence_taken") == 1


async def test_of_a_broken_record_there_is_no_evidence(hall: Hall) -> None:
    """Not a byte leaves, the page says why, and that it was found is recorded."""
    assert (await hall.post({"ticket": "t-1"})).status_code == 200
    hall.file.write_bytes(hall.file.read_bytes().replace(b"mallory", b"mallorx"))
    answer = await hall.post({"ticket": "t-1"})
    assert (answer.status_code, "does not verify" in answer.text, b'"kind"' in answer.content) == (409, True, False)
    assert (hall.sink.records[-1]["act"], hall.sink.records[-1]["facts"]["why"]) == ("evidence_refused", "broken")
    assert "BROKEN at record" in hall.sink.records[-1]["facts"]["detail"]


async def test_reading_is_recorded_and_folded(hall: Hall) -> None:
    """The first look at once, the same again as one record with its count, at the latest when the house closes."""
    for _ in range(4):
        await hall.get("/review/audit?who=mallory")
    await hall.get("/review/audit?who=alice")
    await hall.get(f"/review/audit/{9:032x}")
    await hall.get("/review/refusals", "alice")
    told = [(one["by"], one["facts"], one["count"]) for one in hall.sink.of("admin")]
    assert told == [
        (AUDITOR.by, {"page": "timeline", "who": "mallory"}, 1),
        (AUDITOR.by, {"page": "timeline", "who": "alice"}, 1),
        (AUDITOR.by, {"page": "story", "decision": f"{9:032x}"}, 1),
        (PLAIN.by, {"page": "own refusals"}, 1),
    ]
    assert all(one["act"] == "record_read" for one in hall.sink.of("admin"))


async def test_counted_looks_are_written_in_the_end() -> None:
    """Each look stands in exactly one record, whichever ends the counting: time, room, or the close."""
    sink, both = KeptRecord(), asyncio.Event()

    def note(record: Mapping[str, Any]) -> None:
        sink.note(record)
        if len(sink.records) == 2:
            both.set()

    readings = Readings(note, fold_s=0.01)
    for _ in range(3):
        readings.tell("a", "timeline", {})
    await asyncio.wait_for(both.wait(), 10)
    assert [one["count"] for one in sink.records] == [1, 2]
    readings = Readings(sink.note, fold_s=1000)
    for n in range(1200):
        readings.tell("b", "timeline", {"who": str(n // 2)})
    readings.close()
    assert sum(one["count"] for one in sink.records if one["by"] == "b") == 1200


async def test_a_record_in_postgresql_has_the_same_pages(postgres: Postgres, tmp_path: Path) -> None:
    """Timeline, story, one's own and evidence are read from the tables; a database that is away is a 503 in words."""
    url = postgres.create()
    written_to = PostgresSink(PostgresSettings(url, deadline_s=20.0))
    await written_to.start()
    for record in (decision(1), outcome(1), refused(9), refused(7, who="mallory")):
        await written_to.append(record)
    await written_to.close()
    async with hall_over(tmp_path / "audit.jsonl", database=url) as hall:
        assert "mallory" in (await hall.get("/review/audit")).text
        assert "ended: executed" in shown(await hall.get(f"/review/audit/{1:032x}"))
        listed = await hall.get("/review/refusals", "alice")
        assert re.findall(r"/review/why/([0-9a-f]{32})", listed.text) == [f"{9:032x}"]
        assert (await hall.get(f"/review/why/{7:032x}", "alice")).status_code == 404
        evidence = await hall.post({"decision": f"{1:032x}"})
        assert [orjson.loads(line).get("kind") for line in evidence.content.splitlines()].count("outcome") == 1
    async with hall_over(tmp_path / "audit.jsonl", database=url + "_gone") as hall:
        page = await hall.get("/review/audit")
        assert (page.status_code, "can't be read at the moment" in html.unescape(page.text)) == (503, True)
        assert hall.refused[-1].refusal is Refusal.AUDIT_UNAVAILABLE
        assert (await hall.post({"decision": f"{1:032x}"})).status_code == 409
        assert hall.sink.records[-1]["facts"]["why"] == "unreadable"


async def test_a_secret_in_a_filter_is_not_written_down(hall: Hall) -> None:
    """AUD-02: what somebody pasted into a field by mistake is masked in the record of their look, as in any other."""
    token = "ghp_" + "Ab3" * 12
    assert (await hall.get("/review/audit?who=mallory")).status_code == 200
    assert hall.sink.records[-1]["facts"]["who"] == "mallory"
    assert (await hall.get(f"/review/audit?who={token}")).status_code == 200
    assert "removed]" in hall.sink.records[-1]["facts"]["who"]
    assert (await hall.post({"ticket": token})).status_code == 200
    assert token not in str(hall.sink.records)


async def test_a_long_story_is_told_in_part_and_says_so(tmp_path: Path) -> None:
    """A ticket with hundreds of moves makes a page of bounded size, which says how many records there are."""
    file, moved = tmp_path / "audit.jsonl", approval_record(transition(), REDACTOR)
    written(file, [*(at(900 - n, moved, ticket="t-1") for n in range(700)), at(40, decision(1), ticket="t-1")])
    async with hall_over(file) as hall:
        page = shown(await hall.get(f"/review/audit/{1:032x}"))
        assert ("tells 300 of 701 records" in page, "shows 60 of 701 records" in page) == (True, True)
        assert page.count("matches its hash") == 60
