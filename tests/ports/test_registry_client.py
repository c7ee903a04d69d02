"""The way to a registry: pages of both forms, answers that want to cost much or lead elsewhere."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response

from gateway.registry import watching
from gateway.registry.admission import look
from gateway.registry.asking import ClientLimits, RegistryFault, RegistryInvalid, RegistryRefused, RegistryUnavailable
from gateway.registry.chair import Chair
from gateway.registry.client import RegistryClient, fetch_record
from gateway.registry.drift import Comparison, compare
from gateway.registry.listing import Entry, Unreadable, newest, read_page
from gateway.registry.sources import NoRecord, Sources
from tests.support.ports import free_port
from tests.support.registry import OFFICIAL, PrivateRegistry, private_registry, record, told
from tests.support.upstream import SERVER

LIMITS = ClientLimits(pages=5, entries=8, page_bytes=20_000, all_bytes=60_000, answer_s=2.0, all_s=6.0)


@pytest.fixture(scope="module")
def _shared() -> Any:
    with private_registry() as registry:
        yield registry


@pytest.fixture
def registry(_shared: PrivateRegistry) -> PrivateRegistry:
    """A registry with nothing in it."""
    _shared.entries.clear()
    _shared.asked.clear()
    _shared.versions, _shared.page, _shared.twist = ("v0.1", "v0"), 2, lambda _: None
    return _shared


def entries(registry: PrivateRegistry, since: str = "", token: str = "") -> list[Entry]:
    async def ask() -> list[Entry]:
        async with RegistryClient(registry.url, token, LIMITS) as client:
            return await client.entries(since)

    return asyncio.run(ask())


def entry(registry: PrivateRegistry, name: str, version: str = "latest") -> Entry | None:
    async def ask() -> Entry | None:
        async with RegistryClient(registry.url, limits=LIMITS) as client:
            return await client.entry(name, version)

    return asyncio.run(ask())


def test_all_pages_are_read_and_each_once(registry: PrivateRegistry) -> None:
    """Cursors are followed as they are given, and the newest versions alone are asked for."""
    for number in range(5):
        registry.put(record(f"com.example/s{number}", "1.0.0"))
        registry.put(record(f"com.example/s{number}", "1.1.0"))
    assert [(one.name, one.version) for one in entries(registry)] == [
        (f"com.example/s{n}", "1.1.0") for n in range(5)
    ]
    assert len(registry.asked) == 4  # one that finds the API's version, and three pages


def test_an_older_api_is_found_and_read(registry: PrivateRegistry) -> None:
    """/v0 where there is no /v0.1; and lists that write the registry's own words into the record."""
    registry.versions = ("v0",)
    registry.put(record())
    assert [one.name for one in entries(registry)] == ["com.example/weather"]
    flat = record(status="deprecated", _meta={OFFICIAL: {"id": "x", "published_at": "now", "is_latest": True}})
    registry.twist = lambda _: told({"servers": [flat], "metadata": {"next_cursor": "", "count": 1}})
    (found,) = entries(registry)
    assert (found.status, found.latest, found.document) == ("deprecated", True, record())


def test_a_registry_without_the_api_is_said_to_be_none(registry: PrivateRegistry) -> None:
    """A wrong URL is told as such."""
    registry.versions = ()
    with pytest.raises(RegistryInvalid, match="is its URL right"):
        entries(registry)


def test_one_version_is_found_by_its_name(registry: PrivateRegistry) -> None:
    """Names and versions are one step of the path whatever stands in them; what is not there is `None`."""
    registry.put(record(version="1.0.0+build/7"))
    found = entry(registry, "com.example/weather", "1.0.0+build/7")
    assert found is not None
    assert found.version == "1.0.0+build/7"
    assert "/com.example%2Fweather/versions/1.0.0%2Bbuild%2F7" in registry.asked[-1]
    assert entry(registry, "com.example/absent") is None


@pytest.mark.parametrize("other", [record("com.example/other"), record(version="2.0.0")])
def test_another_record_than_was_asked_for_is_none(registry: PrivateRegistry, other: dict[str, Any]) -> None:
    """An answer is held to what was asked."""
    registry.put(record())
    assert entry(registry, "com.example/weather", "1.0.0") is not None
    registry.twist = lambda request: told({"server": other}) if "versions" in request.url.path else None
    with pytest.raises(RegistryInvalid, match="another record"):
        entry(registry, "com.example/weather", "1.0.0")


def _endless(request: Request) -> Response:
    at = int(request.query_params.get("cursor", "0"))
    return told({"servers": [], "metadata": {"nextCursor": str(at + 1)}})


def _big(request: Request) -> Response:
    return Response(b" " * 20_001, media_type="application/json")


