"""What webhooks are still to be told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "outbox",
        sa.Column("ticket_id", sa.String(64), sa.ForeignKey("tickets.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("event", sa.String(16), primary_key=True),
        sa.Column("hook", sa.String(300), primary_key=True),
        sa.Column("message", sa.String(64), nullable=False, unique=True),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("due_at", sa.Double, nullable=False),
        sa.Column("settled_at", sa.Double),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )
    waits = sa.text("settled_at IS NULL")
    op.create_index("outbox_waiting", "outbox", ["hook", "due_at"], sqlite_where=waits, postgresql_where=waits)
