"""The way to a server's latest approvals: what a reviewer's page compares with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the index."""
    approved = sa.text("state IN ('approved', 'used')")
    op.create_index(
        "tickets_approved",
        "tickets",
        ["server", "created_at"],
        sqlite_where=approved,
        postgresql_where=approved,
    )
