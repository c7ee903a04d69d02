"""An issuer's keys over real HTTP and from a file: rotation, floods, outages, hostile documents (JWT-04, JWT-12)."""

from __future__ import annotations

import asyncio
import json
import random
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from gateway.contract.passage import Identity
from gateway.contract.refusals import Refusal, Refused
from gateway.issuers import IssuerSettings
from gateway.keys import KeyUpkeep, discovery_urls, is_secure_url
from gateway.tokens import Tokens
from tests.support.issuer import Issuer, JwksServer, http_head, signing_key

RESOURCE = "https://mcp.example.com/readonly/mcp"
JWKS = "/jwks"
QUICK = KeyUpkeep(refresh_s=600, poll_s=0.05, retry_s=0.05, deadline_s=1.0)

Open = Callable[..., Awaitable[Tokens]]


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def server() -> AsyncIterator[JwksServer]:
    async with JwksServer() as started:
        yield started


@pytest.fixture
async def open_room() -> AsyncIterator[Open]:
    rooms: list[Tokens] = []

    async def start(issuer: Issuer, upkeep: KeyUpkeep = QUICK, monotonic: Any = None, **settings: Any) -> Tokens:
        more = {} if monotonic is None else {"monotonic": monotonic}
        room = Tokens([IssuerSettings(issuer=issuer.name, **settings)], upkeep=upkeep, **more)
        rooms.append(room)
        await room.start()
        return room

    yield start
    for room in rooms:
        await room.close()


async def identify(room: Tokens, issuer: Issuer, token: str) -> Identity:
    return await room.identify([f"Bearer {token}".encode()], resource=RESOURCE, issuers=frozenset({issuer.name}))


async def refusal(room: Tokens, issuer: Issuer, token: str) -> Refusal | None:
    """Why the token is refused, None when it is accepted."""
    try:
        await identify(room, issuer, token)
    except Refused as refused:
        return refused.refusal
    return None


async def eventually(condition: Callable[[], bool | Awaitable[bool]], within_s: float = 5.0) -> None:
    """Wait for what a background task is about to do."""
    deadline = perf_counter() + within_s
    while True:
        held = condition()
        if held if isinstance(held, bool) else await held:
            return
        assert perf_counter() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


async def test_keys_come_from_a_url(server: JwksServer, open_room: Open) -> None:
    """One fetch serves all tokens; it carries nothing of them, and asks for no content coding."""
    issuer = Issuer(keys=[signing_key("ES256"), signing_key("RS256")])
    server.routes[JWKS] = issuer.jwks()
    room = await open_room(issuer, jwks_uri=server.url + JWKS)
    assert room.issuers.ready
    assert room.issuers.degraded == ()
    for key in issuer.keys:
        for subject in ("alice", "bob"):
            token = issuer.mint(RESOURCE, key=key, sub=subject)
            assert (await identify(room, issuer, token)).subject == subject
    assert server.hits == {JWKS: 1}
    head = server.heads[0].lower()
    assert b"accept-encoding: identity" in head
    assert b"authorization" not in head
    assert b"cookie" not in head


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("", "/.well-known/oauth-authorization-server"),
        ("", "/.well-known/openid-configuration"),
        ("/realms/a", "/.well-known/oauth-authorization-server/realms/a"),
        ("/realms/a", "/.well-known/openid-configuration/realms/a"),
        ("/realms/a", "/realms/a/.well-known/openid-configuration"),
    ],
)
async def test_keys_are_discovered(server: JwksServer, open_room: Open, path: str, place: str) -> None:
    """RFC 8414 with the path inserted, OpenID Connect with it inserted and appended, in this order."""
    issuer = Issuer(server.url + path)
    server.routes[place] = json.dumps({"issuer": issuer.name, "jwks_uri": server.url + JWKS}).encode()
    server.routes[JWKS] = issuer.jwks()
    room = await open_room(issuer)
    assert room.issuers.ready
    assert await refusal(room, issuer, issuer.mint(RESOURCE)) is None
    assert server.url + place in discovery_urls(issuer.name)


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": "{}/"},
        {"issuer": "https://idp.example.com"},
        {"issuer": None},
        {"issuer": ["{}"]},
        {"jwks_uri": "http://idp.example.com/jwks"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": None},
        {"jwks_uri": ["{}/jwks"]},
    ],
)
async def test_discovered_metadata_must_be_the_issuer_s_own(
    server: JwksServer, open_room: Open, changes: dict[str, Any]
) -> None:
    """RFC 8414 section 3.3: the document's `issuer` is identical to the configured one; its key URL is secure."""
    issuer = Issuer(server.url)
    metadata = {"issuer": issuer.name, "jwks_uri": server.url + JWKS, **changes}
    server.routes["/.well-known/oauth-authorization-server"] = json.dumps(metadata).replace("{}", server.url).encode()
    server.routes[JWKS] = issuer.jwks()
    room = await open_room(issuer)
    assert not room.issuers.ready
    assert server.hits[JWKS] == 0
    assert await refusal(room, issuer, issuer.mint(RESOURCE)) is Refusal.KEYS_UNAVAILABLE


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "http://127.0.0.2.example.com/",
        "http://localhost.example.com/",
        "https://a@b/",
        "https://a:b@c/",
        "//x/y",
        "https:///jwks",
        "https://x/#frag",
        "https://[::1",
        "http://10.0.0.1/",
        "",
    ],
)
def test_plain_http_stays_on_this_machine(url: str) -> None:
    """A key fetched over a network that others can write to is no key."""
    for good in ("https://idp.example.com/a?b=c", "http://127.0.0.1:1/", "http://localhost/", "http://[::1]:8080/x"):
        assert is_secure_url(good), good
    assert not is_secure_url(url)


