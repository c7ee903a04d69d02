"""One worker process: the house behind a uvicorn server, on the supervisor's socket.

It says once a second on the status pipe whether it is ready. When that pipe breaks, the supervisor is gone, and the
worker stops as on SIGTERM: calls finish within the grace time, then records are committed and the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time

import orjson
import structlog
import uvicorn

from gateway.app import House
from gateway.supervisor import STATUS_EVERY_S, QuietServer


LOOK_EVERY_S = 0.1


async def _report(house: House, status_fd: int, server: uvicorn.Server) -> None:
    """Write status lines until the server stops or the supervisor is gone."""
    said, said_at = b"", 0.0
    while not server.should_exit:
        ready, missing, degraded = house.status()
        line = orjson.dumps({"ready": ready and server.started, "missing": missing, "degraded": degraded}) + b"\n"
        now = time.monotonic()
        if line != said or now - said_at >= STATUS_EVERY_S:
            try:
                os.write(status_fd, line)
                said, said_at = line, now
            except BlockingIOError:
                pass  # the supervisor is slow; the next beat says it again
            except BrokenPipeError:
                server.should_exit = True
        await asyncio.sleep(LOOK_EVERY_S)


async def work(house: House, fd: int, status_fd: int) -> None:
    """Serve on the inherited socket `fd` until SIGTERM. Raises what `House.start` raises."""
    os.set_blocking(status_fd, False)
    listener = socket.socket(fileno=fd)
    await house.start()
    server = QuietServer(house.server_config())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, setattr, server, "should_exit", True)
    reporting = asyncio.create_task(_report(house, status_fd, server))
    try:
        await server.serve(sockets=[listener])
    finally:
        server.should_exit = True
        with contextlib.suppress(OSError):
            os.write(status_fd, orjson.dumps({"ready": False, "missing": ["draining"], "degraded": []}) + b"\n")
        await reporting
        await house.close()
        structlog.get_logger("worker").info("stopped")
