"""`ostiary explain DECISION_ID`: one request's whole story from the record, for operators.

The words for a refusal are docs/refusals.md's, read from there: nothing is said twice. Exit codes: 0 told, 1 the
record does not know the id, 2 the record could not be read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import click
import orjson

from gateway.audit.place import chains_of, give_up, placed
from gateway.audit.query import Query
from gateway.audit.searching import Text
from gateway.audit.trail import Chain, search
from gateway.contract.redaction import printable

_PLACES: Final = (Path(__file__).parents[1] / "refusals.md", Path(__file__).parents[2] / "docs/refusals.md")
_MOST: Final = 1000
"""Records of a story: a conversation has few, a forged file could have any number."""


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


def gather(chains: Sequence[Chain], decision: str) -> list[dict[str, Any]]:
    """All records of the decision, and of the ticket that it ran under or waits for. Raises `OSError`."""
    own = _found(chains, Query(decision=decision))
    tickets = {record.get(name) for record in own for name in ("ticket", "answers_ticket")}
    told = {(record.get("writer"), record.get("seq")): record for record in own}
    for ticket in sorted(one for one in tickets if isinstance(one, str)):
        for record in _found(chains, Query(ticket=ticket)):
            told.setdefault((record.get("writer"), record.get("seq")), record)
    return sorted(told.values(), key=lambda record: str(record.get("time")))[:_MOST]


def _found(chains: Sequence[Chain], query: Query) -> list[dict[str, Any]]:
    found = []
    for _, record in search(chains, query, newest_first=False):
        found.append(record)
        if len(found) >= _MOST:
            break
    return found


def story(records: Sequence[Mapping[str, Any]], decision: str) -> Iterator[str]:
    """The records as sentences, in order of time; those of other requests under the same ticket are marked."""
    own = [record for record in records if record.get("decision_id") == decision]
    yield from _who(own[0])
    for record in records:
        other = record.get("decision_id") not in (decision, None) and record.get("kind") != "approval"
        mark = f"({_text(record, 'decision_id')}) " if other else ""
        yield f"{_text(record, 'time')}  {mark}{_sentence(record)}"
    words = refusal_words()
    refused = next((one for one in own if one.get("kind") == "refusal" or _reason(one) in words), None)
    if refused is not None:
        reason = _reason(refused)
        yield f"why: {reason}: {words.get(reason, 'docs/refusals.md has no words for it')}"
        if refused.get("detail"):
            yield f"in detail: {_text(refused, 'detail')}"
        if more := [printable(str(one), 64) for one in refused.get("reasons") or [] if one != reason]:
            yield f"the policy's reasons: {', '.join(more)}"


def _who(record: Mapping[str, Any]) -> Iterator[str]:
    actor = record.get("actor")
    whom = actor if isinstance(actor, dict) else {}
    told = [(name, whom[name]) for name in ("subject", "client", "issuer") if whom.get(name)]
    caller = ", ".join(f"{name} {printable(str(value), 256)}" for name, value in told)
    asked = " ".join(filter(None, (_text(record, "method") or "a request", _text(record, "name"))))
    yield f"{asked} at {_text(record, 'server') or 'no server'}"
    yield f"by {caller or 'a caller who was not known'}"
    if record.get("verdict"):
        yield f"the policy (revision {_text(record, 'policy_revision')}) said {_text(record, 'verdict')}"
    if record.get("trace_id"):
        yield f"trace {_text(record, 'trace_id')}"


def _sentence(record: Mapping[str, Any]) -> str:
    ticket = f", ticket {_text(record, 'ticket')}" if record.get("ticket") else ""
    match record.get("kind"):
        case "decision":
            return f"decided: forwarded{ticket}"
        case "outcome":
            where = f" at {_text(record, 'replica')}" if record.get("replica") else ""
            why = f" ({_reason(record)})" if record.get("reasons") else ""
            return f"ended: {_text(record, 'outcome')}{why}{where}, status {record.get('status')}{ticket}"
        case "refusal":
            return f"refused: {_reason(record)}, status {record.get('status')}, code {record.get('code')}{ticket}"
        case "approval":
            use = f", use {_text(record, 'use')}" if record.get("use") else ""
            moved = f"{_text(record, 'transition')} by {_text(record, 'by')}, now {_text(record, 'ticket_state')}"
            return f"ticket {_text(record, 'ticket')}: {moved}{use}"
        case _:
            return f"{_text(record, 'act')} by {_text(record, 'by')}"


def _reason(record: Mapping[str, Any]) -> str:
    reasons = record.get("reasons")
    return printable(str(reasons[0]), 64) if isinstance(reasons, list) and reasons else ""


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    return printable(str(value), 512) if value not in (None, "") else ""


@click.command()
@click.argument("decision", type=Text())
@placed
@click.option("--json", "as_json", is_flag=True, help="The records, and the refusal's words, as one document.")
@click.pass_context
def explain(
    ctx: click.Context, /, decision: str, config: Path | None, files: tuple[Path, ...], *, as_json: bool
) -> None:
    """What became of a request, and why: DECISION is the answer's `Ostiary-Decision`."""
    try:
        records = gather(chains_of(ctx, config, files), decision)
    except OSError as error:
        give_up(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    if not records:
        click.echo(f"the record does not know {printable(decision, 128)}", err=True)
        sys.exit(1)
    if as_json:
        reasons = {_reason(record) for record in records} & refusal_words().keys()
        words = {reason: refusal_words()[reason] for reason in sorted(reasons)}
        text = orjson.dumps({"decision_id": decision, "records": records, "words": words}).decode()
        click.echo(text if text.isprintable() else printable(text, 10 * len(text)))
        return
    for line in story(records, decision):
        click.echo(line)
