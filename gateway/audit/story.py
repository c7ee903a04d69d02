"""One request's story from the record: its decision, its ticket's moves, its end, and a refusal's reason in words.

The words are docs/refusals.md's, read from there: nothing is said twice. Commands and pages tell the same story; how
the records are found, and how a text is made fit for a screen, is theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from approvals.ticket import HELD_FOR
from gateway.audit.query import Query
from gateway.contract.refusals import Refusal

_PLACES: Final = (Path(__file__).parents[1] / "refusals.md", Path(__file__).parents[2] / "docs/refusals.md")
_HOLDING: Final = ([Refusal.APPROVAL_REQUIRED.reason], [Refusal.APPROVAL_REFUSED.reason])
MOST: Final = 1000
"""Records of a story: a conversation has few, a forged file could have any number."""

Record = Mapping[str, Any]
Find = Callable[[Query], Sequence[Record]]
Clean = Callable[[str, int], str]
"""A text of the record and how many characters of it -> what may be shown of it."""


@dataclass(frozen=True, slots=True)
class Event:
    """What one record says. `other` is the request that it is about, where that is another under the same ticket."""

    time: str
    text: str
    record: Record
    other: str = ""


@dataclass(frozen=True, slots=True)
class Story:
    """Texts are clean. `caller` is (member, value); `reason` is the refusal's name, `words` what its page says.

    `detail` and `reasons` (the policy's) are for operators and auditors, never for whoever was refused.
    """

    asked: str
    server: str
    caller: Sequence[tuple[str, str]]
    verdict: str
    revision: str
    trace: str
    events: Sequence[Event]
    reason: str
    words: str
    detail: str
    reasons: Sequence[str]


@cache
def refusal_words() -> Mapping[str, str]:
    """Each refusal's name -> what docs/refusals.md says of it, as one line. Empty where the page is not there."""
    page = next((path.read_text("utf-8") for path in _PLACES if path.is_file()), "")
    parts = re.split(r"^### (\w+)\n", page, flags=re.MULTILINE)[1:]
    told = (re.sub(r"\n#+ .*", "", text, flags=re.DOTALL) for text in parts[1::2])
    return {name: _plain(text) for name, text in zip(parts[::2], told, strict=True)}


def _plain(text: str) -> str:
    """A paragraph without the marks of Markdown; links are left as their words."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(text.replace("**", "").replace("*Do:*", "Do:").split())


def gather(find: Find, decision: str) -> list[Record]:
    """All records of the decision, of the one whose outcome it told again, and of their tickets, in order of time.

    Raises what `find` raises.
    """
    own = [*find(Query(decision=decision))]
    ran = {before for record in own if isinstance(before := record.get("replay_of"), str)}
    own += [record for before in sorted(ran) for record in find(Query(decision=before))]
    tickets = {
        told for record in own for name in ("ticket", "answers_ticket") if isinstance(told := record.get(name), str)
    }
    told = {place_of(record): record for record in own}
    for ticket in sorted(tickets):
        for record in find(Query(ticket=ticket)):
            told.setdefault(place_of(record), record)
    return sorted(told.values(), key=_in_order)[:MOST]


def _in_order(record: Record) -> tuple[str, str, int]:
    """By time; what one writer wrote in the same millisecond, as it wrote it."""
    seq = record.get("seq")
    return str(record.get("time")), str(record.get("writer")), seq if isinstance(seq, int) else 0


def place_of(record: Record) -> tuple[str, str]:
    """Where a record says that it stands: writer and number, as texts whatever they are."""
    return str(record.get("writer")), str(record.get("seq"))


def tell(records: Sequence[Record], decision: str, clean: Clean) -> Story:
    """The story of the records, some of which are the decision's own."""
    speaker = _Speaker(clean)
    own = [record for record in records if record.get("decision_id") == decision]
    first, words = own[0], refusal_words()
    refused = next((one for one in own if one.get("kind") == "refusal" or reason_of(one) in words), None)
    reason = reason_of(refused) if refused is not None else ""
    actor = first.get("actor")
    whom = actor if isinstance(actor, dict) else {}
    caller = [(name, clean(str(whom[name]), 256)) for name in ("subject", "client", "issuer") if whom.get(name)]
    return Story(
        asked=" ".join(filter(None, (speaker.text(first, "method"), speaker.text(first, "name")))),
        server=speaker.text(first, "server"),
        caller=caller or ([("one of", f"{speaker.number(first, 'actors')} callers")] if first.get("actors") else []),
        verdict=speaker.text(first, "verdict"),
        revision=speaker.text(first, "policy_revision"),
        trace=speaker.text(first, "trace_id"),
        events=[speaker.event(record, decision) for record in records],
        reason=clean(reason, 64),
        words=words.get(reason, ""),
        detail=speaker.text(refused, "detail") if refused is not None else "",
        reasons=[clean(one, 64) for one in policy_reasons(refused)] if refused is not None else [],
    )


def reason_of(record: Record) -> str:
    """The record's first reason: of a refusal its name."""
    reasons = record.get("reasons")
    return str(reasons[0]) if isinstance(reasons, list) and reasons else ""


def is_mixed(record: Record) -> bool:
    """Whether it is of refusals for several reasons, in a flood that had too many kinds to tell apart."""
    return bool(record.get("first")) and record.get("kind") == "refusal" and record.get("status") is None


def policy_reasons(record: Record) -> list[str]:
    """Of a decision or a refusal, the policy's own: without the refusal's name, and why a call is held."""
    listed = record.get("reasons")
    if not isinstance(listed, list) or record.get("kind") not in ("decision", "refusal") or is_mixed(record):
        return []
    reasons = [str(one) for one in listed]
    if record.get("kind") == "refusal":
        is_held = reasons[:1] in _HOLDING and reasons[1:2] and reasons[1] in HELD_FOR
        reasons = reasons[2 if is_held else 1 :]
    return reasons


@dataclass(frozen=True, slots=True)
class _Speaker:
    clean: Clean

    def text(self, record: Record, name: str) -> str:
        value = record.get(name)
        return self.clean(str(value), 512) if value not in (None, "") else ""

    def number(self, record: Record, name: str) -> str:
        return self.clean(str(record.get(name)), 64)

    def event(self, record: Record, decision: str) -> Event:
        other = record.get("decision_id") not in (decision, None) and record.get("kind") != "approval"
        about = self.text(record, "decision_id") if other else ""
        return Event(self.text(record, "time"), self.sentence(record), record, about)

    def shared(self, record: Record) -> str:
        """That a flood's refusals are told by this one, and how many they were."""
        if not record.get("first"):
            return ""
        whose = f" of {self.number(record, 'actors')} callers" if record.get("actors") else ""
        often, first, last = self.number(record, "count"), self.text(record, "first"), self.text(record, "last")
        return f", {often} times{whose} from {first} to {last}"

    def sentence(self, record: Record) -> str:
        ticket = f", ticket {self.text(record, 'ticket')}" if record.get("ticket") else ""
        reason = self.clean(reason_of(record), 64)
        match record.get("kind"):
            case "decision":
                if ran := self.text(record, "replay_of"):
                    return f"decided: told again what came of {ran}{ticket}"
                return f"decided: forwarded{ticket}"
            case "outcome":
                where = f" at {self.text(record, 'replica')}" if record.get("replica") else ""
                why = f" ({reason})" if reason else ""
                how, status = self.text(record, "outcome"), self.number(record, "status")
                return f"ended: {how}{why}{where}, status {status}{ticket}"
            case "refusal" if is_mixed(record):
                reasons = record.get("reasons")
                named = ", ".join(map(str, reasons)) if isinstance(reasons, list) else reason
                return f"refused, each for one of these: {self.clean(named, 512)}{self.shared(record)}"
            case "refusal":
                code = f", code {self.number(record, 'code')}" if record.get("code") is not None else ""
                return f"refused: {reason}, status {self.number(record, 'status')}{code}{ticket}{self.shared(record)}"
            case "approval":
                use = f", use {self.text(record, 'use')}" if record.get("use") else ""
                by, now = self.text(record, "by"), self.text(record, "ticket_state")
                return (
                    f"ticket {self.text(record, 'ticket')}: {self.text(record, 'transition')} by {by}, now {now}{use}"
                )
            case _:
                return f"{self.text(record, 'act')} by {self.text(record, 'by')}"
