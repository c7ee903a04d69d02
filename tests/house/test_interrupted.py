"""Ctrl-C in a command."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PATIENCE_S = 60.0
PREPARE = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"  # a shell may have made it deaf
    "from gateway.cli import main; main(sys.argv[1:], prog_name='ostiary')"
)


@contextmanager
def command(*words: str, terminal: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
    """`ostiary` with these words, all that it says and hears at `terminal`."""
    out = terminal if terminal != subprocess.DEVNULL else subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", PREPARE, *words], stdin=terminal, stdout=out, stderr=out)
    with process:
        try:
            yield process
        finally:
            process.kill()


def until(what: str, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def test_a_command_at_work_ends_by_130_without_a_word(tmp_path: Path) -> None:
    """It waits for its configuration, which comes from a pipe; no traceback, no "Aborted!", no answer's code."""
    pipe = tmp_path / "ostiary.yaml"
    os.mkfifo(pipe)
    with command("check", "--config", str(pipe)) as process:
        writing: list[int] = []

        def it_reads() -> bool:
            with contextlib.suppress(OSError):  # nobody has it open yet
                writing.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
            return bool(writing)

        until("it reads", it_reads)
        try:
            process.send_signal(signal.SIGINT)
        finally:
            os.close(writing[0])  # a signal that came just before its read began is heard of when that ends
        assert process.wait(PATIENCE_S) == 130
        assert process.stdout is not None
        assert process.stderr is not None
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"\n")


def a_question(folder: Path, answer: Callable[[subprocess.Popen[bytes], int], object]) -> tuple[int, bytes]:
    """`init` asks at a terminal, and is answered so -> exit code, and what stands on the screen."""
    ours, theirs = os.openpty()
    try:
        with command("init", "--dir", str(folder), terminal=theirs) as process:
            seen = bytearray()

            def it_says(what: bytes) -> bool:
                while select.select([ours], [], [], 0)[0]:
                    seen.extend(os.read(ours, 4096))
                return what in seen

            until("it asks", lambda: it_says(b"): "))
            answer(process, ours)
            code = process.wait(PATIENCE_S)
            it_says(b"")
            return code, bytes(seen)
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_command_that_asks_a_question_does_too(tmp_path: Path) -> None:
    """`init` at a terminal; the end of the input instead of an answer stays what it was: none, exit 1."""

    def interrupt(process: subprocess.Popen[bytes], terminal: int) -> None:
        process.send_signal(signal.SIGINT)
        os.write(terminal, b"\n")  # as above: what came just before the read is heard of when that ends

    code, seen = a_question(tmp_path / "new", interrupt)
    assert (code, b"Aborted" in seen, b"Traceback" in seen) == (130, False, False)
    code, seen = a_question(tmp_path / "new", lambda _, terminal: os.write(terminal, b"\x04"))
    assert (code, b"Aborted" in seen) == (1, True)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("word", ["check", "init"])
def test_an_error_of_a_command_stays_its_own(word: str) -> None:
    """What was not stopped is not said to have been."""
    with command(word, "--no-such-option") as process:
        assert process.wait(PATIENCE_S) == 2
