"""A head that is familiar is what `read_head` would read, and no other is taken for one (FRM-01 to FRM-11)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract.refusals import Refused
from gateway.door import connection as doors
from gateway.door.familiar import MOST_BYTES, PATIENCE, Familiar
from gateway.door.framing import DoorLimits, Head, find_end, read_head
from tests.edge.door import BODY, OpenDoor, head
from tests.support.http_raw import RawClient

LIMITS = DoorLimits()
LENGTHS = (
    b"0",
    b"7",
    b"12",
    b"007",
    b"1234567",
    b"9" * 18,
    b"9" * 19,
    b"",
    b"-1",
    b"+1",
    b"1 2",
    b"0x1",
    b"1,1",
    b"\xb2",
)
OTHERS = (
    b"Authorization: Bearer one", b"authorization:Bearer two", b"X-Content-Length: 3", b"content-length-x: 12",
    b"Expect: 100-continue", b"Upgrade: websocket", b"Transfer-Encoding: chunked", b"Content-Length: 12", b"X: \x01",
    b"Mcp-Name: content-length: 12", b"Mcp_Name: x", b"Accept: */*  ", b"Content_Length: 12",
)  # fmt: skip

lines = st.lists(st.sampled_from(OTHERS), max_size=4)
spaces = st.sampled_from((b"", b" ", b"\t ", b"  "))
names = st.sampled_from((b"Content-Length", b"content-length", b"CONTENT-LENGTH"))


def write(before: list[bytes], length_line: bytes, after: list[bytes], body: bytes = b"") -> bytes:
    return b"\r\n".join([b"POST /main/mcp HTTP/1.1", b"Host: a", *before, length_line, *after, b"", b""]) + body


def read(data: bytes) -> tuple[Head, int] | None:
    end = find_end(data)
    try:
        return (read_head(data, end, LIMITS), end) if end >= 0 else None
    except Refused:
        return None


@given(
    lines, lines, names, spaces, spaces, st.sampled_from(LENGTHS), st.sampled_from(LENGTHS), st.integers(0, 400),
    st.binary(max_size=3), st.integers(0, 3),
)  # fmt: skip
def test_what_is_recalled_is_what_would_be_read(  # noqa: PLR0917 - one head, and what is done to it
    before: list[bytes],
    after: list[bytes],
    name: bytes,
    left: bytes,
    right: bytes,
    first: bytes,
    second: bytes,
    at: int,
    put: bytes,
    cut: int,
) -> None:
    """Whatever stands in the next head, another length or other bytes anywhere: recalled alike, or read anew."""
    line = name + b":" + left + b"%b" + right
    text = write(before, line % first, after)
    known, familiar = read(text), Familiar()
    if known is None:
        return
    familiar.keep(text, known[0], LIMITS)
    whole = write(before, line % second, after, b"{}")
    for data in (text, whole, whole[:at] + put + whole[at + cut :], whole[:at]):
        recalled = familiar.recall(data)
        assert recalled is None or recalled == read(data)


@pytest.mark.parametrize("length", [b"312", b"7", b"1234"])
def test_another_length_is_still_familiar(length: bytes) -> None:
    """The one thing that differs from call to call costs no second reading; any other byte does."""
    text = write([b"Authorization: Bearer one"], b"Content-Length: 312", [b"Accept: */*"])
    familiar, known = Familiar(), read(text)
    assert known is not None
    familiar.keep(text, known[0], LIMITS)
    again = text.replace(b"312", length) + b"{}"
    recalled = familiar.recall(again)
    assert recalled is not None
    assert recalled == read(again)
    assert recalled[0].length == int(length)
    assert familiar.recall(again.replace(b"Bearer one", b"Bearer two")) is None


def test_no_more_is_kept_than_is_of_use() -> None:
    """A long head, one that is tamed, and heads that are never those before them are not kept."""
    familiar = Familiar()

    def keep(text: bytes) -> bool:
        known = read(text)
        assert known is not None
        familiar.keep(text, known[0], LIMITS)
        return familiar.recall(text) is not None

    assert not keep(write([b"X: " + b"a" * MOST_BYTES], b"Content-Length: 1", []))
    assert not keep(write([b"Upgrade: websocket"], b"Content-Length: 1", []))
    assert keep(write([], b"Content-Length: 1", []))
    for n in range(PATIENCE - 1):
        assert keep(write([b"X: %d" % n], b"Content-Length: 1", []))
    kept = Familiar()
    for n in range(PATIENCE):
        text = write([b"X: %d" % n], b"Content-Length: 1", [])
        known = read(text)
        assert known is not None
        assert kept.recall(text) is None
        kept.keep(text, known[0], LIMITS)
    text = write([b"X: other"], b"Content-Length: 1", [])
    known = read(text)
    assert known is not None
    kept.keep(text, known[0], LIMITS)
    assert kept.recall(text) is None, "its heads are all different"


def test_a_connection_reads_its_next_head_as_strictly(door: OpenDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the wire: the same lines with another length are one reading, and what differs is judged like a first."""
    heads: list[bytes] = []

    def count(data: bytes, end: int, limits: DoorLimits) -> Head:
        heads.append(data[:end])
        return read_head(data, end, limits)

    monkeypatch.setattr(doors, "read_head", count)

    def ask(client: RawClient, body: bytes, *more: bytes) -> Any:
        return client.ask(head(b"Content-Length: %d" % len(body), *more) + b"\r\n\r\n" + body)

    with RawClient(door.address) as client:
        for body in (BODY, BODY, BODY + b" " * 1000, BODY):
            assert ask(client, body).status == 200
        assert len(heads) == 1
        assert ask(client, BODY, b"X-More: 1").status == 200
        assert len(heads) == 2
        assert ask(client, BODY, b"Transfer-Encoding: chunked").status == 400
    assert [body for _, body in door.corridor.served][:3] == [BODY, BODY, BODY + b" " * 1000]
