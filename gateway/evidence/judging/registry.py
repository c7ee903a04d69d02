"""The checks of the class `registry`: derived from the record's, the pins' and the live server's own bytes.

What the commands said has to agree: two ways to one answer.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.contract.fingerprint import digest_definition
from gateway.contract.passage import Tool
from gateway.contract.pins import deviations, read_pins
from gateway.evidence.checks import Check
from gateway.evidence.seen import Seen, need
from gateway.evidence.taking.registry import MOVED
from gateway.registry.drift import compare
from gateway.registry.flaws import Flaw, usable
from gateway.registry.live import INFO, OFFERS, Live
from gateway.registry.record import read_record
from gateway.registry.validation import validate

FOREIGN: Final = "publisher.example"
"""A domain that no record here is of."""

_RECORD: Final = "registry/server.json"
_ASKED: Final = "registry/asked.json"
_RUNS: Final = "registry/runs.json"
_PINS: Final = "registry/pins.json"
_LIVE: Final = "wire/good.json"


def _flaws(seen: Seen, publisher: str) -> list[Flaw]:
    return validate(seen.raw(_RECORD), publisher, private=seen.document(_ASKED)["private"] is True)


def _list(flaws: list[Flaw]) -> str:
    return "; ".join(f"{flaw.pointer or '/'} {flaw.what} [{flaw.rule}]" for flaw in flaws if not flaw.note)


def _record(seen: Seen) -> str:
    flaws = _flaws(seen, "")
    need(usable(flaws), _list(flaws))
    published = read_record(seen.raw(_RECORD))
    return f"{published.name} {published.version} is valid by {published.document['$schema']}"


def _namespace(seen: Seen) -> str:
    publisher = seen.document(_ASKED)["publisher"]
    need(publisher, "no publisher is named")
    flaws = _flaws(seen, publisher)
    need(usable(flaws), _list(flaws))
    rules = {flaw.rule for flaw in _flaws(seen, FOREIGN)}
    need(rules >= {"name-publisher"}, f"{FOREIGN} could have published it too")
    return f"{read_record(seen.raw(_RECORD)).name} is a name of {publisher}, and none of {FOREIGN}"


def _live(seen: Seen) -> Live:
    """The server as it described itself on the wire."""
    asked, steps = seen.document(_ASKED), seen.steps(_LIVE)
    seen.passed(steps["discover"])
    seen.passed(steps["list"])
    discovered = steps["discover"].result
    info: dict[str, Any] = discovered["_meta"][INFO]
    return Live(
        server=asked["server"],
        addresses=tuple(asked["addresses"]),
        name=str(info.get("name", "")),
        version=str(info.get("version", "")),
        title=str(info.get("title", "")),
        description=str(info.get("description", "")),
        capabilities=frozenset(name for name in OFFERS if name in discovered["capabilities"]),
        tools={tool["name"]: _tool(tool) for tool in steps["list"].result["tools"]},
    )


def _tool(definition: dict[str, Any]) -> Tool:
    return Tool(definition["name"], digest_definition(definition), definition.get("annotations", {}), definition)


def _run(seen: Seen, name: str) -> tuple[int, dict[str, Any]]:
    """How a command ended, and what it said of the one server."""
    run = seen.document(_RUNS)[name]
    need(run["exit"] in (0, 1), f"`{' '.join(run['command'][:3])}` ended with {run['exit']}: {run['output'][:200]}")
    (told,) = orjson.loads(run["output"])["servers"]
    need(told["server"] == seen.document(_ASKED)["server"], f"it speaks of {told['server']}")
    return run["exit"], told


def _alignment(seen: Seen) -> str:
    live = _live(seen)
    found = compare(read_record(seen.raw(_RECORD)), live, None).found
    differs = "; ".join(line for one in found for line in one.lines())
    need(not found, differs)
    code, told = _run(seen, "drift")
    need((code, told["differences"]) == (0, []), f"`registry drift` says {told['differences']}")
    return f"name, version {live.version}, address and {len(live.tools)} tools are those of the live server"


def _drift(seen: Seen) -> str:
    before = _run(seen, "drift")[1]["differences"]
    code, told = _run(seen, "moved")
    found = [one for one in told["differences"] if one not in before]
    said = {(one["aspect"], one["published"]) for one in found}
    need(code == 1 and said == {("url", MOVED)}, f"`registry drift` ends with {code} and says {found}")
    return f"exit 1 and that alone: published at {MOVED}, live at {found[0]['live'][0]}"


def _pinned(seen: Seen) -> str:
    live = _live(seen)
    pins = read_pins(seen.raw(_PINS)).get(live.server, {})
    need(pins, f"no tool of {live.server} is pinned")
    found = [f"{one.tool} is {one.state}" for one in deviations(live.server, pins, live.tools)]
    need(not found, "; ".join(found))
    code, told = _run(seen, "pins")
    need(code == 0 and not told["tools"] and told["as_accepted"] == len(pins), f"`pins show` says {told}")
    return f"{len(pins)} tools, each as somebody accepted it (mode {told['mode']})"


REGISTRY: Final = (
    Check(
        "registry",
        "record",
        "docs/registry.md",
        "The published record",
        "valid by the official schema and the rules beyond it",
        (_RECORD,),
        _record,
    ),
    Check(
        "registry",
        "namespace",
        "docs/registry.md",
        "Whose name it is",
        "the publisher's, and no other one's",
        (_RECORD, _ASKED),
        _namespace,
    ),
    Check(
        "registry",
        "alignment",
        "docs/registry.md",
        "The record against the live server",
        "no difference, derived here and by ostiary registry drift",
        (_RECORD, _LIVE, _RUNS),
        _alignment,
    ),
    Check(
        "registry",
        "drift",
        "docs/registry.md",
        "A record that says another address",
        "exactly that difference",
        (_RUNS,),
        _drift,
    ),
    Check(
        "registry",
        "pins",
        "docs/pins.md",
        "The tools against what somebody accepted",
        "no deviation, derived here and by ostiary pins show",
        (_PINS, _LIVE, _RUNS),
        _pinned,
    ),
)
