"""One gateway for most rows, started once a session; its servers are reset between tests, its files only grow."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
import yaml

from gateway.contract.refusals import Refusal
from tests.rows.stage import SECOND, House, Server, Stage, listed
from tests.support.stack import HOLD, ISSUER, Stack, write_config

ORIGIN = "https://app.example.com"
LITERALS = ("Hello", "=?BASE64?SGVsbG8=?=", "=?base64?SGVsbG8=", "=?base64?SGVsbG8=?=", "grüße", "a b")
LOOK_ALIKES = ("r\u0435ad", "\uff52\uff45\uff41\uff44", "re\u200bad", "\u202edaer", "READ", "cafe\u0301")
INJECTED = ("../../v1/policies/x", 'x"]; allow := true #', "read\n", "*")
READS = {"effect": "read", "scopes": ["files:read"]}
WRITES = {"effect": "write", "scopes": ["files:write"], "approval": HOLD}
DATA: Mapping[str, Any] = {
    "methods": {"server/discover": {}, "example.com/ping": {}, "notifications/example": {}},
    "tools": {
        "read": READS,
        "caf\u00e9": READS,
        "absent": READS,
        "narrow": {"effect": "read", "scopes": ["files:read", "files:rare"]},
        "write": WRITES,
        "erase": {**WRITES, "scopes": []},
        "brief": {**WRITES, "approval": {**HOLD, "ttl_s": 2}},
        "masked": {**WRITES, "mask": ["/secret"]},
        "nobody": {**WRITES, "approval": {**HOLD, "approvers": [f"user:{ISSUER}|alice"]}},
        **dict.fromkeys(LITERALS, READS),
    },
    "prompts": {"greet": {}, "guarded": {"effect": "write", "approval": HOLD}},
    "resources": {"demo://open": {}, "demo://open/": {}, "demo://guarded": {"effect": "write", "approval": HOLD}},
}
OFFERED = ("read", "hidden", "narrow", "write", "erase", "brief", "masked", "nobody", "café", *LITERALS, *LOOK_ALIKES)


def pytest_configure(config: pytest.Config) -> None:
    """The marker by which a test says which refusals it provokes."""
    config.addinivalue_line("markers", "provokes(*refusals): these refusals are provoked; checked when it is over")


def offered() -> list[dict[str, Any]]:
    """What each server lists."""
    return listed(**{name: {} for name in OFFERED})


def closed_port() -> str:
    """An endpoint that refuses connections: the port is bound and not listening, so that nobody else gets it."""
    probe = socket.socket()
    probe.bind(("127.0.0.1", 0))
    _KEPT.append(probe)
    return f"http://127.0.0.1:{probe.getsockname()[1]}/mcp"


_KEPT: list[socket.socket] = []


def settings_of(behind: Mapping[str, list[Server]], **more: Mapping[str, Any]) -> dict[str, Any]:
    """The `servers` section; `more` are members of single servers."""
    return {
        name: {
            "path": f"/{name}/mcp",
            "replicas": [server.url for server in replicas],
            "scopes": ["mcp:use"],
            "environment": "test",
            **more.get(name, {}),
        }
        for name, replicas in behind.items()
    }


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """The loop that everything lives on."""
    stage = Stage()
    try:
        yield stage
    finally:
        stage.close()
        for probe in _KEPT:
            probe.close()


def _hush(stage: Stage, server: Server) -> None:
    stage.run(server.wire.stop())


@contextlib.contextmanager
def opened(stage: Stage, servers: Iterable[Server]) -> Iterator[None]:
    """Servers that listen meanwhile."""
    with contextlib.ExitStack() as listening:
        for server in servers:
            stage.run(server.wire.start())
            listening.callback(_hush, stage, server)
        yield


def furnish(stack: Stack, servers: Mapping[str, Any], **sections: Any) -> None:
    """Write what `stack` starts on: keys, bundle (with `stack.data` for every server) and configuration."""
    write_config(
        stack.folder,
        stack.issuer,
        dict.fromkeys(servers, ()),
        port=stack.port,
        admin_port=stack.admin_port,
        data=stack.data,
        **sections,
    )
    document = yaml.safe_load(stack.config.read_text())
    stack.config.write_text(yaml.safe_dump({**document, "servers": dict(servers)}, sort_keys=False))


@contextlib.contextmanager
def served(stage: Stage, stack: Stack) -> Iterator[None]:
    """A gateway that runs meanwhile on the configuration as it stands; stopped however the start ended."""
    try:
        stage.run(stack.launch())
        yield
    finally:
        stage.run(stack.__aexit__(None, None, None))


@pytest.fixture(scope="session")
def _house(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("rows")
    behind = {
        "plain": [Server(offered()), Server(offered())],
        "other": [Server(offered())],
        "second": [Server(offered())],
        "odd": [Server(offered())],
        "frail": [Server(offered()), Server(offered())],
        "moody": [Server(offered(), ttl_ms=0)],
    }
    with opened(stage, (one for replicas in behind.values() for one in replicas)):
        key = f"planted-upstream-{os.urandom(8).hex()}"
        servers = settings_of(
            behind,
            plain={
                "allowed_origins": [ORIGIN],
                "credentials": {"header": "Authorization", "value_env": "ROWS_UPSTREAM_KEY"},
                "issuers": [ISSUER],
            },
            other={"environment": "production"},
            second={"issuers": [SECOND]},
            odd={"methods": ["example.com/ping", "notifications/example"]},
        )
        servers["ghost"] = {"path": "/ghost/mcp", "replicas": [closed_port(), closed_port()], "scopes": ["mcp:use"]}
        away = closed_port().removesuffix("/mcp")
        issuers = [
            {"issuer": ISSUER, "jwks_file": "jwks.json", "algorithms": ["ES256"]},
            {"issuer": SECOND, "jwks_file": "second.json", "algorithms": ["ES256"]},
            {"issuer": away, "jwks_file": "second.json", "algorithms": ["ES256"]},
        ]
        stack = Stack(folder, {}, data=DATA, environment={"ROWS_UPSTREAM_KEY": f"Bearer {key}"})
        furnish(
            stack,
            servers,
            identity={"issuers": issuers, "scope_implies": {"files:admin": ["files:write", "files:read"]}},
            limits={"answer_s": 1.5, "quiet_s": 1.5, "body_s": 1.5, "concurrent": 64, "tickets_per_hour": 1000},
            allowed_hosts=["gw.example.com"],
            sign_in={"issuer": away, "client_id": "rows"},
        )
        house = House(stage, stack, behind, away=away)
        house.secrets.add(key.encode())
        house.second.write(folder / "second.json")
        with served(stage, stack), house.http:
            yield house


@pytest.fixture
def house(_house: House, request: pytest.FixtureRequest) -> Iterator[House]:
    """The gateway that most rows share. When the test is over, what it says to provoke has been provoked."""
    yield _house
    owed = {refusal for mark in request.node.iter_markers("provokes") for refusal in mark.args}
    assert owed <= provoked(_house), owed


def provoked(house: House) -> set[Refusal]:
    """All refusals that stand in the record, on the way in or on the way back."""
    reasons = {
        record["reasons"][0]
        for record in house.records()
        if record["kind"] == "refusal" or (record["kind"] == "outcome" and record["reasons"])
    }
    return {refusal for refusal in Refusal if refusal.reason in reasons}
