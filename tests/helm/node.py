"""What a node does with a pod, as far as it can be done without one: its volumes laid out, each container's own
command with its own variables, its probes asked.

Not here: the image, the user, the read-only root, the network's policies. Paths are moved below a folder and
addresses to loopback, in what is mounted and in what is run, and nothing else is changed.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.helm.chart import Manifest, one
from tests.support.processes import eventually

CONFINED = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
libc.prctl(65, 1, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Runs a program that can gain no privileges (allowPrivilegeEscalation, NoNewPrivileges) and, where the kernel knows
how (PR_SET_MDWE, Linux 6.3), can write no memory that it executes (deploy/ostiary.service)."""
ROOTS = re.compile(r"/etc/ostiary|/var/lib/ostiary|(?<![\w./])/policy")


@dataclass
class Node:
    """`moved`: text -> text, besides paths; `secrets`: name -> key -> value; `maps`: ConfigMaps that exist."""

    folder: Path
    manifests: Sequence[Manifest]
    moved: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    maps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)
    generation: int = 0

    def at(self, path: str) -> Path:
        """Where a path of a container lies here."""
        return self.folder / path.lstrip("/")

    def move(self, text: str) -> str:
        """A text of a container as it has to be here."""
        for before, after in self.moved.items():
            text = text.replace(before, after)
        return ROOTS.sub(lambda root: str(self.at(root[0])), text)

    def _data(self, name: str) -> Mapping[str, str]:
        found: Mapping[str, str] = self.maps.get(name) or one(self.manifests, "ConfigMap", name)["data"]
        return found

    def lay_out(self, pod: Manifest, container: Manifest) -> None:
        """The container's volumes. A ConfigMap's folder is links into a folder that is replaced as a whole."""
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        for mount in container.get("volumeMounts", ()):
            target, volume = self.at(mount["mountPath"]), volumes.get(mount["name"], {})
            if "configMap" not in volume:
                target.mkdir(parents=True, exist_ok=True)
            elif "subPath" in mount:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(self.move(self._data(volume["configMap"]["name"])[mount["subPath"]]))
            else:
                self.project(target, volume["configMap"])

    def project(self, target: Path, source: Mapping[str, Any]) -> None:
        """A ConfigMap at a folder, anew or for the first time, as the kubelet's atomic writer has it."""
        data = self._data(source["name"])
        items = source.get("items") or [{"key": key, "path": key} for key in data]
        self.generation += 1
        fresh = target / f"..2026_{self.generation}"
        for item in items:
            file = fresh / item["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(data[item["key"]])
        link = target / "..data_tmp"
        link.symlink_to(fresh.name)
        link.rename(target / "..data")
        for name in {item["path"].split("/")[0] for item in items}:
            if not (target / name).is_symlink():
                (target / name).symlink_to(f"..data/{name}")

    def variables(self, container: Manifest) -> dict[str, str]:
        """The container's variables; `KeyError` for a Secret that does not exist."""
        found = {}
        for variable in container.get("env", ()):
            from_secret = variable.get("valueFrom", {}).get("secretKeyRef")
            found[variable["name"]] = (
                self.secrets[from_secret["name"]][from_secret["key"]] if from_secret else variable["value"]
            )
        return found

    async def start(self, pod: Manifest, container: Manifest, *program: str) -> asyncio.subprocess.Process:
        """Run a container: `program` stands for its image's entry point."""
        self.lay_out(pod, container)
        arguments = [*program, *map(self.move, container.get("args", ()))]
        with (self.folder / f"{container['name']}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *arguments, stdout=log, stderr=log, cwd=self.folder,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "") or str(Path.cwd()),
                     **self.variables(container)},
            )  # fmt: skip
        self.processes.append(process)
        return process

    async def ostiary(self, pod: Manifest, container: Manifest) -> asyncio.subprocess.Process:
        """A container of the gateway's image."""
        return await self.start(pod, container, sys.executable, "-c", CONFINED, sys.executable, "-m", "gateway.cli")

    def log(self, name: str) -> str:
        """What a container said."""
        return (self.folder / f"{name}.log").read_text()

    async def until(
        self, probe: Mapping[str, Any], port: int, process: asyncio.subprocess.Process, name: str
    ) -> None:
        """Until a probe is content."""
        url = f"http://127.0.0.1:{port}{probe['httpGet']['path']}"
        async with httpx.AsyncClient(trust_env=False) as client:

            async def content() -> bool:
                assert process.returncode is None, self.log(name)
                try:
                    return (await client.get(url)).status_code == 200
                except httpx.TransportError:
                    return False

            await eventually(f"{url}: {self.folder}/{name}.log", content, 90)

    async def end(self) -> list[int]:
        """SIGTERM to all that runs, the gateway first -> exit codes."""
        codes = []
        for process in reversed(self.processes):
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            codes.append(await asyncio.wait_for(process.wait(), 60))
        return codes
