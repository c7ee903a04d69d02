"""Who may approve, what is shown, how a ticket and a use may move: rules without a store."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from approvals.approvers import enough, entries_of, local_person, may_decide, parties_to, read_approver, read_terms
from approvals.ledger import new_id
from approvals.masking import masked
from approvals.ticket import MOVES, RUN_MOVES, Run, State, Terms, Unapprovable
from tests.support.approvals import ALICE, BOB, CAROL, ISSUER, OTHER_ISSUER, TERMS, person


@pytest.mark.parametrize(
    ("entry", "who", "may"),
    [
        (f"user:{ISSUER}|bob", BOB, True),
        ("user:bob", BOB, True),
        ("user:bo", BOB, False),
        ("user:BOB", BOB, False),
        ("user:bob", person("bob", issuer=OTHER_ISSUER), False),
        (f"group:{ISSUER}|payers", BOB, True),
        ("group:payers", ALICE, False),
        ("group:payers", person("bob", issuer=OTHER_ISSUER, groups=["payers"]), False),
        ("group:bob", BOB, False),
        ("user:payers", BOB, False),
        ("scope:approvals:decide", BOB, True),
        (f"scope:{ISSUER}|approvals:decide", BOB, True),
        ("scope:approvals", BOB, False),
        (f"user:{ISSUER}|auth0|7", person("auth0|7"), True),
    ],
)
def test_an_entry_names_exact_people_of_one_issuer(entry: str, who: Any, may: bool) -> None:
    """An approver matches by issuer and exact value; equal subjects of two issuers are two people."""
    assert may_decide([read_approver(entry, [ISSUER])], who) is may
    assert (read_approver(entry, [ISSUER]).entry in entries_of(who)) is may


@pytest.mark.parametrize(
    "entry",
    ["", "bob", "user", "user:", "role:bob", "USER:bob", "user: bob", "user:bob ", "user:b\nob",
     f"user:{ISSUER}|", f"user:{OTHER_ISSUER}|bob", "user:auth0|7", "scope:a b", "group:\u202epayers",
     " user:bob", f"user:{ISSUER}/|bob"],
)  # fmt: skip
def test_an_entry_that_can_match_nobody_is_an_error(entry: str) -> None:
    """A malformed entry, an issuer that is not configured, an impossible value: refused, never skipped in silence."""
    assert read_approver("user:bob", [ISSUER]).value == "bob"
    with pytest.raises(Unapprovable):
        read_approver(entry, [ISSUER])
    with pytest.raises(Unapprovable):
        read_terms(Terms(approvers=("user:bob", entry)), [ISSUER])


@pytest.mark.parametrize("issuers", [[], [ISSUER, OTHER_ISSUER]])
def test_a_bare_entry_needs_a_sole_issuer(issuers: list[str]) -> None:
    """`user:SUBJECT` alone says who only where one issuer is configured for approvals."""
    assert read_approver("user:bob", [ISSUER]).issuer == ISSUER
    with pytest.raises(Unapprovable):
        read_approver("user:bob", issuers)


@pytest.mark.parametrize(
    "changes",
    [{"approvers": ()}, {"min_approvers": 0}, {"uses": 0}, {"ttl_s": 0}, {"min_approvers": -1},
     {"approvers": ("user:alice",)}, {"approvers": ("user:bob", "user:bob"), "min_approvers": 2},
     {"approvers": ("user:alice", "user:bob"), "min_approvers": 2}],
)  # fmt: skip
def test_terms_that_nobody_could_meet_are_an_error(changes: dict[str, Any]) -> None:
    """No approver, no quorum, a quorum that the requester would have to fill: nothing is approved by default."""
    parties = [ALICE.party]
    assert read_terms(TERMS, [ISSUER], parties)
    with pytest.raises(Unapprovable):
        read_terms(dataclasses.replace(TERMS, **changes), [ISSUER], parties)


def test_who_acts_for_the_requester_is_a_party() -> None:
    """Delegation (`act`) makes every actor a requester, to a bounded depth, whatever its shape."""
    claims = {"act": {"sub": "agent", "act": {"sub": "inner", "iss": OTHER_ISSUER}}}
    assert parties_to(ISSUER, "alice", claims) == ((ISSUER, "alice"), (ISSUER, "agent"), (OTHER_ISSUER, "inner"))
    deep: dict[str, Any] = {"sub": "x"}
    for number in range(100):
        deep = {"sub": str(number), "act": deep}
    assert len(parties_to(ISSUER, "alice", {"act": deep})) <= 9
    odds: list[Any] = ["text", 7, [], {"sub": 7}, {"sub": "a", "iss": 3}]
    for odd in odds:
        assert parties_to(ISSUER, "alice", {"act": odd}) == ((ISSUER, "alice"),)


def test_a_quorum_is_distinct_people() -> None:
    """The same person twice, the requester, somebody whom today's terms don't name: none of them fills a quorum."""
    approvers = read_terms(TERMS, [ISSUER])
    again = dataclasses.replace(BOB, client="another")
    assert enough([BOB, CAROL], approvers, 2, [ALICE.party], local=False)
    assert not enough([BOB, again], approvers, 2, [ALICE.party], local=False)
    assert not enough([BOB, CAROL], approvers, 2, [CAROL.party], local=False)
    assert not enough([BOB, ALICE], approvers, 2, [], local=False)


def test_local_administrators_count_once_and_only_where_allowed() -> None:
    """However many administrators a machine has, they are one voice, and none without `local_approve`."""
    approvers = read_terms(TERMS, [ISSUER])
    first, second = local_person(0, "host"), local_person(1000, "host")
    assert enough([BOB, first], approvers, 2, [], local=True)
    assert not enough([first, second], approvers, 2, [], local=True)
    assert not enough([BOB, first], approvers, 2, [], local=False)
    assert first.by == "local:0@host"


@pytest.mark.parametrize(
    ("pointer", "expected"),
    [("/card/number", {"card": {"number": "[masked]", "cvc": 1}, "a/b": [1, {"x~y": 2}]}),
     ("/a~1b/1/x~0y", {"card": {"number": "4", "cvc": 1}, "a/b": [1, {"x~y": "[masked]"}]}),
     ("/a~1b/0", {"card": {"number": "4", "cvc": 1}, "a/b": ["[masked]", {"x~y": 2}]}),
     ("", "[masked]")],
)  # fmt: skip
def test_a_mask_hides_exactly_what_it_points_at(pointer: str, expected: Any) -> None:
    """RFC 6901 pointers, escapes and indices included; the original is left as it was."""
    arguments = {"card": {"number": "4", "cvc": 1}, "a/b": [1, {"x~y": 2}]}
    shown, met = masked(arguments, [pointer])
    assert shown == expected
    assert met == [pointer]
    assert arguments == {"card": {"number": "4", "cvc": 1}, "a/b": [1, {"x~y": 2}]}


@pytest.mark.parametrize("pointer", ["/none", "/card/number/deeper", "/a~1b/01", "/a~1b/-", "/a~1b/9", "/a~1b/²"])
def test_a_mask_that_meets_nothing_says_so(pointer: str) -> None:
    """What was not there is not listed as masked, so that a reader can tell a hidden value from a text `[masked]`."""
    arguments = {"card": {"number": "4"}, "a/b": [1]}
    assert masked(arguments, [pointer]) == (arguments, [])


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(value=_json, steps=st.lists(st.text(max_size=4) | st.integers(0, 4).map(str), max_size=4))
def test_masking_never_fails_and_touches_one_place(value: Any, steps: list[str]) -> None:
    """Any pointer on any value: either one place reads `[masked]`, or nothing changed."""
    pointer = "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)
    shown, met = masked(value, [pointer])
    assert (shown == value) or met == [pointer]
    for step in steps if met else ():
        shown = shown[int(step)] if isinstance(shown, list) else shown[step]
    assert not met or shown == "[masked]"


def test_final_states_have_no_way_out() -> None:
    """The tables are the design's; what is used, expired, revoked, denied, withdrawn, or ended stays so."""
    assert set(MOVES) == {State.PENDING, State.APPROVED}
    assert set(MOVES[State.PENDING].values()) == {State.APPROVED, State.DENIED, State.EXPIRED, State.WITHDRAWN}
    assert MOVES[State.APPROVED] == {
        "exhaust": State.USED,
        "expire": State.EXPIRED,
        "revoke": State.REVOKED,
        "withdraw": State.REVOKED,
    }
    assert set(RUN_MOVES) == {Run.CLAIMED, Run.SENT, Run.WAITING, Run.UNKNOWN}
    assert RUN_MOVES[Run.CLAIMED] == {Run.SENT, Run.FAILED, Run.UNKNOWN}
    assert RUN_MOVES[Run.SENT] == {Run.EXECUTED, Run.FAILED, Run.UNKNOWN, Run.WAITING}
    assert RUN_MOVES[Run.UNKNOWN] == {Run.EXECUTED, Run.FAILED}, "what is unknown is never run again"
    assert RUN_MOVES[Run.WAITING] == {Run.CLAIMED, Run.ABANDONED}
    assert [run for run, targets in RUN_MOVES.items() if Run.WAITING in targets] == [Run.SENT]


def test_ids_are_unguessable_and_fit_a_shell() -> None:
    """At least 128 random bits, URL-safe, one spelling, never an option of a command; no two alike."""
    ids = {new_id() for _ in range(20_000)}
    assert len(ids) == 20_000
    assert all(len(one) == 24 and one[0] != "-" for one in ids)  # 24 characters of 6 bits: 144 bits
