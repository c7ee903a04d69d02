"""The policy engine as it is configured: which adapter, and what becomes of what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import structlog

from gateway.config import EmbeddedPolicySettings, OpaPolicySettings, ShadowSettings, TlsSettings
from gateway.contract.record import admin_record
from gateway.contract.redaction import Redactor
from gateway.disagreements import Disagreements, file_of
from gateway.plan import Plan
from policies.embedded import EmbeddedPolicy
from policies.port import Engine, Policy
from policies.reloading import Replaced
from policies.shadow import Shadow, ShadowedPolicy
from policies.verdict import PolicyUnavailable

CANDIDATE_S: Final = 2.0


def make_engine(plan: Plan, replaced: Callable[[Replaced], None] | None = None) -> Engine:
    """The engine that judges, not yet started. `replaced` hears of bundles; without it none is looked for."""
    policy = plan.settings.policy
    if isinstance(policy, EmbeddedPolicySettings):
        return EmbeddedPolicy(
            policy.path, deadline_s=policy.deadline_s, evaluators=policy.evaluators, replaced=replaced
        )
    return _opa(policy.url, policy.tls, plan.opa_tokens[0], policy.deadline_s, "policy")


@asynccontextmanager
async def shadowed(
    plan: Plan, policy: Policy, writer: int, count: Callable[[str, str], None]
) -> AsyncIterator[tuple[Policy, Shadow | None]]:
    """The policy as the corridor asks it, and the candidate that looks on meanwhile, where there is one."""
    settings = plan.settings.policy.shadow
    if settings is None:
        yield policy, None
        return
    disagreements = Disagreements(file_of(settings.file, writer), count, Redactor(plan.audit_keys).uri)
    await asyncio.to_thread(disagreements.forget)
    candidate = make_candidate(plan, settings)
    shadow = Shadow(candidate, disagreements.met, _tell_shadow, sample=settings.sample)
    shadow.start()
    saving = asyncio.create_task(disagreements.keep_saved())
    try:
        yield ShadowedPolicy(policy, shadow), shadow
    finally:
        await shadow.close()
        saving.cancel()
        await asyncio.wait({saving})


def make_candidate(plan: Plan, settings: ShadowSettings) -> Engine:
    """The engine of a candidate: more time than one that callers wait for, and less of the machine."""
    if settings.path is not None:
        return EmbeddedPolicy(
            settings.path, deadline_s=CANDIDATE_S, evaluators=1, background=True, replaced=_tell_candidate
        )
    return _opa(settings.url or "", settings.tls, plan.opa_tokens[1], CANDIDATE_S, "shadow")


def _tell_shadow(why: str) -> None:
    log = structlog.get_logger("policy")
    log.error("shadow_not_started", error=why) if why else log.info("shadow_started")


def _tell_candidate(replaced: Replaced) -> None:
    facts = {"before": replaced.before, "after": replaced.after}
    log = structlog.get_logger("policy")
    if replaced.why:
        log.error("shadow_not_replaced", **facts, error=replaced.why)
    else:
        log.info("shadow_replaced", **facts)


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


def _opa(url: str, tls: TlsSettings | None, token: str | None, deadline_s: float, role: str) -> Engine:
    from policies.opa import OpaPolicy, OpaTls  # noqa: PLC0415 - its client is for those alone who ask a server

    log = structlog.get_logger("policy")

    def tell(why: str) -> None:
        if why:
            log.error("policy_unreachable", role=role, url=url, error=why)
        else:
            log.info("policy_reachable", role=role, url=url)

    files = None if tls is None else OpaTls(tls.ca, tls.cert, tls.key)
    return OpaPolicy(url, token=token, tls=files, deadline_s=deadline_s, moved=tell)
