"""What a worker says of itself to its supervisor: one JSON line on the status pipe, about once a second.

Readiness and every gauge travel this way, so that what a dead worker said last is gone with it. Gauges are named in
gateway/serving/admin.py, which says what they mean and how those of several workers become one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

Figure = float | Mapping[str, float]
"""A gauge's value, or its values by the one label that it has."""

LONGEST_LINE = 1 << 20


def sum_up(parts: Mapping[str, str]) -> str:
    """One SHA-256 over a digest for each part."""
    return hashlib.sha256(
        "".join(f"{part} {digest}\n" for part, digest in sorted(parts.items())).encode()
    ).hexdigest()


@dataclass(frozen=True, slots=True)
class Status:
    """`missing`: own parts without which it is not ready; `degraded`: shared dependencies that fail.

    `revision` is the policy bundle's; `gauges` maps a gauge's name to its figure; `loaded` is what it serves by: the
    SHA-256 of each part, `""` for one that is not there.
    """

    ready: bool
    missing: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()
    revision: str = ""
    gauges: Mapping[str, Figure] = field(default_factory=dict)
    loaded: Mapping[str, str] = field(default_factory=dict)

    @property
    def configuration(self) -> str:
        """The SHA-256 of the configuration's text."""
        return self.loaded.get("configuration", "")

    def encode(self) -> bytes:
        """As a line."""
        return orjson.dumps(asdict(self)) + b"\n"


@dataclass(frozen=True, slots=True)
class Resigned:
    """The worker's last word: it can't start, and why. The text names the setting."""

    why: str

    def encode(self) -> bytes:
        """As a line."""
        return orjson.dumps({"why": self.why[:4000]}) + b"\n"


def read_line(line: bytes) -> Status | Resigned:
    """A line of the pipe. Raises `ValueError` for anything that `encode` does not write."""
    try:
        said: dict[str, Any] = orjson.loads(line)
        if "why" in said:
            return Resigned(said["why"])
        return Status(
            ready=said["ready"],
            missing=tuple(said["missing"]),
            degraded=tuple(said["degraded"]),
            revision=said["revision"],
            gauges=said["gauges"],
            loaded=said["loaded"],
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a status: {error}") from error
