"""The tables of the approval store, in what SQLite and PostgreSQL share. Times: seconds since the epoch.

At most one live ticket per effect is the database's own rule (a unique partial index), not only the desk's. The
columns `bond`, `shown`, `sealed`, `call` and `told` hold ciphertext (`vault.py`); `lookup`, `kin` and `holder` are
keyed digests.
Whoever changes this file adds a revision to `migrations/versions/`.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)

metadata = MetaData()

tickets = Table(
    "tickets",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("lookup", String(64), nullable=False),
    Column("key_id", String(16), nullable=False),
    Column("state", String(16), nullable=False),
    Column("issuer", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("client", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("resource", Text, nullable=False),
    Column("environment", Text, nullable=False),
    Column("method", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("tool_digest", Text, nullable=False),
    Column("reasons", Text, nullable=False),
    Column("approvers", Text, nullable=False),
    Column("mask", Text, nullable=False),
    Column("min_approvers", Integer, nullable=False),
    Column("uses", Integer, nullable=False),
    Column("uses_left", Integer, nullable=False),
    Column("running", String(64)),  # the use that is in flight or unknown; while it is set, nothing else is claimed
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("bond", LargeBinary, nullable=False),  # the effect itself, and who asks
    Column("shown", LargeBinary, nullable=False),  # arguments, bound metadata, justification
    Column("weight", BigInteger, nullable=False),  # bytes of `shown`: a page of a list is bounded by them
    Column("kin", String(64)),  # of a grant: a keyed digest of all but the arguments, by which its calls find it
    Column("tenant", Text, nullable=False, server_default=""),  # in tickets of before it was filed only `bond` has it
    Index("tickets_lookup", "lookup"),
    Index("tickets_kin", "kin", sqlite_where=text("kin IS NOT NULL"), postgresql_where=text("kin IS NOT NULL")),
    Index("tickets_opened", "issuer", "subject", "created_at"),
    Index("tickets_newest", "created_at", "id"),
    Index(
        "tickets_one_live",
        "lookup",
        unique=True,
        sqlite_where=text("state IN ('pending', 'approved')"),
        postgresql_where=text("state IN ('pending', 'approved')"),
    ),
    Index(
        "tickets_approved",
        "server",
        "created_at",
        sqlite_where=text("state IN ('approved', 'used')"),
        postgresql_where=text("state IN ('approved', 'used')"),
    ),
    Index(
        "tickets_settled",
        "expires_at",
        sqlite_where=text("state NOT IN ('pending', 'approved') AND running IS NULL"),
        postgresql_where=text("state NOT IN ('pending', 'approved') AND running IS NULL"),
    ),
    Index(
        "tickets_due",
        "expires_at",
        sqlite_where=text("state IN ('pending', 'approved')"),
        postgresql_where=text("state IN ('pending', 'approved')"),
    ),
)

eligible = Table(
    "eligible",
    metadata,
    Column("ticket_id", ForeignKey("tickets.id", ondelete="CASCADE"), primary_key=True),
    Column("entry", Text, primary_key=True),
    Index("eligible_entry", "entry"),
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("ticket_id", ForeignKey("tickets.id", ondelete="CASCADE"), nullable=False),
    Column("verb", String(16), nullable=False),
    Column("at", Double, nullable=False),
    Column("sealed", LargeBinary, nullable=False),  # who, by which claims, what they saw and said
    Index("decisions_ticket", "ticket_id", "at"),
)

uses = Table(
    "uses",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("ticket_id", ForeignKey("tickets.id", ondelete="CASCADE"), nullable=False),
    Column("state", String(16), nullable=False),
    Column("leg", Integer, nullable=False),  # how often it was asked for input; a leg is continued once
    Column("owner", Text, nullable=False),
    Column("lease_until", Double, nullable=False),
    Column("claimed_at", Double, nullable=False),
    Column("at", Double, nullable=False),
    Column("resolved_at", Double),
    Column("effect", String(64)),  # of a grant's use: the keyed digest of the very call
    Index("uses_ticket", "ticket_id", "claimed_at"),
    Index(
        "uses_open",
        "lease_until",
        sqlite_where=text("state IN ('claimed', 'sent')"),
        postgresql_where=text("state IN ('claimed', 'sent')"),
    ),
    Index(
        "uses_unclear",
        "ticket_id",
        sqlite_where=text("state = 'unknown' AND resolved_at IS NULL"),
        postgresql_where=text("state = 'unknown' AND resolved_at IS NULL"),
    ),
    Index(
        "uses_waiting",
        "ticket_id",
        sqlite_where=text("state = 'waiting'"),
        postgresql_where=text("state = 'waiting'"),
    ),
)

visits = Table(
    "visits",
    metadata,
    Column("id", String(64), primary_key=True),  # SHA-256 of what the browser holds
    Column("issuer", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("seen_at", Double, nullable=False),
    Column("ends_at", Double, nullable=False),
    Column("sealed", Text, nullable=False),  # tokens, form key, name: sealed by the sign-in's own keys
    Column("version", BigInteger, nullable=False),
    Column("lease_until", Double, nullable=False),
    Index("visits_person", "issuer", "subject", "created_at"),
    Index("visits_end", "ends_at"),
)

outbox = Table(
    "outbox",
    metadata,
    Column("ticket_id", ForeignKey("tickets.id", ondelete="CASCADE"), primary_key=True),
    Column("event", String(16), primary_key=True),
    Column("hook", String(300), primary_key=True),  # which webhook: a name made of its host and a digest of its URL
    Column("message", String(64), nullable=False, unique=True),  # the same at every attempt: `webhook-id`
    Column("attempts", Integer, nullable=False),  # begun so far; whoever began the last one holds the row
    Column("created_at", Double, nullable=False),
    Column("due_at", Double, nullable=False),  # the next attempt, and so the end of the present one's lease
    Column("settled_at", Double),
    Column("outcome", String(16), nullable=False),  # "", delivered, dead
    Column("sealed", LargeBinary, nullable=False),  # the body; empty once it is settled
    Index(
        "outbox_waiting",
        "hook",
        "due_at",
        sqlite_where=text("settled_at IS NULL"),
        postgresql_where=text("settled_at IS NULL"),
    ),
)

errands = Table(
    "errands",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("ticket_id", ForeignKey("tickets.id", ondelete="CASCADE"), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("issuer", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("owner", Text, nullable=False),  # the worker that runs it, while its lease lasts
    Column("lease_until", Double, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("call", LargeBinary),  # what is needed to run it; gone once it has ended
    Column("told", LargeBinary),  # what its owner is told: questions, the result, the error
    Index("errands_of", "issuer", "subject"),
    Index("errands_due", "expires_at"),
    Index(
        "errands_one_open",
        "ticket_id",
        unique=True,
        sqlite_where=text("state IN ('held', 'running', 'asked')"),
        postgresql_where=text("state IN ('held', 'running', 'asked')"),
    ),
)

budgets = Table(
    "budgets",
    metadata,
    Column("id", String(64), primary_key=True),  # a digest of what is counted, and for whom
    Column("used", BigInteger, nullable=False),
    Column("ends_at", Double, nullable=False),
    Index("budgets_end", "ends_at"),
)

keyed_calls = Table(
    "keyed_calls",
    metadata,
    Column("lookup", String(64), primary_key=True),  # a keyed digest of whose key it is, on which server, and the key
    Column("key_id", String(16), nullable=False),  # by which of our keys that digest was made
    Column("holder", String(64), nullable=False),  # a keyed digest of issuer and subject
    Column("state", String(16), nullable=False),
    Column("claim", String(64), nullable=False),  # the decision that ran it, or runs it
    Column("leg", Integer, nullable=False),
    Column("owner", Text, nullable=False),  # the worker that runs it, while its lease lasts
    Column("lease_until", Double, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("size", BigInteger, nullable=False),  # bytes of `told`
    Column("bond", LargeBinary, nullable=False),  # digests of what was asked
    Column("told", LargeBinary),  # what came of it
    Index("keyed_calls_of", "holder", "expires_at", "size"),  # all that counting needs: answers are not read for it
    Index("keyed_calls_due", "expires_at"),
    Index(
        "keyed_calls_running",
        "lease_until",
        sqlite_where=text("state = 'running'"),
        postgresql_where=text("state = 'running'"),
    ),
)
