"""The OPA adapter: an OPA server behind the port `policies.port.Policy`.

One constant address, to which names are only ever data. One failure, `PolicyUnavailable`, for everything that is not
a whole, well-formed verdict of a named revision; never an allow. Answer format: OPA's REST API, "Get a Document (with
Input)" with `provenance`. How it travels is `policies/wire.py` (docs/policy-engine.md, "The OPA adapter").
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, SupportsBytes

import orjson

from policies.breaker import Breaker, Pace
from policies.frames import LONGEST_ANSWER
from policies.plain import SELF_CHECK
from policies.verdict import UNVERSIONED, PolicyUnavailable, Verdict, read_verdict
from policies.wire import Wire

# Constant: provenance names the revision that this very evaluation read, in its own transaction. An error of a
# builtin is an error, as with the embedded engine, and does not just make a rule undefined.
DECISION_PATH: Final = "/v1/data/mcp/authz/decision?provenance=true&strict-builtin-errors=true"

_REVISION: Final = re.compile(r"[\x21-\x7e]{1,256}\Z")
_CONNECTIONS: Final = 64
_WAITING: Final = 1024
_WAITING_BYTES: Final = 64 * 1024 * 1024
_QUESTION_BYTES: Final = 16 * 1024 * 1024
# OPA answers with few different texts: reading each once is enough. Reading is pure, and a verdict names the revision
# that stands in its own text. What is decided is not remembered: every question is asked.
_REMEMBERED: Final = 1024
_REMEMBERED_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class OpaTls:
    """`ca`: who is believed besides nobody (absent: the system's authorities). `cert`, `key`: who we are."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


class OpaPolicy:
    """`policies.port.Policy` on the OPA server at `url`. Constructing it does nothing; `start` opens it."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        tls: OpaTls | None = None,
        deadline_s: float = 0.5,
        moved: Callable[[str], None] = lambda _: None,
        pace: Pace | None = None,
    ) -> None:
        """`url`: scheme, host, port. `moved` hears why OPA is not asked any more, and `""` when it is again."""
        self._url = url
        self._token = token
        self._tls = tls
        self._deadline_s = deadline_s
        self._client: Wire | None = None
        # Of its own: callers whose questions take long hold every connection, and are no sign that OPA is away.
        self._prober: Wire | None = None
        self._breaker = Breaker(self._probe, moved, pace)
        self._revision = ""
        self._asked_bytes = 0
        self._read: dict[bytes, Verdict] = {}
        self.evaluations = 0
        """How often the policy was asked, answered or not; probes are not counted."""
        self.remembered = 0
        """None: a server's data can change without its revision."""

    @property
    def revision(self) -> str:
        """The revision that OPA named last, `""` before its first answer and after `close`."""
        return self._revision

    @property
    def ready(self) -> bool:
        """Whether OPA is asked: it has answered, and the circuit is closed."""
        return not self._breaker.why and self._breaker.watches

    @property
    def why(self) -> str:
        """Why it is not ready, `""` when it is."""
        return self._breaker.why

    @property
    def fault(self) -> str:
        """None: which bundle judges is OPA's to know."""
        return ""

    @property
    def digest(self) -> str:
        """That of the revision's name: what lies under it is OPA's to know."""
        return hashlib.sha256(self._revision.encode()).hexdigest() if self._revision else ""

    @property
    def pids(self) -> list[int]:
        """None: OPA is somebody else's process."""
        return []

    async def start(self) -> None:
        """Be able to ask. An OPA that is away is asked again until it is there: `ready` says so.

        Raises `PolicyUnavailable` for a certificate or key that can't be read.
        """
        context = await asyncio.to_thread(_make_context, self._tls or OpaTls()) if self._url[:6] == "https:" else None
        self._client = self._wire(context, _CONNECTIONS)
        self._prober = self._wire(context, 1)
        await self._breaker.start()

    def _wire(self, context: ssl.SSLContext | None, connections: int) -> Wire:
        return Wire(
            self._url,
            DECISION_PATH,
            token=self._token,
            context=context,
            connections=connections,
            deadline_s=self._deadline_s,
            most=LONGEST_ANSWER,
        )

    async def judge(self, question: SupportsBytes) -> Verdict:
        """See the port."""
        self.evaluations += 1
        text = bytes(question)
        breaker, client, size = self._breaker, self._client, len(text)
        if breaker.why:
            raise PolicyUnavailable(f"OPA is not asked at present: {breaker.why}")
        if size > _QUESTION_BYTES:
            raise PolicyUnavailable(f"the question is longer than {_QUESTION_BYTES} bytes")
        if client is None:
            raise PolicyUnavailable("the policy engine is closed")
        if client.asked >= _CONNECTIONS + _WAITING or self._asked_bytes + size > _WAITING_BYTES:
            raise PolicyUnavailable("overloaded: too many questions wait for OPA")
        self._asked_bytes += size
        try:
            verdict = await self._ask(client, text)
        except PolicyUnavailable:
            breaker.failed()
            raise
        finally:
            self._asked_bytes -= size
        breaker.answered()
        return verdict

    async def close(self) -> None:
        """Stop asking and close every connection. Questions on their way are refused."""
        await self._breaker.close()
        self._revision = ""
        self._read.clear()
        clients, self._client, self._prober = (self._client, self._prober), None, None
        for client in clients:
            if client is not None:
                await client.close()

    async def _probe(self) -> None:
        if self._prober is None:
            raise PolicyUnavailable("the policy engine is closed")
        for question in SELF_CHECK:
            await self._ask(self._prober, question.encode())

    async def _ask(self, client: Wire, question: bytes) -> Verdict:
        answer = await client.post(b'{"input":', question, b"}")
        verdict = self._read.get(answer) or self._read_once(answer)
        self._revision = verdict.revision
        return verdict

    def _read_once(self, answer: bytes) -> Verdict:
        """An answer's text that is not remembered -> `Verdict`. What can't be read is never remembered."""
        verdict = _read(answer)
        if len(answer) <= _REMEMBERED_BYTES:
            if len(self._read) >= _REMEMBERED:
                self._read.clear()
            self._read[answer] = verdict
        return verdict


def _read(answer: bytes) -> Verdict:
    """The body of an answer -> `Verdict`. Raises `PolicyUnavailable`."""
    try:
        orjson.loads(answer)  # UTF-8, and no half of a surrogate pair: neither is text that a record could hold
        document = json.loads(answer, object_pairs_hook=_without_doubles, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise PolicyUnavailable("OPA's answer is not JSON") from error
    if not isinstance(document, dict):
        raise PolicyUnavailable("OPA's answer is not an object")
    if "result" not in document:
        raise PolicyUnavailable("data.mcp.authz.decision is undefined")
    return read_verdict(document["result"], _read_revision(document.get("provenance")))


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is there twice")
    return members


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _read_revision(provenance: Any) -> str:
    """OPA's provenance -> the bundle's revision; of several bundles `NAME=REVISION`, sorted, with commas."""
    bundles = provenance.get("bundles", {}) if isinstance(provenance, Mapping) else {}
    if not isinstance(bundles, Mapping) or not all(isinstance(one, Mapping) for one in bundles.values()):
        raise PolicyUnavailable("OPA's provenance is malformed")
    named = {name: one["revision"] for name, one in sorted(bundles.items()) if one.get("revision")}
    if not named:
        return UNVERSIONED
    if not all(isinstance(revision, str) for revision in named.values()):
        raise PolicyUnavailable("OPA's provenance is malformed")
    one = next(iter(named.values())) if len(bundles) == 1 else ",".join("=".join(pair) for pair in named.items())
    if _REVISION.match(one) is None:
        raise PolicyUnavailable("OPA's revision is not 1 to 256 visible ASCII characters")
    return str(one)


def _make_context(tls: OpaTls) -> ssl.SSLContext:
    """Blocking: reads files. The certificate and the name are always verified."""
    what = "ca"
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            what = "cert and policy.tls.key"
            context.load_cert_chain(tls.cert, tls.key)
    except OSError as error:  # ssl.SSLError is one
        raise PolicyUnavailable(f"policy.tls.{what}: {error.strerror or 'not usable'}") from error
    return context
