"""docs/registry.md under test: each command of the page is run, in its order, and prints what the page says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gateway.cli import main
from tests.support.registry import TOKEN, private_registry, record, running, served_over_http, weather_server
from tests.support.stack import Stack

PAGE = (Path(__file__).parents[2] / "docs/registry.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PUBLIC, REPLICA = "https://mcp.example.com", "http://10.0.0.1:8000/mcp"


def steps() -> list[tuple[str, list[str]]]:
    """(command, lines that it prints) in the order of the page."""
    found: list[tuple[str, list[str]]] = []
    for line in "".join(BLOCKS).splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line)
    return found


def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, a registry and a server as the page has them; `…` stands for what differs from run to run."""
    monkeypatch.chdir(tmp_path)
    settings = yaml.safe_load(PAGE.split("```yaml\n")[1].split("```")[0])
    with running(served_over_http(weather_server())) as url, private_registry() as registry:
        stack = Stack(tmp_path, {"weather": [f"{url}/mcp"]})
        remotes = [{"type": "streamable-http", "url": f"{PUBLIC}/weather/mcp"}]
        (tmp_path / "server.json").write_text(json.dumps(record(remotes=remotes)))
        (tmp_path / "moved.json").write_text(json.dumps(record()))
        bad = record(version="1.x", remotes=[{"type": "streamable-http", "url": "https://{tenant}.example.com/mcp"}])
        (tmp_path / "bad.json").write_text(json.dumps(bad))
        registry.put(
            record("com.example/storms", remotes=[{"type": "streamable-http", "url": "http://10.0.0.2:8000/mcp"}])
        )
        own = {key: value for key, value in settings["servers"]["weather"].items() if key in ("pins", "registry")}
        stack.settings, stack.changes = (
            own,
            {
                "public_url": PUBLIC,
                "registry": {**settings["registry"], "url": registry.url},
            },
        )
        stack.configure()
        env = {**stack.secrets, "REGISTRY_TOKEN": "x", "OSTIARY_REGISTRY_TOKEN": TOKEN}
        shown = CliRunner().invoke(main, ["pins", "show", "--config", "ostiary.yaml", "--json"], env=env)
        words = ["pins", "accept", "--config", "ostiary.yaml", "--json", "--seen", json.loads(shown.stdout)["seen"]]
        assert CliRunner().invoke(main, words, env=env).exit_code == 0
        digest = ""
        assert len(steps()) >= 10
        for command, printed in steps():
            ostiary, *words = shlex.split(command.replace("3f2b…", digest))
            assert ostiary == "ostiary"
            done = CliRunner().invoke(main, words, env=env)
            told = done.stdout.replace(f"{url}/mcp", REPLICA)
            expected = "\n".join(printed).replace("3f2b…", "…")
            pattern = re.escape(expected).replace("…", ".*")
            assert re.fullmatch(pattern, told.rstrip("\n"), re.DOTALL), f"{command}\n{done.output}"
            if found := re.search(r"--seen ([0-9a-f]{64})", done.stdout):
                digest = found[1]
