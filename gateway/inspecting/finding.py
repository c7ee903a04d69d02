"""What `ostiary check` tells: one thing that it looked at."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, whether it is in order, and in words what is (or is not) there.

    `place`: where in which file, as FILE#POINTER (RFC 6901); with it something is to be looked at even where it is in
    order. `mend`: what to do. `asked`: false where it could not be looked at.
    """

    what: str
    ok: bool
    detail: str
    place: str = ""
    mend: str = ""
    asked: bool = True

    def line(self) -> str:
        """For people."""
        mark = ("note" if self.place else "ok  ") if self.ok else "FAIL" if self.asked else "????"
        where = f"{self.place}: " if self.place else ""
        return f"{mark} {self.what}: {where}{self.detail}{self.mend and f' -> {self.mend}'}"

    def document(self) -> dict[str, Any]:
        """For programs: `place` and `mend` only where there are any."""
        told = asdict(self)
        return {
            name: told[name]
            for name in told
            if name not in ("place", "mend", "asked") or told[name] not in ("", True)
        }
