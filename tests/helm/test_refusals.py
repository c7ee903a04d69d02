"""What can't work is refused before anything is installed, in the gateway's words where it has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import ConfigError
from gateway.config_file import load_settings
from gateway.plan import make_plan
from tests.helm.chart import CHART, Helm, merged, values_of
from tests.support.stack import secrets_for

HERE = Path(__file__).parent
CASES: Mapping[str, Mapping[str, Mapping[str, Any]]] = yaml.safe_load((HERE / "refusals.yaml").read_text())
SECRETS = {
    **secrets_for(),
    "OSTIARY_CHECKPOINT_KEY": "A" * 43,
    "OSTIARY_DATABASE": "postgresql://x@y/z",
    "AUDIT_DATABASE": "postgresql://x@y/z",
    "WEBHOOK_SECRETS": "whsec_" + "A" * 32,
}


def _values(case: Mapping[str, Any]) -> dict[str, Any]:
    return merged(values_of(case["in"]), case["change"])


def _lines(said: str) -> list[str]:
    assert "execution error at (ostiary/templates/refusals.yaml" in said, said
    return [line.strip() for line in said.splitlines()[1:] if line.startswith("  ")]


@pytest.mark.parametrize("name", CASES["the_gateways"])
def test_what_the_gateway_refuses_is_refused_in_its_words(
    helm: Helm, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-07: the same configuration is refused by both, for the same reason, and the chart finds no other in it."""
    case = CASES["the_gateways"][name]
    values = _values(case)
    said = _lines(helm.refusal(values))
    assert [line for line in said if case["says"] in line]
    assert all(case["says"] in line or line.startswith("networkPolicy") for line in said), said
    file = tmp_path / "ostiary.yaml"
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())["config"]
    file.write_text(yaml.safe_dump(merged(defaults, values["config"])))
    for variable in values["secretEnv"]:
        monkeypatch.setenv(variable, SECRETS.get(variable, "x"))
    with pytest.raises((ConfigError, ValueError), match=re.escape(case["says"])):
        make_plan(load_settings(file))


@pytest.mark.parametrize("name", CASES["the_charts"])
def test_what_only_the_chart_can_know_is_refused_with_its_reason(helm: Helm, name: str) -> None:
    """OPS-07: values that would leave a gateway that can't serve, or that serves less safely than it says."""
    case = CASES["the_charts"][name]
    said = _lines(helm.refusal(_values(case)))
    assert [line for line in said if case["says"] in line], said


def test_every_mistake_is_told_at_once(helm: Helm) -> None:
    """As `ostiary check` has it: three mistakes are three lines."""
    settings = {"admin": {"host": "127.0.0.1"}, "public_url": "http://x.example.com"}
    said = _lines(helm.refusal(merged(values_of("single"), {"replicas": 2, "config": settings})))
    told = [line for line in said if re.match(r"config\.(approvals\.database|admin\.host|public_url): ", line)]
    assert len(told) == 3
