"""What an earlier life of a writer left: where its chain ends, and which decisions have no end.

Marks (`started`, `mark`) name all that is open at their place, so a start reads back to the last one only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.contract.chain import ZERO

_MAX_KEPT: Final = 2000
_SEQ: Final = re.compile(rb',"seq":([1-9][0-9]{0,15}),')
_PREV: Final = re.compile(rb',"prev":"([0-9a-f]{64})",')
MARKS: Final = (b'{"act":"started"', b'{"act":"mark"')
"""How canonical lines of marks begin; no caller's text can hold a raw line feed before one."""


@dataclass(slots=True)
class Left:
    """The chain of `writer` ends with record `seq`, whose hash is `head`; `cut` bytes after it were torn.

    `open` maps the decision ids without an end to the decision's record, or to `{}` where only the id is known.
    """

    writer: int
    seq: int = 0
    head: str = ZERO
    cut: int = 0
    open: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def follow(self, record: Mapping[str, Any]) -> None:
        """The chain's next record opens a decision, ends one, or says which are open."""
        kind, decision = record["kind"], record.get("decision_id")
        if kind == "decision" and isinstance(decision, str):
            # Thousands can only be left open by a defect: of those the id is enough.
            self.open[decision] = {**record, "arguments": None} if len(self.open) < _MAX_KEPT else {}
        elif kind in ("outcome", "refusal") and isinstance(decision, str):
            self.open.pop(decision, None)
        elif kind == "admin" and record.get("act") in ("started", "mark"):
            facts = record.get("facts")
            ids = facts.get("open") if isinstance(facts, dict) else None
            self.open = {id_: self.open.get(id_, {}) for id_ in ids or () if isinstance(id_, str)}


def state_before(line: bytes) -> tuple[int, str]:
    """The (count, head) that a chain must have before `line`, as it says itself; its hash is judged all the same."""
    seq, prev = _SEQ.search(line), _PREV.search(line)
    return (int(seq[1]) - 1, prev[1].decode("ascii")) if seq and prev else (0, ZERO)
