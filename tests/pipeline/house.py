"""The corridor with its real rooms in one process, for tests that must stop it at an await.

Real: tokens, catalogue, upstream over sockets, desk on a database file, seals. The policy and the record are ports,
and a test plays them: one answers what it is told to, the other keeps what it is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, SupportsBytes

import orjson

from approvals.approvers import Person
from approvals.desk import Desk
from approvals.keyed import KeyedCalls
from approvals.shelf import Shelf
from approvals.store import Store
from approvals.ticket import Transition
from gateway.answers import Answers, keep_within_reach
from gateway.audit.port import AuditUnavailable
from gateway.catalog import Catalog
from gateway.challenge import Challenge, Challenges
from gateway.contract.passage import Passage, Received, Reply, Server
from gateway.contract.record import AuditKeys, Redactor
from gateway.definitions import Definitions
from gateway.delivery import Delivery
from gateway.elicitation import Elicitation
from gateway.eras import Eras
from gateway.errands import Errands
from gateway.handles import Handles, tell_of_tasks
from gateway.holding import Holding
from gateway.issuers import IssuerSettings
from gateway.pins.keeper import Pins
from gateway.pipeline import Corridor
from gateway.repeats import Repeats
from gateway.runs import Runs
from gateway.seals import Seals
from gateway.sessions import Sessions
from gateway.tokens import Tokens
from gateway.upstream.http import HttpUpstream
from gateway.upstream.target import UpstreamTarget, check_replica_url
from policies.verdict import ApprovalTerms, Effect, Verdict
from tests.contract.asking import lines_of, message
from tests.contract.walked import KEY, KEY_TEXT
from tests.support.approvals import BOB, ISSUER, PAGE
from tests.support.issuer import Issuer
from tests.support.upstream import Exchange, Script, ScriptedUpstream, http, result_of

SERVER = Server(
    name="main",
    path="/main/mcp",
    resource="https://gw.example/main/mcp",
    metadata_url="https://gw.example/.well-known/oauth-protected-resource/main/mcp",
    issuers=frozenset({ISSUER}),
)
ALLOW = Verdict(Effect.ALLOW, reasons=("allowed",), revision="r1")
DENY = Verdict(Effect.DENY, reasons=("closed",), revision="r1")
APPROVE = Verdict(
    Effect.APPROVE, reasons=("large",), approval=ApprovalTerms(approvers=("group:payers",)), revision="r1"
)

HOLD_S = 30.0
"""How long a call that waits for a person is kept: longer than a test that does not mean it would take."""

Judge = Callable[[Mapping[str, Any]], Verdict]


@dataclass
class PlayedPolicy:
    """Answers each question by `judge`; `questions` are all that were asked."""

    judge_by: Judge
    questions: list[dict[str, Any]] = field(default_factory=list)
    revision: str = "r1"
    ready: bool = True
    remembered: int = 0

    async def start(self) -> None:
        """Nothing has to be loaded."""

    async def close(self) -> None:
        """Nothing is open."""

    async def judge(self, question: SupportsBytes) -> Verdict:
        """The test's word."""
        self.questions.append(orjson.loads(bytes(question)))
        return self.judge_by(self.questions[-1])


@dataclass
class KeptRecord:
    """A sink that keeps records, waits at `gate` before a decision, and raises `broken` where it is set."""

    records: list[dict[str, Any]] = field(default_factory=list)
    gate: asyncio.Event | None = None
    broken: AuditUnavailable | None = None
    healthy: bool = True

    async def start(self) -> None:
        """Nothing has to be opened."""

    async def close(self) -> None:
        """Nothing is open."""

    async def append(self, record: Mapping[str, Any]) -> None:
        """Keep a decision."""
        if self.gate is not None:
            await self.gate.wait()
        if self.broken is not None:
            raise self.broken
        self.records.append(dict(record))

    def note(self, record: Mapping[str, Any]) -> None:
        """Keep an outcome or a refusal."""
        self.records.append(dict(record))

    def fold(self, *_: object) -> bool:
        """Every refusal has its own record here."""
        return False

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The records of one kind."""
        return [record for record in self.records if record["kind"] == kind]


@dataclass
class Watcher:
    """What the observer was told."""

    ends: int = 0
    defects: list[BaseException] = field(default_factory=list)

    def concluded(self, passage: Passage, record: Mapping[str, Any]) -> None:
        """A request's end."""
        assert record["decision_id"] == passage.decision_id
        self.ends += 1

    def counted(self, *_: object) -> None:
        """A refusal that is told with others."""
        self.ends += 1

    def broke(self, passage: Passage, error: BaseException) -> None:
        """A defect."""
        assert passage.decision_id
        self.defects.append(error)


