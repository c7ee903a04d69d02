"""The files of one demo: configuration, policy bundle with the demo's own data, keys, below one directory.

What is written here is what an operator would write by hand (docs/demo.md shows it), so the demo starts the gateway
exactly as production does: `ostiary serve --config FILE` and two secrets in the environment.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import yaml

from gateway.demo.doorstep import CREDENTIAL_ENV
from gateway.demo.loopback import pick_port
from gateway.demo.place import BANK, Place

CLIENT_ID = "ostiary-review"


@dataclass(frozen=True, slots=True)
class Ports:
    """Where everything listens, on 127.0.0.1."""

    gateway: int
    admin: int
    issuer: int
    replicas: tuple[int, ...]

    @classmethod
    def usual(cls, replicas: int = 2) -> Ports:
        """The documented ports, each replaced by a free one where it is taken."""
        behind = tuple(pick_port(8101 + number) for number in range(replicas))
        return cls(pick_port(8080), pick_port(9090), pick_port(8100), behind)

    @classmethod
    def free(cls, replicas: int = 2) -> Ports:
        """Free ports only, for several stacks side by side."""
        found: list[int] = []
        while len(found) < 3 + replicas:
            port = pick_port()
            if port not in found:
                found.append(port)
        return cls(found[0], found[1], found[2], tuple(found[3:]))


@dataclass(frozen=True, slots=True)
class House:
    """One demo's directory, ports and secrets. `replicas` replaces the demo's own servers by others (for tests)."""

    directory: Path
    ports: Ports
    replicas: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    place: Place = BANK
    secrets: dict[str, str] = field(
        repr=False,
        default_factory=lambda: {
            "OSTIARY_AUDIT_KEY": base64.urlsafe_b64encode(os.urandom(32)).decode(),
            "OSTIARY_SEAL_KEYS": base64.urlsafe_b64encode(os.urandom(32)).decode(),
            CREDENTIAL_ENV: f"Bearer {secrets.token_urlsafe(24)}",
        },
    )

    @property
    def public_url(self) -> str:
        """The gateway's data plane."""
        return f"http://127.0.0.1:{self.ports.gateway}"

    @property
    def admin_url(self) -> str:
        """The gateway's admin listener."""
        return f"http://127.0.0.1:{self.ports.admin}"

    @property
    def issuer_url(self) -> str:
        """The development issuer."""
        return f"http://127.0.0.1:{self.ports.issuer}"

    @property
    def approvals_url(self) -> str:
        """The approvals API, which is also the audience of its tokens."""
        return f"{self.public_url}/approvals"

    @property
    def review_url(self) -> str:
        """The pages for people."""
        return f"{self.public_url}/review"

    @property
    def registration(self) -> str:
        """The pages as the issuer knows them: a client's id and its redirect URI."""
        return f"{CLIENT_ID}={self.review_url}/callback"

    @property
    def config_file(self) -> Path:
        """The gateway's configuration."""
        return self.directory / "ostiary.yaml"

    @property
    def audit_file(self) -> Path:
        """Writer 0's audit file; writer k appends `.k`."""
        return self.directory / "audit.jsonl"

    @property
    def bundle(self) -> Path:
        """The policy bundle: the default rules with the demo's own data."""
        return self.directory / "bundle"

    @property
    def books(self) -> Path:
        """The directory of what the servers keep."""
        return self.directory / "books"

    def endpoint(self, server: str) -> str:
        """A server's MCP endpoint at the gateway, which is also the audience of its tokens."""
        return f"{self.public_url}/{server}/mcp"

    def furnish(self) -> None:
        """Write the configuration and the bundle."""
        self.books.mkdir(parents=True, exist_ok=True)
        self.config_file.write_text(yaml.safe_dump(self._configuration(), sort_keys=False))
        bundle = self.bundle
        with as_file(files("policies") / "bundle") as source:
            shutil.copytree(source, bundle, dirs_exist_ok=True)
        (bundle / "mcp" / "authz" / "data.json").write_text(
            json.dumps(self.place.policy_data(self.issuer_url), indent=2)
        )
        (bundle / ".manifest").write_text(json.dumps({"revision": "demo-1", "roots": ["mcp/authz"]}))

    def _configuration(self) -> dict[str, Any]:
        replicas = self.replicas or tuple(f"http://127.0.0.1:{port}" for port in self.ports.replicas)
        return {
            "public_url": self.public_url,
            "listen": {"host": "127.0.0.1", "port": self.ports.gateway},
            "admin": {"host": "127.0.0.1", "port": self.ports.admin},
            "identity": {
                "issuers": [
                    {"issuer": self.issuer_url, "jwks_uri": f"{self.issuer_url}/jwks", "algorithms": ["ES256"]}
                ],
                "scope_implies": {scope: list(implied) for scope, implied in self.place.scope_implies.items()},
            },
            "servers": {
                name: {
                    "path": f"/{name}/mcp",
                    "environment": "demo",
                    "scopes": ["mcp:use"],
                    "replicas": [f"{replica}/{name}/mcp" for replica in replicas],
                    "credentials": {"header": "Authorization", "value_env": CREDENTIAL_ENV},
                    **self.place.server_settings,
                }
                for name in self.place.servers
            },
            "policy": {"engine": "embedded", "path": "bundle"},
            "approvals": {"database": "sqlite:///ostiary.db"},
            "sign_in": {"issuer": self.issuer_url, "client_id": CLIENT_ID},
            "audit": {"file": "audit.jsonl"},
            "limits": {"drain_s": 0},  # nobody stands before it who would still send
        } | self.settings
