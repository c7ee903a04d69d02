"""The tables of the approval store, in what SQLite and PostgreSQL share. Times: seconds since the epoch.

At most one live ticket per effect is the database's own rule (a unique partial index), not only the desk's. The
columns `bond`, `shown`, `sealed`, `call` and `told` hold ciphertext (`vault.py`); `lookup`, `kin` and `holder` are
keyed digests.
Whoever changes this file adds a revision to `migrations/versions/`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    event,
    text,
)

metadata = MetaData()


def _partial(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """An index of the rows that meet `where`, in both databases (`_tell_postgresql`)."""
    return Index(name, *columns, unique=unique, sqlite_where=text(where))


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
    _partial("tickets_kin", "kin", where="kin IS NOT NULL"),
    Index("tickets_opened", "issuer", "subject", "created_at"),
    Index("tickets_newest", "created_at", "id"),
    _partial("tickets_one_live", "lookup", where="state IN ('pending', 'approved')", unique=True),
    _partial("tickets_approved", "server", "created_at", where="state IN ('approved', 'used')"),
    _partial("tickets_settled", "expires_at", where="state NOT IN ('pending', 'approved') AND running IS NULL"),
    _partial("tickets_due", "expires_at", where="state IN ('pending', 'approved')"),
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
    _partial("uses_open", "lease_until", where="state IN ('claimed', 'sent')"),
    _partial("uses_unclear", "ticket_id", where="state = 'unknown' AND resolved_at IS NULL"),
    _partial("uses_waiting", "ticket_id", where="state = 'waiting'"),
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
    _partial("outbox_waiting", "hook", "due_at", where="settled_at IS NULL"),
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
    _partial("errands_one_open", "ticket_id", where="state IN ('held', 'running', 'asked')", unique=True),
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
    _partial("keyed_calls_running", "lease_until", where="state = 'running'"),
)


@event.listens_for(metadata, "before_create")
def _tell_postgresql(_metadata: MetaData, connection: Connection, **_: Any) -> None:
    """To name PostgreSQL's `where` above would load its dialect: 2 MB, which a gateway on SQLite does not spend."""
    if connection.dialect.name == "postgresql":
        for index in (index for table in metadata.tables.values() for index in table.indexes):
            index.dialect_options["postgresql"]["where"] = index.dialect_options["sqlite"]["where"]
