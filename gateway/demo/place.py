"""What stands behind the gateway in a demo: the servers that each replica serves, and what its data say of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.demo.people import REVIEWERS


@dataclass(frozen=True, slots=True)
class Place:
    """A demo's world. `module` is started once for each replica, with `--port`, `--replica`, `--books` and `options`.

    `policy_data` makes the bundle's `data.json` from the issuer's URL; `server_settings` are further keys of every
    server's configuration.
    """

    servers: tuple[str, ...]
    module: str
    policy_data: Callable[[str], dict[str, Any]]
    scope_implies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    server_settings: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()


def bank_data(issuer_url: str) -> dict[str, Any]:
    """The bank's `data.json`: reads are free, transfers need a reviewer's yes."""
    read = {"effect": "read", "scopes": ["bank:read"]}
    reads = {"get_balance": read, "list_transfers": read}
    transfer = {
        "effect": "write",
        "scopes": ["payments:write"],
        "approval": {"needed": True, "approvers": [f"group:{issuer_url}|{REVIEWERS}"], "ttl_s": 3600},
    }
    return {
        "servers": {
            "readonly": {
                "scopes": ["mcp:use"],
                "tools": reads,
                "resources": {"bank://accounts": {"scopes": ["bank:read"]}},
                "prompts": {"account_report": {"scopes": ["bank:read"]}},
            },
            "payments": {"scopes": ["mcp:use"], "tools": reads | {"transfer_funds": transfer}},
        }
    }


BANK = Place(("readonly", "payments"), "gateway.demo.servers", bank_data, {"payments:write": ("bank:read",)})
"""A small bank: one server that reads its books, and one that also moves money."""
