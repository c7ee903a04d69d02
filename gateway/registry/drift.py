"""A published record beside the live server, and beside what somebody accepted of its tools: the exact differences.

Three sides, three values, never mixed: each difference says which side says what. What only one side can say at all
is no difference: a record need not have a title, nor name tools.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from gateway.contract.differences import differences, visible
from gateway.contract.fingerprint import digest
from gateway.contract.pins import Pin
from gateway.registry.addresses import could_be
from gateway.registry.flaws import step
from gateway.registry.live import Live
from gateway.registry.record import Published

Aspect = Literal["url", "name", "version", "title", "description", "capabilities", "tools"]
Side = Literal["published", "accepted", "live"]

MOST: Final = 1_000
"""Differences of one server that are told."""

SHOWN: Final = 2_000
"""Characters of one side's value on a terminal; programs get all of it."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference: of what, where (RFC 6901; of tools beginning with the tool), and what each side says there.

    A side's value is any JSON value; `None` where the side has nothing at this place.
    """

    aspect: Aspect
    at: str
    said: Mapping[Side, Any]

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {"aspect": self.aspect, "at": self.at, **dict(self.said.items())}

    def lines(self) -> Iterator[str]:
        """For a terminal: nothing hidden; a long value is cut, and says so."""
        yield f"{self.aspect} {visible(self.at)}"
        for side, value in self.said.items():
            text = "nothing" if value is None else visible(orjson.dumps(value).decode())
            cut = f"{text[:SHOWN]}… ({len(text)} characters; --json has all)" if len(text) > SHOWN else text
            yield f"    {side:9} {cut}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was compared, and what differs."""

    server: str
    record: str
    digest: str
    found: tuple[Drift, ...]

    @property
    def seen(self) -> str:
        """A digest of exactly these differences."""
        return digest([self.server, [[one.aspect, one.at, _text(one)] for one in self.found]])


def _text(one: Drift) -> str:
    # Numbers of a definition need no RFC 8785 form.
    return orjson.dumps(dict(one.said), option=orjson.OPT_SORT_KEYS).decode()


def compare(published: Published, live: Live, accepted: Mapping[str, Pin] | None) -> Comparison:
    """`accepted`: the pins of this server; `None` where it is held to none."""
    found: list[Drift] = []
    for look in (_addresses, _identity, _offers):
        found += look(published, live)
    if accepted is not None:
        found += _definitions(accepted, live)
    return Comparison(live.server, f"{published.name}@{published.version}", published.digest, tuple(found[:MOST]))


def _addresses(published: Published, live: Live) -> Iterator[Drift]:
    """A record with remotes names at least one address that is this server's."""
    remotes = [(at, one) for at, one in enumerate(published.remotes) if one.kind == "streamable-http"]
    if not published.remotes or any(
        could_be(remote.url, remote.choices, url) for _, remote in remotes for url in live.addresses
    ):
        return
    for at, remote in remotes or list(enumerate(published.remotes)):
        yield Drift("url", step("remotes", at, "url"), {"published": remote.url, "live": list(live.addresses)})


def _identity(published: Published, live: Live) -> Iterator[Drift]:
    if live.name not in {published.name, published.name.partition("/")[2]}:
        yield Drift("name", "/name", {"published": published.name, "live": live.name or None})
    if live.version != published.version:
        yield Drift("version", "/version", {"published": published.version, "live": live.version or None})
    for aspect, here, there in _texts(published, live):
        if here and there and here != there:
            yield Drift(aspect, f"/{aspect}", {"published": here, "live": there})


def _texts(published: Published, live: Live) -> Sequence[tuple[Aspect, str, str]]:
    return (("title", published.title, live.title), ("description", published.description, live.description))


def _offers(published: Published, live: Live) -> Iterator[Drift]:
    """What the publisher says that the server offers, beside what it offers."""
    if published.capabilities is not None and published.capabilities != live.capabilities:
        for name in sorted(published.capabilities ^ live.capabilities):
            sides: dict[Side, Any] = {
                "published": name in published.capabilities or None, "live": name in live.capabilities or None,
            }  # fmt: skip
            yield Drift("capabilities", step(name), sides)
    if published.tools is not None:
        now = {name: tool.digest for name, tool in live.tools.items()}
        for name in sorted({*published.tools, *now}):
            if published.tools.get(name) != now.get(name):
                yield Drift("tools", step(name), {"published": published.tools.get(name), "live": now.get(name)})


def _definitions(accepted: Mapping[str, Pin], live: Live) -> Iterator[Drift]:
    """Tools beside their accepted definitions, member by member."""
    for name in sorted({*accepted, *live.tools}):
        pin, tool = accepted.get(name), live.tools.get(name)
        if pin is None or tool is None:
            yield Drift("tools", step(name), {
                "accepted": pin and pin.definition, "live": tool and tool.definition,
            })  # fmt: skip
        elif pin.digest != tool.digest:
            for one in differences(pin.definition, tool.definition):
                yield Drift(
                    "tools", step(name) + one.path, {"accepted": _value(one.before), "live": _value(one.after)}
                )


def _value(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)
