"""Bearer tokens at the door: one credential, one issuer, one audience, one moment (JWT-01..03, 05, 06, G4, G5)."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gateway.contract.passage import Identity
from gateway.contract.refusals import Refusal, Refused
from gateway.issuers import IssuerSettings
from gateway.keys import KeyUpkeep
from gateway.signatures import Key, Signed, check_signature, read_compact
from gateway.tokens import CHECKS, Tokens
from tests.support.issuer import Issuer, SigningKey, private_key, signing_key

RESOURCE = "https://mcp.example.com/readonly/mcp"
OTHER = "https://mcp.example.com/writing/mcp"


@dataclass
class Door:
    """The room under test with its one issuer, and a clock that can be turned."""

    issuer: Issuer
    file: Path
    tokens: Tokens
    now: list[float]

    async def __call__(
        self,
        *lines: str | bytes,
        resource: str = RESOURCE,
        issuers: frozenset[str] | None = None,
        alone: bool = False,
    ) -> Identity:
        values = [line.encode() if isinstance(line, str) else line for line in lines]
        accepted = frozenset({self.issuer.name}) if issuers is None else issuers
        return await self.tokens.identify(values, resource=resource, issuers=accepted, alone=alone)

    async def bearer(self, token: str, **where: Any) -> Identity:
        return await self(f"Bearer {token}", **where)

    async def refuses(self, *lines: str | bytes, why: Refusal = Refusal.TOKEN_INVALID, **where: Any) -> Refused:
        with pytest.raises(Refused) as refused:
            await self(*lines, **where)
        assert refused.value.refusal is why, refused.value.detail
        assert not refused.value.data
        return refused.value


Build = Callable[..., Any]

TOUCHES = ("open", "os.", "socket.", "sqlite3.", "subprocess.", "urllib.", "import")
_seen: list[str] | None = None


def _hook(event: str, _: tuple[Any, ...]) -> None:
    if _seen is not None and event.startswith(TOUCHES):
        _seen.append(event)


sys.addaudithook(_hook)


@contextmanager
def watched() -> Iterator[list[str]]:
    """What the interpreter itself reports of files, connections and databases meanwhile."""
    global _seen  # noqa: PLW0603 - an audit hook can't be taken off, only be told to look away
    events: list[str] = []
    _seen = events
    try:
        yield events
    finally:
        _seen = None


def test_the_watch_sees_files_and_connections() -> None:
    """The positive twin of all that asserts that nothing was touched."""
    with watched() as events:
        Path(__file__).read_bytes()
        with socket.socket() as probe, pytest.raises(OSError, match=r"."):
            probe.connect(("127.0.0.1", 1))
    assert {"open", "socket.connect"} <= set(events)


@pytest.fixture
async def build(tmp_path: Path) -> AsyncIterator[Build]:
    """Makes doors: `await build(token_types=("JWT",))` changes the issuer's settings, `remember=` the room's."""
    doors: list[Door] = []

    async def make(
        issuer: Issuer | None = None,
        *,
        leeway_s: float = 30,
        remember: int = 4096,
        remember_hopeless: int = 1024,
        **settings: Any,
    ) -> Door:
        issuer = issuer or Issuer()
        file = issuer.write(tmp_path / f"jwks-{len(doors)}.json")
        now = [0.0]
        tokens = Tokens(
            [IssuerSettings(**{"issuer": issuer.name, "jwks_file": file, **settings})],
            leeway_s=leeway_s,
            remember=remember,
            remember_hopeless=remember_hopeless,
            upkeep=KeyUpkeep(poll_s=600),
            clock=lambda: time.time() + now[0],
        )
        await tokens.start()
        doors.append(Door(issuer, file, tokens, now))
        return doors[-1]

    yield make
    for door in doors:
        await door.tokens.close()


@pytest.fixture
async def door(build: Build) -> Door:
    made: Door = await build()
    return made


async def test_a_good_token_says_who_calls(door: Door) -> None:
    """Subject, client, scopes, groups and expiry are the token's; the identity names its issuer."""
    exp = int(time.time()) + 600
    token = door.issuer.mint(RESOURCE, client_id="app", scope="mcp:use tools:call", groups=["ops"], exp=exp)
    identity = await door.bearer(token)
    assert (identity.issuer, identity.subject, identity.client_id) == (door.issuer.name, "alice", "app")
    assert identity.scopes == {"mcp:use", "tools:call"}
    assert identity.groups == {"ops"}
    assert identity.expires_at == exp


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR", "Bearer  "])
async def test_the_scheme_is_compared_without_case(door: Door, scheme: str) -> None:
    """RFC 9110 section 11.1."""
    assert (await door(f"{scheme} {door.issuer.mint(RESOURCE)}")).subject == "alice"


