"""The values that walk the corridor, and the one record that collects them.

Every fact is a frozen dataclass made by exactly one room. `Passage` is the only mutable object: the pipeline
makes one per request, each room's fact is filled in once, `record.py` projects it into the audit record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from approvals.allowance import Taken
from approvals.keyed_call import Taken as KeyTaken
from approvals.ticket import Claimed, Held
from gateway.contract.refusals import Refused
from policies.verdict import Verdict

if TYPE_CHECKING:
    from gateway.contract.arguments import Contract
    from gateway.contract.bindings import Binding
    from gateway.contract.legacy import Heard, Spoken
    from gateway.contract.quirks import Quirk
    from gateway.contract.resources import Reach
    from gateway.contract.tracing import Span

T = TypeVar("T")

RequestId = str | int
"""A JSON-RPC id: a string, or an integer within 64 bits. Echoed with the same type and digits."""


class Lasting:
    """A fact that outlives a request and never changes: what every request makes of it is made once."""

    __slots__ = ("_made",)

    _made: dict[Any, Any]

    def once(self, make: Callable[[Self], T]) -> T:
        """What `make`, a module's function, makes of it; asked the first time only. A copy has all of its own."""
        try:
            return self._made[make]  # type: ignore[no-any-return]
        except AttributeError:
            object.__setattr__(self, "_made", {})
        except KeyError:
            pass
        made = self._made[make] = make(self)
        return made


@dataclass(frozen=True, slots=True)
class Server(Lasting):
    """A fronted MCP server, as the corridor needs to know it; made from configuration alone.

    `resource` is the canonical OAuth resource URI (the audience of its tokens), `metadata_url` the RFC 9728
    document's URL, `scopes` what the 401 challenge names, `methods` extension methods that the configuration lists,
    `extensions` those that may be announced, `reach` which of its resources may be named (`None`: as far as the
    policy goes). `legacy_clients` and `quirks`: who is served besides clients that follow the one revision;
    `past`: the earlier revision that the server itself is offered, empty where it follows this one. `challenge`: how
    the caller of a held call is told so, where it can be told in more ways than one. `idempotent_tools` may
    be called a second time where the first may have run, if their accepted definition agrees.
    """

    name: str
    path: str
    resource: str
    metadata_url: str
    environment: str = ""
    issuers: frozenset[str] = frozenset()
    scopes: tuple[str, ...] = ()
    allowed_origins: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()
    reach: Reach | None = None
    legacy_clients: bool = False
    quirks: frozenset[Quirk] = frozenset()
    extensions: frozenset[str] = frozenset()
    past: str = ""
    challenge: str = "auto"
    idempotent_tools: frozenset[str] = frozenset()


def values_of(headers: tuple[tuple[bytes, bytes], ...], last: Mapping[bytes, bytes], name: bytes) -> list[bytes]:
    """All values of a header among lines, of which `last` is the dict: one look finds what is not there or once."""
    if name not in last:
        return []
    if len(last) == len(headers):
        return [last[name]]
    return [value for key, value in headers if key == name]


