"""Held calls that their callers follow as tasks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "errands",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("ticket_id", sa.String(64), sa.ForeignKey("tickets.id", ondelete="CASCADE"), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("issuer", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("lease_until", sa.Double, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("call", sa.LargeBinary),
        sa.Column("told", sa.LargeBinary),
    )
    op.create_index("errands_of", "errands", ["issuer", "subject"])
    op.create_index("errands_due", "errands", ["expires_at"])
    open_ones = sa.text("state IN ('held', 'running', 'asked')")
    op.create_index(
        "errands_one_open",
        "errands",
        ["ticket_id"],
        unique=True,
        sqlite_where=open_ones,
        postgresql_where=open_ones,
    )
