"""A real kube-apiserver on Debian's etcd, on loopback: what it admits and keeps is known, though nothing runs.

There is no controller: `Cluster.jobs_done()` writes what that of jobs would, `Cluster.scale()` what an autoscaler.
"""

from __future__ import annotations

import contextlib
import secrets
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.support.ports import free_port

START_S = 60.0
MERGE = {"Content-Type": "application/merge-patch+json"}


class Cluster:
    """Runs from `start()` to `stop()`. `tokens`: user -> bearer token; `root` may do all."""

    def __init__(self, apiserver: Path, etcd: Path, folder: Path) -> None:
        self._programs, self._folder = (apiserver, etcd), folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.tokens = {"root": secrets.token_hex(16), "deployer": secrets.token_hex(16)}
        self.authority = folder / "certificates/apiserver.crt"
        self._resources: dict[str, dict[str, str]] = {}

    def start(self) -> None:
        """Until it is ready."""
        folder = self._folder
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / "accounts.key").write_bytes(pem)
        groups = {"root": ",system:masters"}
        lines = [f"{token},{user},{user}{groups.get(user, '')}\n" for user, token in self.tokens.items()]
        (folder / "tokens").write_text("".join(lines))
        etcd, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._run(
            self._programs[1], "etcd", "--data-dir", folder / "etcd", "--listen-client-urls", etcd,
            "--advertise-client-urls", etcd, "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
            "--initial-cluster", f"default={peers}",
        )  # fmt: skip
        self._run(
            self._programs[0], "apiserver", f"--etcd-servers={etcd}", "--bind-address=127.0.0.1",
            f"--secure-port={self.port}", f"--cert-dir={folder / 'certificates'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder / 'accounts.key'}",
            f"--service-account-signing-key-file={folder / 'accounts.key'}", "--authorization-mode=RBAC",
            f"--token-auth-file={folder / 'tokens'}", "--service-cluster-ip-range=10.0.0.0/16",
            "--anonymous-auth=false",
        )  # fmt: skip
        end = time.monotonic() + START_S
        while not self._ready():
            if time.monotonic() > end or any(one.poll() is not None for one in self._processes):
                raise RuntimeError((folder / "apiserver.log").read_text()[-2000:])
            time.sleep(0.2)

    def _run(self, program: Path, name: str, *arguments: str | Path) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            command = [str(program), *map(str, arguments)]
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder))

    def _ready(self) -> bool:
        if not self.authority.exists():
            return False
        with contextlib.suppress(httpx.TransportError, ssl.SSLError):
            return self.ask("GET", "/readyz").status_code == 200
        return False

    def stop(self) -> None:
        """The API first."""
        for one in reversed(self._processes):
            one.terminate()
            try:
                one.wait(10)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()

    def ask(self, method: str, path: str, given: Any = None, **headers: str) -> httpx.Response:
        """One request as `root`."""
        with httpx.Client(verify=ssl.create_default_context(cafile=self.authority), trust_env=False) as client:
            headers = {"Authorization": f"Bearer {self.tokens['root']}", **headers}
            return client.request(method, self.url + path, json=given, headers=headers, timeout=20)

    def path(self, version: str, kind: str, namespace: str = "") -> str:
        """Where objects of a kind lie: those of a namespace, or all."""
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if kind not in self._resources.get(version, {}):
            found = self.ask("GET", root).json()["resources"]
            self._resources[version] = {one["kind"]: one["name"] for one in found if "/" not in one["name"]}
        within = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}{within}/{self._resources[version][kind]}"

    def make(self, what: Mapping[str, Any], namespace: str = "", *, dry: bool = False) -> httpx.Response:
        """Create an object, strictly; `dry`: admitted, defaulted, and not kept."""
        options = "?fieldValidation=Strict" + ("&dryRun=All" if dry else "")
        return self.ask("POST", self.path(what["apiVersion"], what["kind"], namespace) + options, what)

    def get(self, version: str, kind: str, namespace: str, name: str) -> Any:
        """An object as it is kept, None where there is none."""
        answer = self.ask("GET", f"{self.path(version, kind, namespace)}/{name}")
        return answer.json() if answer.status_code == 200 else None

    def names(self, version: str, kind: str) -> set[str]:
        """`Kind/namespace/name` of all objects of a kind, whatever the namespace."""
        found = self.ask("GET", self.path(version, kind)).json()["items"]
        return {f"{kind}/{one['metadata']['namespace']}/{one['metadata']['name']}" for one in found}

    def scale(self, namespace: str, name: str, replicas: int) -> None:
        """A Deployment's number, set as an autoscaler or `kubectl scale` does."""
        path = f"{self.path('apps/v1', 'Deployment', namespace)}/{name}/scale"
        answer = self.ask("PATCH", path, {"spec": {"replicas": replicas}}, **MERGE)
        assert answer.status_code == 200, answer.text

    @contextlib.contextmanager
    def jobs_done(self, namespace: str) -> Iterator[None]:
        """Every job there succeeds at once, as its controller would write it down."""
        over = threading.Event()

        def complete() -> None:
            while not over.wait(0.2):
                for job in self.ask("GET", self.path("batch/v1", "Job", namespace)).json()["items"]:
                    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                    done = [
                        {"type": kind, "status": "True", "lastTransitionTime": now}
                        for kind in ("SuccessCriteriaMet", "Complete")
                    ]
                    status = {"startTime": now, "completionTime": now, "succeeded": 1, "conditions": done}
                    place = f"{self.path('batch/v1', 'Job', namespace)}/{job['metadata']['name']}/status"
                    self.ask("PATCH", place, {"status": status}, **MERGE)

        thread = threading.Thread(target=complete)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
