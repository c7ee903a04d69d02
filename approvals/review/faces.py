"""What a ticket's page shows, made ready: the few facts that a decision rests on first, everything bounded and plain.

The templates only lay out what is made here. Values come masked (showing.py) and leave as `Plain`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from approvals.masking import masked
from approvals.review.leaves import (
    DEEP,
    MOST_COUNTED,
    MOST_ROWS,
    Changed,
    Leaf,
    Steps,
    compare,
    count,
    leaves,
)
from approvals.review.plainly import Plain, in_a_line, in_lines
from approvals.review.sentences import BARRED, DONE, RUNS
from approvals.review.times import seconds_of
from approvals.sight import Sight

MOST_OF_A_VALUE = 600
MOST_OF_A_STEP = 80
AROUND = 60
MOST_CHANGES = 60
MOST_RUNS = 100

HINTS: Mapping[str, tuple[str, str]] = {
    "readOnlyHint": ("only reads", "changes things"),
    "destructiveHint": ("may delete or overwrite", "deletes and overwrites nothing"),
    "idempotentHint": ("repeating it changes nothing more", "repeating it repeats the effect"),
    "openWorldHint": ("reaches systems outside", "stays inside"),
}
"""A tool's own annotations -> what they say, true or false. They are the server's word, verified by nobody."""


@dataclass(frozen=True, slots=True)
class Row:
    """One value: the way to it, what it is, and what became of it since the last approval (`""`: nothing).

    `then` is what stood there; `hidden`: the policy masks it; both are shown from `from_character` on.
    """

    steps: tuple[Plain, ...]
    value: Plain | None
    kind: str
    hidden: bool = False
    change: str = ""
    then: Plain | None = None
    from_character: int = 0

    @property
    def is_cut(self) -> bool:
        """Whether there is more of it than is shown."""
        return self.kind == DEEP or (self.value is not None and self.value.is_cut)


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of one value; `total` counts what is not among them too (`MOST_COUNTED`: that many or more)."""

    rows: tuple[Row, ...]
    total: int

    @property
    def is_cut(self) -> bool:
        """Whether rows are missing, or a value is not shown as a whole."""
        return len(self.rows) < self.total or any(row.is_cut for row in self.rows)

    @property
    def is_beyond_counting(self) -> bool:
        """Whether `total` is only a bound."""
        return self.total >= MOST_COUNTED - MOST_ROWS


@dataclass(frozen=True, slots=True)
class Difference:
    """What changed since the last approval `before`. `rows` are those that changed, at most `MOST_CHANGES`."""

    before: Mapping[str, Any]
    rows: tuple[Row, ...]
    changed: int
    same: int
    whole: bool
    tool_changed: bool
    other_requester: bool

    @property
    def is_cut(self) -> bool:
        """Whether not all that changed is shown whole."""
        return len(self.rows) < self.changed or any(row.is_cut for row in self.rows)


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the history."""

    at: str
    text: str
    by: str = ""
    comment: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Face:
    """A ticket's page. `can`: verbs that this person can do now; `why_not`: why they can't decide, as a sentence."""

    ticket: Mapping[str, Any]
    now: float
    is_own: bool
    agreed: int
    can: frozenset[str]
    why_not: str
    arguments: Table
    meta: Table | None
    difference: Difference | None
    annotations: tuple[tuple[str, str], ...]
    history: tuple[Event, ...]
    is_unknown: bool
    is_running: bool
    vary: tuple[Table, Table] | None = None
    """Of a grant, in the place of arguments: the schema of whoever asks, and the policy's."""

    @property
    def is_cut(self) -> bool:
        """Whether not all of the arguments are on the page."""
        tables = (self.arguments, *(self.vary or ()))
        return any(one.is_cut for one in tables) or (self.difference is not None and self.difference.is_cut)


def face(sight: Sight) -> Face:
    """A sight -> what its page shows."""
    ticket, before = sight.ticket, sight.before
    difference, shown = (None, frozenset()) if before is None else _difference(ticket, before)
    can = frozenset(verb for verb in (*DONE,) if verb not in sight.barred)
    open_runs = [run for run in ticket["runs"] if not run["resolved"]]
    return Face(
        ticket=ticket,
        now=sight.now,
        is_own=sight.is_own,
        agreed=sight.agreed,
        can=can,
        why_not="" if "approve" in can else BARRED.get(sight.barred["approve"], ""),
        arguments=_table(ticket["arguments"], ticket["masked"], shown),
        meta=_table(ticket["meta"], ticket["masked"]) if ticket["meta"] else None,
        difference=difference,
        annotations=_annotations(ticket["tool"].get("annotations", {})),
        history=_history(ticket),
        is_unknown=any(run["state"] == "unknown" for run in open_runs),
        is_running=any(run["state"] in ("claimed", "sent", "waiting") for run in open_runs),
        vary=(_of_vary(vary, "schema"), _of_vary(vary, "bounds")) if (vary := ticket.get("vary")) else None,
    )


