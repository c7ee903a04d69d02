"""The lock files: above the floors of known holes, hashed, and silent about where packages come from."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-dev.lock")
OLD = "tests/e2e/old_sdk/requirements.lock"
ALL_LOCKS = (*LOCKS, OLD, "requirements-fuzz.lock")
FLOORS = {"starlette": (1, 3, 1), "h11": (0, 16), "pyjwt": (2, 13), "orjson": (3, 11, 6)}


def pinned(name: str) -> dict[str, tuple[int, ...]]:
    found = re.findall(r"^([a-z0-9._-]+)(?:\[[a-z,]+\])?==([0-9.]+)", (ROOT / name).read_text(), re.MULTILINE)
    return {package: tuple(int(part) for part in version.split(".") if part) for package, version in found}


@pytest.mark.parametrize("lock", LOCKS)
def test_no_package_is_below_its_floor(lock: str) -> None:
    """OPS-07: a lock file below the named floors fails here."""
    versions = pinned(lock)
    assert len(versions) > 30
    for package, floor in FLOORS.items():
        assert versions[package] >= floor, package


@pytest.mark.parametrize("lock", ALL_LOCKS)
def test_everything_is_hashed_and_nothing_is_located(lock: str) -> None:
    """Each requirement carries hashes; no index line and no address is kept."""
    text = (ROOT / lock).read_text()
    blocks = re.split(r"\n(?=\S)", text.strip())
    assert all("--hash=sha256:" in block for block in blocks)
    assert not re.search(r"://|--(extra-)?index-url|--find-links", text)


def test_every_direct_dependency_is_argued_for() -> None:
    """docs/dependencies.md names each package that pyproject.toml asks for."""
    page = (ROOT / "docs/dependencies.md").read_text().lower()
    section = re.search(
        r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL
    )
    assert section is not None
    names = re.findall(r'"([a-z0-9-]+)', section[1])
    assert len(names) > 15
    assert [name for name in names if name not in page] == []


@pytest.mark.parametrize("folder", ["tests/conformance", "tests/e2e/typescript"])
def test_node_packages_are_hashed_and_not_located(folder: str) -> None:
    """Each package of a lock carries its digest and no address; what is asked for is one version, and stays so."""
    lock = json.loads((ROOT / folder / "package-lock.json").read_text())
    packages = {name: one for name, one in lock["packages"].items() if name}
    assert len(packages) > 2
    assert [name for name, one in packages.items() if not one["integrity"].startswith("sha512-")] == []
    assert [name for name, one in packages.items() if "resolved" in one] == []
    asked = json.loads((ROOT / folder / "package.json").read_text())
    versions = [*asked["dependencies"].values(), *asked.get("optionalDependencies", {}).values()]
    assert all(re.fullmatch(r"[0-9]+(\.[0-9]+)+(-[a-z0-9.]+)?", version) for version in versions)
    assert "omit-lockfile-registry-resolved=true" in (ROOT / folder / ".npmrc").read_text().splitlines()
