"""Real processes for the end-to-end tests: the demo's stack, started once for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.demo.house import Ports
from gateway.demo.stack import Stack


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """Two replicas, issuer and gateway as processes on free ports.

    `stack.house` has URLs and files, `stack.mint(person, server, scope)` a token, `stack.books` what reached the
    replicas and what it did, `stack.audit_records()` the record, `stack.run(...)` the command line.
    """
    with Stack(ports=Ports.free()) as running:
        yield running
