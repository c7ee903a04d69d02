"""JSN-08: the 318 files of nst/JSONTestSuite, as an argument's value and as the whole body."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from gateway.contract.envelope import parse_envelope
from gateway.contract.refusals import Refused
from tests.contract.asking import call_text

VECTORS = Path(__file__).parents[1] / "vectors" / "jsontestsuite"

with zipfile.ZipFile(VECTORS / "test_parsing.zip") as archive:
    FILES = {name: archive.read(name) for name in sorted(archive.namelist())}

DUPLICATES = {"y_object_duplicated_key.json", "y_object_duplicated_key_and_value.json"}
FREE_BUT_REFUSED = set((VECTORS / "refused_i.txt").read_text().split())
"""The pinned table: where readers are free to differ, one that has to agree with all of them refuses."""


def fate(body: bytes) -> str:
    """`accepted` or the reason of the refusal; anything else that is raised is a failure of the test."""
    try:
        parse_envelope(body)
    except Refused as refused:
        return refused.refusal.reason
    return "accepted"


def test_the_whole_corpus_is_here() -> None:
    """JSN-08: 188 n_, 95 y_ and 35 i_ files."""
    assert [sum(name[0] == kind for name in FILES) for kind in "nyi"] == [188, 95, 35]
    assert {name for name in FILES if name[0] == "i"} == FREE_BUT_REFUSED


@pytest.mark.parametrize("name", FILES)
def test_each_file_as_an_arguments_value(name: str) -> None:
    """JSN-08: n_ refused, y_ accepted but for duplicate names, i_ as pinned."""
    expected = {"y": {"accepted"}, "n": {"body_not_json", "body_ambiguous"}, "i": {"body_not_json"}}[name[0]]
    if name in DUPLICATES:
        expected = {"body_ambiguous"}
    assert fate(call_text(b'{"v":' + FILES[name] + b"}")) in expected


@pytest.mark.parametrize("name", [name for name in FILES if name[0] == "n"])
def test_each_bad_file_as_the_whole_body(name: str) -> None:
    """JSN-08: an n_ file alone is refused as not being JSON."""
    assert fate(FILES[name]) == "body_not_json"
