"""`ostiary decide`: what would become of one request, printed and recorded.

Exit codes: 0 it would be forwarded, 1 it would not (refused, or a person has to say yes), 2 it could not be asked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any

import click
import orjson

from gateway.audit.port import AuditUnavailable
from gateway.config import ConfigError, EmbeddedPolicySettings, Settings
from gateway.lobbies import rehearsal
from gateway.logs import set_up_logs
from gateway.opening import CannotStart
from gateway.plan import make_plan
from gateway.rehearsal.decide import CannotDecide
from policies.bundles import load_bundle
from policies.rego_tests import trace_question
from policies.verdict import PolicyUnavailable

NOT_ASKED = 2
TRACE_S = 10.0


def tell_decision(settings: Settings, text: bytes, *, trace: bool, as_json: bool) -> int:
    """Decide and print -> exit code."""
    set_up_logs(logging.ERROR)
    try:
        told, question = asyncio.run(_decide(settings, text))
        if trace:
            told["trace"] = _trace(settings, question)
    except (ConfigError, ValueError, CannotStart, CannotDecide, AuditUnavailable, PolicyUnavailable) as error:
        message = {"error": "not_asked", "message": str(error)}
        click.echo(orjson.dumps(message).decode() if as_json else str(error), err=not as_json)
        return NOT_ASKED
    click.echo(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode() if as_json else _sheet(told))
    return 0 if told["forwarded"] else 1


async def _decide(settings: Settings, text: bytes) -> tuple[dict[str, Any], bytes]:
    async with rehearsal(make_plan(settings)) as room:
        return await room.decide(text, f"local:{os.getuid()}@{socket.gethostname()}")


def _trace(settings: Settings, question: bytes) -> dict[str, list[int]]:
    if not isinstance(settings.policy, EmbeddedPolicySettings):
        raise PolicyUnavailable("--trace: an OPA server is asked for its own trace (its decision log, or `opa eval`)")
    if not question:
        return {}
    return trace_question(load_bundle(settings.policy.path), question, timeout_s=TRACE_S)


def _sheet(told: dict[str, Any]) -> str:
    refusal = told["refusal"]
    lines = ["would be forwarded" if told["forwarded"] else "would not be forwarded"]
    lines.append(f"verdict: {told['verdict'] or 'none'} by revision {told['revision'] or '-'}")
    if refusal:
        lines.append(f"refused: {refusal['status']} {refusal['code']} {refusal['name']}: {refusal['sentence']}")
        lines += [f"    {refusal['detail']}"] if refusal["detail"] else []
    if told["approval"]:
        lines.append("a person has to approve it")
    if told["policy"]:
        lines.append(f"the policy's answer: {orjson.dumps(told['policy']).decode()}")
    lines += [f"evaluated in {name}: {', '.join(map(str, found))}" for name, found in told.get("trace", {}).items()]
    return "\n".join(lines)
