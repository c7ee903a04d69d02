"""Makes tests/vectors/kubernetes anew: of Kubernetes' own schemas, the kinds that the chart renders and no other.

`python -m tests.helm.taking OLDEST NEWEST GATEWAY_API PROMETHEUS_OPERATOR`: the folders of the unpacked Go modules,
of Kubernetes two, as `go mod download -json MODULE@VERSION` tells them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parents[1] / "vectors/kubernetes"
KINDS = {
    "api__v1": ("ConfigMap", "Pod", "Service", "ServiceAccount"),
    "apis__apps__v1": ("Deployment", "StatefulSet"),
    "apis__autoscaling__v2": ("HorizontalPodAutoscaler",),
    "apis__batch__v1": ("Job",),
    "apis__networking.k8s.io__v1": ("Ingress", "NetworkPolicy"),
    "apis__policy__v1": ("PodDisruptionBudget",),
}
CUSTOM = {
    "gateway-api": ["config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"],
    "prometheus-operator": [
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
    ],
}
WORDS = {"description", "example", "externalDocs", "x-kubernetes-validations"}
"""What is left out: it constrains nothing here (rules in CEL need their own engine)."""


def _bare(node: Any, *, names: bool = False) -> Any:
    """A schema without its texts. `names`: the keys here are properties' names, which may be any word."""
    if isinstance(node, list):
        return [_bare(one) for one in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _bare(value, names=key in ("properties", "schemas") and not names)
        for key, value in node.items()
        if names or key not in WORDS
    }


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(found := node.get("$ref"), str):
            yield found.rpartition("/")[2]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def of_kubernetes(module: Path) -> dict[str, Any]:
    """The schemas of `KINDS` and of all that they refer to."""
    taken: dict[str, Any] = {}
    for name, kinds in KINDS.items():
        document = json.loads((module / f"api/openapi-spec/v3/{name}_openapi.json").read_text())
        schemas = document["components"]["schemas"]
        wanted = [
            key
            for key, schema in schemas.items()
            for one in schema.get("x-kubernetes-group-version-kind", ())
            if one["kind"] in kinds and key.endswith("." + one["kind"])
        ]
        assert len(wanted) == len(kinds), (name, wanted)
        while wanted:
            key = wanted.pop()
            if key not in taken:
                taken[key] = _bare(schemas[key])
                wanted += _references(schemas[key])
    return taken


def of_custom(file: Path) -> dict[str, Any]:
    """{"group/version/Kind": schema} of a CustomResourceDefinition."""
    spec = yaml.safe_load(file.read_text())["spec"]
    return {
        f"{spec['group']}/{version['name']}/{spec['names']['kind']}": _bare(version["schema"]["openAPIV3Schema"])
        for version in spec["versions"]
        if version["served"]
    }


def write(name: str, source: str, schemas: dict[str, Any]) -> None:
    """One schema a line, so that a newer version shows as what changed."""
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(schemas[key], sort_keys=True)}" for key in sorted(schemas))
    (HERE / f"{name}.json").write_text(f'{{"source": {json.dumps(source)}, "schemas": {{\n{lines}\n}}}}\n')


def main(old: Path, new: Path, *custom: Path) -> None:
    """Write all of them."""
    for name, module in (("kubernetes-oldest", old), ("kubernetes-newest", new)):
        write(name, f"k8s.io/{module.name}", of_kubernetes(module))
    for (name, files), module in zip(CUSTOM.items(), custom, strict=True):
        found = {key: schema for file in files for key, schema in of_custom(module / file).items()}
        write(name, module.name, found)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