async def test_jwt_04_a_flood_of_unknown_key_ids(server: JwksServer, open_room: Open) -> None:
    """1,000 random key ids bring at most one refresh forward (two fetches with the first), 401 each; good traffic
    doesn't wait for it."""
    issuer = Issuer()
    server.routes[JWKS] = issuer.jwks()
    room = await open_room(issuer, KeyUpkeep(deadline_s=60), jwks_uri=server.url + JWKS)
    good = [issuer.mint(RESOURCE, sub=f"user-{number}") for number in range(20)]
    flood = [issuer.mint(RESOURCE, header={"kid": f"{random.getrandbits(64):x}"}) for _ in range(1000)]
    slow = asyncio.Event()

    async def later(writer: asyncio.StreamWriter) -> None:
        await slow.wait()
        writer.write(http_head(200, len(issuer.jwks())) + issuer.jwks())

    server.routes[JWKS] = later
    waiting = [asyncio.create_task(refusal(room, issuer, token)) for token in flood[:500]]
    await eventually(lambda: server.hits[JWKS] == 2)
    assert [await refusal(room, issuer, token) for token in good] == [None] * 20
    assert not any(task.done() for task in waiting), "good traffic waited for the refresh"
    slow.set()
    refusals = await asyncio.gather(*waiting, *(refusal(room, issuer, token) for token in flood[500:]))
    assert refusals == [Refusal.TOKEN_INVALID] * 1000
    assert server.hits[JWKS] == 2


async def test_jwt_04_the_cool_down_ends(server: JwksServer, open_room: Open) -> None:
    """After the cool-down one more refresh may be brought forward, not before; a failed one counts as well."""
    issuer, clock = Issuer(), Clock()
    server.routes[JWKS] = issuer.jwks()
    room = await open_room(issuer, jwks_uri=server.url + JWKS, monotonic=clock)
    stranger = issuer.mint(RESOURCE, header={"kid": "unknown"})
    for moment, fetches in ((0, 2), (1, 2), (59.9, 2), (60, 3), (119, 3), (121, 4), (150, 4)):
        clock.now = 1000 + moment
        if moment == 60:
            server.routes[JWKS] = b"broken"
        assert await refusal(room, issuer, stranger) is Refusal.TOKEN_INVALID
        assert server.hits[JWKS] == fetches, moment
    assert await refusal(room, issuer, issuer.mint(RESOURCE)) is None


