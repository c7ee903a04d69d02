"""The business: requisitions, and invoices to be matched, in one SQLite file that all replicas share.

Nothing here knows of MCP, of sessions or of a gateway: the servers of both revisions are built on the same logic, and
the documents are the ground truth of the story.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

THRESHOLD = 50_000
"""A requisition of this total or more is submitted only once somebody has confirmed it."""
LEASE_S = 2.0
"""How long a replica may work at one stage of a match before another takes over."""

ORDERED = {"laptop": (40, 1_200), "dock": (40, 180), "monitor": (80, 310)}
RECEIVED = {"laptop": 40, "dock": 38, "monitor": 80}
INVOICED = {"laptop": (40, 1_200), "dock": (40, 180), "monitor": (80, 329)}
"""Item -> quantity, or quantity and unit price: what order 77, its goods receipt and invoice INV-77 say."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS requisitions (
    number INTEGER PRIMARY KEY, title TEXT, quantity INTEGER, unit_price INTEGER, state TEXT, submitted_by TEXT
);
CREATE TABLE IF NOT EXISTS matches (
    id INTEGER PRIMARY KEY, invoice TEXT, state TEXT, stage INTEGER, lease REAL, began REAL, moved REAL,
    findings TEXT, replicas TEXT
);
"""


class Rejected(Exception):  # noqa: N818 - what a purchasing department says
    """It can't be done; the text says why."""


@dataclass(frozen=True, slots=True)
class Requisition:
    """One document. `submitted_by` is the replica that submitted it."""

    number: int
    title: str
    quantity: int
    unit_price: int
    state: str
    submitted_by: str

    @property
    def total(self) -> int:
        """The line total, in whole units of the currency."""
        return self.quantity * self.unit_price


@dataclass(frozen=True, slots=True)
class Match:
    """A three-way match: order against receipt, receipt against invoice, order's prices against the invoice's.

    `state` is `working`, `completed` or `cancelled`; `replicas` did the stages, in order.
    """

    id: int
    invoice: str
    state: str
    stage: int
    began: float
    moved: float
    findings: tuple[str, ...]
    replicas: tuple[str, ...]


def _against_receipt() -> list[str]:
    return [
        f"{item}: {quantity} ordered, {RECEIVED.get(item, 0)} received"
        for item, (quantity, _) in ORDERED.items()
        if RECEIVED.get(item, 0) != quantity
    ]


def _against_invoice() -> list[str]:
    return [
        f"{item}: {quantity} received, {INVOICED[item][0]} invoiced"
        for item, quantity in RECEIVED.items()
        if INVOICED[item][0] != quantity
    ]


def _prices() -> list[str]:
    return [
        f"{item}: ordered at {price}, invoiced at {INVOICED[item][1]}"
        for item, (_, price) in ORDERED.items()
        if INVOICED[item][1] != price
    ]


STAGES = (_against_receipt, _against_invoice, _prices)


class Documents:
    """All documents, below one directory. Safe to use from several processes at once."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "procurement.db"
        with self._transaction() as database:
            database.executescript(_SCHEMA)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._file, timeout=10.0)) as database, database:
            yield database

    def draft(self, title: str, quantity: int, unit_price: int) -> Requisition:
        """A new requisition. Raises `Rejected`."""
        if quantity <= 0 or unit_price <= 0:
            raise Rejected("quantity and unit price must be positive")
        with self._transaction() as database:
            values = (title, quantity, unit_price)
            number = database.execute(
                "INSERT INTO requisitions (title, quantity, unit_price, state, submitted_by)"
                " VALUES (?, ?, ?, 'draft', '')",
                values,
            ).lastrowid
        return self.requisition(number or 0)

    def requisition(self, number: int) -> Requisition:
        """The document of this number. Raises `Rejected`."""
        with self._transaction() as database:
            row = database.execute("SELECT * FROM requisitions WHERE number = ?", (number,)).fetchone()
        if row is None:
            raise Rejected(f"there is no requisition {number}")
        return Requisition(*row)

    def submit(self, number: int, replica: str) -> Requisition:
        """Submit a draft, once. Raises `Rejected`."""
        with self._transaction() as database:
            done = database.execute(
                "UPDATE requisitions SET state = 'submitted', submitted_by = ? WHERE number = ? AND state = 'draft'",
                (replica, number),
            ).rowcount
        found = self.requisition(number)
        if not done:
            raise Rejected(f"requisition {number} was submitted before")
        return found

    def begin_match(self, invoice: str) -> Match:
        """A new match, which any replica may work at. Raises `Rejected`."""
        if invoice != "INV-77":
            raise Rejected(f"there is no invoice {invoice!r}")
        now = time.time()
        with self._transaction() as database:
            number = database.execute(
                "INSERT INTO matches (invoice, state, stage, lease, began, moved, findings, replicas)"
                " VALUES (?, 'working', 0, 0, ?, ?, '[]', '[]')",
                (invoice, now, now),
            ).lastrowid
        return self.match(number or 0)

    def match(self, number: int) -> Match:
        """A match as it stands. Raises `Rejected`."""
        with self._transaction() as database:
            row = database.execute(
                "SELECT id, invoice, state, stage, began, moved, findings, replicas FROM matches WHERE id = ?",
                (number,),
            ).fetchone()
        if row is None:
            raise Rejected(f"there is no match {number}")
        number, invoice, state, stage, began, moved, findings, replicas = row
        found, workers = tuple(json.loads(findings)), tuple(json.loads(replicas))
        return Match(number, invoice, state, stage, began, moved, found, workers)

    def cancel_match(self, number: int) -> None:
        """End a match that still runs."""
        with self._transaction() as database:
            database.execute("UPDATE matches SET state = 'cancelled' WHERE id = ? AND state = 'working'", (number,))

    def claim_stage(self) -> Match | None:
        """A match that nobody works at, for a while one's own; `None` where there is none."""
        now = time.time()
        with self._transaction() as database:
            row = database.execute(
                "UPDATE matches SET lease = ? WHERE id = ("
                " SELECT id FROM matches WHERE state = 'working' AND lease < ? ORDER BY id LIMIT 1) RETURNING id",
                (now + LEASE_S, now),
            ).fetchone()
        return None if row is None else self.match(row[0])

    def finish_stage(self, match: Match, replica: str) -> None:
        """Write down what a stage found, unless somebody else has gone on with the match meanwhile."""
        findings = [*match.findings, *STAGES[match.stage]()]
        stage = match.stage + 1
        values: tuple[Any, ...] = (
            "completed" if stage == len(STAGES) else "working",
            stage,
            time.time(),
            json.dumps(findings),
            json.dumps([*match.replicas, replica]),
            match.id,
            match.stage,
        )
        with self._transaction() as database:
            database.execute(
                "UPDATE matches SET state = ?, stage = ?, lease = 0, moved = ?, findings = ?, replicas = ?"
                " WHERE id = ? AND stage = ? AND state = 'working'",
                values,
            )
