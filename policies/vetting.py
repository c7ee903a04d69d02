"""What a bundle may not contain, found in its syntax tree before it judges anything (runs in the evaluator).

A policy decides from its input and its data alone: no I/O, nothing random. And what the engine is known to read
otherwise than OPA does is refused, never judged (docs/policy-engine.md, "What is refused at load").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

FORBIDDEN = {
    "http.send": "a policy does no I/O",
    "net.lookup_ip_addr": "a policy does no I/O",
    "opa.runtime": "a policy does not look at its surroundings",
    "rand.intn": "a decision must be repeatable",
    "uuid.rfc4122": "a decision must be repeatable",
}
# Part of the language, though the engine does not list them among its functions.
LANGUAGE = {"print"}


def find_faults(
    trees: list[dict[str, Any]], data: Mapping[str, Any], builtins: frozenset[str], decision: str
) -> Iterator[str]:
    """The engine's syntax trees and the data document -> what is wrong, each as `file:line: sentence`."""
    rules = [(tree, *_rule_path(tree, rule)) for tree in trees for rule in tree["ast"]["rules"]]
    defined = {".".join(path) for _, path, _ in rules}
    if decision not in defined:
        yield f"{trees[0]['source']['file']}: no rule defines {decision}"
    for tree, path, line in rules:
        if _is_data(path, data):
            # The engine would let the data win: a data file could then replace the decision itself.
            yield f"{tree['source']['file']}:{line}: the data holds {'.'.join(path)} too, which is a rule"
    for tree in trees:
        file = tree["source"]["file"]
        package = ".".join(_dotted(tree["ast"]["package"]["refr"]))
        for name, line in _names(tree["ast"]["rules"]):
            if name in FORBIDDEN:
                yield f"{file}:{line}: {name} is not available: {FORBIDDEN[name]}"
        for name, line in _calls(tree["ast"]["rules"]):
            own = f"data.{package}.{name}" in defined or name in defined
            if not own and name not in builtins and name not in LANGUAGE:
                # Also a call through an import's name, which this engine does not resolve (regorus 0.9).
                yield f"{file}:{line}: the function {name} does not exist in this engine"
        for rule in tree["ast"]["rules"]:
            if _has_bound_comprehension(rule):
                yield (
                    f"{file}:{_line(rule)}: a comprehension in the value of a rule with a body fails in this engine; "
                    "assign it in the body"
                )
            if _is_collapsed_object(rule):
                yield (
                    f"{file}:{_line(rule)}: `name[key] if …` keeps one key only in this engine; "
                    "write `name contains key if …` or `name[key] := true if …`"
                )


def list_tests(trees: list[dict[str, Any]]) -> list[str]:
    """The paths of all rules whose last name begins with `test_`, in order, each once."""
    paths = [_rule_path(tree, rule)[0] for tree in trees for rule in tree["ast"]["rules"]]
    return list(dict.fromkeys(".".join(path) for path in paths if path[-1].startswith("test_")))


def _rule_path(tree: dict[str, Any], rule: dict[str, Any]) -> tuple[list[str], int]:
    head = rule["Default"] if "Default" in rule else next(iter(rule["Spec"]["head"].values()))
    return ["data", *_dotted(tree["ast"]["package"]["refr"]), *_dotted(head["refr"])], _line(rule)


def _dotted(ref: dict[str, Any]) -> list[str]:
    """A reference -> its names, up to the first part that is not a constant."""
    kind, node = next(iter(ref.items()))
    if kind in ("Var", "String"):
        return [str(node["value"])]
    if kind == "RefDot":
        return [*_dotted(node["refr"]), str(node["field"][1])]
    if kind == "RefBrack":
        index = next(iter(node["index"]))
        return [*_dotted(node["refr"]), *(_dotted(node["index"]) if index == "String" else [])]
    return []


def _is_data(path: list[str], data: Mapping[str, Any]) -> bool:
    found: Any = data
    for name in path[1:]:
        if not isinstance(found, Mapping) or name not in found:
            return False
        found = found[name]
    return True


def _nodes(tree: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every tagged node below `tree`; iterative, because a policy may nest deeper than Python recurses."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            for tag, inner in node.items():
                if isinstance(inner, dict):
                    yield tag, inner
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _names(tree: Any) -> Iterator[tuple[str, int]]:
    for tag, node in _nodes(tree):
        if tag == "RefDot":
            yield ".".join(_dotted({tag: node})), _line(node)


def _calls(tree: Any) -> Iterator[tuple[str, int]]:
    for tag, node in _nodes(tree):
        if tag == "Call":
            yield ".".join(_dotted(node["fcn"])), _line(node)


def _line(node: dict[str, Any]) -> int:
    if "Spec" in node:
        node = node["Spec"]
    elif "Default" in node:
        node = node["Default"]
    return int(node["span"]["line"])


def _has_bound_comprehension(rule: dict[str, Any]) -> bool:
    """`x := [… | …] if …`: regorus 0.9 forgets to schedule the comprehension, and the evaluation fails."""
    spec = rule.get("Spec", {})
    bodies = spec.get("bodies", [])
    values = [next(iter(spec["head"].values()))] if bodies else []
    values += [body["assign"] for body in bodies if body["assign"]]
    return any(tag in ("ArrayCompr", "SetCompr", "ObjectCompr") for value in values for tag, _ in _nodes(value))


def _is_collapsed_object(rule: dict[str, Any]) -> bool:
    """`name[key] if …` with a key that varies: regorus 0.9 stops after the first one (microsoft/regorus#712)."""
    head = rule.get("Spec", {}).get("head", {}).get("Compr")
    if head is None or head["assign"] is not None:
        return False
    ref = head["refr"]
    while ref:
        kind, node = next(iter(ref.items()))
        if kind == "RefBrack" and next(iter(node["index"])) not in ("String", "Number", "Bool", "Null"):
            return True
        ref = node.get("refr")
    return False
