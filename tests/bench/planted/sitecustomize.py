"""Python imports this at its start where this folder is on `PYTHONPATH`: 100 µs of Python more in each call.

It is how the gate is shown to see such a change: `python -m tests.bench.gate --planted`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

PLANTED_S = 100e-6

if "worker" in sys.orig_argv:
    from gateway.pipeline import Corridor

    serve = Corridor.serve

    def _slower(*given: Any, **named: Any) -> Any:
        end = time.thread_time() + PLANTED_S
        while time.thread_time() < end:
            pass
        return serve(*given, **named)

    Corridor.serve = _slower  # type: ignore[method-assign]
