"""Counts of budgets that all gateways share."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "budgets",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("used", sa.BigInteger, nullable=False),
        sa.Column("ends_at", sa.Double, nullable=False),
    )
    op.create_index("budgets_end", "budgets", ["ends_at"])
