"""The files that `ostiary init` writes, from its answers: pure, and in the words of the pages that explain them.

Whatever the answers do not open stays closed.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.beginning.asking import Offer

HELD_S: Final = 3600
USUAL_TYPE: Final = "at+jwt"
_APPROVER: Final = re.compile(r"(?:user|group|scope):.")
_SECOND: Final = re.compile(r"[,;\s](?:user|group|scope):")


@dataclass(frozen=True, slots=True)
class Answers:
    """What was asked. `approvers` as in the policy's data (`group:NAME`, `user:SUBJECT`); "": nobody."""

    issuer: str
    server: str
    name: str
    public_url: str
    scope: str
    approvers: str
    token_type: str


def wrong_answer(answers: Answers) -> str:
    """What is wrong with an answer that no setting holds as it was given, or ""."""
    if not answers.name:
        return "the server needs a name"
    if answers.approvers and not _APPROVER.match(answers.approvers):
        return f"approvers: {answers.approvers!a} is not group:NAME, user:SUBJECT or scope:NAME"
    if _SECOND.search(answers.approvers):
        return "approvers: one here; more of them stand in data.json afterwards (docs/policy.md)"
    return ""


def draft_configuration(answers: Answers, legacy: str) -> str:
    """`ostiary.yaml`: what was answered, and what is most often set next, as comments."""
    base = answers.public_url.rstrip("/")
    port = _port(base)
    path = f"/{answers.name}/mcp"
    more = []
    if answers.scope:
        more.append(f"scopes: [{_text(answers.scope)}]   # what the 401 tells a client to ask for")
    if legacy != "off":
        more.append(f"legacy_servers: {_text(legacy)}   # it does not speak 2026-07-28 (docs/upstream.md)")
    server = "".join(f"\n    {line}" for line in more)
    types = f"\n      token_types: [{_text(answers.token_type)}]   # of the tokens' heads"
    return f"""\
# yaml-language-server: $schema=./ostiary.schema.json
# Every setting: docs/configuration.md. Look at it with `ostiary check --config ostiary.yaml`.

# What clients see. They bring tokens for the audience {base}{path}.
public_url: {_text(answers.public_url)}

# Where clients connect. For others than this machine: host: 0.0.0.0, and TLS here or in front of it.
listen: {{host: 127.0.0.1, port: {port}}}
# For operators alone: /livez, /readyz, /metrics.
admin: {{host: 127.0.0.1, port: 9090}}

# Whose tokens count. Keys and algorithms are found by the issuer's own metadata (docs/identity.md).
identity:
  issuers:
    - issuer: {_text(answers.issuer)}{types if answers.token_type != USUAL_TYPE else ""}
      # algorithms: [ES256]            # to accept fewer
      # groups_claim: groups           # where approvers are groups

servers:
  {answers.name}:
    path: {path}
    replicas: [{_text(answers.server)}]   # more of them share the load{server}
    # credentials: {{header: Authorization, value_env: UPSTREAM_TOKEN}}   # what the gateway proves itself with
    # pins: enforce                    # after `ostiary pins accept`: a tool that changes is closed (docs/pins.md)

# What may be done: policies/bundle/mcp/authz/data.json, explained in docs/policy.md.
policy: {{engine: embedded, path: ./policies/bundle}}

# Who waits for a yes is here; PostgreSQL where several gateways share it (docs/operations.md).
approvals: {{database: "sqlite:///ostiary.db"}}

# What happened. Both keys are in ostiary.env: keep them, and keep them secret.
audit: {{file: ./audit.jsonl, hmac_key_env: OSTIARY_AUDIT_KEY}}
seals: {{keys_env: OSTIARY_SEAL_KEYS}}

# Where people sign in to approve in a browser (docs/sign-in.md).
# sign_in: {{issuer: {_text(answers.issuer)}, client_id: ostiary, client_secret_env: OSTIARY_CLIENT_SECRET}}
"""


def draft_data(answers: Answers, offer: Offer) -> dict[str, Any]:
    """`data.json`: what only reads is open; what changes something waits for the approvers, or is closed."""
    held: Any = False
    if answers.approvers:
        held = {"effect": "write", "approval": {"approvers": [answers.approvers], "ttl_s": HELD_S}}
    entry: dict[str, Any] = {"scopes": [answers.scope]} if answers.scope else {}
    entry["tools"] = {name: {"effect": "read"} if reads else held for name, reads in offer.tools.items()}
    if offer.prompts:
        entry["prompts"] = {name: {} for name in offer.prompts}
    return {"servers": {answers.name: entry}}


def draft_environment() -> str:
    """`ostiary.env`: new keys."""
    keys = {name: base64.urlsafe_b64encode(secrets.token_bytes(32)).decode() for name in ("AUDIT_KEY", "SEAL_KEYS")}
    return "".join(f"OSTIARY_{name}={key}\n" for name, key in keys.items())


def _port(base: str) -> int:
    """Where to listen: where clients call, if that is this machine. The settings' own check tells what is no URL."""
    try:
        parts = urlsplit(base)
        port = parts.port or 8080
    except ValueError:
        return 8080
    return port if parts.hostname in ("127.0.0.1", "localhost", "::1") else 8080


def _text(value: str) -> str:
    """A YAML scalar: JSON's strings are among them, and need no look at what a plain one may hold."""
    return json.dumps(value)
