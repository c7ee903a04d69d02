"""What may be taken from a budget, and what was: values that whoever counts and whoever asks share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allowance:
    """At most `count` in `window_s` seconds, for whatever `key` stands for (1 to 64 characters)."""

    key: str
    name: str
    count: int
    window_s: float


@dataclass(frozen=True, slots=True)
class Taken:
    """One of an allowance was taken, in the window that ends at `ends_at` by the clock that counted."""

    key: str
    ends_at: float


class Spent(Exception):  # noqa: N818 - what the budget is
    """Nothing is left of an allowance; nothing was taken of any."""

    def __init__(self, name: str, free_in_s: float) -> None:
        super().__init__(f"budget {name}: nothing left for {free_in_s:.1f} s")
        self.name = name
        self.free_in_s = free_in_s
