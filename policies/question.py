"""What a policy is asked, in two parts: all but the call's arguments, and those.

What is remembered of a decision is found by the first part alone; the whole text is made once, by whoever needs it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson


class Candidates:
    """What a page of a list offers: its JSON text and that text's SHA-256, made once for however many ask."""

    __slots__ = ("digest", "text")

    def __init__(self, items: Sequence[Mapping[str, Any]]) -> None:
        self.text = orjson.dumps(items, default=dict)
        self.digest = hashlib.sha256(self.text).digest()


class Question:
    """An input document: `bytes(question)` is its JSON text.

    `key` is that text without `request.arguments`, and with the candidates' digest behind it instead of the
    candidates. `begins`: it is a first request, or the page that answers one: no answers, no tasks, no grant, so that
    its verdict may be remembered.
    """

    __slots__ = ("_arguments", "_candidates", "_facts", "_request", "_text", "begins", "key")

    def __init__(
        self,
        facts: bytes,
        request: Mapping[str, Any],
        arguments: Mapping[str, Any],
        *,
        begins: bool,
        candidates: Candidates | None = None,
    ) -> None:
        """`facts` is the JSON text of all members but `candidates` and `request`, without the brace that ends it;
        `request` has all of its own members but `arguments`. Neither is empty."""
        self._facts = facts
        self._request = orjson.dumps(request, default=dict)
        self._candidates = candidates
        # No text of one document is the beginning of another's, so what follows can't be taken for a part of it.
        digest = b"" if candidates is None else candidates.digest
        self.key = b'%b,"request":%b}%b' % (self._facts, self._request, digest)
        self.begins = begins
        self._arguments = arguments
        self._text = b""

    def __bytes__(self) -> bytes:
        if not self._text:
            offered = b"" if self._candidates is None else b',"candidates":' + self._candidates.text
            arguments = orjson.dumps(self._arguments, default=dict)
            # The last byte of `_request` ends it.
            rest = (self._facts, offered, self._request[:-1], arguments)
            self._text = b'%b%b,"request":%b,"arguments":%b}}' % rest
        return self._text
