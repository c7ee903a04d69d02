"""Libraries as a server needs them: without `rich` and Pygments, which the demo brings along.

structlog and httpx load both wherever they are installed, for tracebacks on a terminal and a command of their own:
5 MB and 30 ms in each process, and none that serves draws anything.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final

DRAWING: Final = ("rich", "pygments")


def load_plain(*names: str) -> None:
    """Load these modules as if nothing that draws were installed; whoever wants to draw later finds it as ever."""
    modules: dict[str, Any] = sys.modules
    hidden = [name for name in DRAWING if name not in modules]
    modules.update(dict.fromkeys(hidden))  # None: what Python takes for "not installed"
    try:
        for name in names:
            import_module(name)
    finally:
        for name in hidden:
            del modules[name]
