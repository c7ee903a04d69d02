"""Each process loads what it serves with: what the others need costs it neither time at its start nor memory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from approvals.database import migrate
from gateway.serving.understudy import AHEAD
from tests.support.stack import Stack, call
from tests.support.upstream import Exchange, ScriptedUpstream, http, result_of

PEOPLE = ("fastapi", "starlette", "jinja2", "authlib", "joserfc", "gateway.sign_in.door", "gateway.review_audit")
"""What only visitors of the API and the pages need."""
SELDOM = (
    *("httpx", "pydantic_settings", "alembic", "opentelemetry", "asyncpg", "policies.opa", "mcp"),
    *("gateway.evidence", "gateway.demo"),
)
"""What a configuration has to ask for."""
SERVING = ("sqlalchemy", "jwt", "cryptography", "uvloop", "prometheus_client", "jsonschema_rs")
"""What only workers need, and the supervisor's listener for operators."""
CONFIGURATION = ("pydantic", "yaml", "gateway.config", "structlog")
UNUSED = ("rich.console", "pygments.lexer", "attr._make", "typer", "greenlet._greenlet")
"""What libraries load wherever it is installed (`gateway/serving/plain.py`), and nobody who serves uses. The parts
tell: the packages' own names are seen where they were asked for and not found, too.
"""
ALL = (*PEOPLE, *SELDOM, *SERVING, *CONFIGURATION)
NOBODY = (*PEOPLE, *SELDOM, *UNUSED, "sqlalchemy.dialects.postgresql", "sqlalchemy.orm", "gateway.parlour")
"""What no process of a gateway on embedded defaults has loaded while it serves calls."""


def loaded(code: str) -> set[str]:
    """The modules that an interpreter of its own has loaded after `code`."""
    show = "import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{show}"], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("code", "there", "never"),
    [
        ("import gateway.cli", "gateway.options", (*ALL, "asyncio", "uvicorn")),
        ("import gateway.serving.commands, gateway.config_file", "gateway.config", (*PEOPLE, *SELDOM, *SERVING)),
        (
            "import gateway.serving.supervisor",
            "gateway.serving.crew",
            (*PEOPLE, *SELDOM, *SERVING, "pydantic"),
        ),
        ("import gateway.app, gateway.serving.worker", "sqlalchemy", (*PEOPLE, *SELDOM)),
        ("import policies.evaluator", "policies.vetting", (*ALL, "asyncio")),
    ],
    ids=["the command", "the configuration", "the supervisor", "a worker", "an evaluator"],
)
def test_nobody_loads_what_only_others_need(code: str, there: str, never: tuple[str, ...]) -> None:
    """The command line, the supervisor, a worker and an evaluator load their own parts, and none of the others'."""
    found = loaded(code)
    assert there in found
    assert sorted(found.intersection(never)) == []


def test_what_is_loaded_ahead_does_not_look_at_the_environment() -> None:
    """An understudy hears later where its worker counts: prometheus_client, which looks when it is loaded, waits."""
    found = loaded(f"from importlib import import_module\nfor name in {AHEAD!r}: import_module(name)")
    assert set(AHEAD) <= found
    assert "prometheus_client" not in found


def test_who_serves_loads_nothing_that_it_has_no_use_for() -> None:
    """Libraries that would load rich or greenlet do without where these are installed; who wants them finds them."""
    load = "from gateway.serving.plain import load_plain; load_plain('structlog', 'httpx')"
    assert loaded("import structlog, httpx").issuperset({"rich.console", "pygments.lexer", "greenlet._greenlet"})
    found = loaded(load)
    assert {"structlog", "httpx"} <= found
    assert sorted(found.intersection(UNUSED)) == []
    assert "rich.console" in loaded(f"{load}; import rich.console")
    assert "rich.console" in loaded(f"import rich.console; {load}")
    assert "greenlet._greenlet" in loaded(f"{load}; import greenlet")


def test_no_thread_hides_a_library_from_another() -> None:
    """PostgreSQL wants greenlet when it is opened, and clients of a registry are made in threads meanwhile."""
    plan = "types.SimpleNamespace(settings=types.SimpleNamespace(registry=types.SimpleNamespace(url='https://r')))"
    made = f"import types; from gateway.opening import registry_of; registry_of({plan})"
    assert "httpx" in loaded(made)
    hiding = (
        "from gateway.serving import plain; plain.UNUSED = hidden = ['told']; plain.import_module = hidden.append"
    )
    assert "httpx" in loaded(f"{made}; {hiding}; plain.load_plain('httpx'); assert hidden == ['told']")


async def test_a_gateway_that_serves_has_loaded_nothing_for_others(tmp_path: Path) -> None:
    """On embedded defaults and a database that is up to date, from the start through a call, in all its processes."""

    async def answer(exchange: Exchange) -> None:
        asked = orjson.loads(exchange.seen.body)
        tools = [{"name": "read", "inputSchema": {"type": "object"}}]
        result = {"tools": tools} if asked["method"] == "tools/list" else {"content": []}
        await exchange.send(http(200, result_of(asked["id"], **result)))

    upstream = ScriptedUpstream(answer)
    await upstream.start()
    replica = f"http://127.0.0.1:{upstream.port}/mcp"
    stack = Stack(tmp_path, {"files": [replica]}, environment={"PYTHONPROFILEIMPORTTIME": "1"})
    await migrate(f"sqlite:///{tmp_path}/ostiary.db")
    try:
        async with stack:
            assert (await stack.post("files", call())).status_code == 200
    finally:
        await upstream.stop()
    found = set(re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", stack.log(), re.MULTILINE))
    assert found.issuperset({"gateway.app", "gateway.serving.supervisor", "sqlite3", "structlog", "pydantic"})
    assert sorted(found.intersection(NOBODY)) == []