async def test_a_new_key_serves_at_once(server: JwksServer, open_room: Open) -> None:
    """A token signed with a key that the issuer has just added is accepted: its unknown id is worth a refresh."""
    issuer = Issuer()
    server.routes[JWKS] = issuer.jwks()
    room = await open_room(issuer, jwks_uri=server.url + JWKS)
    issuer.keys.insert(0, signing_key("ES256", 1))
    server.routes[JWKS] = issuer.jwks()
    tokens = [issuer.mint(RESOURCE, sub=f"user-{number}") for number in range(50)]
    assert await asyncio.gather(*(refusal(room, issuer, token) for token in tokens)) == [None] * 50
    assert server.hits[JWKS] == 2, "single flight"


async def test_a_withdrawn_key_kills_its_remembered_tokens(server: JwksServer, open_room: Open) -> None:
    """A key that leaves the set takes the tokens along that were verified with it, other keys' tokens stay."""
    old, new = signing_key("ES256"), signing_key("ES256", 1)
    issuer = Issuer(keys=[old, new])
    server.routes[JWKS] = issuer.jwks()
    room = await open_room(issuer, jwks_uri=server.url + JWKS)
    stays, goes = issuer.mint(RESOURCE, key=new), issuer.mint(RESOURCE, key=old)
    kept = await identify(room, issuer, stays)
    assert await refusal(room, issuer, goes) is None
    server.routes[JWKS] = Issuer(keys=[new]).jwks()
    assert await refusal(room, issuer, issuer.mint(RESOURCE, header={"kid": "unknown"})) is Refusal.TOKEN_INVALID
    assert await refusal(room, issuer, goes) is Refusal.TOKEN_INVALID
    assert await identify(room, issuer, stays) is kept


async def test_another_key_under_the_same_id_is_another_key(server: JwksServer, open_room: Open) -> None:
    """Keys are told apart by their material: replacing one under its id retires the old one."""
    old = Issuer(keys=[signing_key("ES256", 0, kid="k")])
    new = Issuer(keys=[signing_key("ES256", 1, kid="k")])
    server.routes[JWKS] = old.jwks()
    room = await open_room(old, jwks_uri=server.url + JWKS)
    token = old.mint(RESOURCE)
    assert await refusal(room, old, token) is None
    server.routes[JWKS] = new.jwks()
    assert await refusal(room, old, old.mint(RESOURCE, header={"kid": "unknown"})) is Refusal.TOKEN_INVALID
    assert await refusal(room, old, token) is Refusal.TOKEN_INVALID
    assert await refusal(room, new, new.mint(RESOURCE)) is None


async def test_a_token_that_a_former_key_did_not_sign_is_heard_again(server: JwksServer, open_room: Open) -> None:
    """What is remembered of a false signature ends with the key that it was checked against."""
    old = Issuer(keys=[signing_key("ES256", 0, kid="k")])
    new = Issuer(keys=[signing_key("ES256", 1, kid="k")])
    server.routes[JWKS] = old.jwks()
    room = await open_room(old, jwks_uri=server.url + JWKS)
    early = new.mint(RESOURCE)
    assert await refusal(room, new, early) is Refusal.TOKEN_INVALID
    assert await refusal(room, new, early) is Refusal.TOKEN_INVALID
    server.routes[JWKS] = new.jwks()
    assert await refusal(room, old, old.mint(RESOURCE, header={"kid": "unknown"})) is Refusal.TOKEN_INVALID
    assert await refusal(room, new, early) is None


async def test_keys_are_refreshed_on_schedule(server: JwksServer, open_room: Open) -> None:
    """Without any token the set is fetched again and again, so that a withdrawn key does not live on."""
    issuer = Issuer()
    server.routes[JWKS] = issuer.jwks()
    room = await open_room(issuer, KeyUpkeep(refresh_s=0.05), jwks_uri=server.url + JWKS)
    token = issuer.mint(RESOURCE)
    assert await refusal(room, issuer, token) is None
    server.routes[JWKS] = Issuer(keys=[signing_key("ES256", 1)]).jwks()

    async def refused() -> bool:
        return await refusal(room, issuer, token) is Refusal.TOKEN_INVALID

    await eventually(refused)