@dataclass(frozen=True, slots=True)
class Received:
    """An immutable snapshot of the request head, taken before anything else runs (requirements G1).

    `headers` holds (lower-cased name, raw value with surrounding optional whitespace trimmed) in order of arrival.
    A trailer, a middleware or a `Connection` list changes nothing of it.
    """

    server: Server
    http_method: str
    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    _last: Mapping[bytes, bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Derived, never given: a copy with other headers must not keep the index of these.
        object.__setattr__(self, "_last", dict(self.headers))

    def values(self, name: bytes) -> list[bytes]:
        """All values of the header `name` (lower case), one per line that was sent."""
        return values_of(self.headers, self._last, name)


@dataclass(frozen=True, slots=True)
class Identity(Lasting):
    """Who calls, from verified claims only. `groups` are those of the issuer's groups claim; `expires_at` is the
    token's `exp` (seconds since the epoch). Shared by all requests of a token: `claims` is only ever read."""

    issuer: str
    subject: str
    client_id: str = ""
    tenant: str = ""
    scopes: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    claims: Mapping[str, Any] = field(default_factory=dict)
    expires_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Envelope:
    """One JSON-RPC message with exactly one reading.

    `raw` are the bytes that were judged and that are forwarded unless the gateway must change the body. `id` is
    `None` only for a notification. `meta` is `params._meta` (empty where it is absent; judged after the headers).
    """

    raw: bytes
    id: RequestId | None
    method: str
    params: Mapping[str, Any]
    meta: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """What is asked for: the envelope after headers, versions and methods agreed.

    `kind` is `tool`, `prompt`, `resource`, `task`, `list`, `discover`, `completion`, `subscription` or `extension`.
    `name` is the tool's or prompt's name, the resource's URI or the task's id as the caller holds it, else `None`.
    `arguments` is `params.arguments`, and for methods without that member the remaining params (without `_meta`,
    `name`, `uri`, `taskId`, `requestState`, `inputResponses`).
    `extra_meta` are the `_meta` keys that are not the protocol's own (a gated call binds them). `task_ids` are the
    ids of all tasks that are named, as the caller holds them.
    """

    envelope: Envelope
    kind: str
    method: str
    name: str | None
    arguments: Mapping[str, Any]
    capabilities: Mapping[str, Any]
    request_state: str | None = None
    input_responses: Mapping[str, Any] | None = None
    extra_meta: Mapping[str, Any] = field(default_factory=dict)
    param_headers: tuple[tuple[bytes, bytes], ...] = ()
    task_ids: tuple[str, ...] = ()

    @property
    def goes_on(self) -> bool:
        """Whether it is the repetition of a call whose server asked for input: with a state, answers, or both.

        The answers that `tasks/update` brings belong to its task.
        """
        return self.request_state is not None or (self.input_responses is not None and self.kind != "task")


@dataclass(frozen=True, slots=True)
class Waits:
    """The call was held for a person when its caller got the state: for which ticket, and for which effect (its
    digest). `answers` are the `inputResponses` that it was held with: those of the request that brings the state back
    answer the gateway's own question, and nothing of them is the call's.
    """

    ticket_id: str
    effect: str
    answers: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class OpenedState:
    """What a caller brought back under our seal: the `requestState` that the upstream gave (`None`: it gave none).

    `leg` numbers this request in its conversation, from 1 on. `use` is the use of an approval that the conversation
    runs under, waiting at this leg; `None` where no person approved it. `waits`: the call was held, and the rest is
    what it goes on with (`leg` 0: with nothing). `expires_at` is the end of the seal, in seconds since the epoch.
    """

    value: str | None
    leg: int = 1
    use: Claimed | None = None
    waits: Waits | None = None
    expires_at: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Task:
    """A task that its caller owns, taken out of its handle.

    `handle` is the id as the caller holds and spells it, `id` the server's own; `tool` made it, and `ticket` is the
    approval that the call used (empty: it needed none). `errand` is the id of the held call that became the task, if
    one did; its `id` is empty until its server made a task of its own.
    """

    handle: str
    id: str
    tool: str
    ticket: str = ""
    errand: str = ""

    @property
    def held(self) -> bool:
        """Whether it is a held call of the gateway's own, which no server knows of."""
        return bool(self.errand) and not self.id


@dataclass(frozen=True, slots=True)
class OpenedTasks:
    """The tasks that a request names, in its order; `None` for an id that is no task of this caller's on this server.

    `why` is the first such reason: for the record, never for the caller.
    """

    found: tuple[Task | None, ...] = ()
    why: str = ""


NO_TASKS = OpenedTasks()
"""What a request names that is about no task."""


@dataclass(frozen=True, slots=True)
class Tool(Lasting):
    """A tool's definition as its server lists it. `digest` is SHA-256 (hex) of its RFC 8785 form.

    `bindings` are what its `x-mcp-header` annotations say, `contract` what its arguments are held to, if to anything.
    `pinned`: somebody accepted this very definition. `quarantine` is why nobody may call it: `new`, `changed`, or "".
    """

    name: str
    digest: str
    annotations: Mapping[str, Any]
    definition: Mapping[str, Any]
    bindings: tuple[Binding, ...] = ()
    contract: Contract | None = field(default=None, compare=False, repr=False)
    pinned: bool = False
    quarantine: str = ""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Proof that a call passed every room. Only `contract.admission.admit` makes one (tests/house proves it).

    `body` and `headers` are exactly what goes upstream, but for the server's own credentials and framing.
    `repeatable`: whether another attempt may follow one that may have reached the server.
    """

    decision_id: str
    server: Server
    identity: Identity
    call: Call
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    use: Claimed | None = None
    tasks: tuple[Task, ...] = ()
    repeatable: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """What leaves by either door: a whole body, or chunks that are relayed as they come."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes = b""
    chunks: AsyncIterator[bytes] | None = None
    close: bool = False


class Arrival(Protocol):
    """A request at the door. The body is read, under limits, only once the caller is known."""

    server: Server | None

    def receive(self) -> Received:
        """The head's snapshot. Raises `Refused` for framing, path, method, Host and Origin, in this order."""
        ...

    async def body(self) -> bytes:
        """Media types, then the whole body within size and time. Raises `Refused`."""
        ...


@dataclass(slots=True)
class Passage:
    """The record of one request's walk. Times are seconds: `time` since the epoch, `began` monotonic.

    `ended` says why the gateway itself ended a subscription, where it did. `waits` is what the request's state says
    that it waits for, `challenge` how its caller was told to wait.
    `taken` is what the call counts for in its budgets. `expected`: the server that a place is kept for it at.
    `errand` is the task that this is the run of: a held call that goes on apart from any connection.
    `key` is its idempotency key, `keyed` what it holds of that while it runs, `replay_of` the decision by which a
    call under the same key ran.
    `inside`: it has a place among those of all callers; `turn` gives the one back that it has among its caller's, and
    is taken by whoever will do so.
    `decided` is the record of its decision, once that is durable.
    `left` says when each room was left, by its name and in that order (monotonic, as `began`); `span` is there while
    traces are exported.
    """

    decision_id: str
    time: float
    began: float
    server: Server | None = None
    received: Received | None = None
    identity: Identity | None = None
    envelope: Envelope | None = None
    heard: Heard | None = None
    call: Call | None = None
    trace: tuple[tuple[bytes, bytes], ...] = ()
    span: Span | None = None
    tasks: OpenedTasks = NO_TASKS
    tool: Tool | None = None
    verdict: Verdict | None = None
    opened_state: OpenedState | None = None
    waits: Waits | None = None
    taken: tuple[Taken, ...] = ()
    settled: Claimed | Held | None = None
    admitted: Admitted | None = None
    made_task: Task | None = None
    challenge: str = ""
    errand: Task | None = None
    refused: Refused | None = None
    replica: str = ""
    retries: int = 0
    expected: str = ""
    status: int = 0
    code: int = 0
    outcome: str = ""
    ended: str = ""
    result_digest: bytes = b""
    latency_s: float = 0.0
    committed: bool = False
    decided: Mapping[str, Any] | None = None
    sent: bool = False
    inside: bool = False
    turn: Callable[[], None] | None = None
    left: dict[str, float] = field(default_factory=dict)
    key: str = ""
    keyed: KeyTaken | None = None
    replay_of: str = ""

    @property
    def spoken(self) -> Spoken | None:
        """What was agreed on with a client of an older revision; `None` for every other."""
        return None if self.heard is None else self.heard.spoken

    @property
    def task(self) -> Task | None:
        """The one task that the request made or is about."""
        return self.errand or self.made_task or (self.tasks.found[0] if len(self.tasks.found) == 1 else None)

    @property
    def trace_id(self) -> str:
        """The W3C trace id that the caller's valid `traceparent` names, or that of a trace begun here, else empty."""
        if self.span is not None:
            return self.span.trace_id
        name, value = self.trace[0] if self.trace else (b"", b"")
        return value[3:35].decode("ascii") if name == b"traceparent" else ""

    def refuse(self, refused: Refused) -> None:
        """The walk ends here, with the row's status and code; the status is 200 where a result says so instead."""
        self.refused = refused
        self.status = refused.refusal.value.status if refused.instead is None else 200
        self.code = refused.refusal.value.code
