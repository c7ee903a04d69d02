"""The policy engine as it is configured: which adapter, and what becomes of what it tells."""

from __future__ import annotations

import structlog

from gateway.config import EmbeddedPolicySettings, OpaPolicySettings
from gateway.plan import Plan
from policies.embedded import EmbeddedPolicy
from policies.port import Engine
from policies.verdict import PolicyUnavailable


def make_engine(plan: Plan) -> Engine:
    """The engine that judges, not yet started."""
    policy = plan.settings.policy
    if isinstance(policy, EmbeddedPolicySettings):
        return EmbeddedPolicy(policy.path, deadline_s=policy.deadline_s, evaluators=policy.evaluators)
    return _opa(policy, plan.policy_token)


def name_setting(policy: EmbeddedPolicySettings | OpaPolicySettings, error: PolicyUnavailable) -> str:
    """An engine's failure to start, with the setting that it is about."""
    return f"policy.path: {error}" if isinstance(policy, EmbeddedPolicySettings) else str(error)


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