async def test_jwt_12_keys_down_at_start(server: JwksServer, open_room: Open) -> None:
    """Not ready and 503 while the keys can't be had; ready without a restart when they can."""
    issuer = Issuer()
    await server.stop()
    room = await open_room(issuer, jwks_uri=server.url + JWKS)
    token = issuer.mint(RESOURCE)
    assert not room.issuers.ready
    assert room.issuers.degraded == (issuer.name,)
    assert await refusal(room, issuer, token) is Refusal.KEYS_UNAVAILABLE
    server.routes[JWKS] = issuer.jwks()
    await server.listen()
    await eventually(lambda: room.issuers.ready)
    assert await refusal(room, issuer, token) is None


async def test_jwt_12_keys_down_after_start(server: JwksServer, open_room: Open) -> None:
    """The last good keys serve to the bound; then remembered and new tokens alike get 503, until keys come back."""
    issuer, clock = Issuer(), Clock()
    false = Issuer(keys=[signing_key("ES256", 1, kid=issuer.keys[0].kid)]).mint(RESOURCE)
    server.routes[JWKS] = issuer.jwks()
    room = await open_room(issuer, KeyUpkeep(refresh_s=0.02, retry_s=0.02), clock, jwks_uri=server.url + JWKS)
    remembered, fresh = issuer.mint(RESOURCE), issuer.mint(RESOURCE, sub="bob")
    assert await refusal(room, issuer, remembered) is None
    assert await refusal(room, issuer, false) is Refusal.TOKEN_INVALID
    await server.stop()
    clock.now += 3599
    await asyncio.sleep(0.1)
    assert await refusal(room, issuer, remembered) is None
    assert await refusal(room, issuer, fresh) is None
    clock.now += 2
    assert await refusal(room, issuer, remembered) is Refusal.KEYS_UNAVAILABLE
    assert await refusal(room, issuer, false) is Refusal.KEYS_UNAVAILABLE
    assert await refusal(room, issuer, issuer.mint(RESOURCE, sub="eve")) is Refusal.KEYS_UNAVAILABLE
    assert room.issuers.degraded == (issuer.name,)
    await server.listen()
    await eventually(lambda: room.issuers.degraded == ())
    assert await refusal(room, issuer, remembered) is None


def redirect(target: str) -> bytes:
    return http_head(302, 0, f"Location: {target}")


HOSTILE: dict[str, Callable[[JwksServer, bytes], Any]] = {
    "100 MB declared": lambda server, _: server.flood(100 << 20, declare=True),
    "100 MB undeclared": lambda server, _: server.flood(100 << 20, declare=False),
    "redirect": lambda server, _: answer(redirect(server.url + "/elsewhere")),
    "error": lambda _, jwks: answer(http_head(500, len(jwks)) + jwks),
    "created": lambda _, jwks: answer(http_head(201, len(jwks)) + jwks),
    "compressed": lambda _, jwks: answer(http_head(200, len(jwks), "Content-Encoding: gzip") + jwks),
    "cut off": lambda _, jwks: answer(http_head(200, len(jwks)) + jwks[:-10]),
    "cut short": lambda _, jwks: answer(http_head(200, len(jwks) - 1) + jwks[:-1]),
    "page": lambda _, __: b"<html>not found</html>",
    "array": lambda _, jwks: b"[" + jwks + b"]",
    "doubled": lambda _, jwks: jwks[:-1] + b"," + jwks[1:],
    "absent": lambda _, __: None,
    "silent": lambda _, __: silent,
    "trickle": lambda _, jwks: trickle(jwks),
    "endless head": lambda _, __: endless_head,
    "no keys that verify": lambda _, __: json.dumps(
        {"keys": [{"kty": "oct", "k": "AAAA", "kid": "ES256-0"}]}
    ).encode(),
}


def answer(raw: bytes) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    async def handler(writer: asyncio.StreamWriter) -> None:
        writer.write(raw)

    return handler


async def silent(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


async def endless_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(1_000_000):
        writer.write(f"X-{number}: {'x' * 1000}\r\n".encode())
        await writer.drain()


def trickle(document: bytes) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    """Each byte comes before any read timeout; only a deadline over the whole ends it."""

    async def handler(writer: asyncio.StreamWriter) -> None:
        writer.write(http_head(200, len(document)))
        for byte in document:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.1)

    return handler