HOSTILE: list[tuple[str, Callable[[Request], Response | None], str]] = [
    ("pages without end", _endless, "more than 5 pages"),
    ("a cursor that goes round", lambda _: told({"servers": [], "metadata": {"nextCursor": "x"}}), "go round"),
    ("a long cursor", lambda _: told({"servers": [], "metadata": {"nextCursor": "x" * 4_097}}), "too long"),
    ("a cursor that is none", lambda _: told({"servers": [], "metadata": {"nextCursor": 5}}), "no text"),
    ("too many entries", lambda _: told({"servers": [{"server": record()}] * 9}), "more than is read"),
    ("a large page", _big, "more than 20000 bytes"),
    ("no JSON", lambda _: Response(b"<html>", media_type="application/json"), "not JSON with one reading"),
    (
        "two readings",
        lambda _: Response(b'{"servers":[],"servers":[]}', media_type="application/json"),
        "one reading",
    ),
    ("another type", lambda _: Response(b'{"servers":[]}', media_type="text/html"), "not application/json"),
    ("no type", lambda _: Response(b'{"servers":[]}'), "not application/json"),
    ("a redirect", lambda _: Response(status_code=302, headers={"location": "http://169.254.169.254/"}), "redirect"),
    ("a redirect without a place", lambda _: told({}, 308), "redirect|is no object"),
    ("compressed", lambda _: told({"servers": []}, headers={"content-encoding": "gzip"}), "compressed"),
    ("no list", lambda _: told([]), "no object with servers"),
    ("an entry that is none", lambda _: told({"servers": [5]}), "no object"),
    ("no name", lambda _: told({"servers": [{"server": {"version": "1"}}]}), "no name and version"),
]


@pytest.mark.parametrize(("name", "twist", "why"), HOSTILE, ids=[name for name, *_ in HOSTILE])
def test_a_hostile_registry_is_bounded(
    registry: PrivateRegistry, name: str, twist: Callable[[Request], Response | None], why: str
) -> None:
    """Pages, sizes, loops, redirects, types and codings: told in our words, after a bounded number of requests."""
    assert entries(registry) == []
    registry.asked.clear()
    registry.twist = lambda request: None if request.query_params.get("limit") == "1" else twist(request)
    with pytest.raises(RegistryInvalid, match=why):
        entries(registry)
    assert len(registry.asked) <= 6


@pytest.mark.parametrize(
    ("answer", "kind", "why"),
    [
        (told({"error": "no"}, 401), RegistryRefused, r"token: it is missing, wrong or has expired \(401\): no"),
        (told({"detail": "x\x1b[2J", "errors": [{"message": "y"}]}, 403, "application/problem+json"),
         RegistryRefused, r"\(403\): x\\u{1b}\[2J; y"),
        (told({"error": "slow"}, 429, headers={"retry-after": "7"}), RegistryRefused, "too often.*again in 7 s"),
        (told({"error": "no"}, 501), RegistryRefused, "only reads"),
        (told({"error": "x" * 10_000}, 500), RegistryUnavailable, "fails"),
        (Response(b"<html>", 502, media_type="text/html"), RegistryUnavailable, r"fails \(502\)$"),
    ],
)  # fmt: skip
def test_a_refusal_is_told_in_our_words(
    registry: PrivateRegistry, answer: Response, kind: type[RegistryFault], why: str
) -> None:
    """The status in our words; the registry's own text behind them, made visible and cut."""
    registry.twist = lambda _: answer
    with pytest.raises(kind, match=why) as caught:
        entries(registry)
    assert len(str(caught.value)) < 1_300


def test_a_token_goes_where_it_belongs_and_is_not_shown(registry: PrivateRegistry) -> None:
    """As a bearer token, to the registry alone; it is no part of what a client prints of itself."""
    seen: list[str | None] = []
    registry.twist = lambda request: seen.append(request.headers.get("authorization"))
    entries(registry, token="secret")
    assert set(seen) == {"Bearer secret"}
    assert "secret" not in repr(RegistryClient("https://registry.example.com", "secret"))


@pytest.mark.parametrize("before", ["", "x" * 995])
def test_a_token_that_is_sent_back_is_not_told(registry: PrivateRegistry, before: str) -> None:
    """A registry, or what stands before it, that shows a request's head in its error brings no token into a log."""
    registry.twist = lambda request: told({"error": f"{before}{request.headers['authorization']} is wrong"}, 401)
    with pytest.raises(RegistryRefused) as caught:
        entries(registry, token="secret-of-the-registry")
    assert "secr" not in str(caught.value)
    assert "[the" in str(caught.value) or before


@pytest.mark.parametrize(
    "url",
    ["http://registry.example.com", "ftp://x/", "https://u@x.example.com/", "https://169.254.169.254/", "https:///x"],
)
def test_a_registry_is_secure_or_on_this_machine(url: str) -> None:
    """Plain http beyond loopback would show the token, and a metadata service is no registry."""
    with pytest.raises(RegistryInvalid, match="its URL"):
        RegistryClient(url)


