"""Uses of unknown outcome that nobody looked into are found among all others."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the index."""
    unclear = sa.text("state = 'unknown' AND resolved_at IS NULL")
    op.create_index(
        "uses_unclear", "uses", ["ticket_id"], sqlite_where=unclear, postgresql_where=unclear
    )  # fmt: skip