@pytest.mark.parametrize("kind", HOSTILE)
async def test_jwt_12_hostile_key_documents(server: JwksServer, open_room: Open, kind: str) -> None:
    """Huge, slow, redirecting, broken, compressed: no keys, in bounded time and memory; and good keys once it is
    well again."""
    issuer = Issuer()
    route = HOSTILE[kind](server, issuer.jwks())
    server.routes["/elsewhere"] = issuer.jwks()
    if route is not None:
        server.routes[JWKS] = route
    tracemalloc.start()
    began = perf_counter()
    room = await open_room(issuer, jwks_uri=server.url + JWKS)
    took, peak = perf_counter() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert took < 3.0
    assert peak < 8 << 20
    assert server.sent < 16 << 20
    assert server.hits["/elsewhere"] == 0
    assert not room.issuers.ready
    assert await refusal(room, issuer, issuer.mint(RESOURCE)) is Refusal.KEYS_UNAVAILABLE
    server.routes[JWKS] = issuer.jwks()
    if kind != "no keys that verify":  # a good document: nothing to retry, the next look is the scheduled one
        await eventually(lambda: room.issuers.ready)
        assert await refusal(room, issuer, issuer.mint(RESOURCE)) is None


@pytest.mark.parametrize(
    "kind", [kind for kind in HOSTILE if kind not in ("no keys that verify", "silent", "trickle")]
)
async def test_jwt_12_a_failed_refresh_keeps_good_keys(server: JwksServer, open_room: Open, kind: str) -> None:
    """PyJWT's client drops good keys when a fetch fails; here they stay."""
    issuer = Issuer()
    server.routes[JWKS] = issuer.jwks()
    room = await open_room(issuer, jwks_uri=server.url + JWKS)
    route = HOSTILE[kind](server, issuer.jwks())
    if route is None:
        del server.routes[JWKS]
    else:
        server.routes[JWKS] = route
    assert await refusal(room, issuer, issuer.mint(RESOURCE, header={"kid": "unknown"})) is Refusal.TOKEN_INVALID
    assert server.hits[JWKS] == 2
    assert await refusal(room, issuer, issuer.mint(RESOURCE)) is None


async def test_jwt_12_symmetric_and_private_keys_in_a_set(server: JwksServer, open_room: Open) -> None:
    """`oct` and private keys in a set are ignored, and so verify nothing; the good key beside them serves."""
    good, private = signing_key("ES256"), signing_key("ES256", 1)
    issuer = Issuer(keys=[good, private])
    secret = {"kty": "oct", "kid": "secret", "k": "c2VjcmV0", "alg": "HS256"}
    server.routes[JWKS] = json.dumps({"keys": [secret, private.jwk(d="AAAA"), good.jwk()]}).encode()
    room = await open_room(issuer, jwks_uri=server.url + JWKS)
    assert await refusal(room, issuer, issuer.mint(RESOURCE)) is None
    assert await refusal(room, issuer, issuer.mint(RESOURCE, key=private)) is Refusal.TOKEN_INVALID


async def test_an_issuer_that_withdraws_all_keys_is_believed(server: JwksServer, open_room: Open) -> None:
    """A well-formed empty set is an answer, not an outage: nothing verified before counts any longer."""
    issuer = Issuer()
    server.routes[JWKS] = issuer.jwks()
    room = await open_room(issuer, jwks_uri=server.url + JWKS)
    token = issuer.mint(RESOURCE)
    assert await refusal(room, issuer, token) is None
    server.routes[JWKS] = b'{"keys":[]}'
    await refusal(room, issuer, issuer.mint(RESOURCE, header={"kid": "unknown"}))
    assert await refusal(room, issuer, token) is Refusal.KEYS_UNAVAILABLE
    assert room.issuers.degraded == (issuer.name,)
    assert room.issuers.ready, "one issuer's trouble does not take the gateway from everybody else"