def _table(value: Any, hidden: Collection[str], elsewhere: Collection[Steps] = ()) -> Table:
    """The rows of a value, but for those that are shown `elsewhere`."""
    rows, left_out = [], 0
    for leaf in islice(leaves(value), MOST_ROWS):
        if leaf.steps in elsewhere or (leaf.kind == "object" and not leaf.steps):  # no arguments are no row
            left_out += 1
        else:
            rows.append(_row(leaf, leaf.pointer in hidden))
    total = len(rows) if len(rows) + left_out < MOST_ROWS else count(value) - left_out
    return Table(tuple(rows), total)


def _of_vary(vary: Mapping[str, Any], name: str) -> Table:
    start = f"/{name}"
    hidden = [
        one.removeprefix(start) for one in vary.get("masked", ()) if one == start or one.startswith(f"{start}/")
    ]
    return _table(vary[name], hidden)


def _row(leaf: Leaf, is_hidden: bool) -> Row:
    return Row(_steps(leaf.steps), None if is_hidden else _value(leaf), leaf.kind, is_hidden)


def _steps(steps: Steps) -> tuple[Plain, ...]:
    return tuple(in_a_line(str(step), MOST_OF_A_STEP) for step in steps)


def _value(leaf: Leaf, start: int = 0, most: int = MOST_OF_A_VALUE) -> Plain:
    text = leaf.text[start:]
    return in_lines(text, most) if leaf.kind == "string" else in_a_line(text, most)


def _difference(ticket: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[Difference, frozenset[Steps]]:
    """What changed, and the arguments that are shown with it, from their first character on.

    What either ticket masks is not compared.
    """
    hidden = {*ticket["masked"], *before["masked"]}
    now = masked(ticket["arguments"], before["masked"])[0]
    compared = compare(before["arguments"], now, hidden)
    others = compare(before["meta"], ticket["meta"])
    shown = [(one, _changed(one, hidden)) for one in compared.changes[:MOST_CHANGES]]
    rows = [row for _, row in shown]
    rows += [_changed(one, (), ("meta",)) for one in others.changes[: MOST_CHANGES - len(rows)]]
    difference = Difference(
        before=before,
        rows=tuple(rows),
        changed=len(compared.changes) + len(others.changes),
        same=compared.same + others.same,
        whole=compared.whole and others.whole,
        tool_changed=before["tool_digest"] != ticket["tool_digest"],
        other_requester=before["requester"] != ticket["requester"],
    )
    whole = [one.steps for one, row in shown if one.now is not None and not row.from_character]
    return difference, frozenset(whole)


def _changed(one: Changed, hidden: Collection[str], above: Steps = ()) -> Row:
    leaf = one.now or one.then
    is_hidden = leaf is not None and leaf.pointer in hidden
    start = _first_difference(one.then, one.now)
    return Row(
        steps=_steps((*above, *one.steps)),
        value=None if one.now is None or is_hidden else _value(one.now, start),
        kind="" if leaf is None else leaf.kind,
        hidden=is_hidden,
        change=one.change.value,
        then=None if one.then is None or is_hidden else _value(one.then, start),
        from_character=start,
    )


def _first_difference(then: Leaf | None, now: Leaf | None) -> int:
    """Where two long texts are to be shown from, so that what differs is on the page."""
    if then is None or now is None:
        return 0
    shared = _shared(then.text, now.text)
    return shared - AROUND if shared > MOST_OF_A_VALUE - AROUND else 0


def _shared(one: str, other: str) -> int:
    """How many characters both begin with. Compared in halves, because a text may have a million."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _annotations(said: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """(kind, words) of what a tool says of itself; only what it says, in a fixed order."""
    told = [(key, HINTS[key][0] if said[key] else HINTS[key][1]) for key in HINTS if isinstance(said.get(key), bool)]
    return tuple((key if said[key] else f"not-{key}", words) for key, words in told)


def _history(ticket: Mapping[str, Any]) -> tuple[Event, ...]:
    """All that people did, which a ticket's rules bound, and the newest runs; how many others there were is said."""
    requester = ticket["requester"]
    events = [
        Event(ticket["createdAt"], "asked for this", f"{requester['issuer']}|{requester['subject']}", "", "asked")
    ]
    events += [
        Event(one["at"], DONE.get(one["verb"], one["verb"]), one["by"], one["comment"], one["verb"])
        for one in ticket["decisions"]
    ]
    runs = sorted(map(_run, ticket["runs"]), key=lambda event: event.at)
    left_out, runs = runs[:-MOST_RUNS], runs[-MOST_RUNS:]
    if left_out:
        events.append(Event(left_out[-1].at, f"{len(left_out):,} earlier runs are not listed here", kind="run"))
    return tuple(sorted((*events, *runs), key=lambda event: event.at))


def _run(run: Mapping[str, Any]) -> Event:
    text = RUNS.get(run["state"], run["state"])
    return Event(run["at"], f"{text}; a person looked into it" if run["resolved"] else text, kind="run")


def since(ticket: Mapping[str, Any], at: float) -> tuple[Event, ...]:
    """What happened to a ticket after a page of it was made."""
    return tuple(event for event in _history(ticket) if seconds_of(event.at) >= at)