@pytest.mark.parametrize(
    "lines", [[], [""], ["Basic YWxpY2U6eA=="], ["DPoP {}"], ["{}"], ["BearerX {}"], ["Digest a=b"]]
)
async def test_jwt_01_no_bearer_token_is_missing(door: Door, lines: list[str]) -> None:
    """Without a bearer token, or with another scheme, the challenge carries no error (RFC 6750 section 3.1)."""
    token = door.issuer.mint(RESOURCE)
    await door.refuses(*[line.replace("{}", token) for line in lines], why=Refusal.TOKEN_MISSING)


@pytest.mark.parametrize(
    "lines",
    [
        ["Bearer"],
        ["Bearer "],
        ["Bearer {}", "Bearer {}"],
        ["Bearer {}", "Basic YTpi"],
        ["Bearer {}, Bearer {}"],
        ["Bearer {},"],
        ["Bearer {} {}"],
        ["Bearer {} "],
        ["Bearer\t{}"],
        ["Bearer \t{}"],
        ["Bearer \u00e4{}"],
        ["Bearer token={}"],
        ['Bearer "{}"'],
        ["Bearer not-a-token"],
    ],
)
async def test_jwt_01_exactly_one_credential(door: Door, lines: list[str]) -> None:
    """One line, one token, nothing around it."""
    token = door.issuer.mint(RESOURCE)
    await door.bearer(token)
    sent = [line.replace("{}", token) for line in lines]
    why = Refusal.TOKEN_MISSING if "\t{}" in lines[0] and lines[0].startswith("Bearer\t") else Refusal.TOKEN_INVALID
    await door.refuses(*sent, why=why)


@pytest.mark.parametrize("size", [9_000, 1_000_000])
async def test_jwt_03_a_token_is_bounded(door: Door, size: int) -> None:
    """A key id (or anything) that makes the token longer than 8 KiB is refused by its length."""
    await door.bearer(door.issuer.mint(RESOURCE, padding="x" * 4000))
    await door.refuses(f"Bearer {door.issuer.mint(RESOURCE, header={'kid': 'k' * size})}")


@pytest.mark.parametrize(
    "kid", ["../../dev/null", "' OR 1=1 --", "file:///etc/passwd", "http://127.0.0.1:9/", "\x00", "*"]
)
async def test_jwt_03_a_key_id_is_only_compared(door: Door, kid: str) -> None:
    """A key id opens no file and no connection; it is found in the set or it is not, and it is not written down."""
    await door.bearer(door.issuer.mint(RESOURCE))
    await door.refuses(f"Bearer {door.issuer.mint(RESOURCE, header={'kid': 'another'})}")
    line = f"Bearer {door.issuer.mint(RESOURCE, header={'kid': kid})}"
    with watched() as events:
        refused = await door.refuses(line)
    assert events == []
    assert kid == "*" or kid not in refused.detail


@pytest.mark.parametrize(
    "header",
    [
        {"jwk": "own"},
        {"jku": "http://127.0.0.1:9/jwks"},
        {"x5u": "http://127.0.0.1:9/cert"},
        {"x5c": ["MIIB"]},
        {"jwk": "own", "kid": None},
        {"jku": "http://127.0.0.1:9/jwks", "kid": "fresh"},
    ],
)
async def test_jwt_03_keys_in_tokens_are_not_followed(door: Door, header: dict[str, Any]) -> None:
    """A token that is signed by the key it brings, or points to, is refused."""
    foreign = SigningKey("ES256-0", "ES256", private_key("ES256", 8))
    if "jwk" in header:
        header = {**header, "jwk": foreign.jwk()}
    await door.bearer(door.issuer.mint(RESOURCE))
    await door.refuses(f"Bearer {door.issuer.mint(RESOURCE, key=foreign)}")
    line = f"Bearer {door.issuer.mint(RESOURCE, key=foreign, header=header)}"
    with watched() as events:
        await door.refuses(line)
    assert events == []


