"""The verdict reader: what is not exactly a verdict is no verdict (requirements G6)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.verdict import ApprovalTerms, Effect, Limit, PolicyUnavailable, Verdict, read_verdict

TERMS = {"uses": 2, "ttl_s": 900, "approvers": ["group:https://idp|ops"], "min_approvers": 2}
WHOLE: dict[str, Any] = {
    "effect": "approve",
    "scopes": ["files:write"],
    "reasons": ["approval_needed"],
    "disclose": True,
    "approval": TERMS,
    "clear": ["/path", "/a~1b/~0/0"],
    "mask": [""],
    "visible": ["read_file", "ünïcode", ""],
}


def test_a_whole_verdict_is_read_as_it_stands() -> None:
    """Every member arrives, and the revision that judged."""
    assert read_verdict(WHOLE, "r1") == Verdict(
        effect=Effect.APPROVE,
        scopes=("files:write",),
        reasons=("approval_needed",),
        disclose=True,
        approval=ApprovalTerms(2, 900, ("group:https://idp|ops",), 2),
        clear=("/path", "/a~1b/~0/0"),
        mask=("",),
        visible=("read_file", "ünïcode", ""),
        revision="r1",
    )


def test_only_the_effect_is_needed() -> None:
    """Members that are absent have the defaults that `Verdict` documents."""
    assert read_verdict({"effect": "deny"}, "r") == Verdict(Effect.DENY, revision="r")
    only_approvers = {"effect": "approve", "approval": {"approvers": ["user:ann"]}}
    assert read_verdict(only_approvers, "r").approval == ApprovalTerms(1, 3600, ("user:ann",), 1)


NO_OBJECTS = [None, "deny", "allow", True, 1, [], [{"effect": "allow"}], "<undefined>"]


@pytest.mark.parametrize("answer", NO_OBJECTS)
def test_what_is_no_object_is_no_verdict(answer: Any) -> None:
    """Undefined, a bare word, a list: nothing of it is an allow."""
    with pytest.raises(PolicyUnavailable, match="malformed"):
        read_verdict(answer, "r")


LIMIT: dict[str, Any] = {"name": "daily", "per": ["server", "subject", "name"], "count": 20, "window_s": 86_400}


def test_limits_are_read_as_they_are_given() -> None:
    """What is counted apart, how many, and for how long; none at all where there are none."""
    answer = {"effect": "allow", "limits": [LIMIT, {**LIMIT, "name": "all", "per": []}]}
    daily = Limit("daily", ("server", "subject", "name"), 20, 86_400)
    assert read_verdict(answer, "r").limits == (daily, Limit("all", (), 20, 86_400))
    assert read_verdict({"effect": "allow", "limits": []}, "r").limits == ()


MALFORMED: list[tuple[str, Any, str]] = [
    ("effect", "Allow", "effect"),
    ("effect", "allow ", "effect"),
    ("effect", "", "effect"),
    ("effect", None, "effect"),
    ("effect", True, "effect"),
    ("effect", ["allow"], "effect"),
    ("scopes", "files:read", "scopes"),
    ("scopes", {"files:read": True}, "scopes"),
    ("scopes", [1], "scopes"),
    ("scopes", [True], "scopes"),
    ("scopes", [""], "scopes"),
    ("scopes", ["a b"], "scopes"),
    ("scopes", ['a"b'], "scopes"),
    ("scopes", ["a\n"], "scopes"),
    ("scopes", ["é"], "scopes"),
    ("scopes", None, "scopes"),
    ("scopes", ["s"] * 65, "scopes"),
    ("reasons", "x", "reasons"),
    ("reasons", ["Not Stable"], "reasons"),
    ("reasons", ["ok\n"], "reasons"),
    ("reasons", [""], "reasons"),
    ("reasons", ["r" * 65], "reasons"),
    ("reasons", [7], "reasons"),
    ("reasons", [["x"]], "reasons"),
    ("reasons", ["r"] * 33, "reasons"),
    ("disclose", 1, "disclose"),
    ("disclose", 0, "disclose"),
    ("disclose", "true", "disclose"),
    ("disclose", None, "disclose"),
    ("clear", ["path"], "clear"),
    ("clear", ["/a~"], "clear"),
    ("clear", ["/a~2"], "clear"),
    ("clear", ["#/a"], "clear"),
    ("clear", ["/" + "a" * 1024], "clear"),
    ("clear", "/a", "clear"),
    ("mask", ["a/b"], "mask"),
    ("mask", [None], "mask"),
    ("visible", "read_file", "visible"),
    ("visible", [1], "visible"),
    ("visible", {"read_file": True}, "visible"),
    ("approval", None, "approval"),
    ("approval", True, "approval"),
    ("approval", [], "approval"),
    ("approval", {}, "approvers"),
    ("limits", {}, "limits"),
    ("limits", {"calls_per_minute": 5}, "limits"),
    ("limits", None, "limits"),
    ("limits", [1], "limits"),
    ("limits", [LIMIT] * 17, "limits"),
    *(
        ("limits", [{**LIMIT, name: value}], "limits")
        for name, value in (
            ("name", ""),
            ("name", "Daily Count"),
            ("name", 1),
            ("per", "subject"),
            ("per", ["user"]),
            ("per", [1]),
            ("count", 0),
            ("count", True),
            ("count", 1.0),
            ("count", 10**9 + 1),
            ("window_s", 0),
            ("window_s", "60"),
            ("window_s", 2_678_401),
            ("windows", 1),
        )
    ),
    *(("limits", [{key: LIMIT[key] for key in LIMIT if key != name}], "limits") for name in LIMIT),
    ("Effect", "allow", "unknown member"),
    ("obligations", [], "unknown member"),
    ("evil\n\x1b[31m", 1, "not a plain name"),
]


@pytest.mark.parametrize(("member", "value", "says"), MALFORMED, ids=lambda value: repr(value)[:30])
def test_one_wrong_member_spoils_the_verdict(member: str, value: Any, says: str) -> None:
    """A wrong type, a wrong form, an unknown name: each is refused, and the text names the member."""
    assert read_verdict(WHOLE, "r").effect is Effect.APPROVE
    with pytest.raises(PolicyUnavailable, match=says):
        read_verdict({**WHOLE, member: value}, "r")


TERM_FAULTS: list[tuple[str, Any]] = [
    ("uses", 0), ("uses", -1), ("uses", True), ("uses", 1.0), ("uses", "1"), ("uses", None), ("uses", 1_001),
    ("ttl_s", 0), ("ttl_s", True), ("ttl_s", 1e3), ("ttl_s", 10**12),
    ("min_approvers", 0), ("min_approvers", False), ("min_approvers", 33), ("min_approvers", "2"),
    ("approvers", []), ("approvers", "user:ann"), ("approvers", ["ann"]), ("approvers", ["user:"]),
    ("approvers", ["role:ops"]), ("approvers", ["user:a\nb"]), ("approvers", ["user: a"]), ("approvers", ["User:a"]),
    ("approvers", [True]), ("approvers", None), ("aproval", 1),
    ("grant", True), ("grant", None), ("grant", {}), ("grant", {"schema": True}), ("grant", {"schema": []}),
    ("grant", {"schema": {}, "uses": 1}), ("grant", {"shema": {}}), ("grant", {"schema": {"title": "x" * 20_000}}),
]  # fmt: skip


@pytest.mark.parametrize(("member", "value"), TERM_FAULTS, ids=repr)
def test_one_wrong_term_spoils_the_verdict(member: str, value: Any) -> None:
    """An approval that nobody can give, that never ends, or whose numbers are no numbers is no approval."""
    with pytest.raises(PolicyUnavailable, match=member):
        read_verdict({**WHOLE, "approval": {**TERMS, member: value}}, "r")


def test_a_grant_is_given_in_so_many_words() -> None:
    """Its bounding schema is what the policy says; without the member there is none."""
    assert read_verdict(WHOLE, "r").approval == ApprovalTerms(2, 900, ("group:https://idp|ops",), 2, None)
    schema = {"properties": {"amount": {"maximum": 5}}}
    terms = read_verdict({**WHOLE, "approval": {**TERMS, "grant": {"schema": schema}}}, "r").approval
    assert terms is not None
    assert terms.grant == schema


def test_an_absent_effect_is_no_allow() -> None:
    """What the policy wants must be said."""
    with pytest.raises(PolicyUnavailable, match="`effect` is missing"):
        read_verdict({"scopes": [], "reasons": []}, "r")


def test_approval_without_terms_is_refused() -> None:
    """`approve` that names no approver is no decision: nobody could answer it."""
    with pytest.raises(PolicyUnavailable, match="approval"):
        read_verdict({"effect": "approve"}, "r")


@pytest.mark.parametrize("effect", ["allow", "deny"])
def test_terms_without_approval_are_refused(effect: str) -> None:
    """An allow that also names approvers means two things; it is not read as the more generous one."""
    assert read_verdict({"effect": effect}, "r").effect == effect
    with pytest.raises(PolicyUnavailable, match="approval"):
        read_verdict({"effect": effect, "approval": TERMS}, "r")


def test_a_verdict_names_the_revision_that_judged() -> None:
    """Without a revision there is nothing that the record could name."""
    with pytest.raises(PolicyUnavailable, match="revision"):
        read_verdict({"effect": "allow"}, "")


def test_the_text_of_a_failure_holds_nothing_of_the_answer() -> None:
    """Values of an answer may be a caller's secrets: only members' names are told."""
    for member in ("scopes", "reasons", "clear", "mask"):
        with pytest.raises(PolicyUnavailable) as caught:
            read_verdict({"effect": "allow", member: ["hunter2 \n"]}, "r")
        assert "hunter2" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
MEMBERS = st.sampled_from([*WHOLE, "limits", "Effect", ""])


@given(st.dictionaries(MEMBERS, JSON | st.sampled_from(list(WHOLE.values())), max_size=9))
def test_any_object_is_a_verdict_or_a_failure(answer: dict[str, Any]) -> None:
    """Whatever an engine says, the reader raises its one exception or returns what was said, member by member."""
    try:
        verdict = read_verdict(answer, "r")
    except PolicyUnavailable:
        return
    assert verdict.effect.value == answer["effect"]
    assert (verdict.approval is not None) == (verdict.effect is Effect.APPROVE)
    assert set(answer) <= set(WHOLE)
    for member in ("scopes", "reasons", "clear", "mask", "visible"):
        assert list(getattr(verdict, member)) == answer.get(member, [])


@given(JSON)
def test_no_other_json_is_a_verdict(answer: Any) -> None:
    """Only an object with an explicit effect can be an allow."""
    if isinstance(answer, dict) and answer.get("effect") in ("allow", "deny", "approve"):
        return
    with pytest.raises(PolicyUnavailable):
        read_verdict(answer, "r")


def test_a_schema_of_any_depth_is_read_or_refused() -> None:
    """A grant's schema that is nested deeper than can be walked is a malformed answer, not a defect of the reader."""
    terms = {"approvers": ["user:ann"], "grant": {"schema": {"not": {}}}}
    assert read_verdict({"effect": "approve", "approval": terms}, "r").approval is not None
    schema: dict[str, Any] = {}
    for _ in range(2_000):
        schema = {"not": schema}
    terms = {"approvers": ["user:ann"], "grant": {"schema": schema}}
    with pytest.raises(PolicyUnavailable, match="too deeply"):
        read_verdict({"effect": "approve", "approval": terms}, "r")
