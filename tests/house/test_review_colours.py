"""The pages' colours under test: every text on its ground has the contrast of WCAG 2.2 AA, in light and in dark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SHEET = (Path(__file__).parents[2] / "approvals/review/assets/review.css").read_text()
GROUNDS = ("page", "card", "sunk")
TEXTS = [
    *((text, ground) for text in ("text", "quiet", "link") for ground in GROUNDS),
    *((f"{name}-text", f"{name}-back") for name in ("good", "wait", "bad", "off", "new", "mark")),
    ("primary-text", "primary"),
    ("danger", "card"),
    ("danger-text", "danger"),
]
"""(text, ground): 4.5 to 1 (success criterion 1.4.3)."""

CHARTED = tuple(f"chart-{series}" for series in ("allowed", "approved", "held", "refused"))
SHAPES = [
    (shape, ground) for shape in ("edge", "focus", "primary", "danger", *CHARTED) for ground in ("page", "card")
]
"""(border of a control, the focus ring, or a chart's shape, and its ground): 3 to 1 (1.4.11)."""


def colours(scheme: str) -> dict[str, str]:
    """The variables of a scheme; dark ones replace light ones."""
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in _blocks())
    return light | (dark if scheme == "dark" else {})


def _blocks() -> tuple[str, str]:
    found = re.findall(r":root \{(.*?)\}", SHEET, re.DOTALL)
    assert len(found) == 2
    return found[0], found[1]


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_measured_as_the_standard_says() -> None:
    """Black on white is 21, a colour on itself 1, and the standard's borderline grey passes just so."""
    assert round(contrast("#000000", "#ffffff"), 2) == 21
    assert contrast("#777777", "#ffffff") < 4.5 < contrast("#767676", "#ffffff")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_and_every_control_be_seen(scheme: str) -> None:
    """Each pair that the sheet uses, in each scheme."""
    have = colours(scheme)
    weak = [
        (scheme, one, ground, round(contrast(have[one], have[ground]), 2))
        for least, pairs in ((4.5, TEXTS), (3.0, SHAPES))
        for one, ground in pairs
        if contrast(have[one], have[ground]) < least
    ]
    assert weak == []


def test_no_colour_stands_beside_the_variables() -> None:
    """What is not a variable is measured by nobody: outside of the two blocks there is none (but shadows)."""
    rest = re.sub(r":root \{.*?\}", "", SHEET, flags=re.DOTALL)
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b(?!\s*\{)|\brgb|\bhsl", rest) == []
    used = set(re.findall(r"var\(--([\w-]+)\)", rest))
    assert used <= colours("light").keys() | {"shadow"}
    assert colours("light").keys() == colours("dark").keys()
    assert {one for one in used if one not in ("line", "shadow")} <= {
        name for pair in TEXTS + SHAPES for name in pair
    }