@dataclass
class Asked:
    """A request at the door, its head and body as given."""

    received: Received
    raw: bytes
    server: Server | None = SERVER

    def receive(self) -> Received:
        """The head."""
        return self.received

    async def body(self) -> bytes:
        """The body."""
        return self.raw


@dataclass
class InnerHouse:
    """One corridor, and everything around it that a test plays or looks at."""

    corridor: Corridor
    policy: PlayedPolicy
    sink: KeptRecord
    watcher: Watcher
    store: Store
    desk: Desk
    issuer: Issuer
    upstream: ScriptedUpstream
    tools: list[dict[str, Any]]
    moves: list[str]
    script: Script | None = None
    listings: int = 0
    listing_gate: asyncio.Event | None = None
    listing_fails: bool = False
    forwarded: list[bytes] = field(default_factory=list)
    prompts: list[dict[str, Any]] = field(default_factory=list)
    templates: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, name: str = "pay", arguments: Mapping[str, Any] | None = None, **more: Any) -> Asked:
        """A good `tools/call` of alice's."""
        return self.request(message(params={"name": name, "arguments": dict(arguments or {})}, **more))

    def request(self, body: Mapping[str, Any], server: Server = SERVER, **claims: Any) -> Asked:
        """Any good request of alice's; `claims` make it another's."""
        token = self.issuer.mint(server.resource, **{"scope": "mcp:use", **claims})
        lines = {**dict(lines_of(body)), "Authorization": f"Bearer {token}"}
        headers = tuple((name.lower().encode(), str(value).encode()) for name, value in lines.items())
        return Asked(Received(server, "POST", server.path, headers), orjson.dumps(body), server)

    def later(self, seconds: float) -> None:
        """The catalogue's clock goes on."""
        clock = self.corridor.catalog.clock
        self.corridor.catalog.clock = lambda: clock() + seconds

    async def serve(self, asked: Asked | None = None) -> Reply:
        """Walk one request."""
        return await self.corridor.serve(self.ask() if asked is None else asked)

    async def call(self, *asked: Any, **more: Any) -> tuple[int, dict[str, Any]]:
        """Walk a `tools/call` -> status and body."""
        reply = await self.serve(self.ask(*asked, **more))
        return reply.status, orjson.loads(reply.body)

    async def approve(self, asked: Asked, by: Person = BOB) -> str:
        """Have a call held and approved -> the ticket's id."""
        answer = orjson.loads((await self.serve(asked)).body)
        held = answer["error"]["data"]["ticket"]["id"] if "error" in answer else self.sink.records[-1]["ticket"]
        await self.desk.act("approve", by, held)
        return str(held)

    async def ticket(self, ticket_id: str, by: Person = BOB) -> dict[str, Any]:
        """The ticket as its approver sees it."""
        return await self.desk.show(by, ticket_id)

    @asynccontextmanager
    async def store_is_busy(self) -> AsyncIterator[None]:
        """Somebody else's transaction holds the write lock meanwhile."""
        entered, leave = asyncio.Event(), asyncio.Event()

        async def hold(_: object) -> None:
            entered.set()
            await leave.wait()

        holding = asyncio.create_task(self.store.write(hold, patience_s=5))
        await entered.wait()
        try:
            yield
        finally:
            leave.set()
            await holding

    async def play(self, exchange: Exchange) -> None:
        """The server behind: its own listing, and what the test plays for forwarded calls."""
        asked = orjson.loads(exchange.seen.body)
        if str(asked.get("id", "")).startswith("ostiary-"):
            self.listings += 1
            if self.listing_gate is not None:
                await self.listing_gate.wait()
            if self.listing_fails:
                await exchange.send(http(500, b"no"))
                return
            offers = {"tools": self.tools, "prompts": self.prompts, "resourceTemplates": self.templates}
            listing = result_of(exchange.id, **offers, ttlMs=60_000, cacheScope="public")
            await exchange.send(http(200, listing))
            return
        self.forwarded.append(exchange.seen.body)
        if self.script is not None:
            await self.script(exchange)
        else:
            await exchange.send(http(200, result_of(exchange.id)))


