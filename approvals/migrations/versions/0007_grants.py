"""Grants: tickets for calls of one tool whose arguments may vary, found without the arguments."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column("tickets", sa.Column("kin", sa.String(64)))
    op.add_column("uses", sa.Column("effect", sa.String(64)))
    where = sa.text("kin IS NOT NULL")
    op.create_index("tickets_kin", "tickets", ["kin"], sqlite_where=where, postgresql_where=where)
