"""Ports for tests: no two processes of a run are given the same one."""

from __future__ import annotations

import subprocess
import sys

from tests.support.ports import free_port

TAKE = "from tests.support.ports import free_port; print(*(free_port() for _ in range(300)), flush=True); input()"


def test_no_port_is_given_twice() -> None:
    """Of processes that ask at once each has ports of its own, and they are free again once it ended."""
    asking = [
        subprocess.Popen([sys.executable, "-c", TAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    try:
        given = [free_port() for _ in range(300)]
        for one in asking:
            assert one.stdout is not None
            given += map(int, one.stdout.readline().split())
        assert len(given) == len(set(given)) == 1200
    finally:
        for one in asking:
            one.communicate("\n", timeout=60)