@pytest.mark.parametrize("alg", ["RS256", "PS256", "EdDSA", "ES384"])
async def test_jwt_02_algorithms_are_pinned_per_issuer(build: Build, alg: str) -> None:
    """A key of the set and a good signature don't help an algorithm that is not configured for the issuer."""
    issuer = Issuer(keys=[signing_key("ES512"), signing_key(alg)])
    token = issuer.mint(RESOURCE, key=issuer.keys[1])
    await (await build(issuer, algorithms=(alg,))).bearer(token)
    await (await build(issuer, algorithms=("ES512",))).refuses(f"Bearer {token}")


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512", "none", "None", "", "ES256K", "es256", "dir"])
def test_jwt_02_symmetric_algorithms_can_not_be_configured(algorithm: str) -> None:
    """Only asymmetric algorithms exist; a configuration that names another one stops at construction, by name."""
    IssuerSettings(issuer="https://idp.example.com", algorithms=("ES256",))
    with pytest.raises(ValueError, match=r"algorithms of https://idp\.example\.com"):
        IssuerSettings(issuer="https://idp.example.com", algorithms=("ES256", algorithm))


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": ""},
        {"algorithms": ()},
        {"jwks_uri": "http://idp.example.com/jwks"},
        {"jwks_uri": "http://127.0.0.1.example.com/jwks"},
        {"jwks_uri": "https://user:secret@idp.example.com/jwks"},
        {"jwks_uri": "ftp://127.0.0.1/jwks"},
        {"jwks_uri": "https://"},
        {"jwks_uri": "https://idp.example.com:port/"},
        {"jwks_uri": "https://idp.example.com/jwks", "jwks_file": Path("jwks.json")},
        {"issuer": "http://idp.example.com"},
        {"issuer": "idp"},
        {"issuer": "https://idp.example.com?tenant=1"},
        {"max_lifetime_s": 0},
        {"max_lifetime_s": float("nan")},
        {"max_lifetime_s": float("inf")},
    ],
)
def test_settings_that_accept_too_much_are_refused(changes: dict[str, Any]) -> None:
    """Plain http beyond this machine, two sources of keys, no algorithm, no bound: an error by name."""
    good: dict[str, Any] = {"issuer": "https://idp.example.com"}
    IssuerSettings(**good)
    IssuerSettings(**good, jwks_uri="http://127.0.0.1:8000/jwks")
    IssuerSettings(issuer="any name", jwks_file=Path("jwks.json"))
    with pytest.raises(ValueError, match="|".join(changes)):
        IssuerSettings(**{**good, **changes})


async def test_an_identity_needs_issuers_and_a_small_leeway() -> None:
    """No issuer at all, one twice, or a leeway beyond 60 s: no room is built."""
    one = IssuerSettings(issuer="https://idp.example.com")
    await Tokens([one], leeway_s=60).close()
    for issuers, leeway_s in (([], 30.0), ([one, one], 30.0), ([one], 61.0), ([one], -1.0), ([one], float("nan"))):
        with pytest.raises(ValueError, match=r"issuers|leeway_s"):
            Tokens(issuers, leeway_s=leeway_s)


async def test_a_token_for_people_opens_no_second_door(door: Door) -> None:
    """Where people decide, the audience is that resource and no other; remembered tokens are held to it too."""
    both = door.issuer.mint([RESOURCE, "https://mcp.example.com/other"])
    assert (await door.bearer(door.issuer.mint([RESOURCE]), alone=True)).subject == "alice"
    assert (await door.bearer(both)).subject == "alice"
    await door.refuses(f"Bearer {both}", alone=True)


@pytest.mark.parametrize(
    "audience",
    [
        None,
        "",
        [],
        [""],
        OTHER,
        RESOURCE + "/",
        RESOURCE + "/more",
        RESOURCE[:-1],
        RESOURCE + " ",
        RESOURCE.replace("mcp.example.com", "MCP.example.com"),
        RESOURCE.replace("https:", "HTTPS:"),
        RESOURCE.replace("https:", "http:"),
        RESOURCE.replace(".com", ".com:443"),
        f"{OTHER} {RESOURCE}",
        [OTHER],
        [[RESOURCE]],
        [RESOURCE, 7],
        [RESOURCE, None],
        {RESOURCE: True},
        7,
        True,
    ],
)
async def test_jwt_05_the_audience_is_exactly_the_resource(door: Door, audience: Any) -> None:
    """`aud` is the server's resource, or a list of texts that contains exactly it."""
    await door.bearer(door.issuer.mint(RESOURCE))
    await door.bearer(door.issuer.mint([OTHER, RESOURCE]))
    await door.refuses(f"Bearer {door.issuer.mint(audience)}")


