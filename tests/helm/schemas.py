"""Kubernetes' own schemas as JSON Schema, strict: an unknown field is an error (`kubectl --validate=strict`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs

VECTORS = Path(__file__).parents[1] / "vectors/kubernetes"
KUBERNETES = ("kubernetes-oldest", "kubernetes-newest")
CUSTOM = ("gateway-api", "prometheus-operator")
REFERENCE = "#/components/schemas/"


def strict(node: Any, prefix: str = "#/definitions/") -> Any:
    """OpenAPI 3.0 as Kubernetes writes it -> JSON Schema without open objects, references below `prefix`."""
    if isinstance(node, list):
        return [strict(one, prefix) for one in node]
    if not isinstance(node, dict):
        return node
    made = {key: strict(value, prefix) for key, value in node.items() if not key.startswith("x-kubernetes-")}
    if isinstance(reference := node.get("$ref"), str):
        made["$ref"] = reference.replace(REFERENCE, prefix)
    if isinstance(node.get("properties"), dict):
        made["properties"] = {key: strict(value, prefix) for key, value in node["properties"].items()}
        if not node.get("x-kubernetes-preserve-unknown-fields"):
            made.setdefault("additionalProperties", False)
    if node.get("x-kubernetes-int-or-string"):
        made |= {"anyOf": [{"type": "integer"}, {"type": "string"}]}
        made.pop("type", None)
    return made


@cache
def load(name: str) -> Mapping[str, Any]:
    """The schemas of a file under tests/vectors/kubernetes, as they were taken."""
    found: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text())["schemas"]
    return found


def _kinds(name: str) -> Iterator[tuple[str, str]]:
    """(apiVersion/Kind, its schema's name)."""
    for key, schema in load(name).items():
        if name in CUSTOM:
            yield key, key
        for one in schema.get("x-kubernetes-group-version-kind", ()):
            yield "/".join(part for part in (one["group"], one["version"], one["kind"]) if part), key


@cache
def validators(name: str) -> Mapping[str, jsonschema_rs.Validator]:
    """apiVersion/Kind -> what judges such a manifest."""
    definitions = {key: strict(schema) for key, schema in load(name).items()}
    if name in CUSTOM:
        anything = {"type": "object"}
        for schema in definitions.values():
            schema["properties"]["metadata"] = anything  # judged as Kubernetes' own ObjectMeta by the caller
    return {
        kind: jsonschema_rs.Draft202012Validator(
            {"$ref": f"#/definitions/{_escape(key)}", "definitions": definitions}
        )
        for kind, key in _kinds(name)
    }


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def faults(manifest: Mapping[str, Any], name: str) -> list[str]:
    """What a version of Kubernetes, or of a custom resource's definition, would not take of a manifest."""
    kind = f"{manifest['apiVersion']}/{manifest['kind']}"
    validator = validators(name).get(kind)
    if validator is None:
        return [f"{kind} is not known"]
    return [f"{'/'.join(map(str, one.instance_path))}: {one.message}" for one in validator.iter_errors(manifest)]
