"""Pages of servers' lists that were guarded and read before: the very same bytes are not read a second time.

A page is found by every byte of its answer but the request's id, compared with what is kept (no digest stands for
them), and by all else that its reading depended on: the list's method, the server as it is configured, the pins in
force. Who may see what of it is asked for each caller; the text of what is seen is kept by exactly that.
Bounded by pages and by bytes; the least recently used page goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from gateway.contract.guard import EXECUTED, Guarded
from gateway.contract.listing import MEMBERS, keep_visible
from gateway.contract.passage import Admitted, RequestId, Server
from policies.question import Candidates

PAGES: Final = 256
TOTAL_BYTES: Final = 64 * 1024 * 1024
LARGEST: Final = 1024 * 1024
"""Of an answer's text; one that is longer is read each time."""

READ: Final = 32
"""What a page takes at most once it is read, in lengths of its text: described tools were measured at 7, bare names
at 16, and nothing but empty objects was measured at 26."""

TEXTS: Final = 64
"""Of one page: so many sets of what callers see; the least recently used goes first."""

Place = tuple[bytes, bytes]
"""What stands before and behind the id in an answer's text."""

_HEAD, _TAIL = b'{"jsonrpc":"2.0","id":', b',"jsonrpc":"2.0","id":'


def place_of(text: bytes, request_id: RequestId | None) -> Place | None:
    """Where an answer names its id, in the two ways in which servers begin or end one; `None`: in another way.

    Both show a whole member of the outermost object whatever the id is. So what was strict JSON, and guarded, with
    one id in this place is so with any other.
    """
    spelt = orjson.dumps(request_id)
    if text.startswith(head := b'%b%b,"result":' % (_HEAD, spelt)):
        return _HEAD, text[len(head) - len(b',"result":') :]
    if text.startswith(b'{"result":') and text.endswith(tail := b"%b%b}" % (_TAIL, spelt)):
        return text[: len(_TAIL) - len(tail)], b"}"
    return None


@dataclass(slots=True)
class Page:
    """One page as it was read, and by what: the server, the pins that were in force (`Pins.in_force`).

    `names` are all that it offers, `left_out` those of what can't be used or is out of reach, whoever asks;
    `candidates` are what is left, `offered` the same as the policy is asked about them.
    """

    server: Server
    pins: object
    message: Mapping[str, Any]
    names: frozenset[str]
    candidates: Sequence[Mapping[str, Any]]
    left_out: frozenset[str]
    offered: Candidates
    place: Place = (b"", b"")
    texts: OrderedDict[frozenset[str], Place] = field(default_factory=OrderedDict)
    weight: int = 0

    def is_of(self, text: bytes, request_id: RequestId | None) -> bool:
        """Whether an answer is this page, with its own request's id in its place."""
        before, behind = self.place
        spelt = orjson.dumps(request_id)
        return (
            len(text) == len(before) + len(spelt) + len(behind)
            and text.startswith(before)
            and text.endswith(behind)
            and text[len(before) : len(text) - len(behind)] == spelt
        )


_Key = tuple[str, str, int]


class Pages:
    """All servers' pages. One per worker and event loop. `pins` gives what is in force (`Pins.in_force`)."""

    def __init__(self, pins: Callable[[], object], pages: int = PAGES, total_bytes: int = TOTAL_BYTES) -> None:
        self._pins = pins
        self._most = pages
        self._total = total_bytes
        self._kept: OrderedDict[_Key, Page] = OrderedDict()
        self._weight = 0

    def find(self, admitted: Admitted, text: bytes) -> Page | None:
        """The page that this answer is, where it was read before."""
        key = _key(admitted, text)
        page = self._kept.get(key)
        if page is None or page.server is not admitted.server or page.pins is not self._pins():
            return None
        if not page.is_of(text, admitted.call.envelope.id):
            return None
        self._kept.move_to_end(key)
        return page

    def guard(self, admitted: Admitted, text: bytes) -> Guarded | None:
        """What `guard_answer` would say of an answer that it let pass before, but for its id."""
        page = self.find(admitted, text) if admitted.call.method in MEMBERS else None
        if page is None:
            return None
        return Guarded(EXECUTED, {**page.message, "id": admitted.call.envelope.id}, text)

    def keep(self, admitted: Admitted, guarded: Guarded, page: Page) -> None:
        """Remember a page in place of the one that has its key."""
        place = place_of(guarded.raw, admitted.call.envelope.id)
        if place is None or len(guarded.raw) > LARGEST:
            return
        key = _key(admitted, guarded.raw)
        self._drop(key)
        page.place, page.weight = place, READ * len(guarded.raw)
        self._kept[key] = page
        self._weigh(page.weight)

    def text_of(self, admitted: Admitted, guarded: Guarded, page: Page, visible: Collection[str]) -> bytes:
        """The answer with what of the page is visible, as `keep_visible` has it."""
        seen, request_id = frozenset(visible), admitted.call.envelope.id
        place = page.texts.get(seen)
        if place is not None:
            page.texts.move_to_end(seen)
            before, behind = place
            return b"%b%b%b" % (before, orjson.dumps(request_id), behind)
        text = guarded.with_result(keep_visible(admitted.call.method, guarded.result, seen))
        place = place_of(text, request_id)
        if place is not None and self._kept.get(_key(admitted, guarded.raw)) is page:
            self._add(page, seen, place)
        return text

    def _add(self, page: Page, seen: frozenset[str], place: Place) -> None:
        page.texts[seen] = place
        added = _taken(seen, place)
        if len(page.texts) > TEXTS:
            added -= _taken(*page.texts.popitem(last=False))
        page.weight += added
        self._weigh(added)

    def _weigh(self, added: int) -> None:
        self._weight += added
        while len(self._kept) > self._most or self._weight > self._total:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: _Key) -> None:
        page = self._kept.pop(key, None)
        if page is not None:
            self._weight -= page.weight


def _key(admitted: Admitted, text: bytes) -> _Key:
    """Where to look: the bytes themselves are compared there, so that of pages of one length the last one is kept."""
    return admitted.server.name, admitted.call.method, len(text) - len(orjson.dumps(admitted.call.envelope.id))


def _taken(seen: frozenset[str], place: Place) -> int:
    names = sum(64 + 4 * len(one) for one in seen)  # of characters that may take four bytes each
    return len(place[0]) + len(place[1]) + names + 256
