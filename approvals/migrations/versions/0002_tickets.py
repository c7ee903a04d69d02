"""Tickets, who may decide them, decisions and uses.

The first revision of the chain: what stood under the name "schema version 2" before there was one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    _tickets()
    op.create_table(
        "eligible",
        sa.Column("ticket_id", sa.String(64), sa.ForeignKey("tickets.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("entry", sa.Text, primary_key=True),
    )
    op.create_index("eligible_entry", "eligible", ["entry"])
    op.create_table(
        "decisions",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("ticket_id", sa.String(64), sa.ForeignKey("tickets.id", ondelete="CASCADE"), nullable=False),
        sa.Column("verb", sa.String(16), nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )
    op.create_index("decisions_ticket", "decisions", ["ticket_id", "at"])
    op.create_table(
        "uses",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("ticket_id", sa.String(64), sa.ForeignKey("tickets.id", ondelete="CASCADE"), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("leg", sa.Integer, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("lease_until", sa.Double, nullable=False),
        sa.Column("claimed_at", sa.Double, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("resolved_at", sa.Double),
    )
    op.create_index("uses_ticket", "uses", ["ticket_id", "claimed_at"])
    _partial("uses_open", "uses", ["lease_until"], "state IN ('claimed', 'sent')")
    _partial("uses_waiting", "uses", ["ticket_id"], "state = 'waiting'")


def _tickets() -> None:
    op.create_table(
        "tickets",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("lookup", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("issuer", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("client", sa.Text, nullable=False),
        sa.Column("server", sa.Text, nullable=False),
        sa.Column("resource", sa.Text, nullable=False),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("method", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("tool_digest", sa.Text, nullable=False),
        sa.Column("reasons", sa.Text, nullable=False),
        sa.Column("approvers", sa.Text, nullable=False),
        sa.Column("mask", sa.Text, nullable=False),
        sa.Column("min_approvers", sa.Integer, nullable=False),
        sa.Column("uses", sa.Integer, nullable=False),
        sa.Column("uses_left", sa.Integer, nullable=False),
        sa.Column("running", sa.String(64)),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("bond", sa.LargeBinary, nullable=False),
        sa.Column("shown", sa.LargeBinary, nullable=False),
        sa.Column("weight", sa.BigInteger, nullable=False),
    )
    op.create_index("tickets_lookup", "tickets", ["lookup"])
    op.create_index("tickets_opened", "tickets", ["issuer", "subject", "created_at"])
    op.create_index("tickets_newest", "tickets", ["created_at", "id"])
    live = "state IN ('pending', 'approved')"
    _partial("tickets_one_live", "tickets", ["lookup"], live, unique=True)
    _partial("tickets_due", "tickets", ["expires_at"], live)


def _partial(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    op.create_index(
        name, table, columns, unique=unique, sqlite_where=sa.text(where), postgresql_where=sa.text(where)
    )  # fmt: skip
