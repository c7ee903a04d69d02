"""Puts a defect into a gateway worker: its catalogue breaks on a tool named `defect`. Only test_ailing.py loads this.

A seam that no longer exists ends the worker with 70, instead of a test that breaks nothing.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

if "ROWS_DEFECT" in os.environ and "worker" in sys.orig_argv:
    try:
        from gateway.catalog import Catalog

        _look_up = Catalog.look_up

        async def _break(self: Catalog, server: Any, call: Any) -> Any:
            if call.name == "defect":
                raise ZeroDivisionError(os.environ["ROWS_DEFECT"])
            return await _look_up(self, server, call)

        Catalog.look_up = _break  # type: ignore[method-assign]
    except (ImportError, AttributeError):
        traceback.print_exc()
        os._exit(70)
