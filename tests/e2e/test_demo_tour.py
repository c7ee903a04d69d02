"""`ostiary demo --tour`, the command itself: every stop behaves, in time, and a pipe gets plain text."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

from gateway.demo.stops import STOPS

COMMAND = [sys.executable, "-m", "gateway.cli", "demo"]
ANSI = re.compile(r"\x1b")


def test_the_tour_ends_with_zero_and_plain_text_in_under_twenty_seconds() -> None:
    """Every stop is walked and behaves; no ANSI sequence reaches a pipe, even if colours are asked for.

    The time is that of all its processes on one core: it holds on a machine that is busy with other tests as well.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*COMMAND, "--tour"],
        env=os.environ | {"FORCE_COLOR": "1", "TERM": "xterm-256color"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert not ANSI.search(done.stdout)
    for number, stop in enumerate(STOPS, start=1):
        assert f"{number}/{len(STOPS)}  {stop.title}" in done.stdout
    assert "✘" not in done.stdout
    assert done.stdout.count("✔") > 40
    assert took < 20, f"the tour took {took:.1f} s"
    assert not re.search(r"eyJ[\w-]{40}", done.stdout), "a whole token stands in the tour's output"


def test_without_tour_it_stays_up_with_lines_that_work_when_copied(tmp_path: Path) -> None:
    """The demo ends with the stack up; each curl line, copied as printed, does what the sentence above it says."""
    output = tmp_path / "output"
    with output.open("wb") as stream, subprocess.Popen(COMMAND, stdout=stream, stderr=subprocess.STDOUT) as demo:
        try:
            deadline = time.monotonic() + 60
            while "Ctrl-C ends everything." not in output.read_text():
                assert demo.poll() is None, output.read_text()[-4000:]
                assert time.monotonic() < deadline, output.read_text()[-4000:]
                time.sleep(0.1)
            text = output.read_text()
            tokens = "\n".join(re.findall(r"^[A-Z_]+='eyJ[^']+'$", text, re.MULTILINE))
            curls = re.findall(r"^curl -sS (?:.*\\\n)*.*$", text, re.MULTILINE)
            assert len(tokens.splitlines()) == 3
            assert len(curls) == 5
            read, pay, waiting, approve, mint = curls
            queue = re.findall(r'^OSTIARY_TOKEN="\$BOB_REVIEWS" .*$', text, re.MULTILINE)
            assert '"balance_cents"' in shell(tokens, read)
            assert '"transfer_number":2' in shell(tokens, pay).replace(" ", "")
            assert "40303" in shell(tokens, pay), "the approved transfer ran twice"
            assert '"tickets"' in shell(tokens, waiting)
            assert "pending" in shell(tokens, queue[0])
            assert '"approved"' in shell(tokens, approve)
            assert '"access_token"' in shell(tokens, mint)
        finally:
            demo.send_signal(signal.SIGINT)
            try:
                demo.wait(20)
            finally:
                demo.kill()  # its parts end with it: they are on a leash
    directory = re.search(r"config +(\S+)/ostiary\.yaml", output.read_text())
    assert directory is not None
    assert not Path(directory[1]).exists()
    assert "Everything is stopped" in output.read_text()
    assert "Traceback" not in output.read_text()


def shell(tokens: str, line: str) -> str:
    """What a shell prints for the copied lines."""
    done = subprocess.run(
        ["/bin/sh", "-c", f"{tokens}\n{line}"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
