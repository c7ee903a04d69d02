"""Canaries through every path of a real gateway (AUD-02): each sink is read whole, and none sings where it must not.

`ALLOWED` says where a word may be: in a sink that it was meant for. Whatever is in no row of it may be nowhere but
with whoever sent it. Each sink is first shown to have received something of the very requests that carried the words.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import secrets
import shutil
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from gateway.elicitation import QUESTION
from tests.contract.asking import TASKS_META
from tests.edge.test_approvals_api import served
from tests.rows.stage import listed
from tests.support.certificates import LOOPBACK, authority
from tests.support.oidc import Oidc
from tests.support.postgres import Postgres
from tests.support.processes import descendants, eventually, figures_of
from tests.support.stack import Stack, body, call, headers_of, write_config
from tests.support.upstream import Exchange, ScriptedUpstream, http, result_of

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
OPENS: dict[str, Any] = {CAPABILITIES: {"elicitation": {"form": {}, "url": {}}}}
TASKS = {CAPABILITIES: TASKS_META[CAPABILITIES]}
HOSTILE = b"HTTP/1.1 500 %b\r\nX-Told: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
LETTERS = "abcdefghjkmnpqrstuvwxyz"

RECORD = {"cleared"}
SAID = {"cleared", "argument", "justification", "schema", "held uri"}
MAY: Mapping[str, set[str]] = {
    # What the policy clears is for the record and whoever is sent it; other values are nowhere.
    **dict.fromkeys(("record", "otlp", "webhook", "audit search", "audit export"), RECORD),
    # Who decides is shown what they decide on, and what was said of it, but for what the policy masks.
    "reviewer": {*SAID, "comment", "form key of bob"},
    "requester": SAID,
    "auditor": {"cleared", "form key of ada"},
    "database": {"held uri"},  # a ticket's name lies there in clear (docs/approvals.md, "Storage")
    "stranger": {"form key of mallory"},
    # The caller is answered by the server, by way of the gateway, and holds what the gateway sealed for it.
    "caller": {"result", "tool error", "rpc error", "question", "handle of a task", "sealed state"},
    "server": {
        "upstream credential", "cleared", "argument", "masked", "baggage", "tracestate", "server's state", "read uri",
        "statement",
    },
}  # fmt: skip
"""Sink -> the canaries that are in it: all of them were let in there, and each is heard. No row: none."""

WITNESSES: Mapping[str, str] = {
    **dict.fromkeys(
        ("record", "otlp", "traces", "audit search", "audit export", "audit tail", "auditor"), "decision"
    ),
    **dict.fromkeys(("webhook", "database", "reviewer", "requester"), "ticket"),
    "caller": "decision",
    "explain": "0af7651916cd43dd8448eb211c80319c",
    "server": '"method":"tools/call"',
    "log": "refusal",
    "metrics": 'server="bank"',
    "checkpoint": '"head":',
    "shadow": '"name":"write"',
    "policy diff": "bank tools/call write: approve_to_allow",
    "arguments of processes": "ostiary.yaml",
    "temp": "ostiary_requests",
    "decide": "would not be forwarded",
    "check": "takes client pages",
    "stranger": "not_found",
}
"""Sink -> what shows that it heard of the very requests: the id of the read's decision, the first ticket's, or so."""


class Canaries:
    """Words by their names, made when they are asked for: letters only, so that no net for secrets' shapes helps."""

    def __init__(self) -> None:
        self._words: dict[str, set[bytes]] = defaultdict(set)
        self._made: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        if name not in self._made:
            self._made[name] = "".join(secrets.choice(LETTERS) for _ in range(18))
            self.plant(name, self._made[name])
        return self._made[name]

    def plant(self, name: str, *words: str) -> None:
        """Words that are there already, such as a token; each also as Base64 would have it within a longer text."""
        for word in words:
            assert len(word) > 14, name
            raw = word.encode()
            self._words[name] |= {raw, raw.hex().encode()}
            for before in range(3):
                coded = base64.urlsafe_b64encode(b"\0" * before + raw)
                self._words[name].add(coded[4 if before else 0 : -4])

    def token(self, name: str, token: str) -> str:
        """Plant a token's parts, its head excepted."""
        self.plant(name, *token.split(".")[1:])
        return token

    def in_(self, data: bytes) -> set[str]:
        """The names of those that `data` gives away."""
        return {name for name, words in self._words.items() if any(word in data for word in words)}

    @property
    def names(self) -> set[str]:
        """All that were made."""
        return set(self._words)


