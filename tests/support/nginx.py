"""The real nginx with the shipped example (deploy/nginx.conf), on ports of this test."""

# ruff: noqa: ASYNC240 - files of a test

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

EXAMPLE: Final = Path(__file__).parents[2] / "deploy/nginx.conf"
PROGRAM: Final = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
AROUND: Final = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    include {folder}/ostiary.conf;
}}
"""


def example(port: int, gateways: Sequence[int], idle: str, forgiven_s: int = 2) -> str:
    """The example with other ports, and other times after which idle connections are let go, and a gateway that
    refused a connection is asked again."""
    text = EXAMPLE.read_text()
    changes = [
        ("listen 8080;", f"listen 127.0.0.1:{port};", 1),
        ("127.0.0.1:8081", f"127.0.0.1:{gateways[0]}", 2),
        ("127.0.0.1:8082", f"127.0.0.1:{gateways[1]}", 2),
        ("keepalive_timeout 3s;", f"keepalive_timeout {idle};", 1),
        ("fail_timeout=2s;", f"fail_timeout={forgiven_s}s;", len(gateways)),
    ]
    for old, new, times in changes:
        assert text.count(old) == times, old
        text = text.replace(old, new)
    return text


@contextlib.asynccontextmanager
async def balanced(
    folder: Path, port: int, gateways: Sequence[int], idle: str, forgiven_s: int = 2
) -> AsyncIterator[Path]:
    """nginx in front of two gateways -> its error log."""
    assert PROGRAM is not None, "nginx is one of the programs that the tests need (.ci/run)"
    folder.mkdir()
    (folder / "ostiary.conf").write_text(example(port, gateways, idle, forgiven_s))
    (folder / "nginx.conf").write_text(AROUND.format(folder=folder))
    process = await asyncio.create_subprocess_exec(PROGRAM, "-p", str(folder), "-c", str(folder / "nginx.conf"))
    try:
        for _ in range(500):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            await asyncio.sleep(0.02)
        yield folder / "error.log"
    finally:
        process.terminate()
        await process.wait()
