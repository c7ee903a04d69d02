"""How the tables came to be what `approvals/schema.py` says: one chain of Alembic revisions, each applied once."""