def uri(canary: Canaries, name: str) -> str:
    """A resource's, with what may be secret in one."""
    return f"https://u:{canary[f'{name} uri']}@files.example/a?k={canary[f'{name} uri']}#{canary[f'{name} uri']}"


@dataclass
class Scene:
    """The gateway and all that surrounds it; `heard` is what came out of each sink."""

    stack: Stack
    oidc: Oidc
    canary: Canaries
    server: ScriptedUpstream
    sinks: Mapping[str, ScriptedUpstream]
    temp: Path
    postgres: Postgres | None
    heard: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    decisions: dict[str, str] = field(default_factory=dict)
    tickets: list[str] = field(default_factory=list)
    bearers: dict[str, str] = field(default_factory=dict)

    def sql(self, statement: str) -> str:
        """What PostgreSQL answers."""
        assert self.postgres is not None
        return self.postgres.sql(statement, urlsplit(self.stack.environment["DATABASE"]).path[1:])

    def bearer(self, who: str, audience: str, scope: str) -> str:
        """A token, planted."""
        key = f"bearer of {who} for {audience}: {scope}"
        if key not in self.bearers:
            minted = self.oidc.issuer.mint(
                audience, sub=who, scope=scope, client_id="tests", jti=self.canary[f"{key}: jti"]
            )
            self.bearers[key] = self.canary.token(key, minted)
        return self.bearers[key]

    def person(self, who: str) -> str:
        """A token for the approvals API."""
        scope = "approvals:read approvals:request approvals:decide"
        return self.bearer(who, f"{self.stack.url}/approvals", scope)

    def hear(self, sink: str, answer: httpx.Response) -> httpx.Response:
        """All of an answer is what `sink` got."""
        lines = b"\n".join(name + b": " + value for name, value in answer.headers.raw if name != b"set-cookie")
        self.heard[sink].append(lines + b"\n" + answer.content)
        return answer

    def arguments(self, **more: Any) -> dict[str, Any]:
        """A cleared one, one that nothing is said of, and one that is masked."""
        return {
            "path": f"/srv/{self.canary['cleared']}",
            "text": f"about {self.canary['argument']}",
            "pin": self.canary["masked"],
            **more,
        }

    async def ask(
        self,
        http: httpx.AsyncClient,
        tool: str,
        meta: Mapping[str, Any] | None = None,
        token: str = "",
        **params: Any,
    ) -> dict[str, Any]:
        """Alice's call, with a canary wherever a client may put something."""
        canary = self.canary
        if tool.startswith("https://"):
            message = body("resources/read", {"uri": tool})
        else:
            message = call(tool, params.pop("arguments", self.arguments()))
        message["params"]["_meta"].update(meta or {})
        message["params"].update(params)
        good = self.bearer("alice", self.stack.endpoint("bank"), "mcp:use files:read files:write")
        headers = headers_of(message, token or good) | {
            "Cookie": f"session={canary['cookie']}",
            "X-Custom": canary["header"],
            "User-Agent": canary["user agent"],
            "X-Forwarded-For": canary["forwarded"],
            "Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "Tracestate": f"it={canary['tracestate']}",
            "Baggage": f"it={canary['baggage']}",
        }
        url = f"{self.stack.endpoint('bank')}?access_token={canary['query']}"
        answer = self.hear("caller", await http.post(url, json=message, headers=headers))
        self.decisions[tool] = self.decisions.get(tool) or answer.headers["ostiary-decision"]
        self.decisions[f"{tool} {len(self.decisions)}"] = answer.headers["ostiary-decision"]
        document: dict[str, Any] = answer.json()
        ticket = (document.get("error", {}).get("data") or {}).get("ticket")
        if ticket and ticket["id"] not in self.tickets:
            self.tickets.append(ticket["id"])
        return document

    async def api(self, http: httpx.AsyncClient, who: str, verb: str, path: str = "", body: Any = None) -> Any:
        """The approvals API, as one of them."""
        sink = {"alice": "requester", "bob": "reviewer"}.get(who, "stranger")
        headers = {"Authorization": f"Bearer {self.person(who)}", "Cookie": f"s={self.canary['cookie']}"}
        url = f"{self.stack.url}/approvals{path}"
        answer = self.hear(sink, await http.request(verb, url, json=body, headers=headers))
        return answer.json()

    async def ostiary(self, sink: str, *words: str, token: str = "") -> str:
        """A command -> what it prints; its output and its arguments are read."""
        environment = {**os.environ, **self.stack.secrets, **self.stack.environment, "OSTIARY_TOKEN": token}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway.cli", *words,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment,
        )  # fmt: skip
        out, errors = await asyncio.wait_for(process.communicate(), 60)
        self.heard[sink].append(out + errors)
        return (out + errors).decode()


