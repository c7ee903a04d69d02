"""A worker's process may be there before its configuration is judged, and is nothing until it is told what to be."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from gateway.serving.employment import Life
from gateway.serving.understudy import Understudy


async def test_one_that_is_dismissed_is_gone() -> None:
    """Where the configuration is refused, nothing of a worker stays behind."""
    one = await Understudy.call()
    assert one._process.returncode is None
    await one.dismiss()
    assert one._process.returncode == -signal.SIGKILL


async def test_one_whose_supervisor_is_gone_ends_without_a_word() -> None:
    """It hears the end of its supervisor, and says nothing of it."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway.serving.understudy", str(theirs.fileno()), "worker",
            pass_fds=(theirs.fileno(),), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    ours.close()
    said, _ = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, said) == (0, b"")


async def test_it_plays_the_worker_that_it_is_told_of(tmp_path: Path) -> None:
    """The worker's arguments, environment and descriptors arrive: what it resigns with comes back on its pipe."""
    one = await Understudy.call()
    readable, writable = os.pipe()
    text = tmp_path / "text.yaml"
    text.write_text("listen: {port: 1}\n")
    with socket.socket() as listener, os.fdopen(readable, "rb") as pipe:
        arguments = (
            "worker", "--config", str(tmp_path / "ostiary.yaml"), "--home", str(tmp_path), "--host", "127.0.0.1",
            "--port", "1", "--workers", "1", "--text", str(text), "--seat", "0",
        )  # fmt: skip
        process = one.play(arguments, listener.fileno(), writable, {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)})
        os.close(writable)
        said = await asyncio.to_thread(pipe.read)
    assert await asyncio.wait_for(process.wait(), 30) == 3
    assert b"public_url: is required" in said


async def test_one_that_died_costs_no_start() -> None:
    """A worker that it can't be any more is started as any other is."""
    one = await Understudy.call()
    one._process.kill()
    await one._process.wait()
    sleeping = (sys.executable, "-c", "import time; time.sleep(60)")
    with socket.socket() as listener:
        life = await Life.begin(sleeping, listener.fileno(), 0, 1.0, {}, understudy=one)
    assert life.worker.pid != one._process.pid
    assert life._process.returncode is None
    life.leave(signal.SIGKILL)
    assert await asyncio.wait_for(life.ended, 30) == (-signal.SIGKILL, "")
