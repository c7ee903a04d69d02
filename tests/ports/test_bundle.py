"""Loading a bundle: one reading, the bad file named, nothing that OPA would read otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from policies import evaluator
from policies.bundles import DECISION, load_bundle
from policies.verdict import PolicyUnavailable

REGO = 'package mcp.authz\n\nimport rego.v1\n\ndefault decision := {"effect": "deny"}\n'
Writer = Callable[[Path], None]


def write_bundle(root: Path, rego: str = REGO, data: str | None = "{}", manifest: str = '{"revision": "r1"}') -> Path:
    """A bundle directory with these three files."""
    home = root / "mcp" / "authz"
    home.mkdir(parents=True)
    (root / ".manifest").write_text(manifest)
    (home / "authz.rego").write_text(rego)
    if data is not None:
        (home / "data.json").write_text(data)
    return root


def test_a_bundle_is_read_once_and_whole(tmp_path: Path) -> None:
    """Modules, data at their place in the document, revision; test files never among what decides."""
    write_bundle(tmp_path, data='{"servers": {"a": {}}}', manifest='{"revision": "r7", "roots": ["mcp/authz"]}')
    (tmp_path / "mcp/authz/more.rego").write_text("package mcp.authz\n")
    (tmp_path / "mcp/authz/authz_test.rego").write_text("package mcp.authz_test\n")
    (tmp_path / "README.md").write_text("not read")
    (tmp_path / "..2026_data").mkdir()
    (tmp_path / "..2026_data" / "old.rego").write_text("a mounted ConfigMap keeps old versions hidden")
    bundle = load_bundle(tmp_path)
    assert bundle.revision == "r7"
    assert [module.name for module in bundle.modules] == ["mcp/authz/authz.rego", "mcp/authz/more.rego"]
    assert [module.name for module in bundle.tests] == ["mcp/authz/authz_test.rego"]
    assert json.loads(bundle.data) == {"mcp": {"authz": {"servers": {"a": {}}}}}


def test_a_bundle_needs_no_data(tmp_path: Path) -> None:
    """A policy may be all Rego."""
    assert json.loads(load_bundle(write_bundle(tmp_path, data=None)).data) == {"mcp": {"authz": {}}}


def _write(name: str, text: str | bytes) -> Writer:
    def spoil(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text.encode() if isinstance(text, str) else text)

    return spoil


SPOILED: list[tuple[str, Writer, str]] = [
    ("no manifest", lambda root: (root / ".manifest").unlink(), r"\.manifest"),
    ("manifest no JSON", _write(".manifest", "revision: 1"), r"\.manifest: not JSON"),
    ("manifest no object", _write(".manifest", "[]"), r"\.manifest: not a JSON object"),
    ("no revision", _write(".manifest", "{}"), r"\.manifest: `revision`"),
    ("empty revision", _write(".manifest", '{"revision": ""}'), r"\.manifest: `revision`"),
    ("revision no text", _write(".manifest", '{"revision": 1}'), r"\.manifest: `revision`"),
    ("revision with a line end", _write(".manifest", '{"revision": "a\\n"}'), r"\.manifest: `revision`"),
    ("unknown member", _write(".manifest", '{"revision": "a", "rots": []}'), r"\.manifest: unknown member"),
    ("old Rego", _write(".manifest", '{"revision": "a", "rego_version": 0}'), r"\.manifest: `rego_version`"),
    ("other roots", _write(".manifest", '{"revision": "a", "roots": ["other"]}'), r"authz\.rego|data\.json"),
    ("roots no list", _write(".manifest", '{"revision": "a", "roots": "mcp"}'), r"\.manifest: `roots`"),
    ("no Rego", lambda root: (root / "mcp/authz/authz.rego").unlink(), r"no \*\.rego file"),
    ("data no JSON", _write("mcp/authz/data.json", "{"), r"data\.json: not JSON"),
    ("data no object", _write("mcp/authz/data.json", "[]"), r"data\.json: not a JSON object"),
    ("data with NaN", _write("mcp/authz/data.json", '{"a": NaN}'), r"data\.json: NaN"),
    (
        "doubled key",
        _write("mcp/authz/data.json", '{"a": {"t": 1, "t": 2}}'),
        r'data\.json: the member "t" is there twice',
    ),
    ("data not UTF-8", _write("mcp/authz/data.json", b'{"a": "\xff"}'), r"data\.json: not UTF-8"),
    ("data too deep", _write("mcp/authz/data.json", '{"a":' * 9999 + "1" + "}" * 9999), r"data\.json"),
    ("Rego elsewhere", _write("other/x.rego", "package x"), r"other/x\.rego: only"),
    ("Rego at the root", _write("x.rego", "package x"), r"x\.rego: only"),
    ("data elsewhere", _write("data.json", "{}"), r"data\.json: only"),
    ("YAML data", _write("mcp/authz/data.yaml", "a: 1"), r"data\.yaml: only"),
]


@pytest.mark.parametrize(("spoil", "names"), [row[1:] for row in SPOILED], ids=[row[0] for row in SPOILED])
def test_a_bad_bundle_is_refused_by_the_name_of_the_file(tmp_path: Path, spoil: Writer, names: str) -> None:
    """What is missing or can't be read is said with its path; nothing is guessed."""
    write_bundle(tmp_path)
    load_bundle(tmp_path)
    spoil(tmp_path)
    with pytest.raises(PolicyUnavailable, match=names) as caught:
        load_bundle(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_no_bundle_at_all(tmp_path: Path) -> None:
    """A path that is no directory is said so."""
    with pytest.raises(PolicyUnavailable, match="no such bundle directory"):
        load_bundle(tmp_path / "absent")


def judge_of(rego: str, data: str = "{}") -> evaluator.Judge:
    """What an evaluator makes of a module (in this process: the module's own rules are under test)."""
    load = {
        "modules": [["mcp/authz/authz.rego", "package mcp.authz\n\nimport rego.v1\n\n" + rego]],
        "data": json.dumps({"mcp": {"authz": json.loads(data)}}),
        "rule": DECISION,
        "checks": ["{}"],
        "vet": True,
    }
    return evaluator.Judge(load, evaluator.make_engine())


DENY = 'decision := {"effect": "deny"}\n'
FAULTY: list[tuple[str, str, str, str]] = [
    ("does not parse", "decision := {", "{}", r"mcp/authz/authz\.rego:5"),
    ("Rego v0", "decision = 1 { true }", "{}", r"authz\.rego:5"),
    ("unsafe variable", "decision := 1 if { x > 1 }", "{}", r"authz\.rego:5.*unsafe"),
    ("no decision", "deny := true", "{}", r"authz\.rego: no rule defines data\.mcp\.authz\.decision"),
    (
        "undefined decision",
        "decision := 1 if input.never",
        "{}",
        r"authz\.rego: data\.mcp\.authz\.decision is u",
    ),
    (
        "http.send",
        DENY + 'x := http.send({"method": "get", "url": "http://127.0.0.1"})',
        "{}",
        r"authz\.rego:6: http\.send",
    ),
    (
        "http.send with",
        DENY + "f(x) := x\ny := z if { z := f(1) with f as http.send }",
        "{}",
        r"authz\.rego:7: http\.send",
    ),
    ("name lookup", DENY + 'x := net.lookup_ip_addr("localhost")', "{}", r"authz\.rego:6: net\.lookup_ip_addr"),
    ("environment", DENY + "x := opa.runtime().env", "{}", r"authz\.rego:6: opa\.runtime"),
    ("random", DENY + 'x := rand.intn("a", 2)', "{}", r"authz\.rego:6: rand\.intn"),
    ("random id", DENY + 'x := uuid.rfc4122("a")', "{}", r"authz\.rego:6: uuid\.rfc4122"),
    ("unknown function", DENY + 'x := crypto.sha256("a")', "{}", r"authz\.rego:6: the function crypto\.sha256"),
    ("misspelt function", DENY + 'x := startwith("a", "b")', "{}", r"authz\.rego:6: the function startwith"),
    (
        "call by an import's name",
        "import data.a.b\n" + DENY + "f(x) := b.g(x)",
        "{}",
        r"authz\.rego:7: the function b\.g",
    ),
    ("comprehension", DENY + "x := [y | some y in [1]] if input.a", "{}", r"authz\.rego:6: a comprehension"),
    (
        "comprehension, else",
        DENY + "x := 1 if input.a else := count({y | some y in [1]}) if input.b",
        "{}",
        r"authz\.rego:6",
    ),
    ("collapsing object", DENY + 'v[k] if { some k in ["a", "b"] }', "{}", r"authz\.rego:6: `name\[key\] if"),
    ("data over the decision", DENY, '{"decision": {"effect": "allow"}}', r"authz\.rego:5: the data holds"),
    ("data over a rule", DENY + "mine.x := 1", '{"mine": {"x": 2}}', r"authz\.rego:6: the data holds"),
]


@pytest.mark.parametrize(("rego", "data", "names"), [row[1:] for row in FAULTY], ids=[row[0] for row in FAULTY])
def test_a_policy_that_cannot_be_trusted_is_not_loaded(rego: str, data: str, names: str) -> None:
    """No I/O, nothing random, nothing unknown, no data in a rule's place; the place is named."""
    assert judge_of(DENY).checks
    with pytest.raises(evaluator.Unloadable, match=names):
        judge_of(rego, data)


def test_what_policies_need_is_not_refused() -> None:
    """Functions of one's own, by name or path; time, print, constant keys."""
    rego = """
f(x) := x + 1
g.h(x) := x
decision := {"effect": "deny", "n": [f(1), g.h(2), data.mcp.authz.f(3), count([1]), time.now_ns() > 0]} if {
	print("seen", input)
}
open["a"] if true
kinds contains "x" if true
table[k] := true if some k in ["a", "b"]
"""
    judge = judge_of(rego)
    kind, text = judge.answer(b"{}")
    assert kind == 13
    assert json.loads(text)["n"] == [2, 2, 4, 1, True]
    assert json.loads(judge.answer(b"{}", "data.mcp.authz.table")[1]) == {"a": True, "b": True}


def test_a_failure_says_where_and_nothing_of_the_question() -> None:
    """The engine's own text quotes values; what reaches a record is the place in the policy only."""
    judge = judge_of("default decision := 1\ndecision := 2 if startswith(input.secret, 7)")
    kind, text = judge.answer(b'{"secret": "hunter2"}')
    assert (kind, text) == (14, b"a rule failed at mcp/authz/authz.rego:6")
    assert judge.answer(b'{"secret": ') == (14, b"the evaluation failed (RuntimeError)")
    assert judge.answer(b'"\xff"') == (14, b"the evaluation failed (UnicodeDecodeError)")


def test_a_failed_question_leaves_nothing_behind() -> None:
    """The question after a failure is judged as if the failure had not been."""
    judge = judge_of("default decision := 0\ndecision := 10 / input.n")
    assert [judge.answer(b'{"n": %d}' % n)[1] for n in (5, 0, 5, 0, 2)] == [
        b"2", b"a rule failed at mcp/authz/authz.rego:6", b"2", b"a rule failed at mcp/authz/authz.rego:6", b"5",
    ]  # fmt: skip
