"""The versions of what a deployment depends on, each asked of itself: OPA and PostgreSQL, where they are used."""

from __future__ import annotations

import os
import ssl
from typing import Final

import httpx

from gateway.audit.port import AuditUnavailable
from gateway.audit.tables import FAULTS, connect
from gateway.config import OpaPolicySettings, Settings

_ANSWER_S: Final = 10.0
_DECISION: Final = "/v1/data/mcp/authz/decision?provenance=true"


async def dependencies_of(settings: Settings) -> dict[str, str]:
    """Name -> version, `""` where it did not answer. Raises `ConfigError` where a secret is not there."""
    found: dict[str, str] = {}
    if isinstance(settings.policy, OpaPolicySettings):
        found["opa"] = await _opa(settings.policy)
    for name, url in (("approvals", settings.database_url), ("audit", settings.audit_database_url)):
        if url and url.startswith("postgresql"):
            found[f"postgresql of {name}"] = await _postgresql(url)
    return found


async def _opa(policy: OpaPolicySettings) -> str:
    """By the provenance of a decision about nothing."""
    token = os.environ.get(policy.token_env or "", "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with httpx.AsyncClient(trust_env=False, verify=_trust(policy), timeout=_ANSWER_S) as http:
            answer = await http.post(policy.url.rstrip("/") + _DECISION, json={"input": {}}, headers=headers)
        return str(answer.json()["provenance"]["version"])
    except (httpx.HTTPError, OSError, ValueError, LookupError, TypeError):
        return ""


def _trust(policy: OpaPolicySettings) -> ssl.SSLContext | bool:
    if policy.tls is None:
        return True
    context = ssl.create_default_context(cafile=policy.tls.ca)
    if policy.tls.cert is not None:
        context.load_cert_chain(policy.tls.cert, policy.tls.key)
    return context


async def _postgresql(url: str) -> str:
    try:
        connection = await connect(url, _ANSWER_S)
    except (*FAULTS, AuditUnavailable):
        return ""
    try:
        return str(await connection.fetchval("SHOW server_version"))
    except FAULTS:
        return ""
    finally:
        connection.terminate()