async def play(scene: Callable[[], Scene], exchange: Exchange) -> None:
    """The server behind: a tool for each way in which it can say something."""
    canary, asked = scene().canary, json.loads(exchange.seen.body)
    if asked["method"] != "tools/call":
        schema = {"type": "object", "properties": {name: {} for name in ("path", "text", "pin")}}
        names = ("read", "write", "fails", "errs", "breaks", "babbles", "asks")
        tools = listed(**{name: {"inputSchema": schema} for name in names})
        cached = {"ttlMs": 60_000, "cacheScope": "public"}
        await exchange.send(http(200, result_of(exchange.id, tools=tools, **cached)))
        return
    told = [{"type": "text", "text": canary["result"]}]
    match asked["params"]["name"]:
        case "fails":
            told = [{"type": "text", "text": canary["tool error"]}]
            answer = http(200, result_of(exchange.id, content=told, isError=True))
        case "errs":
            error = {"code": -32602, "message": canary["rpc error"], "data": {"at": canary["rpc error"]}}
            answer = http(200, json.dumps({"jsonrpc": "2.0", "id": exchange.id, "error": error}).encode())
        case "breaks":
            body = canary["upstream body"].encode()
            reason, line = canary["upstream reason"].encode(), canary["upstream header"].encode()
            answer = HOSTILE % (reason, line, len(body), body)
        case "babbles":
            answer = http(200, f'{{"jsonrpc": {canary["upstream garbage"]}'.encode())
        case "asks" if "requestState" not in asked["params"]:
            form = {
                "mode": "form",
                "message": canary["question"],
                "requestedSchema": {"type": "object", "properties": {}},
            }
            asks = {"q": {"method": "elicitation/create", "params": form}}
            state = canary["server's state"]
            answer = http(
                200, result_of(exchange.id, resultType="input_required", inputRequests=asks, requestState=state)
            )
        case _:
            cookie = f"Set-Cookie: s={canary['upstream cookie']}\r\n"
            answer = http(200, result_of(exchange.id, content=told), extra=cookie)
    await exchange.send(answer)
    if answer.startswith(b"HTTP/1.1 500"):
        exchange.writer.close()


async def receive(scene: Callable[[], Scene], name: str, exchange: Exchange) -> None:
    """A receiver that has a bad minute first, and says more than it should."""
    canary = scene().canary
    if len(scene().sinks[name].seen) == 1:
        body, reason, line = (canary[f"{name} receiver: {part}"].encode() for part in ("body", "reason", "header"))
        await exchange.send(HOSTILE % (reason, line, len(body), body))
        exchange.writer.close()
    elif len(scene().sinks[name].seen) == 2:
        exchange.reset()
    else:
        await exchange.send(http(200, b""))


