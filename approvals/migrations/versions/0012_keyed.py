"""Calls under idempotency keys, and what came of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "keyed_calls",
        sa.Column("lookup", sa.String(64), primary_key=True),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("claim", sa.String(64), nullable=False),
        sa.Column("leg", sa.Integer, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("lease_until", sa.Double, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("bond", sa.LargeBinary, nullable=False),
        sa.Column("told", sa.LargeBinary),
    )
    op.create_index("keyed_calls_of", "keyed_calls", ["holder", "expires_at", "size"])
    op.create_index("keyed_calls_due", "keyed_calls", ["expires_at"])
    running = sa.text("state = 'running'")
    op.create_index(
        "keyed_calls_running", "keyed_calls", ["lease_until"], sqlite_where=running, postgresql_where=running
    )