async def test_an_empty_resource_accepts_nobody(door: Door) -> None:
    """agentgateway#3216: an audience check that compares with nothing must not be one that passes."""
    await door.refuses(f"Bearer {door.issuer.mint('')}", resource="")
    await door.refuses(f"Bearer {door.issuer.mint(['', RESOURCE])}", resource="")


@pytest.mark.parametrize(
    "issuer",
    [
        "https://idp.example.com/",
        "https://idp.example.co",
        "https://idp.example.com.evil.example",
        "https://IDP.example.com",
        "http://idp.example.com",
        " https://idp.example.com",
        ["https://idp.example.com"],
        {"https://idp.example.com": 1},
        "",
        None,
        7,
    ],
)
async def test_jwt_05_the_issuer_is_exactly_a_configured_one(door: Door, issuer: Any) -> None:
    """CVE-2025-45768's kin: no prefix, no list, no normalising."""
    await door.bearer(door.issuer.mint(RESOURCE))
    await door.refuses(f"Bearer {door.issuer.mint(RESOURCE, iss=issuer)}")


async def test_jwt_05_the_issuer_is_on_the_server_s_list(door: Door) -> None:
    """A configured issuer that this server does not list is a stranger here, verified before or not."""
    token = door.issuer.mint(RESOURCE)
    for _ in range(2):
        await door.refuses(f"Bearer {token}", issuers=frozenset())
        await door.refuses(f"Bearer {token}", issuers=frozenset({"https://other.example.com"}))
        await door.bearer(token)


async def test_jwt_05_an_issuer_s_key_signs_for_that_issuer_alone(tmp_path: Path) -> None:
    """A key of one issuer does not verify a token that names another one."""
    ours = Issuer("https://a.example.com", [signing_key("ES256", 0, kid="k")])
    theirs = Issuer("https://b.example.com", [signing_key("ES256", 1, kid="k")])
    tokens = Tokens(
        IssuerSettings(issuer=issuer.name, jwks_file=issuer.write(tmp_path / f"{number}.json"))
        for number, issuer in enumerate((ours, theirs))
    )
    await tokens.start()
    both = frozenset({ours.name, theirs.name})
    try:
        for issuer in (ours, theirs):
            line = f"Bearer {issuer.mint(RESOURCE)}".encode()
            identity = await tokens.identify([line], resource=RESOURCE, issuers=both)
            assert identity.issuer == issuer.name
        forged = f"Bearer {theirs.mint(RESOURCE, iss=ours.name)}".encode()
        with pytest.raises(Refused) as refused:
            await tokens.identify([forged], resource=RESOURCE, issuers=both)
        assert refused.value.refusal is Refusal.TOKEN_INVALID
    finally:
        await tokens.close()


def raw(door: Door, claims: str, header: str = '{"alg":"ES256","kid":"ES256-0","typ":"at+jwt"}') -> str:
    """A well-signed token over exactly this text; `...` stands for the other claims of a good one."""
    rest = json.dumps({"iss": door.issuer.name, "sub": "alice", "aud": RESOURCE})[1:-1]
    return "Bearer " + door.issuer.keys[0].sign(header.encode(), claims.replace("...", rest).encode())


@pytest.mark.parametrize(
    "claims",
    [
        "{...}",
        '{...,"exp":null}',
        '{...,"exp":true}',
        '{...,"exp":"SOON"}',
        '{...,"exp":[SOON]}',
        '{...,"exp":{}}',
        '{...,"exp":NaN}',
        '{...,"exp":Infinity}',
        '{...,"exp":1e400}',
        '{...,"exp":1e308}',
        '{...,"exp":253370764800}',
        '{...,"exp":99999999999999999999999}',
        '{...,"exp":0}',
        '{...,"exp":-1}',
        '{...,"exp":SOON,"exp":SOON}',
        '{...,"exp":SOON,"sub":"bob"}',
        '{...,"exp":SOON,"su\\u0062":"bob"}',
        '{...,"exp":SOON,"iat":"SOON"}',
        '{...,"exp":SOON,"iat":true}',
        '{...,"exp":SOON,"nbf":"0"}',
        '{...,"exp":SOON,"nbf":false}',
        '{...,"exp":SOON,"nbf":null}',
        '{...,"exp":SOON,"iat":1}',
        '{...,"exp":SOON} ',
        '[{...,"exp":SOON}]',
        '{...,"exp":SOON}{}',
        '{...,"exp":SOON,"a":"\\ud800"}',
    ],
)
async def test_jwt_06_claims_have_one_reading_and_times_are_numbers(door: Door, claims: str) -> None:
    """`exp` is required and a number of this age; every claim comes once, in strict JSON."""
    soon = str(int(time.time()) + 600)
    await door(raw(door, '{...,"exp":SOON}'.replace("SOON", soon)))
    await door(raw(door, '{...,"exp":SOON.5,"iat":1e0}'.replace("SOON", soon).replace("1e0", str(time.time() - 5))))
    if claims == '{...,"exp":SOON} ':
        await door(raw(door, claims.replace("SOON", soon)))
        return
    await door.refuses(raw(door, claims.replace("SOON", soon)))


