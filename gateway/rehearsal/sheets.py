"""What shadows, replays and comparisons found, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from gateway.contract.printable import printable
from gateway.disagreements import Group
from gateway.rehearsal.bundles import Comparison
from gateway.rehearsal.replay import Replay

MOST_SHOWN: Final = 512


def sheet_of_group(group: Group) -> str:
    """What a shadow would have judged otherwise, in three lines, or four where one of them can be looked up."""
    what = " ".join(_plain(one) for one in (group.server, group.method, group.name) if one)
    now, then = (", ".join(map(_plain, reasons)) for reasons in (group.live_reasons, group.candidate_reasons))
    last = datetime.fromtimestamp(group.last, UTC).isoformat(timespec="seconds")
    return (
        f"{group.count} x {what}: {_plain(group.difference)}\n"
        f"    now  {_plain(group.live)} ({now}) by {_plain(group.live_revision)}\n"
        f"    then {_plain(group.candidate)} ({then}) by {_plain(group.candidate_revision) or '-'}, "
        f"last at {last}" + (f"\n    see  ostiary explain {printable(group.decision, 64)}" if group.decision else "")
    )


def sheet_of_replay(told: Replay, compared: bool) -> Iterator[str]:
    """The lines of a replay. `compared`: with the bundle that judged, and not with the record alone."""
    for change, count in told.changes.most_common():
        what = " ".join(_plain(one) for one in (change.server, change.method, change.name) if one)
        yield (
            f"{count} x {what}: {_plain(change.recorded)} ({_plain(change.recorded_reason) or '-'}) "
            f"-> {change.then} ({change.then_reason or '-'}){change.how and f': {change.difference} {change.how}'}"
        )
    yield f"{told.changed} would change, {told.failed} would have no verdict, {told.same} stay as they were"
    if told.unsure:
        yield f"{told.unsure} can't be told: the policy that judged gives another verdict on what the record holds"
    if not compared and told.changes:
        yield "compared with the record alone: some may be due to what it does not hold (see --baseline)"
    if told.without_arguments:
        yield f"{told.without_arguments} were judged without arguments that are not in the record"
    yield f"{told.skipped} records were not judged again: other kinds, lists, tasks, later legs, names not in clear"


def _plain(text: str) -> str:
    """A text of a file as it stands, unless something in it could act on a terminal: then we did not write it."""
    return text if text.isprintable() and len(text) <= MOST_SHOWN else printable(text, MOST_SHOWN)


def sheet_of_comparison(told: Comparison) -> Iterator[str]:
    """The lines of two bundles' differences. Names come from the bundles: they are shown, and never obeyed."""
    yield f"revision {told.revisions[0]} -> {told.revisions[1]}"
    yield from (f"file {printable(name, 400)} differs" for name in told.files)
    yield from (f"data {printable(line, 1200)}" for line in told.data)
    for turn, count in sorted(told.turns.items()):
        what = printable(" ".join(filter(None, (turn.server, turn.method, turn.name))), 400)
        yield f"{count} x {what}: {turn.difference}, {turn.before} -> {turn.after}"
        if turn.how:
            yield f"    {turn.how}"
    made = f"the first {told.cases}" if told.cut else str(told.cases)
    yield f"{told.turns.total()} of {made} cases, made from what the data name, are judged otherwise"
