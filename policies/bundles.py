"""A policy bundle on disk -> one value with everything that judging takes, read once.

Layout (OPA's own): `PATH/.manifest`, `PATH/mcp/authz/*.rego`, `PATH/mcp/authz/data.json`. A file that OPA would read
and this engine would not is an error, so that both engines judge by the same text. Errors name the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policies.verdict import PolicyUnavailable

PACKAGE_PATH = ("mcp", "authz")
DECISION = "data.mcp.authz.decision"
LARGEST_BUNDLE = 32 * 1024 * 1024

_REVISION = re.compile(r"[\x21-\x7e]{1,128}\Z")
_MANIFEST_MEMBERS = {"revision", "roots", "rego_version", "metadata"}
_DATA_NAMES = {"data.json", "data.yaml", "data.yml"}


@dataclass(frozen=True, slots=True)
class Module:
    """One Rego file: its path within the bundle (with `/`), and its text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """What judges: `modules` decide, `tests` (`*_test.rego`) never do. `data` is JSON text, mounted at the root."""

    revision: str
    modules: tuple[Module, ...]
    tests: tuple[Module, ...]
    data: str

    def digest(self) -> str:
        """SHA-256 over all that decides: the same for two gateways only if they judge alike. Takes its time."""
        modules = [(module.name, module.text) for module in self.modules]
        return hashlib.sha256(json.dumps([self.revision, modules, self.data]).encode()).hexdigest()


def load_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Read the bundle at `path` (blocking). Raises `PolicyUnavailable` naming the file that is missing or bad."""
    root = Path(path)
    try:
        there = root.is_dir()
    except OSError as error:
        raise PolicyUnavailable(f"{root}: {error.strerror}") from error
    if not there:
        raise PolicyUnavailable(f"{root}: no such bundle directory")
    files = _find_files(root)
    revision, roots = _read_manifest(root / ".manifest")
    modules: list[Module] = []
    tests: list[Module] = []
    data: dict[str, Any] = {}
    total = 0
    for file in files:
        name = file.relative_to(root).as_posix()
        if roots and not any(name.startswith(f"{prefix}/") for prefix in roots):
            raise PolicyUnavailable(f"{file}: lies outside the roots that .manifest names")
        text = _read_text(file)
        total += len(text)
        if total > LARGEST_BUNDLE:
            raise PolicyUnavailable(f"{root}: the bundle is larger than {LARGEST_BUNDLE} bytes")
        if file.name == "data.json":
            data = _read_object(file, text)
        elif file.name.endswith("_test.rego"):
            tests.append(Module(name, text))
        else:
            modules.append(Module(name, text))
    if not modules:
        raise PolicyUnavailable(f"{root.joinpath(*PACKAGE_PATH)}: there is no *.rego file")
    return Bundle(revision, tuple(modules), tuple(tests), json.dumps({"mcp": {"authz": data}}, ensure_ascii=False))


def _find_files(root: Path) -> list[Path]:
    """The Rego and data files, sorted. Hidden entries are skipped: mounted ConfigMaps keep old versions there."""

    def refuse(error: OSError) -> None:
        raise PolicyUnavailable(f"{error.filename}: {error.strerror}") from error

    home = root.joinpath(*PACKAGE_PATH)
    found: list[Path] = []
    for folder, folders, names in os.walk(root, onerror=refuse, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        here = Path(folder)
        if len(here.relative_to(root).parts) > 16:
            raise PolicyUnavailable(f"{here}: the bundle's folders are nested too deeply")
        for name in sorted(names):
            if name.startswith(".") or not (name.endswith(".rego") or name in _DATA_NAMES):
                continue
            if here != home or name in _DATA_NAMES - {"data.json"}:
                raise PolicyUnavailable(
                    f"{here / name}: only {'/'.join(PACKAGE_PATH)}/*.rego and data.json there are read; "
                    "OPA would read this file too and judge differently"
                )
            found.append(here / name)
    return found


def _read_text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            raw = stream.read(LARGEST_BUNDLE + 1)
        return raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyUnavailable(f"{file}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from error


def _read_object(file: Path, text: str) -> dict[str, Any]:
    """A JSON object with one reading: a doubled key in hand-written data would silently drop a rule."""

    def refuse_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            keys = [key for key, _ in pairs]
            double = next(key for key in keys if keys.count(key) > 1)
            raise PolicyUnavailable(f"{file}: the member {json.dumps(double)} is there twice")
        return members

    def refuse_constant(name: str) -> Any:
        raise PolicyUnavailable(f"{file}: {name} is not JSON")

    try:
        value = json.loads(text, object_pairs_hook=refuse_doubles, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise PolicyUnavailable(f"{file}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise PolicyUnavailable(f"{file}: not a JSON object")
    return value


def _read_manifest(file: Path) -> tuple[str, list[str]]:
    """`.manifest` -> (revision, roots); roots are empty where every path is allowed."""
    manifest = _read_object(file, _read_text(file))
    unknown = sorted(set(manifest) - _MANIFEST_MEMBERS)
    if unknown:
        raise PolicyUnavailable(f"{file}: unknown member {json.dumps(unknown[0])}")
    revision = manifest.get("revision")
    if not isinstance(revision, str) or _REVISION.match(revision) is None:
        raise PolicyUnavailable(f"{file}: `revision` must be 1 to 128 visible ASCII characters")
    if manifest.get("rego_version", 1) != 1:
        raise PolicyUnavailable(f"{file}: `rego_version` must be 1")
    roots = manifest.get("roots", [""])
    if not isinstance(roots, list) or not all(isinstance(entry, str) for entry in roots):
        raise PolicyUnavailable(f"{file}: `roots` must be an array of paths")
    trimmed = [entry.strip("/") for entry in roots]
    return revision, [] if "" in trimmed else trimmed or ["(none)"]