@contextlib.asynccontextmanager
async def a_scene(folder: Path, postgres: Postgres | None) -> AsyncIterator[Scene]:
    """Everything configured that takes a secret or sends something out; tickets and record in files or PostgreSQL."""
    canary, here = Canaries(), list[Scene]()
    oidc = Oidc(client_id="pages", secret=canary["client secret"], groups=())
    wires = folder.parent / "wires"
    wires.mkdir()
    own, client = authority("servers").sign(*LOOPBACK).write(wires, "server"), authority("clients").sign("gateway")
    client.write(wires, "gateway")
    canary.plant("key of the gateway's certificate", *client.key_pem.decode().splitlines()[1:-1])
    server = ScriptedUpstream(
        lambda exchange: play(lambda: here[0], exchange),
        tls=authority("servers").server_context(own, authority("clients")),
    )
    sinks = {
        name: ScriptedUpstream(lambda exchange, name=name: receive(lambda: here[0], name, exchange))  # type: ignore[misc]
        for name in ("webhook", "chat", "otlp", "traces", "checkpoint")
    }
    async with contextlib.AsyncExitStack() as open_, served(oidc.app()) as url:
        for one in (server, *sinks.values()):
            await open_.enter_async_context(one)
        oidc.issuer.name = url
        temp = folder / "temp"
        temp.mkdir()
        raw = {name: os.urandom(32) for name in ("hook", "audit key", "seal key", "checkpoint key", "statement key")}
        coded = {name: base64.urlsafe_b64encode(value).decode() for name, value in raw.items()}
        hook = base64.b64encode(raw["hook"]).decode()
        canary.plant("hook secret", hook, raw["hook"].hex())
        for name in ("audit key", "seal key", "checkpoint key", "statement key"):
            canary.plant(name, coded[name].rstrip("="), raw[name].hex())
        bank = server.url.replace("http:", "https:")
        stack = Stack(folder, {"bank": [bank]}, issuer=oidc.issuer)
        stack.secrets |= {
            "OSTIARY_AUDIT_KEY": coded["audit key"],
            "OSTIARY_SEAL_KEYS": coded["seal key"],
            "OSTIARY_CHECKPOINT_KEY": coded["checkpoint key"],
        }
        at = {name: f"http://127.0.0.1:{one.port}" for name, one in sinks.items()}
        stack.environment = {
            "BANK_CREDENTIAL": f"Bearer {canary['upstream credential']}",
            "CLIENT_SECRET": canary["client secret"],
            "STATEMENT_KEY": coded["statement key"],
            "HOOK_SECRET": f"whsec_{hook}",
            "HOOK_URL": f"{at['webhook']}/tickets/{canary['hook url']}",
            "CHAT_URL": f"{at['chat']}/services/{canary['chat url']}",
            "OTLP_HEADERS": f"x-key={canary['otlp key']}",
            "TRACES_HEADERS": f"x-key={canary['traces key']}",
            "TMPDIR": str(temp),
            "PYTHONASYNCIODEBUG": "1",  # loops then tell of slow steps, with what they were called with
        }
        database, record = {"database": "sqlite:///ostiary.db"}, {"file": "audit.jsonl"}
        if postgres is not None:
            role, password = f"r{secrets.token_hex(4)}", canary["database password"]
            name = postgres.create().rpartition("/")[2]
            postgres.sql(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")
            postgres.sql(f'ALTER DATABASE "{name}" OWNER TO {role}')
            stack.environment["DATABASE"] = postgres.url_of(name, role, password)
            database, record = {"database_env": "DATABASE"}, {"file": "audit.jsonl", "database_env": "DATABASE"}
        (folder / "elsewhere").mkdir()
        hold = {"needed": True, "approvers": [f"user:{url}|bob"], "uses": 1, "ttl_s": 600}
        grant = {"schema": {"properties": {"text": {"maxLength": 100}}}, "uses": 3, "ttl_s": 900}
        shown = {"mask": ["/pin"], "clear": ["/path"]}
        read = {"effect": "read", "scopes": ["files:read"], **shown}
        tools: dict[str, Any] = dict.fromkeys(("read", "fails", "errs", "breaks", "babbles", "asks"), read)
        resources = {uri(canary, "read"): {}, uri(canary, "held"): {"effect": "write", "approval": hold}}
        tools |= {
            "write": {"effect": "write", "scopes": ["files:write"], "approval": {**hold, "grant": grant}, **shown}
        }
        write_config(
            folder, oidc.issuer, {"bank": [bank]}, port=stack.port, admin_port=stack.admin_port,
            data={"tools": tools, "resources": resources},
            settings={
                "credentials": {"value_env": "BANK_CREDENTIAL"},
                "forward_identity": {"header": "X-Who", "key_env": "STATEMENT_KEY"},
                "tls": {
                    "ca": str(authority("servers").write(wires, "servers")),
                    "cert": str(wires / "gateway.pem"), "key": str(wires / "gateway.key"),
                },
            },
            policy={"path": "bundle", "shadow": {"path": "next"}},
            approvals={
                **database,
                "webhooks": [
                    {"url_env": "HOOK_URL", "secret_env": "HOOK_SECRET"},
                    {"url_env": "CHAT_URL", "format": "slack"},
                ],
            },
            sign_in={"issuer": url, "client_id": oidc.client_id, "client_secret_env": "CLIENT_SECRET"},
            telemetry={
                "traces": {
                    "endpoint": f"{at['traces']}/{canary['traces url']}/v1/traces", "headers_env": "TRACES_HEADERS"
                }
            },
            audit={
                **record,
                "otlp": {"endpoint": f"{at['otlp']}/{canary['otlp url']}/v1/logs", "headers_env": "OTLP_HEADERS"},
                "checkpoints": {
                    "file": "elsewhere/checkpoints",
                    "webhook": f"{at['checkpoint']}/{canary['checkpoint url']}",
                    "every_s": 1,
                },
            },
        )  # fmt: skip
        shutil.copytree(folder / "bundle", folder / "next")
        bolder = {
            "servers": {
                "bank": {
                    "tools": {**tools, "write": read},
                    "resources": {one: {"effect": "write"} for one in resources},
                }
            }
        }
        (folder / "next/mcp/authz/data.json").write_text(json.dumps(bolder))
        here.append(Scene(stack, oidc, canary, server, sinks, temp, postgres))
        try:
            await stack.launch()
            yield here[0]
        finally:
            await stack.__aexit__(None, None, None)


async def calls(scene: Scene, http: httpx.AsyncClient) -> None:
    """Calls that are answered in every way, and some that are refused."""
    canary = scene.canary
    for tool, member in (("read", "result"), ("fails", "result"), ("errs", "error"), ("breaks", "error")):
        assert member in await scene.ask(http, tool), tool
    assert "error" in await scene.ask(http, "babbles")
    asked = (await scene.ask(http, "asks", OPENS))["result"]
    answers = {"q": {"action": "accept", "content": {}}}
    state = asked["requestState"]
    assert "result" in await scene.ask(http, "asks", OPENS, requestState=state, inputResponses=answers)
    assert "result" in await scene.ask(http, uri(canary, "read"))
    canary.plant("sealed state", state)
    foreign = scene.oidc.issuer.mint(
        "https://elsewhere.example", sub=canary["refused sub"], jti=canary["refused jti"]
    )
    expired = scene.oidc.issuer.mint(scene.stack.endpoint("bank"), sub=canary["expired sub"], exp=1)
    for token in (canary["refused token"], canary.token("foreign", foreign), canary.token("expired", expired)):
        assert "error" in await scene.ask(http, "read", token=token)
    narrow = scene.bearer("alice", scene.stack.endpoint("bank"), "mcp:use")
    assert (await scene.ask(http, "read", token=narrow))["error"]["code"] == 40301
    assert "error" in await scene.ask(http, "absent")
    assert "error" in await scene.ask(http, "asks", OPENS, requestState=canary["made-up state"])
    url = f"{scene.stack.endpoint('bank')}?q={canary['query']}"
    for broken in (f'{{"{canary["broken body"]}', f'{{"jsonrpc":"2.0","id":1,"method":"{canary["method"]}"}}'):
        scene.hear("stranger", await http.post(url, content=broken, headers={"Content-Type": "application/json"}))
    scene.hear("stranger", await http.get(f"{scene.stack.url}/{canary['path']}?q={canary['query']}"))


async def held(scene: Scene, http: httpx.AsyncClient) -> None:
    """Held by error, by elicitation and as a task; approved, denied, approved; and a grant that is used."""
    canary = scene.canary
    told = await scene.ask(http, "write")
    by_error = told["error"]["data"]["ticket"]["id"]
    said = {"comment": canary["comment"]}
    for who in ("alice", "bob"):
        await scene.api(http, who, "GET", f"/{by_error}")
    approved = await scene.api(http, "bob", "POST", f"/{by_error}/approve", said)
    assert approved["state"] == "approved"
    assert "result" in await scene.ask(http, "write")

    asked = (await scene.ask(http, "write", OPENS, arguments=scene.arguments(n=2)))["result"]
    by_page = asked["inputRequests"][QUESTION]["params"]["url"].rpartition("/")[2]
    scene.tickets.append(by_page)
    back = {"requestState": asked["requestState"], "inputResponses": {QUESTION: {"action": "accept"}}}
    retry = asyncio.create_task(scene.ask(http, "write", OPENS, arguments=scene.arguments(n=2), **back))
    assert (await scene.api(http, "bob", "POST", f"/{by_page}/deny", said))["state"] == "denied"
    assert "error" in await retry

    task = (await scene.ask(http, "write", TASKS, arguments=scene.arguments(n=3)))["result"]
    canary.plant("handle of a task", task["taskId"])
    (waits,) = (await scene.api(http, "bob", "GET", "?state=pending"))["tickets"]
    scene.tickets.append(waits["id"])
    assert (await scene.api(http, "bob", "POST", f"/{waits['id']}/approve", said))["state"] == "approved"
    async with asyncio.timeout(30):
        while (await poll(scene, http, task["taskId"]))["status"] == "working":  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    told = await scene.ask(http, uri(canary, "held"))
    await scene.api(http, "alice", "GET", f"/{told['error']['data']['ticket']['id']}")
    schema = {"type": "object", "properties": {"path": {}, "pin": {}, "text": {"const": canary["schema"]}}}
    wanted = {"server": "bank", "method": "tools/call", "name": "write", "justification": canary["justification"]}
    ticket = await scene.api(http, "alice", "POST", "", {**wanted, "vary": schema})
    scene.tickets.append(ticket["id"])
    seen = {"seen": ticket["digest"], **said}
    assert (await scene.api(http, "bob", "POST", f"/{ticket['id']}/approve", seen))["state"] == "approved"
    ahead = await scene.api(http, "alice", "POST", "", {**wanted, "arguments": scene.arguments(n=4)})
    scene.tickets.append(ahead["id"])
    await scene.api(http, "alice", "GET", f"/{ahead['id']}")
    for who in ("mallory", "dora"):
        for path in ("", *(f"/{one}" for one in scene.tickets)):
            await scene.api(http, who, "GET", path)
        for one in scene.tickets:
            assert "error" in await scene.api(http, who, "POST", f"/{one}/approve", said)


async def poll(scene: Scene, http: httpx.AsyncClient, handle: str) -> dict[str, Any]:
    """Alice asks how her task is."""
    message = call("")
    message |= {"method": "tasks/get", "params": {"taskId": handle, "_meta": message["params"]["_meta"] | TASKS}}
    token = scene.bearer("alice", scene.stack.endpoint("bank"), "mcp:use files:read files:write")
    answer = await http.post(scene.stack.endpoint("bank"), json=message, headers=headers_of(message, token))
    result: dict[str, Any] = scene.hear("caller", answer).json()["result"]
    return result


async def visits(scene: Scene, who: str, sink: str, places: Sequence[str], scope: str) -> None:
    """Somebody signs in and looks at pages; the code, the cookies and the form's key are planted."""
    scene.oidc.who, scene.oidc.scope = who, scope
    async with httpx.AsyncClient(trust_env=False, timeout=30) as browser:
        answer = await browser.get(f"{scene.stack.url}/review/sign-in", params={"next": places[0]})
        for _ in range(6):
            if answer.status_code != 303:
                break
            there = answer.request.url.join(answer.headers["location"])
            asked = {name: value for name, (value, *_) in parse_qs(urlsplit(str(there)).query).items()}
            for name in {"code", "code_challenge", "nonce"} & asked.keys():
                scene.canary.plant(f"{who}'s {name}", asked[name])
            answer = await browser.get(there)
        assert answer.status_code == 200, answer.text
        for cookie in browser.cookies.jar:
            scene.canary.plant(f"{who}'s cookie", str(cookie.value))
        for place in places:
            page = scene.hear(sink, await browser.get(f"{scene.stack.url}{place}"))
            scene.canary.plant(f"form key of {who}", *re.findall(r'name="form_key" value="([^"]+)"', page.text))
    for form in scene.oidc.asked:
        scene.canary.plant(f"{who}'s verifier", form["code_verifier"])
    for token in scene.oidc.refresh:
        scene.canary.plant(f"{who}'s refresh token", token)
    scene.oidc.asked.clear()


async def looks(scene: Scene, http: httpx.AsyncClient) -> None:
    """People at the pages: who decides, who audits, who may do neither, and nobody."""
    tickets = [
        f"/review/tickets/{one}{more}" for one in scene.tickets for more in ("", "/arguments.json", "/standing")
    ]
    stories = [f"/review/refusals/{one}" for one in scene.decisions.values()]
    rooms = [
        "/review",
        "/review?state=all",
        "/review/mine",
        "/review/refusals",
        "/review/audit",
        "/review/audit/charts",
    ]
    told = [f"/review/audit/{one}" for one in scene.decisions.values()]
    decides = "approvals:read approvals:request approvals:decide"
    await visits(scene, "bob", "reviewer", [*rooms, *tickets], decides)
    await visits(scene, "ada", "auditor", ["/review/audit", "/review/audit/charts", *told], "audit:read")
    await visits(scene, "mallory", "stranger", [*rooms, *tickets, *stories, *told], decides)
    for place in (*rooms, *tickets, *told, f"/review/callback?code={scene.canary['wrong code']}&state=x"):
        scene.hear("stranger", await http.get(f"{scene.stack.url}{place}"))


async def commands(scene: Scene) -> None:
    """The commands of an operator, beside the gateway that runs."""
    config = ("--config", str(scene.stack.config))
    message = call("write", scene.arguments(n=5))
    token = scene.bearer("alice", scene.stack.endpoint("bank"), "mcp:use files:read files:write")
    request = scene.stack.folder.parent / "request.json"
    request.write_text(
        json.dumps({"server": "bank", "token": token, "headers": headers_of(message), "body": message})
    )
    url, bare = ("--url", scene.stack.url), scene.tickets[0]
    await asyncio.gather(
        scene.ostiary("decide", "decide", str(request), *config),
        scene.ostiary("decide", "decide", str(request), *config, "--trace", "--json"),
        scene.ostiary("check", "check", *config, "--json"),
        scene.ostiary("policy diff", "policy", "diff", "--live", *config),
        scene.ostiary("explain", "explain", scene.decisions["read"], *config),
        scene.ostiary("audit search", "audit", "search", *config, "-n", "0", "--json"),
        scene.ostiary("audit tail", "audit", "tail", *config, "-n", "1000"),
        scene.ostiary("audit export", "audit", "export", *config, "--out", "-"),
        scene.ostiary("stranger", "approvals", "show", bare, *url, token=scene.person("mallory")),
        scene.ostiary("reviewer", "approvals", "show", bare, *url, token=scene.person("bob")),
    )


def files(folder: Path, *others: str) -> bytes:
    """All bytes below a folder, but for what is called so, and for the configuration that workers read."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.name not in others]
    found = [path for path in found if not re.fullmatch(r"configuration-[0-9a-f]{32}\.yaml", path.name)]
    return b"\n".join(path.name.encode() + b"\n" + path.read_bytes() for path in found)


def listen_at_the_rest(scene: Scene) -> None:
    """What nobody was sent: the files, the database's own bytes, the processes' arguments."""
    stack, folder, heard = scene.stack, scene.stack.folder, scene.heard
    heard["log"].append((folder / "gateway.log").read_bytes())
    heard["checkpoint"].append(files(folder / "elsewhere"))
    heard["shadow"] += [path.read_bytes() for path in folder.glob("shadow.jsonl*")]
    assert stack.process is not None
    heard["temp"].append(files(scene.temp))
    found = set()
    for pid in (stack.process.pid, *descendants(stack.process.pid)):
        with contextlib.suppress(OSError):
            heard["arguments of processes"].append(Path(f"/proc/{pid}/cmdline").read_bytes())
            if shared := figures_of(pid):
                found.add(shared)
                heard["temp"].append(files(shared))
    assert len(found) == 1  # its workers count in one folder, and it was listened at
    for name, receiver in scene.sinks.items():
        sink = "webhook" if name == "chat" else name
        for seen in receiver.seen:  # its own address and headers are for it alone
            heard[sink].append(seen.body)
            own_words = scene.canary.in_(f"{seen.line}\n{seen.headers}".encode())
            assert own_words <= {f"{name} url", f"{name} key", "hook url"}, (name, own_words)
    for seen in scene.server.seen:
        heard["server"].append(f"{seen.line}\n{seen.headers}\n".encode() + seen.body)
        (statement,) = seen.values("x-who")
        scene.canary.token("statement", statement)
    # What the test wrote, and what is looked at by itself.
    tests_own = ("gateway.log", "ostiary.yaml", "data.json", "ostiary.db", "ostiary.db-wal", "ostiary.db-shm")
    heard["record"].append(files(folder, *tests_own))
    heard["database"] += [path.read_bytes() for path in folder.glob("ostiary.db*")]
    if scene.postgres is not None:
        for table in scene.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").split():
            rows = scene.sql(f"SELECT t::text FROM {table} t").encode()
            told = [bytes.fromhex(one.decode()) for one in re.findall(rb"\\x((?:[0-9a-f]{2})+)", rows)]
            heard["record" if "audit" in table else "database"] += [rows, *told]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kept", ["sqlite", "postgresql"])
async def test_no_canary_sings_where_it_must_not(kept: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """AUD-02: tokens, codes, cookies, queries, headers, arguments, texts of people, results, errors, keys, URLs."""
    server = request.getfixturevalue("postgres") if kept == "postgresql" else None
    folder = tmp_path / "gateway"
    folder.mkdir()
    async with a_scene(folder, server) as scene, httpx.AsyncClient(trust_env=False, timeout=30) as http:
        canary, heard = scene.canary, scene.heard
        # A key that is none: why it is not taken is told while all else goes on.
        key, log = tmp_path / "wires/gateway.key", folder / "gateway.log"
        good = key.read_text()
        key.write_text(f"-----BEGIN PRIVATE KEY-----\n{canary['key that is none']}\n")
        await calls(scene, http)
        await held(scene, http)
        await looks(scene, http)
        await eventually("the key is not taken", lambda: b"certificate_not_replaced" in log.read_bytes())
        key.write_text(good)
        await commands(scene)
        first = {
            "decision": scene.decisions["read"],
            "refusal": scene.decisions["absent"],
            "ticket": scene.tickets[0],
        }
        needed = {sink: first.get(word, word).encode() for sink, word in WITNESSES.items()}

        def told() -> bool:
            got = {name: b"".join(seen.body for seen in one.seen) for name, one in scene.sinks.items()}
            ends = {
                "webhook": first["ticket"].encode(),
                **{name: needed[name] for name in ("otlp", "traces", "checkpoint")},
            }
            return all(end in got[name] for name, end in ends.items())

        await eventually("the receivers were told", told, 60)
        for place in ("metrics", "readyz"):
            scene.hear("metrics", await http.get(f"{scene.stack.admin}/{place}"))
        listen_at_the_rest(scene)
        await scene.stack.stop()
        heard["log"].append(log.read_bytes())
    everything = {sink: b"\n".join(texts) for sink, texts in heard.items()}

    deaf = {sink for sink, word in needed.items() if sink in everything and word not in everything[sink]}
    assert not deaf, {sink: needed[sink] for sink in deaf}
    assert everything.keys() | {"database"} == WITNESSES.keys()
    sung = {sink: canary.in_(text) for sink, text in everything.items()}
    assert len(canary.names) > 80
    assert {sink: found for sink, found in sung.items() if found} == MAY
