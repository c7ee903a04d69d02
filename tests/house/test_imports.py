"""Each process loads what it serves with: what the others need costs it neither time at its start nor memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gateway.serving.understudy import AHEAD

PEOPLE = ("fastapi", "starlette", "jinja2", "authlib", "joserfc", "gateway.sign_in.door", "gateway.review_audit")
"""What only visitors of the API and the pages need."""
SELDOM = ("alembic", "opentelemetry", "asyncpg", "opa_client", "mcp", "gateway.evidence", "gateway.demo")
"""What a configuration has to ask for."""
SERVING = ("sqlalchemy", "httpx", "jwt", "cryptography", "uvloop", "prometheus_client", "jsonschema_rs")
"""What only workers need, and the supervisor's listener for operators."""
CONFIGURATION = ("pydantic", "yaml", "gateway.config", "structlog")
ALL = (*PEOPLE, *SELDOM, *SERVING, *CONFIGURATION)


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