@pytest.mark.parametrize("leeway", [0, 30, 60])
async def test_jwt_06_leeway_is_all_the_grace_there_is(build: Build, leeway: int) -> None:
    """Past `exp` or before `nbf` and `iat` by more than the leeway: refused; within it: accepted."""
    door = await build(leeway_s=leeway)
    now = int(time.time())
    for good in ({"exp": now - leeway + 5}, {"nbf": now + leeway - 5}, {"iat": now + leeway - 5}):
        if leeway or "exp" in good:
            await door.bearer(door.issuer.mint(RESOURCE, **good))
    for bad in ({"exp": now - leeway - 1}, {"nbf": now + leeway + 5}, {"iat": now + leeway + 5}):
        await door.refuses(f"Bearer {door.issuer.mint(RESOURCE, **bad)}")


async def test_jwt_06_the_lifetime_is_bounded(build: Build) -> None:
    """A token that lives longer than `max_lifetime_s`, from now or from `iat`, is refused."""
    door = await build(max_lifetime_s=3600, leeway_s=0)
    now = int(time.time())
    await door.bearer(door.issuer.mint(RESOURCE, iat=now - 10, exp=now + 3580))
    await door.bearer(door.issuer.mint(RESOURCE, iat=None, exp=now + 3590))
    await door.refuses(f"Bearer {door.issuer.mint(RESOURCE, iat=None, exp=now + 3700)}")
    await door.refuses(f"Bearer {door.issuer.mint(RESOURCE, iat=now - 100, exp=now + 3590)}")
    await door.refuses(f"Bearer {door.issuer.mint(RESOURCE, exp=253370764800)}")


@pytest.mark.parametrize(
    "subject", [None, "", 7, ["alice"], {"id": "alice"}, True, "a\nb", "a\x00", "x" * 1025, "\u4e00" * 342]
)
async def test_a_subject_is_one_plain_text(door: Door, subject: Any) -> None:
    """`sub` is required, not empty, and a text that can be written in one line and kept in an index."""
    await door.bearer(door.issuer.mint(RESOURCE, sub="auth0|al ice@\u00e9"))
    await door.bearer(door.issuer.mint(RESOURCE, sub="\u4e00" * 341))
    await door.refuses(f"Bearer {door.issuer.mint(RESOURCE, sub=subject)}")


@pytest.mark.parametrize("cnf", [{"jkt": "x"}, {"x5t#S256": "x"}, {}, False, []])
async def test_a_bound_token_is_no_plain_bearer(door: Door, cnf: Any) -> None:
    """A token with `cnf` may be used by the holder of a key only (RFC 7800, RFC 9449), which can't be shown here."""
    await door.refuses(f"Bearer {door.issuer.mint(RESOURCE, cnf=cnf)}")


@pytest.mark.parametrize("typ", ["at+jwt", "AT+JWT", "application/at+jwt", "Application/At+Jwt"])
async def test_an_access_token_says_so(door: Door, typ: str) -> None:
    """RFC 9068 section 4: `at+jwt`, with or without `application/`, without case."""
    await door.bearer(door.issuer.mint(RESOURCE, header={"typ": typ}))


@pytest.mark.parametrize(
    "typ", [None, "", "JWT", "jwt", "id+jwt", "dpop+jwt", "at+jwt;v=1", " at+jwt", "text/at+jwt", 7, ["at+jwt"]]
)
async def test_g5_another_kind_of_token_is_refused(build: Build, typ: Any) -> None:
    """An ID token, a DPoP proof or a token of no kind is no access token; the record names the setting."""
    door = await build()
    await door.bearer(door.issuer.mint(RESOURCE))
    refused = await door.refuses(f"Bearer {door.issuer.mint(RESOURCE, header={'typ': typ})}")
    assert "token_types" in refused.detail


