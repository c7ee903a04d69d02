"""What a policy is asked, in two parts: all but the call's arguments, and those.

What is remembered of a decision is found by the first part alone; the whole text is made once, by whoever needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson


class Question:
    """An input document: `bytes(question)` is its JSON text.

    `rest` is the text without `request.arguments`, whose last member `request` is. `begins`: it is about a call that
    brings nothing but arguments (no list, no answers, no tasks, no grant), so that its verdict may be remembered.
    """

    __slots__ = ("_arguments", "_text", "begins", "rest")

    def __init__(self, document: Mapping[str, Any], arguments: Mapping[str, Any], *, begins: bool) -> None:
        """`document` has `request` as its last member, without `arguments`."""
        self.rest = orjson.dumps(document, default=dict)
        self.begins = begins
        self._arguments = arguments
        self._text = b""

    def __bytes__(self) -> bytes:
        if not self._text:  # the last two bytes of `rest` end `request` and the document
            arguments = orjson.dumps(self._arguments, default=dict)
            self._text = b'%b,"arguments":%b}}' % (self.rest[:-2], arguments)
        return self._text
