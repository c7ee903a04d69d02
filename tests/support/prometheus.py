"""The real Prometheus as a process of its own, scraping gateways twice a second, with rules of a test's choice."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from tests.support.ports import free_port

READY_S = 60.0


class Prometheus:
    """One server on loopback. `targets`: an instance's name -> `host:port` of its admin listener.

    A name with a slash, `SERVICE/INSTANCE`, is an instance of a deployment of its own.
    """

    def __init__(self, program: Path, folder: Path, targets: Mapping[str, str], rules: Path) -> None:
        self._program = program
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{self._port}", trust_env=False, timeout=30)
        scrapes = [{"targets": [address], "labels": _labels(name)} for name, address in targets.items()]
        every = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
        jobs = [{"job_name": "ostiary", "static_configs": scrapes}]
        config = {"global": every, "rule_files": [str(rules)], "scrape_configs": jobs}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))

    def __enter__(self) -> Self:
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    str(self._program), f"--config.file={self._folder}/prometheus.yml",
                    f"--storage.tsdb.path={self._folder}/data", f"--web.listen-address=127.0.0.1:{self._port}",
                    "--log.level=warn",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        end = time.monotonic() + READY_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                raise AssertionError((self._folder / "prometheus.log").read_text()[-2000:])
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _is_ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def ask(self, expr: str) -> list[dict[str, Any]]:
        """What a query answers now: samples with `metric` (labels) and `value`."""
        answer = self._http.post("/api/v1/query", data={"query": expr})
        assert answer.status_code == 200, (expr, answer.text)
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found

    def instances(self, expr: str) -> set[str]:
        """The gateways that a query answers for."""
        return {sample["metric"].get("instance", "") for sample in self.ask(expr)}

    def firing(self) -> set[tuple[str, str]]:
        """(alert, instance) of all that fires now."""
        alerts = self._http.get("/api/v1/alerts").json()["data"]["alerts"]
        return {
            (one["labels"]["alertname"], one["labels"].get("instance", ""))
            for one in alerts
            if one["state"] == "firing"
        }


def _labels(name: str) -> dict[str, str]:
    service, _, instance = name.rpartition("/")
    return {"instance": instance, **({"service": service} if service else {})}
