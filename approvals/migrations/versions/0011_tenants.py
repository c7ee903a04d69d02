"""Tickets are filed by their requester's tenant: whoever is of another one does not find them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. What it would say of earlier tickets is sealed: those are held to it when they are opened."""
    op.add_column("tickets", sa.Column("tenant", sa.Text, nullable=False, server_default=""))
