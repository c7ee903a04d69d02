"""What the record calls a policy's revision names one content."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

BUNDLE = Path(__file__).parents[2] / "policies" / "bundle"

CONTENT = {
    "default-2": "1968e93e901e81b26ef25d6e88864856",
    "default-3": "fc0240ce62bb0351c5f1dcd7293f3da5",
    "default-4": "c02b40488db54de4e68026b458407b14",
}
"""What each revision of the shipped bundle is: a digest of its files. Add a line, and never change one."""


def digest(folder: Path) -> str:
    """Of what judges: every file but the manifest and the policy's own tests."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    judging = [file for file in files if file.name != ".manifest" and not file.stem.endswith("_test")]
    parts = [f"{file.relative_to(folder)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n" for file in judging]
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:32]


def test_a_changed_bundle_has_another_revision(tmp_path: Path) -> None:
    """Decisions are recorded under the revision alone, so whoever changes the bundle gives it a new one."""
    revision = json.loads((BUNDLE / ".manifest").read_bytes())["revision"]
    assert CONTENT.get(revision) == digest(BUNDLE), (
        "the bundle changed: a new revision in .manifest, and its line here"
    )
    (tmp_path / "authz.rego").write_bytes((BUNDLE / "mcp/authz/authz.rego").read_bytes())
    before = digest(tmp_path)
    with (tmp_path / "authz.rego").open("ab") as file:
        file.write(b"\n")
    assert digest(tmp_path) != before
