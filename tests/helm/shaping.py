"""Makes the `definitions` of helm/values.schema.json anew: `python -m tests.helm.shaping`.

`config` is the gateway's own settings, and what is handed on to Kubernetes is Kubernetes' own. All else in that file
is written by hand. A test holds what is there to what would be made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.config import Settings
from tests.helm.schemas import load, strict

FILE = Path(__file__).parents[2] / "helm/values.schema.json"
HANDED_ON = (
    "io.k8s.api.core.v1.Affinity",
    "io.k8s.api.core.v1.Toleration",
    "io.k8s.api.core.v1.ResourceRequirements",
    "io.k8s.api.networking.v1.NetworkPolicyPeer",
    "io.k8s.api.networking.v1.NetworkPolicyEgressRule",
    "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector",
    "io.k8s.apimachinery.pkg.api.resource.Quantity",
)
TEXTS = {"title", "description", "default", "discriminator", "format"}


def _plain(node: Any, *, names: bool = False) -> Any:
    """A schema without texts and defaults. A word that YAML reads as false or as a date may be written bare."""
    if isinstance(node, list):
        return [_plain(one) for one in node]
    if not isinstance(node, dict):
        return node
    made = {
        key: _plain(value, names=key in ("properties", "definitions") and not names)
        for key, value in node.items()
        if names or key not in TEXTS
    }
    if "patternProperties" in made and not names:
        made.setdefault("additionalProperties", False)
    if "off" in made.get("enum", ()):
        made = {"enum": [*made["enum"], False]}
    return made


def of_settings() -> dict[str, Any]:
    """The gateway's settings as definitions, the whole of them as `Settings`."""
    schema = Settings.model_json_schema(ref_template="#/definitions/{model}")
    definitions = schema.pop("$defs")
    return {name: _plain(one) for name, one in {**definitions, "Settings": schema}.items()}


def of_kubernetes() -> dict[str, Any]:
    """What values hand on, and all that it refers to."""
    schemas, made, wanted = load("kubernetes-oldest"), {}, list(HANDED_ON)
    while wanted:
        name = wanted.pop()
        if name not in made:
            made[name] = _plain(strict(schemas[name]))
            wanted += [one.rpartition("/")[2] for one in _references(made[name])]
    return made


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [one for part in node for one in _references(part)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
    return own + [one for part in node.values() for one in _references(part)]


def definitions() -> Mapping[str, Any]:
    """All of them, by name."""
    return dict(sorted({**of_settings(), **of_kubernetes()}.items()))


def text(schema: Mapping[str, Any]) -> str:
    """The file: what is written by hand in full, a definition a line."""
    by_hand = {key: value for key, value in schema.items() if key != "definitions"}
    lines = [f"    {json.dumps(name)}: {json.dumps(one, sort_keys=True)}" for name, one in definitions().items()]
    return json.dumps(by_hand, indent=2)[:-2] + ',\n  "definitions": {\n' + ",\n".join(lines) + "\n  }\n}\n"


if __name__ == "__main__":
    FILE.write_text(text(json.loads(FILE.read_text())))
