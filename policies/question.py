"""What a policy is asked, in two parts: all but the call's arguments, and those.

What is remembered of a decision is found by the first part alone; the whole text is made once, by whoever needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson


class Question:
    """An input document: `bytes(question)` is its JSON text.

    `rest` is the text without `request.arguments`, whose last member `request` is. `begins`: it is a first
    request, or the page that answers one: no answers, no tasks, no grant, so that its verdict may be remembered.
    """

    __slots__ = ("_arguments", "_text", "begins", "rest")

    def __init__(
        self, facts: Mapping[str, Any], request: Mapping[str, Any], arguments: Mapping[str, Any], *, begins: bool
    ) -> None:
        """`facts` are all members but `request`, and `request` all of its own but `arguments`; neither is empty."""
        self.rest = b'%b,"request":%b}' % (
            orjson.dumps(facts, default=dict)[:-1],
            orjson.dumps(request, default=dict),
        )
        self.begins = begins
        self._arguments = arguments
        self._text = b""

    def __bytes__(self) -> bytes:
        if not self._text:  # the last two bytes of `rest` end `request` and the document
            arguments = orjson.dumps(self._arguments, default=dict)
            self._text = b'%b,"arguments":%b}}' % (self.rest[:-2], arguments)
        return self._text
