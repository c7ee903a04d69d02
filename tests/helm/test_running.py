"""What the chart renders runs: its ConfigMaps as they are mounted, commands, variables, probes, and its test."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helm.chart import Helm, Manifest, gateway_of, merged, one, rendered, values_of
from tests.helm.node import Node
from tests.support.issuer import Issuer
from tests.support.ports import free_port
from tests.support.postgres import Postgres
from tests.support.processes import eventually

NAME = "https://idp.example.com"


def _key() -> str:
    return base64.urlsafe_b64encode(os.urandom(32)).decode()


def _changed(issuer: Issuer, **more: Any) -> dict[str, Any]:
    """Values by which no network is needed: the issuer's keys are in a ConfigMap; and it ends soon."""
    keys = {"issuer": issuer.name, "jwks_file": "/etc/ostiary/keys/jwks.json"}
    settings = {"identity": {"issuers": [keys]}, "limits": {"drain_s": 0, "grace_s": 5}}
    mounts = [{"name": "keys", "path": "/etc/ostiary/keys", "configMap": "issuer-keys"}]
    return merged({"config": settings, "mounts": mounts}, more)


def _node(folder: Path, made: list[Manifest], issuer: Issuer, **more: str) -> tuple[Node, int]:
    issuer.write(folder / "jwks.json")
    port, admin = free_port(), free_port()
    moved = {
        "0.0.0.0": "127.0.0.1",
        "port: 8080": f"port: {port}",
        "port: 9090": f"port: {admin}",
        "http://ostiary:80": f"http://127.0.0.1:{port}",
        "http://ostiary-admin:9090": f"http://127.0.0.1:{admin}",
        **more,
    }
    secrets = {"ostiary-keys": {"audit": _key(), "seals": _key()}}
    keys = {"issuer-keys": {"jwks.json": (folder / "jwks.json").read_text()}}
    return Node(folder, made, moved, secrets, keys), admin


async def _smoke(node: Node, *more: str) -> tuple[int, str]:
    """The command of `helm test`."""
    pod = one(list(node.manifests), "Pod")
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["python", "-c"]
    script, *arguments = container["args"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, *map(node.move, arguments), *more,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    said, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, said.decode()


async def _revision(admin: int) -> str:
    async with httpx.AsyncClient(trust_env=False) as client:
        text = (await client.get(f"http://127.0.0.1:{admin}/metrics")).text
    return next((line.split('"')[1] for line in text.splitlines() if line.startswith("ostiary_policy_info{")), "")


def _rendered_revision(made: Sequence[Manifest]) -> str:
    return str(json.loads(one(made, "ConfigMap", "ostiary-policy")["data"][".manifest"])["revision"])


async def test_a_replica_with_its_volume_serves_and_takes_another_policy(helm: Helm, tmp_path: Path) -> None:
    """`ostiary check` is content with what is mounted, it serves, `helm test` passes, a changed ConfigMap judges."""
    issuer = Issuer(NAME)
    values = merged(values_of("single"), _changed(issuer))
    made = helm.render(values)
    node, admin = _node(tmp_path, made, issuer)
    pod = gateway_of(made)["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    check = await node.ostiary(pod, {**container, "name": "check", "args": ["check", *container["args"][1:3]]})
    assert await asyncio.wait_for(check.wait(), 60) == 0, node.log("check")
    process = await node.ostiary(pod, container)
    try:
        await node.until(container["readinessProbe"], admin, process, "gateway")
        await node.until(container["livenessProbe"], admin, process, "gateway")
        code, said = await _smoke(node)
        assert code == 0, said
        assert said.count("ok  ") == 8
        assert "ok   all serve by the same: True" in said
        code, said = await _smoke(node, "/no/such/server")
        assert code == 1
        assert "metadata of /no/such/server: 200 was expected" in said
        assert await _revision(admin) == _rendered_revision(made)
        node.manifests = helm.render(merged(values, {"policy": {"data": {"servers": None}}}))
        volume = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == "policy")
        node.project(node.at("/etc/ostiary/policy"), volume["configMap"])

        async def judges() -> bool:
            return await _revision(admin) == _rendered_revision(node.manifests)

        await eventually("the other bundle judges", judges, 60)
        assert (node.at("/var/lib/ostiary/audit.jsonl")).stat().st_size > 0
    finally:
        codes = await node.end()
    assert codes == [0, 0]


async def test_migrations_the_sidecar_and_the_gateway_work_together(
    helm: Helm, opa_program: Path, postgres: Postgres, tmp_path: Path
) -> None:
    """The job makes the tables, OPA judges what is mounted, a gateway that migrates nothing serves: `helm test`."""
    issuer = Issuer(NAME)
    made = helm.render(merged(values_of("opa-sidecar"), _changed(issuer, config={"approvals": {"migrate": False}})))
    judge, health = free_port(), free_port()
    moved = {"127.0.0.1:8181": f"127.0.0.1:{judge}", "=:8282": f"=127.0.0.1:{health}"}
    node, admin = _node(tmp_path, made, issuer, **moved)
    node.secrets = {**node.secrets, "ostiary-database": {"url": postgres.create()}}
    pod, job = gateway_of(made)["spec"]["template"], one(made, "Job")["spec"]["template"]
    (opa,), (container,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    (migrations,) = job["spec"]["containers"]
    try:
        early = await node.ostiary(pod, {**container, "name": "early"})
        assert await asyncio.wait_for(early.wait(), 60) == 2  # nobody has made the tables
        assert "ostiary approvals migrate" in node.log("early")
        done = await node.ostiary(job, migrations)
        assert await asyncio.wait_for(done.wait(), 60) == 0, node.log("migrations")
        sidecar = await node.start(pod, opa, str(opa_program))
        await node.until(opa["startupProbe"], health, sidecar, "opa")
        process = await node.ostiary(pod, container)
        await node.until(container["readinessProbe"], admin, process, "gateway")
        code, said = await _smoke(node)
        assert code == 0, said
        assert await _revision(admin) == _rendered_revision(made)
    finally:
        codes = await node.end()
    assert codes[0] == 0


@pytest.mark.parametrize("name", ["OSTIARY_AUDIT_KEY", "OSTIARY_SEAL_KEYS"])
def test_a_secret_that_does_not_exist_starts_nothing(helm: Helm, tmp_path: Path, name: str) -> None:
    """Variables are taken from Secrets by name and key, and none is optional: Kubernetes waits for it."""
    made = rendered(helm, "single")
    (container,) = gateway_of(made)["spec"]["template"]["spec"]["containers"]
    (variable,) = [one for one in container["env"] if one["name"] == name]
    assert "optional" not in variable["valueFrom"]["secretKeyRef"]
    with pytest.raises(KeyError):
        Node(tmp_path, made).variables(container)
