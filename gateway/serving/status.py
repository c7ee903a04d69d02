"""What a worker says of itself to its supervisor: one JSON line on the status pipe, about once a second.

Readiness and every gauge travel this way, so that what a dead worker said last is gone with it. Gauges are named in
gateway/serving/admin.py, which says what they mean and how those of several workers become one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

Figure = float | Mapping[str, float]
"""A gauge's value, or its values by the one label that it has."""

LONGEST_LINE = 1 << 20


@dataclass(frozen=True, slots=True)
class Status:
    """`missing`: own parts without which it is not ready; `degraded`: shared dependencies that fail.

    `revision` is the policy bundle's, `configuration` the digest of what it runs on; `gauges` maps a gauge's name to
    its figure.
    """

    ready: bool
    missing: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()
    revision: str = ""
    gauges: Mapping[str, Figure] = field(default_factory=dict)
    configuration: str = ""

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
            configuration=said["configuration"],
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a status: {error}") from error
