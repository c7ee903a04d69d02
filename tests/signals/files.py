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


def variables() -> dict[str, tuple[str, str]]:
    """What each of the dashboard's variables offers: name -> (metric, label whose values they are)."""
    found = {}
    for one in dashboard()["templating"]["list"]:
        if one["type"] == "query":
            match = re.fullmatch(r"label_values\((\w+), (\w+)\)", one["query"]["query"])
            assert match is not None, one
            found[one["name"]] = (match[1], match[2])
    return found


def queries(**chosen: str) -> Iterator[tuple[str, str]]:
    """(panel's title, query as Grafana would send it) of the whole dashboard; of what is not chosen, all."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            expr = target["expr"]
            for name, value in _VARIABLES.items():
                expr = expr.replace(name, chosen.get(name[1:], value))
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


SHORTER = 60
"""By which every time of the rules is divided for gateways that are broken while one waits."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def shortened() -> str:
    """The shipped rules with every time in them `SHORTER` times shorter: how long they hold, windows, offsets.

    Also the ages that follow a setting's cadence; no other figure.
    """

    def shorter(found: re.Match[str]) -> str:
        return f"{round(int(found[2]) * _UNITS[found[3]] * 1000 / SHORTER)}ms"

    text = re.sub(r"((?<=for: )|(?<=\[)|(?<=offset ))(\d+)([smh])\b", shorter, RULES.read_text())
    ages = r"((?:audit_checkpoint|registry)_age_seconds\)? > )(\d+)"
    return re.sub(ages, lambda found: found[1] + str(int(found[2]) // SHORTER), text)
