"""Decisions of one bundle that hold for any arguments, as that bundle itself says: asked once, remembered after that.

A verdict is found by the whole input document but the arguments, byte by byte (a page's candidates by their SHA-256),
so by everything that can tell one caller, tool, definition or environment from another. The memory belongs to one
generation of evaluators and goes with it: nothing of a bundle outlives it, and an answer that was under way when it
was replaced is kept by nobody.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain
from typing import Final

from policies.question import Question
from policies.verdict import Effect, Verdict

ENTRIES: Final = 8192
TOTAL_BYTES: Final = 16 * 1024 * 1024
LARGEST: Final = 64 * 1024
OVERHEAD: Final = 256
"""What one entry takes besides its key and its verdict's texts."""


def holds(verdict: Verdict) -> bool:
    """Whether a verdict may be given again for other arguments, later.

    Only an allow: what a person approves is judged anew each time, and made-up names could fill the memory with
    denials. Nothing that is counted.
    """
    return verdict.any_arguments and verdict.effect is Effect.ALLOW and not verdict.limits


class Memory:
    """The least recently used is forgotten first. Bounded by entries and by bytes.

    Of a list's page the candidates are part of the question: it is found by their SHA-256 as well.
    """

    def __init__(self, entries: int = ENTRIES, total_bytes: int = TOTAL_BYTES) -> None:
        self._entries = entries
        self._total = total_bytes
        self._kept: OrderedDict[bytes, Verdict] = OrderedDict()
        self._size = 0

    def recall(self, question: Question) -> Verdict | None:
        """What was decided for this question, whatever its arguments were."""
        verdict = self._kept.get(question.key) if question.begins else None
        if verdict is not None:
            self._kept.move_to_end(question.key)
        return verdict

    def keep(self, question: Question, verdict: Verdict) -> None:
        """Remember it, where both may be."""
        key = question.key
        if not question.begins or not holds(verdict) or len(key) > LARGEST or key in self._kept:
            return
        self._kept[key] = verdict
        self._size += _weight(key, verdict)
        while len(self._kept) > self._entries or self._size > self._total:
            self._size -= _weight(*self._kept.popitem(last=False))


def _weight(key: bytes, verdict: Verdict) -> int:
    texts = chain(verdict.visible, verdict.scopes, verdict.reasons, verdict.clear, verdict.mask)
    return len(key) + OVERHEAD + sum(64 + 4 * len(one) for one in texts)
