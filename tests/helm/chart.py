"""The chart as the real Helm renders it: manifests by set of values, and what it says where it refuses."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm"
SETS = sorted(file.name.removesuffix("-values.yaml") for file in (CHART / "ci").glob("*-values.yaml"))
RELEASE, NAMESPACE = "ostiary", "mcp"
WORKLOADS = ("Deployment", "StatefulSet", "Job", "Pod")

Manifest = Mapping[str, Any]

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, ten times as fast, where there is one."""


class Refused(AssertionError):  # noqa: N818 - what it is
    """Helm rendered nothing; the text is what it said."""


def values_of(name: str) -> dict[str, Any]:
    """A set of values under helm/ci, read anew."""
    found: dict[str, Any] = yaml.safe_load((CHART / f"ci/{name}-values.yaml").read_text())
    return found


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Maps merged as Helm merges them: `None` takes a key away."""
    made = dict(under)
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(made.get(key), Mapping):
            made[key] = merged(made[key], value)
        elif value is None:
            made.pop(key, None)
        else:
            made[key] = value
    return made


@dataclass(frozen=True)
class Helm:
    """The program."""

    program: Path

    def run(
        self, *arguments: str, given: str | None = None, home: Path = Path("/nonexistent")
    ) -> subprocess.CompletedProcess[str]:
        """One command, with nothing of this machine's configuration and without the network (loopback aside)."""
        return subprocess.run(
            [self.program, *arguments], input=given, capture_output=True, text=True, timeout=60, check=False,
            env={"HOME": str(home), "PATH": "/usr/bin:/bin", "HTTPS_PROXY": "http://127.0.0.1:9"},
        )  # fmt: skip

    def text(self, values: Mapping[str, Any], *options: str, chart: Path = CHART) -> str:
        """What `helm template` prints for values. Raises `Refused`."""
        done = self.run(
            "template", RELEASE, str(chart), "--namespace", NAMESPACE, "--values", "-", *options,
            given=yaml.dump(dict(values), Dumper=DUMPER, sort_keys=False),
        )  # fmt: skip
        if done.returncode:
            raise Refused(done.stderr)
        return done.stdout

    def render(self, values: Mapping[str, Any], *options: str, chart: Path = CHART) -> list[Manifest]:
        """The manifests for values. Raises `Refused`."""
        return [one for one in yaml.load_all(self.text(values, *options, chart=chart), LOADER) if one]

    def notes(self, values: Mapping[str, Any]) -> str:
        """What an install says at its end, tried without a cluster."""
        done = self.run(
            "install", RELEASE, str(CHART), "--dry-run=client", "--namespace", NAMESPACE, "--values", "-",
            given=yaml.safe_dump(dict(values)),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.partition("NOTES:\n")[2]

    def refusal(self, values: Mapping[str, Any], *options: str, chart: Path = CHART) -> str:
        """What it says to values that it must not render."""
        try:
            self.text(values, *options, chart=chart)
        except Refused as refused:
            return str(refused)
        raise AssertionError("it was rendered")


@cache
def text_of(helm: Helm, name: str) -> str:
    """What a set under helm/ci renders, once."""
    return helm.text(values_of(name))


@cache
def rendered(helm: Helm, name: str) -> tuple[Manifest, ...]:
    """The manifests of a set under helm/ci, rendered once."""
    return tuple(one for one in yaml.load_all(text_of(helm, name), LOADER) if one)


def one(manifests: Sequence[Manifest], kind: str, name: str = "") -> Any:
    """The manifest of a kind, of that name where there are several."""
    found = [item for item in manifests if item["kind"] == kind and name in ("", item["metadata"]["name"])]
    assert len(found) == 1, (kind, name, [item["metadata"]["name"] for item in found])
    return found[0]


def gateway_of(manifests: Sequence[Manifest]) -> Any:
    """The gateway's Deployment or StatefulSet."""
    found = [m for m in manifests if m["kind"] in ("Deployment", "StatefulSet") and m["metadata"]["name"] == RELEASE]
    assert len(found) == 1
    return found[0]


def pods(manifests: Sequence[Manifest]) -> Iterator[tuple[str, Any]]:
    """("kind/name", pod) of everything that runs; a pod has `metadata` and `spec`."""
    for item in manifests:
        if item["kind"] in WORKLOADS:
            pod = item if item["kind"] == "Pod" else item["spec"]["template"]
            yield f"{item['kind']}/{item['metadata']['name']}", pod


def containers(pod: Manifest) -> list[Any]:
    """All of a pod's containers, those that start first included."""
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def settings_text(manifests: Sequence[Manifest]) -> str:
    """The gateway's configuration as it is mounted."""
    text: str = one(manifests, "ConfigMap", f"{RELEASE}-config")["data"]["ostiary.yaml"]
    return text
