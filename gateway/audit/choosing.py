"""Records chosen out of chains that are judged while they are read: what an export consists of, line by line.

Of a chain that is broken nothing may be kept: whoever takes the lines drops all of them when `Broken` is raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version

from gateway.audit.checkpoints import SigningKey
from gateway.audit.evidence import Selection
from gateway.audit.forms import as_csv, as_ocsf, head_of_csv
from gateway.audit.query import Query
from gateway.audit.trail import Chain as ChainOfLines
from gateway.contract.chain import Chain, Checkpoint, Finding


class Broken(Exception):  # noqa: N818 - what was found
    """A chain does not verify: which, where and why."""

    def __init__(self, name: str, finding: Finding) -> None:
        super().__init__(f"{name}: BROKEN at record {finding.seq}: {finding.why} [{finding.kind}]")


def choose(
    chains: Sequence[ChainOfLines],
    query: Query,
    form: str,
    *,
    now: str,
    key: SigningKey | None,
    points: Sequence[Checkpoint],
) -> Iterator[bytes]:
    """The lines of an export: `form` is `jsonl` (evidence, signed by `key` if there is one), `csv` or `ocsf`.

    `points` are checkpoints that the chains have to agree with. Raises `Broken` or `OSError`.
    """
    selection, ours = Selection(query.asked()), version("ostiary")
    if form == "csv":
        yield head_of_csv()
    for source in chains:
        chain, began = Chain(source.writer, points), False
        for line in source.lines(newest_first=False):
            if (read := chain.read(line)) is None:
                break
            if not began:
                selection.begin(chain.writer, chain.first)
                began = True
            if (record := query.read(line)) is None:
                continue
            if form == "jsonl":
                yield from selection.take(line, read)
            else:
                yield as_csv(record) if form == "csv" else as_ocsf(record, ours)
        if (fault := chain.end()) is not None:
            raise Broken(source.name, fault)
        if began and form == "jsonl":
            yield from selection.end(chain.first, chain.count, chain.head)
    if form == "jsonl":
        yield selection.state(now, key)
