"""Handles of tasks: one owner, one server, one spelling, and an end (contract.md section 5)."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from approvals.ticket import Claimed
from gateway.contract.passage import NO_TASKS, Admitted, Call, Envelope, Identity, OpenedState, Server, Task
from gateway.contract.refusals import Refusal, Refused
from gateway.handles import GRACE_S, LONGEST_S, Handles
from gateway.seals import Seals
from tests.support.upstream import an_admitted

KEYS = (b"k" * 32, b"l" * 32)
SERVER = Server("s", "/s/mcp", "https://gw/s/mcp", "https://gw/.well-known/x")
IDENTITY = Identity("https://i", "alice", "client", "acme")
MADE_BY = Call(Envelope(b"{}", 1, "tools/call", {}, {}), "tool", "tools/call", "buy", {"amount": 5}, {})


def made(use: Claimed | None = None, **changes: Any) -> Admitted:
    """The call that a task came of."""
    admitted = replace(an_admitted(MADE_BY), server=SERVER, identity=IDENTITY, use=use)
    return replace(admitted, **changes)


def asking(*handles: str) -> Call:
    """A request that names tasks."""
    return Call(Envelope(b"{}", 2, "tasks/get", {}, {}), "task", "tasks/get", handles[0], {}, {}, task_ids=handles)


def opened(handles: Handles, text: str, now: float = 0.0, **changed: Any) -> Task | None:
    who, where = changed.get("identity", IDENTITY), changed.get("server", SERVER)
    tasks = handles.open_all(asking(text), who, where, now)
    assert bool(tasks.why) == (tasks.found == (None,))
    assert len(tasks.found) == 1
    return tasks.found[0]


@given(task_id=st.text(min_size=1, max_size=300))
def test_the_server_gets_its_own_id_back(task_id: str) -> None:
    """Whatever text a server takes for an id; and the handle is plain text for a header, never the id."""
    handles = Handles(KEYS)
    handle = handles.mint(task_id, 1000, made(), 0.0).handle
    assert opened(handles, handle) == Task(handle, task_id, "buy")
    assert handle.isascii()
    assert handle.replace("-", "").replace("_", "").isalnum()


def test_a_handle_tells_what_the_task_came_of() -> None:
    """The tool, and the ticket of a call that a person approved."""
    handles = Handles(KEYS)
    handle = handles.mint("t", None, made(Claimed("ticket-1", "use-1")), 0.0).handle
    assert opened(handles, handle) == Task(handle, "t", "buy", "ticket-1")


def test_a_request_without_tasks_opens_nothing() -> None:
    """The ordinary call costs nothing."""
    assert Handles(KEYS).open_all(MADE_BY, IDENTITY, SERVER, 0.0) is NO_TASKS


FOREIGN: dict[str, dict[str, Any]] = {
    "another subject": {"identity": replace(IDENTITY, subject="bob")},
    "the same subject of another issuer": {"identity": replace(IDENTITY, issuer="https://j")},
    "the same subject in another tenant": {"identity": replace(IDENTITY, tenant="globex")},
    "the same subject without a tenant": {"identity": replace(IDENTITY, tenant="")},
    "another server": {"server": replace(SERVER, name="t")},
    "another resource": {"server": replace(SERVER, resource="https://gw/t/mcp")},
    "parts that join to the same text": {
        "identity": replace(IDENTITY, subject="aliceac", tenant="me"),
    },
}


@pytest.mark.parametrize("changed", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_foreign_handle_opens_nothing(changed: dict[str, Any]) -> None:
    """A task belongs to who had it made, on the server that made it."""
    handles = Handles(KEYS)
    handle = handles.mint("t", 1000, made(), 0.0).handle
    assert opened(handles, handle) is not None
    assert opened(handles, handle, **changed) is None


def test_the_client_is_not_the_owner() -> None:
    """A person may go on with a task in another of the own clients, with another token."""
    handles = Handles(KEYS)
    handle = handles.mint("t", 1000, made(), 0.0).handle
    other = replace(IDENTITY, client_id="phone", scopes=frozenset({"x"}), claims={"jti": "2"})
    assert opened(handles, handle, identity=other) is not None


@pytest.mark.parametrize(
    ("ttl_ms", "lives_s"),
    [
        (60_000, 60 + GRACE_S),
        (0, GRACE_S),
        (-5, GRACE_S),
        (None, LONGEST_S),
        (2**53 - 1, LONGEST_S),
    ],
)
def test_a_handle_outlives_its_task_and_ends(ttl_ms: int | None, lives_s: float) -> None:
    """A server may prolong a task, so the handle waits a day longer; without an end there is a bound."""
    handles = Handles(KEYS)
    handle = handles.mint("t", ttl_ms, made(), 100.0).handle
    assert opened(handles, handle, 100.0 + lives_s - 0.01) is not None
    assert opened(handles, handle, 100.0 + lives_s) is None


def test_every_changed_character_opens_nothing() -> None:
    """One character anywhere, cut, extended or spelt in another alphabet; and the server's own id least of all."""
    handles = Handles(KEYS)
    handle = handles.mint("t", 1000, made(), 0.0).handle
    for index, char in enumerate(handle):
        assert opened(handles, handle[:index] + ("A" if char != "A" else "B") + handle[index + 1 :]) is None
    raw = base64.urlsafe_b64decode(handle + "=" * (-len(handle) % 4))
    for other in (
        "t",
        "",
        "é",
        handle[:-1],
        handle + "A",
        handle + "=",
        " " + handle,
        handle.swapcase(),
        "A" * 70_000,
        base64.b64encode(raw + b"\xff").decode(),
    ):
        assert opened(handles, other) is None


def test_a_seal_of_another_purpose_is_no_handle() -> None:
    """Each purpose has a key of its own: a sealed state opens no task, and a handle no state."""
    handles, seals = Handles(KEYS), Seals(KEYS)
    state = seals.seal_state(OpenedState("s"), IDENTITY, SERVER, MADE_BY, 10.0)
    assert opened(handles, state) is None
    with pytest.raises(Refused):
        seals.open_state(handles.mint("t", 1000, made(), 0.0).handle, IDENTITY, SERVER, MADE_BY, 0.0)


def test_keys_rotate_without_losing_tasks() -> None:
    """The first key seals, all open; a key that is gone opens nothing more."""
    handle = Handles(KEYS[:1]).mint("t", 1000, made(), 0.0).handle
    assert opened(Handles((KEYS[1], KEYS[0])), handle) is not None
    assert opened(Handles(KEYS[1:]), handle) is None


@pytest.mark.parametrize("task_id", ["x" * 3000, "\u0000" * 400, "é" * 1100])
def test_an_id_that_no_header_could_carry_is_refused(task_id: str) -> None:
    """The handle travels in a header of each request about the task: what it may hold is bounded."""
    assert len(Handles(KEYS).mint("x" * 1800, 1000, made(), 0.0).handle) <= 4096
    with pytest.raises(Refused) as caught:
        Handles(KEYS).mint(task_id, 1000, made(), 0.0)
    assert caught.value.refusal is Refusal.UPSTREAM_INVALID


def test_several_handles_open_in_their_order() -> None:
    """One that opens nothing leaves its place empty, and says why to the record alone."""
    handles = Handles(KEYS)
    one, two = (handles.mint(name, 1000, made(), 0.0).handle for name in ("one", "two"))
    tasks = handles.open_all(asking(two, "guess", one), IDENTITY, SERVER, 0.0)
    assert [task and task.id for task in tasks.found] == ["two", None, "one"]
    assert tasks.why.startswith("handle: ")
