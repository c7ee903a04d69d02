"""Tickets that are settled are found by their age."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the index."""
    settled = sa.text("state NOT IN ('pending', 'approved') AND running IS NULL")
    op.create_index(
        "tickets_settled", "tickets", ["expires_at"], sqlite_where=settled, postgresql_where=settled
    )  # fmt: skip