async def test_token_types_are_widened_by_name_only(build: Build) -> None:
    """`token_types: [JWT]` admits that type besides `at+jwt`, and `""` a header without `typ`; nothing more."""
    jwt = await build(token_types=("JWT",))
    for typ in ("JWT", "jwt", "application/jwt", "at+jwt"):
        await jwt.bearer(jwt.issuer.mint(RESOURCE, header={"typ": typ}))
    for other in (None, "", "id+jwt"):
        await jwt.refuses(f"Bearer {jwt.issuer.mint(RESOURCE, header={'typ': other})}")
    untyped = await build(token_types=("",))
    await untyped.bearer(untyped.issuer.mint(RESOURCE, header={"typ": None}))
    for typ in ("", "application/", "JWT"):
        await untyped.refuses(f"Bearer {untyped.issuer.mint(RESOURCE, header={'typ': typ})}")


async def test_a_token_without_key_id_needs_one_fitting_key(build: Build) -> None:
    """Without `kid` the key must be beyond doubt: one key for that algorithm, whatever others there are."""
    door = await build(Issuer(keys=[signing_key("ES256"), signing_key("RS256")]))
    await door.bearer(door.issuer.mint(RESOURCE, header={"kid": None}))
    two = await build(Issuer(keys=[signing_key("ES256"), signing_key("ES256", 1)]))
    await two.bearer(two.issuer.mint(RESOURCE))
    await two.refuses(f"Bearer {two.issuer.mint(RESOURCE, header={'kid': None})}")


async def test_g5_a_remembered_token_is_judged_again(door: Door) -> None:
    """toolhive#6236's kind: a hit re-checks the audience, the issuer and the time for this server."""
    token = door.issuer.mint(RESOURCE, exp=int(time.time()) + 100)
    first = await door.bearer(token)
    assert await door.bearer(token) is first, "remembered"
    await door.refuses(f"Bearer {token}", resource=OTHER)
    await door.refuses(f"Bearer {token}", issuers=frozenset({"https://other.example.com"}))
    assert await door.bearer(token) is first
    door.now[0] = 125
    assert await door.bearer(token) is first, "within the leeway"
    door.now[0] = 131
    assert "expired" in (await door.refuses(f"Bearer {token}")).detail
    door.now[0] = -3600
    assert "not valid yet" in (await door.refuses(f"Bearer {token}")).detail
    door.now[0] = float("nan")
    await door.refuses(f"Bearer {token}")


async def test_g5_the_memory_is_keyed_by_the_whole_text(door: Door) -> None:
    """The claims of a remembered token under another signature, header or spelling are another token."""
    token = door.issuer.mint(RESOURCE)
    await door.bearer(token)
    head, payload, signature = token.split(".")
    other = door.issuer.mint(RESOURCE, sub="mallory").split(".")
    for forged in (f"{head}.{other[1]}.{signature}", f"{head}.{payload}.{other[2]}", token + "=", token + "A"):
        await door.refuses(f"Bearer {forged}")


async def test_the_memory_is_bounded(build: Build) -> None:
    """Many callers push each other out, and everyone is still served."""
    door = await build(remember=10)
    tokens = [door.issuer.mint(RESOURCE, sub=f"user-{number}") for number in range(25)]
    identities = [await door.bearer(token) for token in tokens]
    assert len(door.tokens._known._verified) == 10
    assert await door.bearer(tokens[-1]) is identities[-1]
    again = await door.bearer(tokens[0])
    assert again is not identities[0]
    assert replace(again) == identities[0]


async def test_a_refused_token_is_not_remembered(door: Door) -> None:
    """Only what was admitted takes a place in memory."""
    for bad in ({"exp": 1}, {"nbf": int(time.time()) + 900}, {"sub": ""}):
        await door.refuses(f"Bearer {door.issuer.mint(RESOURCE, **bad)}")
    await door.refuses(f"Bearer {door.issuer.mint(OTHER)}")
    assert not door.tokens._known._verified


