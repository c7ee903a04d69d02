"""docs/quickstart.md as a stranger would follow it: its files and commands, with other ports and a provider here."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.issuer import Issuer
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/quickstart.md").read_text()
TEN_MINUTES_S = 600.0


def provider(issuer: Issuer) -> Starlette:
    """An identity provider that the gateway has never heard of: metadata, keys, client credentials (RFC 8707)."""

    async def describe(_: Request) -> Response:
        return JSONResponse(
            {
                "issuer": issuer.name,
                "jwks_uri": f"{issuer.name}/jwks",
                "token_endpoint": f"{issuer.name}/token",
                "response_types_supported": ["code"],
            }
        )

    async def keys(_: Request) -> Response:
        return Response(issuer.jwks(), media_type="application/json")

    async def grant(request: Request) -> Response:
        scheme, _, told = request.headers.get("authorization", "").partition(" ")
        client, _, secret = base64.b64decode(told).decode().partition(":")
        form = await request.form()
        if (scheme, secret, form["grant_type"]) != ("Basic", "secret", "client_credentials"):
            return JSONResponse({"error": "invalid_client"}, 401)
        token = issuer.mint(form["resource"], sub=client, client_id=client, scope=form["scope"])
        return JSONResponse({"access_token": token, "token_type": "Bearer"})

    return Starlette(
        routes=[
            Route("/.well-known/openid-configuration", describe),
            Route("/.well-known/oauth-authorization-server", describe),
            Route("/jwks", keys),
            Route("/token", grant, methods=["POST"]),
        ]
    )


@asynccontextmanager
async def running(app: Starlette, port: int) -> AsyncIterator[None]:
    """The provider over HTTP."""
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        await serving


def installed_in_s() -> int:
    """How long step 1 took in this clone, as `make` noted it (Makefile), with pip's cache as it was then.

    0 where it was made by hand, or before that was noted.
    """
    notes = [ROOT / ".venv" / name for name in (".python", ".runtime")]
    return sum(int(note.read_text().strip() or 0) for note in notes if note.exists())


def story(change: dict[str, str]) -> tuple[dict[str, str], str]:
    """(the page's files, its commands as one script); what is marked `once` was done by whoever runs the tests."""

    def mine(text: str) -> str:
        return re.sub("|".join(map(re.escape, change)), lambda found: change[found[0]], text)

    files: dict[str, str] = {}
    steps: list[str] = []
    for mark, kind, text in re.findall(r"(?:<!-- (\S+) -->\n)?```(\w+)\n(.*?)```\n", PAGE, flags=re.DOTALL):
        if kind == "python":
            files[mark] = mine(text)
        elif mark != "once":
            assert kind == "sh", kind
            steps.append(f"echo '== {len(steps)}'\n{mine(text)}")
    return files, "set -euo pipefail\n" + "".join(steps)


async def test_a_stranger_has_it_in_front_of_a_server_in_ten_minutes(tmp_path: Path) -> None:
    """Every command of the page works as it stands: reads run, changes wait, the approved one runs, all is told.

    The ten minutes are over all of it: the installation, done once for all tests, and the rest, done here.
    """
    idp, upstream, public, admin = (free_port() for _ in range(4))
    issuer = Issuer(f"http://127.0.0.1:{idp}")
    files, script = story(
        {
            "https://idp.example.com": issuer.name,
            "127.0.0.1:8000": f"127.0.0.1:{upstream}",
            "port=8000": f"port={upstream}",
            "127.0.0.1:8080": f"127.0.0.1:{public}",
            "127.0.0.1:9090": f"127.0.0.1:{admin}",
        }
    )
    assert set(files) == {"server.py", "client.py"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    keep = {name: value for name, value in os.environ.items() if not name.startswith("OSTIARY_")}
    environment = {**keep, "PATH": path, "OSTIARY_ADMIN__PORT": str(admin), "NO_PROXY": "*", "PYTHONPATH": str(ROOT)}
    began = time.monotonic()
    async with running(provider(issuer), idp):
        with (tmp_path / "told").open("wb") as told_to:  # a file: what is left running holds no pipe open
            shell = await asyncio.create_subprocess_exec(
                "bash", "-c", script, cwd=tmp_path, env=environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=told_to, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            code = await asyncio.wait_for(shell.wait(), 120)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    told = (tmp_path / "told").read_text()
    assert code == 0, told
    took_s = installed_in_s() + time.monotonic() - began
    assert took_s < TEN_MINUTES_S, f"{installed_in_s()} s of them for the installation"
    steps = re.split(r"^== \d+\n", told, flags=re.MULTILINE)
    assert "are open: read_note" in told
    assert "wait for user:bob: write_note" in told
    assert "FAIL" not in told
    assert "????" not in told
    assert "Traceback" not in told
    answers = [line for line in told.splitlines() if line in ("water the plants", "written", "rest")]
    assert answers == ["water the plants", "written", "rest"]
    assert sum("40303" in step for step in steps) == 1
    assert "write_note" in steps[-1]
    assert "whole" in steps[-1]
