"""What shadows, replays and comparisons found, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from gateway.contract.redaction import printable
from gateway.disagreements import Group
from gateway.rehearsal.bundles import Comparison
from gateway.rehearsal.replay import Replay


def sheet_of_group(group: Group) -> str:
    """What a shadow would have judged otherwise, in three lines, or four where one of them can be looked up."""
    what = " ".join(filter(None, (group.server, group.method, group.name)))
    last = datetime.fromtimestamp(group.last, UTC).isoformat(timespec="seconds")
    return (
        f"{group.count} x {what}: {group.difference}\n"
        f"    now  {group.live} ({', '.join(group.live_reasons)}) by {group.live_revision}\n"
        f"    then {group.candidate} ({', '.join(group.candidate_reasons)}) by {group.candidate_revision or '-'}, "
        f"last at {last}" + (f"\n    see  ostiary explain {printable(group.decision, 64)}" if group.decision else "")
    )


def sheet_of_replay(told: Replay, compared: bool) -> Iterator[str]:
    """The lines of a replay. `compared`: with the bundle that judged, and not with the record alone."""
    for change, count in told.changes.most_common():
        what = " ".join(filter(None, (change.server, change.method, change.name)))
        yield (
            f"{count} x {what}: {change.recorded} ({change.recorded_reason or '-'}) "
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
