"""Who tells webhooks of tickets, and what is written down of an attempt: counted, and the last one told of."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

import structlog

from approvals.notify import DEAD, Attempt, Courier
from gateway.opening import Office, Record
from gateway.plan import Plan
from gateway.webhooks import WebhookSender

Count = Callable[[str, str], None]
"""Is told of each attempt: the webhook's name, how it ended."""


def open_courier(plan: Plan, office: Office, record: Record, count: Count, opened: AsyncExitStack) -> Courier:
    """The courier, on its way; it stops before the store does."""
    log = structlog.get_logger("house")

    def attempted(attempt: Attempt) -> None:
        message = attempt.message
        count(message.hook_id, attempt.outcome)
        if attempt.outcome == DEAD:
            facts = {
                "webhook": message.hook_id, "message": message.id, "ticket": message.ticket_id,
                "attempts": message.attempts, "why": attempt.why,
            }  # fmt: skip
            log.error("webhook_given_up", about=message.event, **facts)  # a line's own event is its name
            record.tell("webhook_given_up", {**facts, "event": message.event})

    sender = WebhookSender(plan.webhooks)
    opened.push_async_callback(sender.close)
    courier = Courier(office.store, office.outbox, sender, attempted)
    opened.push_async_callback(courier.close)
    courier.start()
    return courier
