"""FRM-01, 02, 04, 06, 11 on the wire: one framing or a refusal, and nothing hidden is ever seen."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.edge.door import BODY, OpenDoor, post
from tests.edge.rows import MUTATED_LINES, ROWS, Row
from tests.support.http_raw import RawClient


def _rows(*names: str) -> list[Any]:
    return [pytest.param(row, id=f"{name}: {row.name}") for name in names for row in ROWS[name]]


def _run(door: OpenDoor, row: Row) -> None:
    with RawClient(door.address) as client:
        assert client.ask(post()).status == 200, "the positive twin"
    twin = len(door.corridor.served)
    with RawClient(door.address) as client:
        answer = client.send(row.data).read_answer(to_head=row.data.startswith(b"HEAD"))
        assert answer.status in row.right
        served = door.corridor.served[twin:]
        if answer.status == 200:
            assert [body for _, body in served] == [row.body]
        else:
            assert not served
            assert len(door.reasons()) == 1, "a refusal is on record once"
        if answer.status == 400:
            assert answer.closes
            assert answer.json()["error"]["code"] == -32600
        if answer.closes:
            assert client.rest() == b""
        else:
            assert client.ask(post()).status == 200, "the connection is still in step"
    assert not [path for _, path in door.corridor.walked if path != "/main/mcp"], "the canary was seen"
    with RawClient(door.address) as client:
        assert client.ask(post()).status == 200, "the next good request"


@pytest.mark.parametrize("row", _rows("FRM-01 lengths", "FRM-02 codings"))
def test_a_body_has_one_length(door: OpenDoor, row: Row) -> None:
    """FRM-01, FRM-02: two lengths, or one that is not spelled exactly, is no length at all."""
    _run(door, row)


@pytest.mark.parametrize("row", _rows("FRM-02 mutations"))
def test_a_mutated_transfer_encoding_hides_nothing(door: OpenDoor, row: Row) -> None:
    """FRM-02: each of smuggler's spellings is refused, or is a header of its own that frames nothing."""
    _run(door, row)


def test_all_134_mutations_are_there() -> None:
    """The corpus is whole."""
    assert len(MUTATED_LINES) == 134


@pytest.mark.parametrize("row", _rows("FRM-04 lines"))
def test_a_line_has_one_reading(door: OpenDoor, row: Row) -> None:
    """FRM-04: hosts, lines and targets that somebody could read in another way are refused."""
    _run(door, row)


@pytest.mark.parametrize("row", _rows("FRM-06 methods"))
def test_only_post_is_a_method(door: OpenDoor, row: Row) -> None:
    """FRM-06: GET, DELETE and others are 405, what is no method of HTTP is 400."""
    _run(door, row)


@pytest.mark.parametrize("row", _rows("FRM-11 upgrades"))
def test_no_protocol_is_changed_and_no_byte_runs_ahead(door: OpenDoor, row: Row) -> None:
    """FRM-11: an upgrade is ignored, and what follows a request before its answer is never a request."""
    _run(door, row)


@pytest.mark.parametrize("row", _rows("FRM-01 lengths", "FRM-02 codings", "FRM-11 upgrades"))
def test_framing_holds_in_any_packets(door: OpenDoor, row: Row) -> None:
    """The same answer when the bytes come in three pieces: no check depends on how TCP cut them."""
    third = max(1, len(row.data) // 3)
    with RawClient(door.address) as client:
        for at in range(0, len(row.data), third):
            client.send(row.data[at : at + third])
            time.sleep(0.002)
        answer = client.read_answer()
        assert answer.status in row.right
    assert all(path == "/main/mcp" for _, path in door.corridor.walked)
    bodies = [body for _, body in door.corridor.served]
    assert bodies == ([row.body] if answer.status == 200 else [])


def test_405_names_the_method_that_is_allowed(door: OpenDoor) -> None:
    """FRM-06: `Allow: POST`, and the connection stays."""
    with RawClient(door.address) as client:
        answer = client.ask(b"GET /main/mcp HTTP/1.1\r\nHost: gw.example\r\n\r\n")
        assert (answer.status, answer.values("allow"), answer.closes) == (405, ["POST"], False)
        assert client.ask(post()).status == 200
    assert [body for _, body in door.corridor.served] == [BODY]