def forged(token: str, nth: int = 0) -> str:
    """The same claims under a signature that nobody made."""
    signed, _, signature = token.rpartition(".")
    return f"{signed}.{nth:06d}{signature[6:]}"


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts whose signature was checked, as they come."""
    seen: list[str] = []

    def check(signed: Signed, key: Key) -> None:
        seen.append(signed.signing_input.decode())
        check_signature(signed, key)

    monkeypatch.setattr("gateway.tokens.check_signature", check)
    return seen


async def test_what_the_claims_rule_out_costs_no_arithmetic(door: Door, checked: list[str]) -> None:
    """A flood of old or foreign tokens is refused by what they say themselves; none is accepted for that."""
    await door.refuses(f"Bearer {forged(door.issuer.mint(RESOURCE))}")
    assert len(checked) == 1
    for token in (door.issuer.mint(RESOURCE, exp=1), door.issuer.mint(OTHER), door.issuer.mint(RESOURCE, cnf={})):
        for shown in (token, forged(token)):
            assert "signature" not in (await door.refuses(f"Bearer {shown}")).detail
    assert len(checked) == 1


async def test_a_false_signature_is_checked_once(build: Build, checked: list[str]) -> None:
    """The same text never becomes a good one while its key is there; others are looked at, the true one passes."""
    door = await build(remember_hopeless=3)
    token = door.issuer.mint(RESOURCE)
    details = {(await door.refuses(f"Bearer {forged(token)}")).detail for _ in range(5)}
    assert details == {"the signature does not verify"}
    assert len(checked) == 1
    await door.bearer(token)
    for nth in range(1, 20):
        await door.refuses(f"Bearer {forged(token, nth)}")
    assert len(checked) == 21
    assert len(door.tokens._known._hopeless) == 3
    await door.refuses(f"Bearer {forged(token)}")
    assert len(checked) == 22, "pushed out, so looked at again"
    where = {"issuers": frozenset({"https://other.example.com"})}
    assert "issuer" in (await door.refuses(f"Bearer {forged(token)}", **where)).detail
    await door.tokens.close()
    assert not door.tokens._known._hopeless


async def test_a_known_token_is_not_kept_waiting_by_forged_ones(door: Door, checked: list[str]) -> None:
    """A flood's signatures are checked a few in each turn of the loop: whose token was verified before is answered
    at once, a new one when its turn has come, before the forged ones that came after it."""
    known, new = door.issuer.mint(RESOURCE), door.issuer.mint(RESOURCE, jti="new")
    await door.bearer(known)
    checked.clear()

    def flood(begin: int) -> list[asyncio.Task[Refused]]:
        return [
            asyncio.create_task(door.refuses(f"Bearer {forged(known, nth)}"))
            for nth in range(begin, begin + 5 * CHECKS)
        ]

    before = flood(0)
    answered = asyncio.create_task(door.bearer(new))
    after = flood(1000)
    most = seen = 0
    while len(checked) < 10 * CHECKS + 1:
        await asyncio.sleep(0)
        most, seen = max(most, len(checked) - seen), len(checked)
        assert (await door.bearer(known)).subject == "alice"
        assert len(checked) == seen, "nothing was checked before the known one was answered"
        if answered.done():
            assert seen >= 5 * CHECKS
        elif seen > 6 * CHECKS:
            pytest.fail("the new one waits for those that came after it")
    assert most == CHECKS
    await asyncio.gather(*before, answered, *after)


async def test_what_many_show_at_once_is_checked_once(door: Door, checked: list[str]) -> None:
    """A token that is new on several connections, or forged, costs one check: the others come after it, and hear."""
    good = door.issuer.mint(RESOURCE)
    names = await asyncio.gather(*(door.bearer(good) for _ in range(3 * CHECKS)))
    assert ({name.subject for name in names}, len(checked)) == ({"alice"}, 1)
    bad = f"Bearer {forged(good)}"
    refused = await asyncio.gather(*(door.refuses(bad) for _ in range(3 * CHECKS)))
    assert ({one.detail for one in refused}, len(checked)) == ({"the signature does not verify"}, 2)


async def test_who_waits_for_a_check_has_a_bound(door: Door, checked: list[str]) -> None:
    """One more is refused at once, a known token is not, and all is as before when those that wait are through."""
    known = door.issuer.mint(RESOURCE)
    await door.bearer(known)
    door.tokens._waiting = 2
    new = [door.issuer.mint(RESOURCE, jti=f"new {nth}") for nth in range(3)]
    waiting = [asyncio.create_task(door.bearer(token)) for token in new[:2]]
    await asyncio.sleep(0)
    await door.refuses(f"Bearer {new[2]}", why=Refusal.OVERLOADED)
    await door.bearer(known)
    assert len(checked) == 1
    await asyncio.gather(*waiting)
    assert (await door.bearer(new[2])).subject == "alice"


@pytest.mark.parametrize("change", ["nothing", "time", "key", "keys"])
async def test_what_changes_while_a_token_waits_for_its_check_counts(
    door: Door, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """G5: a token is judged at the moment at which its signature is checked, not at that at which it came."""
    source = next(iter(door.tokens.issuers.by_name.values())).keys
    take = door.tokens._turns.take

    async def waiting() -> None:
        await take()
        if change == "time":
            door.now[0] += 7200
        elif change == "key":
            door.issuer.keys[0] = signing_key("ES256", 1, kid=door.issuer.keys[0].kid)
            door.issuer.write(door.file)
            assert await source.refresh()
        elif change == "keys":
            source._good_until = 0.0

    monkeypatch.setattr(door.tokens._turns, "take", waiting)
    token = f"Bearer {door.issuer.mint(RESOURCE)}"
    if change == "nothing":
        assert (await door(token)).subject == "alice"
    elif change == "keys":
        await door.refuses(token, why=Refusal.KEYS_UNAVAILABLE)
    else:
        told = {
            "time": "the token is expired",
            "key": "the token's key was withdrawn before its signature was checked",
        }
        assert (await door.refuses(token)).detail == told[change]
    assert bool(door.tokens._known._verified) == (change == "nothing")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The tokens that were read, as they come."""
    seen: list[bytes] = []

    def reading(token: bytes) -> Signed:
        seen.append(token)
        return read_compact(token)

    monkeypatch.setattr("gateway.tokens.read_compact", reading)
    return seen


