"""Every row of the table through the whole gateway, held to the whole proof (requirements, preamble)."""

from __future__ import annotations

import pytest

from tests.rows.proof import refused
from tests.rows.stage import House
from tests.rows.table import ROWS, Row


@pytest.mark.parametrize("row", [row for rows in ROWS.values() for row in rows], ids=lambda row: row.name)
def test_a_refusal_is_refused_and_nothing_else_happens(house: House, row: Row) -> None:
    """Status, code and reason are the row's; nobody was asked; one record says why; the next good request works."""
    good = house.good(row.message)
    refused(house, row.change(good), row.refusal, twin=good, request_id=row.request_id, judged=row.judged)
