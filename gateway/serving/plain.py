"""Libraries as a server needs them: without `rich`, Pygments and greenlet, which others brought along.

structlog and httpx load the first two wherever they are installed, for tracebacks on a terminal and a command of
their own: 5 MB and 30 ms in each process, and none that serves draws anything. structlog loads greenlet for a
thread-local that it advises against: 1 MB. SQLAlchemy, for which it is there, loads it for PostgreSQL alone.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final

UNUSED: Final = ("rich", "pygments", "greenlet")


def load_plain(*names: str) -> None:
    """Load these modules as if nothing of `UNUSED` were installed; whoever wants it later finds it as ever.

    Not in a thread for what is not there yet: another one that wants greenlet meanwhile would find none.
    """
    modules: dict[str, Any] = sys.modules
    if all(name in modules for name in names):
        return  # a thread that asks for what is there hides nothing from the others, not for a moment
    hidden = [name for name in UNUSED if name not in modules]
    modules.update(dict.fromkeys(hidden))  # None: what Python takes for "not installed"
    try:
        for name in names:
            import_module(name)
    finally:
        for name in hidden:
            del modules[name]