async def test_an_expired_token_is_read_once(build: Build, read: list[bytes]) -> None:
    """G5: the same text at the same server is refused by what is known of it, until the clock is set back."""
    door = await build(remember_hopeless=3)
    old = door.issuer.mint(RESOURCE, exp=int(time.time()) - 100, iat=int(time.time()) - 3700)
    assert {(await door.refuses(f"Bearer {old}")).detail for _ in range(5)} == {"the token is expired"}
    assert len(read) == 1
    door.now[0] = -200
    await door.bearer(old)
    door.now[0] = 0
    assert "expired" in (await door.refuses(f"Bearer {old}")).detail
    for nth in range(20):
        await door.refuses(f"Bearer {door.issuer.mint(RESOURCE, exp=1, jti=str(nth))}")
    assert len(door.tokens._known._hopeless) == 3


async def test_a_token_that_is_known_to_be_expired_is_refused_as_if_it_were_read(
    build: Build, read: list[bytes]
) -> None:
    """What is judged before the time comes before it: issuer, audience, and keys, which may be others by now."""
    door = await build()
    old = door.issuer.mint([RESOURCE, OTHER], exp=1)
    for _ in range(2):
        assert "expired" in (await door.refuses(f"Bearer {old}")).detail
        assert "audiences" in (await door.refuses(f"Bearer {old}", alone=True)).detail
        elsewhere = {"issuers": frozenset({"https://other.example.com"})}
        assert "issuer" in (await door.refuses(f"Bearer {old}", **elsewhere)).detail
        assert "audience" in (await door.refuses(f"Bearer {old}", resource="https://gw.example.com/none")).detail
    fewer = len(read)
    assert fewer == 7, "what was said for this resource, to be the only one or not, is known for nothing else"
    door.issuer.keys[0] = signing_key("ES256", 1, kid=door.issuer.keys[0].kid)
    door.issuer.write(door.file)
    assert await next(iter(door.tokens.issuers.by_name.values())).keys.refresh()
    assert "expired" in (await door.refuses(f"Bearer {old}")).detail
    assert len(read) == fewer + 1, "its key is another one now"


async def test_the_tenant_is_the_configured_claim(build: Build) -> None:
    """`tenant_claim` names the tenant; a token without it belongs to nobody and is refused."""
    door = await build(tenant_claim="org", groups_claim="roles")
    identity = await door.bearer(door.issuer.mint(RESOURCE, org="acme", roles=["ops"], groups=["not these"]))
    assert (identity.tenant, identity.groups) == ("acme", {"ops"})
    for org in (None, "", 7, ["acme"]):
        await door.refuses(f"Bearer {door.issuer.mint(RESOURCE, org=org)}")
