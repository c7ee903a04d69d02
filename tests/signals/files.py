"""The alert rules and the dashboard as they are shipped, and what their queries name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "helm/files/alerts.yaml"
DASHBOARD = ROOT / "helm/files/dashboard.json"
_VARIABLES = {"$__rate_interval": "15s", "$instance": ".*", "$server": ".*"}


@dataclass(frozen=True)
class Alert:
    """One rule."""

    name: str
    expr: str
    hold: str
    severity: str
    annotations: dict[str, str]


def alerts() -> list[Alert]:
    """All of them, in the file's order."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [
        Alert(rule["alert"], rule["expr"], rule["for"], rule["labels"]["severity"], rule["annotations"])
        for group in groups
        for rule in group["rules"]
    ]


def dashboard() -> dict[str, Any]:
    """The dashboard."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def queries() -> Iterator[tuple[str, str]]:
    """(panel's title, query as Grafana would send it) of the whole dashboard."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            expr = target["expr"]
            for name, value in _VARIABLES.items():
                expr = expr.replace(name, value)
            yield panel["title"], expr


def metrics_of(expr: str) -> set[str]:
    """The gateway's metrics that a query names, a histogram's by their family."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bostiary_\w+", expr)}


def quick(expr: str) -> str:
    """A query that looks back for seconds, where it would for minutes."""
    return expr.replace("[5m]", "[10s]")


def quick_rules(folder: Path) -> Path:
    """A copy of the rules that need to hold for a moment only."""
    copy = folder / "alerts.yaml"
    copy.write_text(quick(re.sub(r"for: \w+", "for: 500ms", RULES.read_text())))
    return copy
