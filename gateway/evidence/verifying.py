"""A pack is judged offline: its files are those of its manifest, and its verdicts are derived once more.

Nothing that the pack says of itself counts: not its verdicts, not its report, not that it is complete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
from jinja2 import TemplateError

from gateway.audit.checkpoints import VerifyKey
from gateway.evidence.checks import CLASSES, MALFORMED, Verdict, judge
from gateway.evidence.excerpt import judge_record
from gateway.evidence.gather import make_report
from gateway.evidence.judging.everything import CHECKS
from gateway.evidence.pack import MANIFEST, REPORT, SIGNATURE, compare, read, unsigned
from gateway.evidence.seen import RECORD, Seen, Unproven


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found: the manifest's digest, what is wrong with the pack, and every verdict, derived anew."""

    digest: str
    wrong: Sequence[str] = ()
    verdicts: Sequence[Verdict] = field(default_factory=tuple)

    @property
    def complete(self) -> bool:
        """Whether the pack is whole and every check holds."""
        return not self.wrong and bool(self.verdicts) and all(verdict.holds for verdict in self.verdicts)

    def as_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "complete": self.complete,
            "digest": self.digest,
            "wrong": list(self.wrong),
            **describe(self.verdicts),
        }


def describe(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Verdicts as JSON: per class how many hold, and each check with what came."""
    return {
        "classes": {
            group: {
                "holds": sum(one.holds for one in verdicts if one.check.group == group),
                "asked": sum(one.check.group == group for one in verdicts),
            }
            for group in CLASSES
        },
        "checks": [
            {"check": one.check.key, "holds": one.holds, "came": one.came, "files": list(one.check.files)}
            for one in verdicts
        ],
    }


def examine(folder: Path, digest: str | None = None, trusted: Sequence[VerifyKey] = ()) -> Examined:
    """Judge a pack. Raises `pack.Unreadable`.

    `digest` is what it has to have, where that is known; one of `trusted` has to have signed the pack, and the record
    in it, where there are any.
    """
    files, wrong = read(folder)
    found = hashlib.sha256(files.get(MANIFEST, b"")).hexdigest()
    if digest is not None and digest != found:
        wrong.append(f"{MANIFEST}: its digest is {found}, not {digest}")
    manifest, differing = compare(files)
    wrong += differing
    if trusted and (finding := judge_record(files.get(RECORD, b""), trusted).finding):
        wrong.append(f"{RECORD}: {finding.why}")
    kept = {name: data for name, data in files.items() if name not in {MANIFEST, REPORT, SIGNATURE}}
    verdicts = judge(CHECKS, Seen(kept))
    if manifest:
        wrong += _disagree(manifest, verdicts)
        wrong += _misreport(verdicts, kept, files.get(REPORT, b""))
        wrong += _misdate(manifest, kept)
        if trusted and (why := unsigned(files, manifest, trusted)):
            wrong.append(why)
    return Examined(found, tuple(wrong), tuple(verdicts))


def _disagree(manifest: Mapping[str, Any], verdicts: Sequence[Verdict]) -> list[str]:
    """Where the manifest's verdicts are not those that its files give."""
    told, derived = manifest["verdicts"], {one.check.key: one.holds for one in verdicts}
    wrong = [f"{key}: no verdict in the manifest" for key in sorted(derived.keys() - told.keys())]
    wrong += [f"{key}: a verdict of no check here" for key in sorted(told.keys() - derived.keys())]
    wrong += [
        f"{key}: the manifest says {told[key]}, its files say {derived[key]}"
        for key in sorted(told.keys() & derived.keys())
        if told[key] is not derived[key]
    ]
    if manifest["complete"] is not all(derived.values()):
        wrong.append(f"{MANIFEST}: says complete: {manifest['complete']}")
    return wrong


def _misreport(verdicts: Sequence[Verdict], files: Mapping[str, bytes], report: bytes) -> list[str]:
    """Whether the report is the one that these files give: who says another version may not say what it likes."""
    try:
        maker = Seen(files).document("facts.json")["ostiary"]
        same = make_report(verdicts, files) == report
    except (Unproven, TemplateError, *MALFORMED):
        return ["facts.json: can't be read"]
    if maker != version("ostiary"):
        return [f"facts.json: made by Ostiary {maker}, and this is {version('ostiary')}: verify it with that one"]
    return [] if same else [f"{REPORT}: not the one that these files give"]


def _misdate(manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> list[str]:
    """Whether manifest, facts and the record's own statement speak of one time: an old pack is no new one."""
    try:
        began = Seen(files).document("facts.json")["began"]
        since = orjson.loads(files[RECORD].rstrip(b"\n").rpartition(b"\n")[2])["export"]["filter"]["since"]
    except (Unproven, *MALFORMED):
        return []  # no facts, no whole record: a check fails for it
    if manifest["made"] == began == since:
        return []
    return [f"{MANIFEST}: made {manifest['made']}, the facts say {began}, the record is since {since}"]
