"""Plain questions: complete, about nothing real. A policy that can't answer them can't be used.

The embedded engine asks them before a bundle judges anything; the OPA adapter asks them to find out how OPA is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson


def _plain_question(phase: str, method: str, kind: str) -> str:
    question: Mapping[str, Any] = {
        "phase": phase,
        "server": {"name": "ostiary.self-check", "resource": "https://self-check.invalid/mcp", "environment": ""},
        "subject": {
            "issuer": "https://self-check.invalid",
            "id": "ostiary.self-check",
            "client_id": "",
            "tenant": "",
            "scopes": [],
            "claims": {},
        },
        "request": {
            "method": method,
            "kind": kind,
            "name": "ostiary.self-check" if kind == "tool" else None,
            "arguments": {},
            "input_responses": None,
            "tasks": [],
            "leg": 0,
            "approved": False,
        },
        "tool": None,
        "candidates": [{"id": "ostiary.self-check"}] if phase == "list" else [],
    }
    return orjson.dumps(question).decode()


SELF_CHECK = (_plain_question("call", "tools/call", "tool"), _plain_question("list", "tools/list", "list"))
