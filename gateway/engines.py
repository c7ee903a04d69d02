"""The policy engine as it is configured: which adapter, and what becomes of what it tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from gateway.config import EmbeddedPolicySettings, OpaPolicySettings
from gateway.contract.record import admin_record
from gateway.plan import Plan
from policies.embedded import EmbeddedPolicy
from policies.port import Engine
from policies.reloading import Replaced
from policies.verdict import PolicyUnavailable


def make_engine(plan: Plan, replaced: Callable[[Replaced], None] | None = None) -> Engine:
    """The engine that judges, not yet started. `replaced` hears of bundles; without it none is looked for."""
    policy = plan.settings.policy
    if isinstance(policy, EmbeddedPolicySettings):
        return EmbeddedPolicy(
            policy.path, deadline_s=policy.deadline_s, evaluators=policy.evaluators, replaced=replaced
        )
    return _opa(policy, plan.policy_token)


def name_setting(policy: EmbeddedPolicySettings | OpaPolicySettings, error: PolicyUnavailable) -> str:
    """An engine's failure to start, with the setting that it is about."""
    return f"policy.path: {error}" if isinstance(policy, EmbeddedPolicySettings) else str(error)


def tell_replaced(
    replaced: Replaced, count: Callable[[bool], None], journal: Callable[[dict[str, Any]], None]
) -> None:
    """A bundle that judges from now on, or that may not: as a line of the log, a count and a record."""
    log = structlog.get_logger("policy")
    facts = {"before": replaced.before, "after": replaced.after}
    count(not replaced.why)
    if replaced.why:
        log.error("policy_not_replaced", **facts, error=replaced.why)
        journal(admin_record("policy_not_replaced", facts={**facts, "why": replaced.why}))
    else:
        log.info("policy_replaced", **facts)
        journal(admin_record("policy_replaced", facts=facts))


def _opa(policy: OpaPolicySettings, token: str | None) -> Engine:
    from policies.opa import OpaPolicy, OpaTls  # noqa: PLC0415 - its client is for those alone who ask a server

    log = structlog.get_logger("policy")

    def tell(why: str) -> None:
        if why:
            log.error("policy_unreachable", url=policy.url, error=why)
        else:
            log.info("policy_reachable", url=policy.url)

    tls = None if policy.tls is None else OpaTls(policy.tls.ca, policy.tls.cert, policy.tls.key)
    return OpaPolicy(policy.url, token=token, tls=tls, deadline_s=policy.deadline_s, moved=tell)
