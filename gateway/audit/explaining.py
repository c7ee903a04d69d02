"""`ostiary explain DECISION_ID`: one request's whole story from the record, for operators.

Exit codes: 0 told, 1 the record does not know the id, 2 the record could not be read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import click
import orjson

from gateway.audit.place import chains_of, give_up, placed
from gateway.audit.query import Query
from gateway.audit.searching import Text
from gateway.audit.story import MOST, Record, Story, gather, reason_of, refusal_words, tell
from gateway.audit.trail import search
from gateway.contract.printable import printable


def lines_of_story(story: Story) -> Iterator[str]:
    """The story as sentences, in order of time; those of other requests under the same ticket are marked."""
    yield f"{story.asked or 'a request'} at {story.server or 'no server'}"
    caller = ", ".join(f"{name} {value}" for name, value in story.caller)
    yield f"by {caller or 'a caller who was not known'}"
    if story.verdict:
        yield f"the policy (revision {story.revision}) said {story.verdict}"
    if story.trace:
        yield f"trace {story.trace}"
    for event in story.events:
        yield f"{event.time}  {f'({event.other}) ' if event.other else ''}{event.text}"
    if story.reason:
        yield f"why: {story.reason}: {story.words or 'docs/refusals.md has no words for it'}"
        if story.detail:
            yield f"in detail: {story.detail}"
        if story.reasons:
            yield f"the policy's reasons: {', '.join(story.reasons)}"


@click.command(short_help="What became of a request, and why.")
@click.argument("decision", type=Text())
@placed
@click.option("--json", "as_json", is_flag=True, help="The records, and the refusal's words, as one document.")
@click.pass_context
def explain(
    ctx: click.Context, /, decision: str, config: Path | None, files: tuple[Path, ...], *, as_json: bool
) -> None:
    """What became of a request, and why: DECISION is the answer's `Ostiary-Decision`."""
    chains = chains_of(ctx, config, files)

    def find(query: Query) -> list[Record]:
        return [record for _, record in islice(search(chains, query, newest_first=False), MOST)]

    try:
        records = gather(find, decision)
    except OSError as error:
        give_up(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    if not records:
        click.echo(f"the record does not know {printable(decision, 128)}", err=True)
        click.echo("of a flood's refusals of one kind, the record names the first alone (docs/audit.md)", err=True)
        sys.exit(1)
    if as_json:
        reasons = {reason_of(record) for record in records} & refusal_words().keys()
        words = {reason: refusal_words()[reason] for reason in sorted(reasons)}
        text = orjson.dumps({"decision_id": decision, "records": records, "words": words}).decode()
        click.echo(text if text.isprintable() else printable(text, 10 * len(text)))
        return
    for line in lines_of_story(tell(records, decision, printable)):
        click.echo(line)
