"""Alembic's way to the database: the connection, and its transaction, of whoever migrates (`approvals/revisions.py`).

All revisions that are applied at once are one transaction: a database is never left between two of them.
"""

from __future__ import annotations

from alembic import context

from approvals.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,  # SQLite's as well: its adapter begins transactions by itself
)
with context.begin_transaction():
    context.run_migrations()