def test_nobody_there_is_unavailable() -> None:
    """A registry that is away is told as that."""
    gone = PrivateRegistry(url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(RegistryUnavailable, match="can't be asked"):
        entries(gone)


def test_a_record_is_fetched_from_the_named_url_alone(registry: PrivateRegistry) -> None:
    """The URL of the command line is asked once; what it redirects to is not."""
    registry.twist = lambda _: told(record())
    assert asyncio.run(fetch_record(f"{registry.url}/server.json")) == record()
    registry.twist = lambda _: Response(status_code=301, headers={"location": registry.url})
    with pytest.raises(RegistryInvalid, match="redirect"):
        asyncio.run(fetch_record(f"{registry.url}/server.json"))
    assert len(registry.asked) == 2


async def test_a_scheduled_check_makes_its_client_beside_the_loop() -> None:
    """It reads every authority's certificate, which takes tens of milliseconds of everybody's time."""
    made: list[threading.Thread] = []

    def client() -> RegistryClient:
        made.append(threading.current_thread())
        return RegistryClient(f"http://127.0.0.1:{free_port()}")

    with pytest.raises(NoRecord):
        await Sources(client).find("com.example/weather@1.0.0", None)
    assert made != [threading.current_thread()]


def test_which_version_is_newest_is_the_registrys_to_say() -> None:
    """The marked one, or the only one; of several nobody guesses."""
    one, two = (Entry("com.example/a", version, {}) for version in ("1.0.0", "2.0.0"))
    marked = Entry("com.example/a", "1.5.0", {}, latest=True)
    assert newest([one])[0] == {"com.example/a": one}
    assert newest([one, marked, two])[0] == {"com.example/a": marked}
    found, faults = newest([one, two])
    assert (found, list(faults)) == ({}, ["com.example/a"])
    assert newest([marked, marked])[0] == {}


WORDS = st.sampled_from(
    f"servers metadata nextCursor next_cursor server _meta name version status isLatest remotes {OFFICIAL}".split()
)
ANSWERS = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "x", "com.example/a", "deleted"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=20,
)


@settings(max_examples=100)
@given(st.dictionaries(WORDS, ANSWERS, max_size=4), st.lists(st.dictionaries(WORDS, ANSWERS, max_size=5), max_size=3))
def test_whatever_a_registry_answers_is_read_or_refused(value: dict[str, Any], items: list[Any]) -> None:
    """No JSON breaks the reader, nor the judgement of what it read: entries are fit, or it is said why not."""
    good = record()
    for one in (value, {**value, "servers": items}, {"servers": [{"server": {**good, **item}} for item in items]}):
        try:
            page = read_page(one)
        except Unreadable:
            continue
        shown = look(page.entries, {}, (), private=True, whole=True)
        assert all(entry.name in {proposal.name for proposal in shown.proposals} for entry in page.entries)
        assert len(shown.seen) == 64


def test_one_of_a_hosts_workers_checks_and_another_takes_over(tmp_path: Path) -> None:
    """Whoever has the chair keeps it until it leaves or its process ends; without a folder each checks by itself."""
    file = tmp_path / "audit.jsonl.registry"
    one, other = Chair(file), Chair(file)
    assert [one.take(), one.take(), other.take()] == [True, True, False]
    one.leave()
    assert [other.take(), one.take(), one.mine, other.mine] == [True, False, False, True]
    other.leave()
    holds = "import sys; from gateway.registry.chair import Chair; from pathlib import Path\n"
    holds += "print(Chair(Path(sys.argv[1])).take(), flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holds, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        assert not one.take()
        process.kill()
    assert one.take()
    one.leave()
    nowhere = [Chair(tmp_path / "absent" / "x") for _ in range(2)]
    assert [chair.take() for chair in nowhere] == [True, True]


def test_where_no_file_can_be_locked_each_worker_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks is nobody else in the chair: else no one would check, and nothing would tell."""

    def no_locks(_fd: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    one, other = Chair(tmp_path / "x"), Chair(tmp_path / "x")
    assert [one.take(), other.take(), one.mine, other.mine] == [True, True, True, True]


async def test_a_comparison_is_made_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server lists may take a second to compare and to digest: nobody's call waits for it."""
    threads: list[int] = []

    def compare_here(*sides: Any) -> Comparison:
        threads.append(threading.get_ident())
        return compare(*sides)

    def seen_here(_: Comparison) -> str:
        threads.append(threading.get_ident())
        return "another"

    class Says:
        """A server that says nothing of itself."""

        async def inquire(self, *_: object) -> dict[str, Any]:
            """`server/discover`."""
            return {"capabilities": {}}

    monkeypatch.setattr(watching, "compare", compare_here)
    monkeypatch.setattr(Comparison, "seen", property(seen_here))
    file = tmp_path / "server.json"
    file.write_text(json.dumps(record()))
    subject = watching.Subject(SERVER, (), str(file), file, pinned=False)
    acts: list[str] = []
    watch = watching.RegistryWatch(
        [subject],
        watching.Examiner(cast("Any", Says()), cast("Any", None), Sources(), tmp_path / "pins.json"),
        Chair(tmp_path / "chair"),
        60.0,
        lambda act, _: acts.append(act),
        lambda *_: None,
    )
    await watch.check(subject)
    assert acts == ["registry_drift"]
    assert len(threads) == 2
    assert threading.get_ident() not in threads
