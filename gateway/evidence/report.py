"""The report for people: one HTML file that needs nothing but itself, made of verdicts that were just derived.

It is a function of the pack's files: whoever verifies a pack makes it anew and compares.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import groupby
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gateway.contract.printable import printable
from gateway.evidence.checks import CLASSES, Verdict

_LONGEST: Final = 600
_COLOURS: Final = (files("approvals.review") / "assets" / "review.css").read_text().partition("\n*, *::before")[0]
"""Those of the review pages, which a test holds to WCAG AA."""

TOLD: Final[Mapping[str, str]] = {
    "ostiary": "Ostiary",
    "python": "Python",
    "revision": "MCP revision",
    "bundle": "Policy bundle",
    "engine": "Policy engine",
    "database": "Database of approvals",
    "record_key": "Record signed by",
    "config_sha256": "Configuration, SHA-256",
    "system": "System",
}
"""The facts that are shown, and their names."""

_environment = Environment(
    loader=PackageLoader("gateway.evidence"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)


def _breakable(name: str) -> Markup:
    """A file's name that may be broken where its words end, and nowhere else."""
    return Markup("<wbr>").join(part for part in re.split(r"(?<=[/_])", name))


_environment.filters["break"] = _breakable


def render(verdicts: Sequence[Verdict], facts: Mapping[str, Any], not_asked: Mapping[str, str]) -> bytes:
    """The report. What came is a stranger's text: printed with nothing hidden, and cut where it is endless."""
    grouped = [
        (group, CLASSES[group], [(verdict, printable(verdict.came, _LONGEST)) for verdict in found])
        for group, found in groupby(verdicts, key=lambda verdict: verdict.check.group)
    ]
    page = _environment.get_template("report.html.jinja").render(
        grouped=grouped,
        held=sum(verdict.holds for verdict in verdicts),
        asked=len(verdicts),
        facts=facts,
        not_asked=not_asked,
        told=TOLD,
        colours=Markup(_COLOURS),  # noqa: S704 - our own sheet
    )
    return page.encode()
