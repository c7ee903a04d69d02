"""Media types of a request: what a client accepts, and what it sends (RFC 9110 sections 8.3, 12.5.1; contract.md 1).

Sans-IO. The few values that real clients send are remembered, within a bound.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_PARAMETER: Final = re.compile(
    rb"[ \t]*;[ \t]*(?:(" + _TOKEN + rb")=(" + _TOKEN + rb'|"(?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\[\t -~\x80-\xff])*"))?'
)
_MEDIA_RANGE: Final = re.compile(rb"(\*/\*|" + _TOKEN + rb"/(?:\*|" + _TOKEN + rb"))")
_WEIGHT: Final = re.compile(rb"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")
_ANSWERS: Final = (b"application/json", b"text/event-stream")


@lru_cache(maxsize=256)
def accepts_both_answers(accept: bytes) -> bool:
    """Whether `Accept` admits `application/json` and `text/event-stream`; the most specific range decides."""
    return _accepts(accept, _ANSWERS)


@lru_cache(maxsize=256)
def accepts_json(accept: bytes) -> bool:
    """Whether `Accept` admits `application/json`, whatever else."""
    return _accepts(accept, _ANSWERS[:1])


def _accepts(accept: bytes, answers: tuple[bytes, ...]) -> bool:
    weights: dict[bytes, bool] = {}
    at = 0
    while True:
        while at < len(accept) and accept[at : at + 1] in b" \t,":
            at += 1
        if at == len(accept):
            break
        media = _MEDIA_RANGE.match(accept, at)
        if media is None:
            return False
        at = media.end()
        wanted = True
        while parameter := _PARAMETER.match(accept, at):
            at = parameter.end()
            name, value = parameter.groups()
            if name is not None and name.lower() == b"q":
                if not _WEIGHT.fullmatch(value):
                    return False
                wanted = float(value) > 0
        rest = accept[at:].lstrip(b" \t")
        if rest and not rest.startswith(b","):
            return False
        weights[media[1].lower()] = wanted
    return all(_weigh(weights, answer) for answer in answers)


def _weigh(weights: dict[bytes, bool], answer: bytes) -> bool:
    ranges = (answer, answer.partition(b"/")[0] + b"/*", b"*/*")
    return next((weights[media] for media in ranges if media in weights), False)


@lru_cache(maxsize=256)
def is_json_in_utf8(content_type: bytes) -> bool:
    """Whether `Content-Type` is `application/json`, in any case, with no charset or UTF-8."""
    media = _MEDIA_RANGE.match(content_type)
    if media is None or media[1].lower() != b"application/json":
        return False
    at = media.end()
    while parameter := _PARAMETER.match(content_type, at):
        at = parameter.end()
        name, value = parameter.groups()
        if name is not None and name.lower() == b"charset" and value.strip(b'"').lower() != b"utf-8":
            return False
    return not content_type[at:].strip(b" \t")


def is_identity(content_encoding: list[bytes]) -> bool:
    """Whether no content coding was applied."""
    return not content_encoding or all(coding.lower() == b"identity" for coding in content_encoding)