def tool(name: str, **more: Any) -> dict[str, Any]:
    """A definition as a server lists it."""
    return {"name": name, "inputSchema": {"type": "object"}, **more}


async def until(holds: Callable[[], bool], within_s: float = 5.0) -> None:
    """Wait for what no event tells of."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@asynccontextmanager
async def inner_house(
    folder: Path,
    judge: Judge = lambda _: ALLOW,
    *,
    store_limit_s: float = 2.0,
    tenant_claim: str = "",
    pins: Pins | None = None,
) -> AsyncIterator[InnerHouse]:
    """A corridor on fresh files, with one server that offers `pay` and `secret`."""
    issuer = Issuer(ISSUER)
    tokens = Tokens(
        [IssuerSettings(ISSUER, ("ES256",), jwks_file=issuer.write(folder / "jwks.json"), tenant_claim=tenant_claim)]
    )
    await tokens.start()
    store = Store(f"sqlite:///{folder / 'desk.db'}", [KEY], limit_s=store_limit_s)
    await store.start()
    moves: list[str] = []

    async def journal(transition: Transition) -> None:
        moves.append(transition.verb)

    desk = Desk(store, journal, page_url=PAGE, issuers=[ISSUER])
    scripted = ScriptedUpstream()
    async with scripted:
        upstream = HttpUpstream({SERVER.name: UpstreamTarget((check_replica_url(scripted.url),))})
        definitions = Definitions(pins=pins or Pins())
        catalog = Catalog(upstream, definitions=definitions)
        policy, sink, watcher = PlayedPolicy(judge), KeptRecord(), Watcher()
        seals, handles = Seals([KEY]), Handles([KEY])
        redactor, eras = Redactor(AuditKeys(KEY_TEXT)), Eras(Sessions([KEY]))
        answers, rewriters = (
            Answers(policy, seals, handles, definitions, left_out=catalog.left_out),
            (keep_within_reach, tell_of_tasks),
        )
        repeats = Repeats(KeyedCalls(store, [KEY], owner="w"))
        delivery = Delivery(upstream, answers, desk, sink, redactor, watcher, rewriters=rewriters, repeats=repeats)
        shelf = Shelf(store, owner="w")
        errands = Errands(shelf, desk, handles, Runs(shelf, delivery))
        corridor = Corridor(
            tokens,
            catalog,
            policy,
            desk,
            Challenges(desk, {Challenge.ELICITATION: Elicitation(seals), Challenge.TASK: errands.take_in}),
            Holding(desk, hold_s=HOLD_S),
            errands,
            seals,
            handles,
            eras,
            sink,
            delivery,
            redactor,
            implications={},
            observer=watcher,
            repeats=repeats,
        )
        house = InnerHouse(
            corridor, policy, sink, watcher, store, desk, issuer, scripted, [tool("pay"), tool("secret")], moves
        )
        scripted.script = house.play
        try:
            yield house
        finally:
            await delivery.drain()
            await catalog.close()
            await upstream.close()
            await store.close()
            await tokens.close()
