"""The OPA adapter: an OPA server behind the port `policies.port.Policy`, on opa-python-client's asynchronous client.

One constant address, to which names are only ever data. One failure, `PolicyUnavailable`, for everything that is not
a whole, well-formed verdict of a named revision; never an allow. Answer format: OPA's REST API, "Get a Document (with
Input)" with `provenance`. Of the library's client the session, the request and the header that carries the token are
used; what it leaves open is closed here (docs/policy-engine.md, "The OPA adapter").
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
from urllib.parse import urlsplit

import aiohttp
import orjson
from opa_client import AsyncOpaClient

from policies.breaker import Breaker, Pace
from policies.frames import LONGEST_ANSWER
from policies.plain import SELF_CHECK
from policies.verdict import UNVERSIONED, PolicyUnavailable, Verdict, read_verdict

# Constant: provenance names the revision that this very evaluation read, in its own transaction. An error of a
# builtin is an error, as with the embedded engine, and does not just make a rule undefined.
DECISION_PATH: Final = "/v1/data/mcp/authz/decision?provenance=true&strict-builtin-errors=true"

_HEADERS: Final = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
_REVISION: Final = re.compile(r"[\x21-\x7e]{1,256}\Z")
_CONNECTIONS: Final = 64
_WAITING: Final = 1024
_WAITING_BYTES: Final = 64 * 1024 * 1024
_QUESTION_BYTES: Final = 16 * 1024 * 1024
_IDLE_S: Final = 15.0  # after this long a connection is not used again
_RESOLVED_S: Final = 5  # as long as this an address is believed
# OPA answers with few different texts: reading each once is enough. Reading is pure, and a verdict names the revision
# that stands in its own text. What is decided is not remembered: every question is asked.
_REMEMBERED: Final = 1024
_REMEMBERED_BYTES: Final = 4096
_LOST: Final = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)


@dataclass(frozen=True, slots=True)
class OpaTls:
    """`ca`: who is believed besides nobody (absent: the system's authorities). `cert`, `key`: who we are."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


class _Connector(aiohttp.TCPConnector):
    """Connections of which none is used that said something nobody had asked for.

    The library keeps such a message as the answer to the next question: with it, one caller's yes would be another's.
    """

    async def connect(self, *args: Any, **options: Any) -> aiohttp.connector.Connection:
        """As the library's, once more for every kept connection that is not clean."""
        while True:
            connection = await super().connect(*args, **options)
            if connection.protocol is None or not connection.protocol.should_close:
                return connection
            connection.close()


class _Client(AsyncOpaClient):  # type: ignore[misc]  # the library has no type information
    """The library's client with a session that is bounded, verifies, and adds nothing of its own."""

    def __init__(self, url: str, token: str | None, context: ssl.SSLContext | None, connections: int) -> None:
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        # No retries of the library's: it waits longer between two than a decision may take.
        super().__init__(host, parts.port or (443 if tls else 80), ssl=tls, token=token, retries=0)
        self.decision_url = self.root_url.removesuffix("/v1") + DECISION_PATH
        self._context = context
        self._connections = connections

    async def _init_session(self) -> None:
        """Replaces the library's, which takes no authority of one's own, nor a bound."""
        self._connector = _Connector(
            ssl=self._context if self._context is not None else True,
            limit=self._connections,
            keepalive_timeout=_IDLE_S,
            ttl_dns_cache=_RESOLVED_S,
        )
        self._session = aiohttp.ClientSession(
            headers={**_HEADERS, **(self.headers or {})},
            connector=self._connector,
            timeout=aiohttp.ClientTimeout(total=None),  # the deadline is one for all of a decision: `OpaPolicy`
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )

    async def post_question(self, body: bytes) -> bytes:
        """The request's body -> the answer's, whole and at most `LONGEST_ANSWER` long.

        Raises `PolicyUnavailable`, and one of `_LOST` where the connection ended before an answer began.
        """
        try:
            async with self._request("POST", self.decision_url, data=body, allow_redirects=False) as response:
                try:
                    return await _read_answer(response)
                except BaseException:
                    response.close()  # what is left of it is nobody's, so the connection is not used again
                    raise
        except aiohttp.ClientConnectorError as error:
            raise _unreachable(error) from error
        except _LOST:
            raise
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _unreachable(error) from error


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
        self._client: _Client | None = None
        # Of its own: callers whose questions take long hold every connection, and are no sign that OPA is away.
        self._prober: _Client | None = None
        self._breaker = Breaker(self._probe, moved, pace)
        self._revision = ""
        self._asked: set[asyncio.Timeout] = set()
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
        self._client = _Client(self._url, self._token, context, _CONNECTIONS)
        self._prober = _Client(self._url, self._token, context, 1)
        for client in (self._client, self._prober):
            await client._init_session()  # the library's own way in, `async with`, is for one visit
        await self._breaker.start()

    async def judge(self, question: SupportsBytes) -> Verdict:
        """See the port."""
        self.evaluations += 1
        text = bytes(question)
        breaker, size = self._breaker, len(text)
        if breaker.why:
            raise PolicyUnavailable(f"OPA is not asked at present: {breaker.why}")
        if size > _QUESTION_BYTES:
            raise PolicyUnavailable(f"the question is longer than {_QUESTION_BYTES} bytes")
        if len(self._asked) >= _CONNECTIONS + _WAITING or self._asked_bytes + size > _WAITING_BYTES:
            raise PolicyUnavailable("overloaded: too many questions wait for OPA")
        self._asked_bytes += size
        try:
            verdict = await self._ask(self._client, text)
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
        now = asyncio.get_running_loop().time()
        for deadline in self._asked:
            if not deadline.expired():
                deadline.reschedule(now)
        while self._asked:  # noqa: ASYNC110 - a turn or two of the loop, once
            await asyncio.sleep(0)
        for client in clients:
            if client is not None:
                await client.close_connection()

    async def _probe(self) -> None:
        for question in SELF_CHECK:
            await self._ask(self._prober, question.encode())

    async def _ask(self, client: _Client | None, question: bytes) -> Verdict:
        if client is None:
            raise PolicyUnavailable("the policy engine is closed")
        body = b'{"input":' + question + b"}"
        deadline = asyncio.timeout(self._deadline_s)
        try:
            async with deadline:
                self._asked.add(deadline)
                try:
                    answer = await client.post_question(body)
                except _LOST:
                    # OPA closed a connection that was kept, or has just been replaced. To ask changes nothing there.
                    answer = await client.post_question(body)
        except TimeoutError as error:
            if self._client is None:
                raise PolicyUnavailable("the policy engine was closed") from error
            raise PolicyUnavailable(f"OPA's answer took longer than {self._deadline_s:g} s") from error
        except _LOST as error:
            raise _unreachable(error) from error
        finally:
            self._asked.discard(deadline)
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


async def _read_answer(response: Any) -> bytes:
    """A response -> its body. Raises `PolicyUnavailable` for what OPA would not send; the text quotes none of it."""
    if response.status != 200:  # a redirect is not followed: who answers has to be who was configured
        raise PolicyUnavailable(f"OPA answered with status {response.status}{await _read_code(response)}")
    if response.content_type != "application/json":
        raise PolicyUnavailable("OPA's answer is not application/json")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise PolicyUnavailable("OPA's answer is compressed, which was not asked for")
    return await _read_bounded(response, LONGEST_ANSWER)


async def _read_bounded(response: Any, most: int) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > most:
            raise PolicyUnavailable(f"OPA's answer is longer than {most} bytes")
        parts.append(part)
    return b"".join(parts)


_CODE = re.compile(rb'"code"\s*:\s*"([a-z_]{1,40})"')


async def _read_code(response: Any) -> str:
    """The name of OPA's error, e.g. `internal_error`; its message can hold what the caller sent."""
    if response.status not in (400, 401, 403, 500) or response.content_type != "application/json":
        return ""
    found = _CODE.search(await _read_bounded(response, 1 << 20))
    return f" ({found[1].decode()})" if found else ""


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


def _unreachable(error: BaseException) -> PolicyUnavailable:
    """What went wrong with the connection: the kind alone, for a text could quote an answer."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
        what = "its certificate is not accepted, or ours is not"
    else:
        what = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    return PolicyUnavailable(f"OPA can't be asked: {what}")