async def test_a_caller_that_goes_away_does_not_stop_the_refresh(server: JwksServer, open_room: Open) -> None:
    """The shared fetch belongs to nobody: cancelling the request that began it leaves the others their answer."""
    issuer = Issuer()
    server.routes[JWKS] = issuer.jwks()
    room = await open_room(issuer, jwks_uri=server.url + JWKS)
    issuer.keys = [signing_key("ES256", 1)]
    go = asyncio.Event()

    async def later(writer: asyncio.StreamWriter) -> None:
        await go.wait()
        writer.write(http_head(200, len(issuer.jwks())) + issuer.jwks())

    server.routes[JWKS] = later
    first = asyncio.create_task(refusal(room, issuer, issuer.mint(RESOURCE)))
    await eventually(lambda: server.hits[JWKS] == 2)
    second = asyncio.create_task(refusal(room, issuer, issuer.mint(RESOURCE, sub="bob")))
    await asyncio.sleep(0)
    first.cancel()
    go.set()
    assert await second is None
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_changed_file_takes_effect(tmp_path: Path, open_room: Open) -> None:
    """A local set is looked at every few seconds (design.md: within 60 s): new keys serve, old ones are retired."""
    issuer = Issuer()
    file = issuer.write(tmp_path / "jwks.json")
    room = await open_room(issuer, jwks_file=file)
    assert KeyUpkeep().poll_s <= 60
    old = issuer.mint(RESOURCE)
    assert await refusal(room, issuer, old) is None
    issuer.keys = [signing_key("ES256", 1)]
    new = issuer.mint(RESOURCE)
    assert await refusal(room, issuer, new) is Refusal.TOKEN_INVALID
    issuer.write(file)

    async def accepted() -> bool:
        return await refusal(room, issuer, new) is None

    await eventually(accepted)
    assert await refusal(room, issuer, old) is Refusal.TOKEN_INVALID


@pytest.mark.parametrize("damage", ["removed", "half written", "huge", "a directory", "empty"])
async def test_a_broken_file_keeps_good_keys(tmp_path: Path, open_room: Open, damage: str) -> None:
    """A file caught half-written, or gone, is an outage like any other: last good keys, then the bound."""
    issuer, clock = Issuer(), Clock()
    file = issuer.write(tmp_path / "jwks.json")
    room = await open_room(issuer, QUICK, clock, jwks_file=file)
    good = file.read_bytes()
    token = issuer.mint(RESOURCE)
    file.unlink()
    if damage == "a directory":
        file.mkdir()
    elif damage != "removed":
        file.write_bytes({"half written": good[:-9], "huge": good + b" " * (600 << 10), "empty": b""}[damage])
    await asyncio.sleep(0.2)
    assert await refusal(room, issuer, token) is None
    clock.now += 3601
    assert await refusal(room, issuer, token) is Refusal.KEYS_UNAVAILABLE
    if damage == "a directory":
        file.rmdir()
    file.write_bytes(good)
    await eventually(lambda: room.issuers.degraded == ())
    assert await refusal(room, issuer, token) is None


async def test_a_file_that_comes_late_is_found(tmp_path: Path, open_room: Open) -> None:
    """A gateway that starts before its key file is there becomes ready when it comes."""
    issuer = Issuer()
    room = await open_room(issuer, jwks_file=tmp_path / "jwks.json")
    assert not room.issuers.ready
    issuer.write(tmp_path / "jwks.json")
    await eventually(lambda: room.issuers.ready)


async def test_closing_ends_the_watch(server: JwksServer) -> None:
    """After `close` nothing is fetched any more and no task is left."""
    issuer = Issuer()
    server.routes[JWKS] = issuer.jwks()
    before = asyncio.all_tasks()
    room = Tokens(
        [IssuerSettings(issuer=issuer.name, jwks_uri=server.url + JWKS)],
        upkeep=KeyUpkeep(refresh_s=0.01, deadline_s=1),
    )
    await room.start()
    await eventually(lambda: server.hits[JWKS] > 2)
    await room.close()
    await eventually(lambda: asyncio.all_tasks() <= before)
    fetched = server.hits[JWKS]
    await asyncio.sleep(0.05)
    assert server.hits[JWKS] == fetched
