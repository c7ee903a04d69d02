"""Whether a bundle keeps what its decisions promise by `any_arguments`, as far as asking them again can tell.

Cases come from the names in the bundle's data and the texts in its rules. Each is asked with several arguments, made
of the names, texts and numbers that the bundle itself holds, and where a decision makes the promise also by copies of
the rules whose clock stands at other times. One difference is a broken promise; none proves nothing: it is a sample,
and what is not asked within `LOOKS_S`, or is late even where it is asked alone, is not looked at.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import Any, Final

import orjson

from gateway.rehearsal.bundles import make_cases
from policies.bundles import Bundle
from policies.generation import Bounds, Generation, Undecided
from policies.rego_tests import Outcome
from policies.verdict import PolicyUnavailable

AT_ONCE: Final = 64
MOST_MADE: Final = 100_000
MOST_CASES: Final = 250
MOST_ASKED: Final = 2_500
AT_FIRST: Final = 8
MOST_EACH: Final = 150
MOST_NAMES: Final = 24
MOST_TOLD: Final = 20
LOOKS_S: Final = 20.0
"""For all of it: whoever judges a reload waits for it."""
DEADLINE_S: Final = 5.0
INSTANTS: Final = (0, 1_795_996_800, 1_796_040_000, 4_102_444_800)
"""Seconds: long ago, a midnight, a midday, long from now."""

_CLOCK = re.compile(r"time\.now_ns\(\s*\)")
_TEXT = re.compile(r'"((?:[^"\\\n]){1,64})"')
_MEMBERS = re.compile(r"arguments((?:\.[A-Za-z_]\w{0,63})+)")
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}")
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,15}(?:\.\d{1,6})?(?![\w.])")

Case = Mapping[str, Any]


UNASKED: Final = object()


@dataclass(slots=True)
class _Told:
    """What was decided of one case: whether it is promised, what broke that, whether it was late alone."""

    case: Case
    first: Any = UNASKED
    promised: bool = False
    differs: str = ""
    late: bool = False

    def hear(self, decision: Any, how: str) -> None:
        if self.first is UNASKED:
            self.first = decision
        self.promised |= isinstance(decision, dict) and decision.get("any_arguments") is True
        if not self.differs and decision != self.first:
            self.differs = f"{how} there is {'no decision' if decision is None else 'another decision'}"


async def find_broken(bundle: Bundle) -> list[Outcome]:
    """One for each request whose decision does not hold as it says, of those that were asked within `LOOKS_S`.

    Raises `PolicyUnavailable` for a bad bundle.
    """
    told = [_Told(case) for case in _choose_cases(bundle)]
    with suppress(TimeoutError):
        async with asyncio.timeout(LOOKS_S):
            await _look(bundle, told)
    broken = {_what(one.case): one.differs for one in told if one.promised and one.differs}
    return [
        Outcome(f"any_arguments of {' '.join(filter(None, what))}", False, why)
        for what, why in sorted(broken.items())[:MOST_TOLD]
    ]


async def _look(bundle: Bundle, told: Sequence[_Told]) -> None:
    async with _opened(bundle) as live:
        variants = _make_arguments(bundle)
        for arguments in ({}, *islice(variants, max(AT_FIRST, MOST_ASKED // len(told)))):
            await _ask(live, told, f"with arguments {_shown(arguments)}", arguments)
        told = [one for one in told if one.promised]
        for arguments in islice(variants, min(MOST_EACH, MOST_ASKED // max(1, len(told)))):
            await _ask(live, told, f"with arguments {_shown(arguments)}", arguments)
    if told and any(_CLOCK.search(module.text) for module in bundle.modules):
        for instant in INSTANTS:
            async with _opened(_stopped(bundle, instant)) as stopped:
                await _ask(stopped, told, "at another time", {})


@asynccontextmanager
async def _opened(bundle: Bundle) -> AsyncIterator[Generation]:
    generation = Generation(bundle, Bounds(deadline_s=DEADLINE_S, evaluators=1), ())
    try:
        await generation.start()
        yield generation
    finally:
        await generation.close()


def _stopped(bundle: Bundle, instant: int) -> Bundle:
    """The bundle with its clock at `instant` (seconds)."""
    modules = (replace(one, text=_CLOCK.sub(str(instant * 10**9), one.text)) for one in bundle.modules)
    return replace(bundle, modules=tuple(modules))


async def _ask(engine: Generation, told: Sequence[_Told], how: str, arguments: Any) -> None:
    """Ask all that no difference is known of yet, with these arguments."""

    async def one(asked: _Told) -> bool:
        request = {**asked.case["request"], "arguments": arguments}
        try:
            answer = await engine.ask(orjson.dumps({**asked.case, "request": request}))
        except Undecided:
            asked.hear(None, how)
        except PolicyUnavailable:
            return False
        else:
            asked.hear(orjson.loads(answer), how)
        return True

    left = [asked for asked in told if not asked.late and not (asked.differs and asked.promised)]
    for start in range(0, len(left), AT_ONCE):
        some = left[start : start + AT_ONCE]
        for asked, answered in zip(some, await asyncio.gather(*map(one, some)), strict=True):
            # It may have waited for the others: that says nothing about its rules.
            asked.late = not answered and not await one(asked)


def _what(case: Case) -> tuple[str, str, str]:
    return case["server"]["name"], case["request"]["method"], case["request"]["name"] or ""


def _choose_cases(bundle: Bundle) -> list[Case]:
    """First requests about what the data names, and about tools that are named as the rules' texts are."""
    plain = next(case for case in _make_first(bundle) if case["request"]["kind"] == "tool")
    named = ({**plain, "request": {**plain["request"], "name": name}} for name in sorted(_texts(bundle)))
    random = Random(0)  # noqa: S311 - a sample, the same one every time
    return [*_some(random, named, MOST_CASES // 5), *_some(random, _make_first(bundle), MOST_CASES)]


def _make_first(bundle: Bundle) -> Iterator[Case]:
    for case in islice(make_cases(bundle, bundle), MOST_MADE):
        request = case["request"]
        if request["leg"] == 0 and not request["tasks"] and "grant" not in request:
            yield case


def _some(random: Random, cases: Iterable[Case], most: int) -> list[Case]:
    """At most so many, each as likely as any other, and never more than these in memory."""
    kept: list[Case] = []
    for index, case in enumerate(cases):
        if index < most:
            kept.append(case)
        elif (place := random.randrange(index + 1)) < most:
            kept[place] = case
    return kept


def _texts(bundle: Bundle) -> set[str]:
    return {found for module in bundle.modules for found in _TEXT.findall(module.text)}


def _make_arguments(bundle: Bundle) -> Iterator[Any]:
    """Every name under one value, for each value, and mixtures: the same ones every time."""
    rules = "\n".join(module.text for module in bundle.modules)
    texts = sorted({*_TEXT.findall(rules), *_TEXT.findall(bundle.data)})
    steps = {step for text in texts if text.startswith("/") for step in text.split("/")[1:]}
    likely = sorted({*(step for path in _MEMBERS.findall(rules) for step in path[1:].split(".")), *steps})
    names = [name for name in (*likely, *texts) if _NAME.fullmatch(name)][:MOST_NAMES]
    numbers = {float(one) if "." in one else int(one) for one in _NUMBER.findall(rules + bundle.data)}
    edges = sorted({edge for one in numbers for edge in (one - 1, one, one + 1)} | {-1, 0, 1, 10**12})
    random = Random(0)  # noqa: S311 - a sample, the same one every time
    values: list[Any] = [None, True, "", [], {}, ["x"], *edges, *texts]
    random.shuffle(values)
    for value in (-1, 10**12, "x", *values):
        yield dict.fromkeys(names, value)
        yield dict.fromkeys(names, dict.fromkeys(names, value))
        yield {name: random.choice(values) for name in names if random.random() < 0.5}
    yield from ([], "x")


def _shown(arguments: Any) -> str:
    text = orjson.dumps(arguments).decode()
    return text if len(text) <= 80 else text[:80] + "\N{HORIZONTAL ELLIPSIS}"
