"""The systemd unit: what systemd itself says of it, and that its numbers are the gateway's."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from gateway.beginning.drafting import Answers, draft_configuration
from gateway.config import Limits
from tests.helm.chart import ROOT

UNIT = ROOT / "deploy/ostiary.service"
EXPOSED_AT_MOST = 20
"""Tenths, as `systemd-analyze security --threshold` has it: 10 would be a service with everything, 2 is "OK"."""


def settings() -> dict[str, list[str]]:
    """Every setting of the unit; one that is given twice has two values."""
    found = defaultdict(list)
    for line in UNIT.read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found[key].append(value)
    return found


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit as it would be on this machine: with a program and an account that are there."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here: apt-get install --no-install-recommends systemd")
    text = UNIT.read_text().replace("/opt/ostiary/bin/ostiary", str(Path(sys.executable).parent / "ostiary"))
    file = tmp_path / "ostiary.service"
    file.write_text(re.sub(r"^(User|Group)=ostiary$", r"\1=daemon", text, flags=re.MULTILINE))
    return file


def _analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def test_systemd_takes_it_without_a_word(installed: Path) -> None:
    """`systemd-analyze verify` finds nothing to say, and would: a misspelt setting is told."""
    done = _analyze("verify", "--man=no", str(installed))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    installed.write_text(installed.read_text().replace("ProtectHome=yes", "ProtectHomes=yes"))
    assert "ProtectHomes" in _analyze("verify", "--man=no", str(installed)).stderr


def test_it_may_do_little(installed: Path) -> None:
    """`systemd-analyze security` calls it OK; without what protects the rest of the machine it would not."""
    judge = ("security", "--offline=true", f"--threshold={EXPOSED_AT_MOST}")
    done = _analyze(*judge, str(installed))
    assert done.returncode == 0, done.stdout[-1500:]
    keep = ("[", "User", "Group", "ExecStart", "Type")
    kept = [line for line in installed.read_text().splitlines() if line.startswith(keep)]
    installed.write_text("\n".join(kept))
    assert _analyze(*judge, str(installed)).returncode != 0


def test_its_numbers_are_the_gateways() -> None:
    """It waits for the grace time and 15 s more, and has descriptors for all subscriptions that may be open."""
    found, limits = settings(), Limits()
    assert float(found["TimeoutStopSec"][0]) >= limits.grace_s + 15
    assert int(found["LimitNOFILE"][0]) >= 2 * limits.subscriptions + 2000
    assert found["KillMode"] == ["mixed"]  # the supervisor ends its own: evaluators outlive the calls that they judge
    assert found["OOMPolicy"] == ["continue"]
    assert found["StateDirectory"] == ["ostiary"]
    assert found["StateDirectoryMode"] == ["0700"]


def test_the_account_is_the_one_that_is_made() -> None:
    """deploy/ostiary.sysusers makes the user of the unit, without a shell."""
    made = (ROOT / "deploy/ostiary.sysusers").read_text()
    assert re.search(rf"^u {settings()['User'][0]} - .* /usr/sbin/nologin$", made, re.MULTILINE)


def test_what_init_drafted_writes_where_the_unit_may() -> None:
    """The page's commands, in a folder that the account can't write: record and tickets go to the unit's own, and the
    keys lie where it reads them, before it is started."""
    page = (ROOT / "docs/operations.md").read_text().partition("\n## Under systemd\n")[2].partition("\n## ")[0]
    commands = page.partition("```sh\n")[2].partition("```")[0].splitlines()
    (edit,) = [shlex.split(line)[2:-1] for line in commands if line.startswith("sed -i ")]
    answers = Answers(
        "https://idp.example.com", "http://127.0.0.1:8000/mcp", "tools", "http://127.0.0.1:8080", "", "", ""
    )
    draft = draft_configuration(answers, "off")
    done = subprocess.run(["sed", *edit], input=draft, capture_output=True, text=True, check=True)
    before, after = yaml.safe_load(draft), yaml.safe_load(done.stdout)
    state = f"/var/lib/{settings()['StateDirectory'][0]}"
    assert after.pop("approvals") == {"database": f"sqlite:///{state}/ostiary.db"}
    assert after["audit"].pop("file") == f"{state}/audit.jsonl"
    assert before["audit"].pop("file") == "./audit.jsonl"
    del before["approvals"]
    assert after == before
    (moved,) = [shlex.split(line, comments=True)[-1] for line in commands if line.startswith("mv ")]
    assert [moved] == settings()["EnvironmentFile"]
    assert f"EnvironmentFile={moved}" in page.partition("systemd-run ")[2]
    assert commands[-1] == "systemctl enable --now ostiary"
