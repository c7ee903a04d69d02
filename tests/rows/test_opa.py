"""A gateway whose policy is an OPA server: the real one, which comes and goes, and one that misbehaves (AZ-01).

Behind the misbehaving one the circuit opens now and then, so each case waits until the gateway is served again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.contract.refusals import Refusal
from tests.rows.asking import tool
from tests.rows.conftest import furnish, opened, served, settings_of
from tests.rows.proof import passes
from tests.rows.stage import House, Server, Stage, listed, listing
from tests.rows.test_approvals import told
from tests.support.impostor import ALLOW, Behaviour, Impostor, cuts, drips, floods, hangs, hangs_up, says
from tests.support.opa import Opa
from tests.support.stack import DATA, ISSUER, Stack

TOOLS = listed(read={}, write={}, hidden={})
TOKEN = "planted-token-of-the-engine"


@contextmanager
def gateway(stage: Stage, folder: Path, **policy: Any) -> Iterator[House]:
    """One worker that asks OPA, and one server behind it; furnished, not yet served."""
    behind = {"plain": [Server(TOOLS)]}
    stack = Stack(folder, {}, data=DATA, environment={"ROWS_OPA_TOKEN": TOKEN})
    with opened(stage, behind["plain"]):
        house = House(stage, stack, behind)
        house.secrets.add(TOKEN.encode())
        furnish(stack, settings_of(behind), policy={"engine": "opa", "token_env": "ROWS_OPA_TOKEN", **policy})
        with house.http:
            yield house


def timed(house: House, name: str = "read") -> tuple[tuple[int, int], list[str], float, str]:
    """(status and code), Retry-After, seconds, decision id."""
    began = time.monotonic()
    answer = house.call("plain", tool(name))
    took = time.monotonic() - began
    return told(answer), answer.values("retry-after"), took, answer.values("ostiary-decision")[0]


def await_served(house: House, within_s: float = 5.0) -> float:
    """Until a good call is served again -> seconds; until then it is 503, within a second each."""
    began = time.monotonic()
    while True:
        status, _, took, _ = timed(house)
        assert took < 1.0
        if status[0] == 200:
            return time.monotonic() - began
        assert status == (503, 50302)
        assert time.monotonic() - began < within_s


# ------------------------------------------------------------------ one that misbehaves


@pytest.fixture(scope="module")
def impostor(stage: Stage) -> Iterator[Impostor]:
    """In OPA's place."""
    opa = Impostor(says(ALLOW))
    stage.run(opa.__aenter__())
    yield opa
    stage.run(opa.__aexit__())


@pytest.fixture(scope="module")
def deceived(stage: Stage, impostor: Impostor, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """The gateway that asks it."""
    with gateway(stage, tmp_path_factory.mktemp("impostor"), url=impostor.url) as house, served(stage, house.stack):
        yield house


BROKEN: dict[str, Behaviour] = {
    "hangs": hangs,
    "drips": drips,
    "cut body": cuts,
    "hangs up": hangs_up,
    "floods": floods,
    "undefined": says(b"{}"),
    "malformed": says(ALLOW[:-1]),
    "a word": says(b'{"result":"deny"}'),
    "another shape": says(b'{"result":{"allow":true}}'),
    "wrong content type": says(ALLOW, kind="text/plain"),
    "redirect": says(ALLOW, "302 Found", more="Location: /v1/data/x\r\n"),
    "500": says(ALLOW, "500 Internal Server Error"),
    "403": says(ALLOW, "403 Forbidden"),
}


@pytest.mark.provokes(Refusal.POLICY_UNAVAILABLE)
@pytest.mark.parametrize("case", BROKEN)
def test_an_engine_that_does_not_answer_well_is_a_refusal(deceived: House, impostor: Impostor, case: str) -> None:
    """AZ-01: 503 with Retry-After within a second, no server asked, `policy_unavailable` recorded; then served."""
    passes(deceived)
    before = len(deceived.forwarded())
    impostor.behaviour = BROKEN[case]
    try:
        results = [timed(deceived) for _ in range(2)]
    finally:
        impostor.behaviour = says(ALLOW)
    for status, retry, took, decision in results:
        assert (status, retry) == ((503, 50302), ["1"])
        assert took < 1.0
        (record,) = deceived.await_records(decision, "refusal")
        assert (record["reasons"], record["verdict"]) == (["policy_unavailable"], None)
    assert len(deceived.forwarded()) == before
    await_served(deceived)


def test_the_engines_token_shows_up_nowhere(deceived: House, impostor: Impostor) -> None:
    """The gateway's credential towards OPA is sent to OPA, and neither recorded, logged nor counted."""
    passes(deceived)
    assert any(f"Bearer {TOKEN}".encode() in lines for lines in impostor.heard)
    assert not deceived.planted_in(deceived.metrics().encode())
    assert deceived.records()


# ------------------------------------------------------------------ the real one


@pytest.fixture
def real(stage: Stage, opa_program: Path, tmp_path: Path) -> Iterator[tuple[House, Opa]]:
    """The gateway, and a real OPA on the very bundle that the embedded engine would read."""
    opa = Opa(opa_program, tmp_path / "bundle", tmp_path / "opa.log")
    with gateway(stage, tmp_path, url=opa.url) as house, opa, served(stage, house.stack):
        yield house, opa


def test_the_real_opa_judges_like_any_engine(real: tuple[House, Opa]) -> None:
    """AZ-01: allow, deny, approve and lists by the real OPA; each record names its bundle's revision."""
    house, _ = real
    answer = passes(house)
    decision, outcome = house.await_records(answer.values("ostiary-decision")[0], "decision", "outcome")
    assert decision["policy_revision"] == outcome["policy_revision"] == "default-4"
    status, _, _, refused = timed(house, "hidden")
    assert status == (403, 40302)
    (refusal,) = house.await_records(refused, "refusal")
    assert refusal["policy_revision"] == "default-4"
    house.approved("plain", tool("write", n=1))
    assert house.call("plain", tool("write", n=1)).status == 200
    assert told(house.call("plain", tool("write", n=1))) == (403, 40303)
    names = [one["name"] for one in house.call("plain", listing()).json()["result"]["tools"]]
    assert sorted(names) == ["read", "write"]
    assert 'ostiary_policy_info{revision="default-4"} 1.0' in house.metrics()


@pytest.mark.provokes(Refusal.POLICY_UNAVAILABLE)
def test_the_real_opa_goes_and_comes_back_under_load(real: tuple[House, Opa]) -> None:
    """OPS-06, AZ-01: kill -9 under load: 503, never a wrong allow; readiness follows; served again within 5 s."""
    house, opa = real
    stop = False
    statuses: list[tuple[str, int]] = []

    def caller(name: str) -> None:
        while not stop:
            answer = house.call("plain", tool(name))
            statuses.append((name, answer.status))

    with ThreadPoolExecutor(3) as callers:
        running = [callers.submit(caller, name) for name in ("read", "hidden", "write")]
        try:
            for _ in range(2):
                opa.kill()
                end = time.monotonic() + 20
                while house.readiness()[0] == 200:
                    assert time.monotonic() < end
                    time.sleep(0.02)
                state = house.readiness()[1]
                assert state["degraded"] == ["policy"]
                assert state["workers"][0]["missing"] == ["policy"]
                opa.start()
                assert await_served(house) < 5
                while house.readiness()[0] != 200:
                    assert time.monotonic() < end + 30
                    time.sleep(0.02)
        finally:
            stop = True
    for done in running:
        done.result()
    by_name = {name: {status for one, status in statuses if one == name} for name in ("read", "hidden", "write")}
    assert by_name == {"read": {200, 503}, "hidden": {403, 503}, "write": {403, 503}}
    assert all(one.body.find(b'"read"') > 0 for one in house.forwarded())


def test_a_gateway_starts_before_its_opa(stage: Stage, opa_program: Path, tmp_path: Path) -> None:
    """It does not give up: not ready, everyone refused, until OPA is there. `check` says what is missing."""
    opa = Opa(opa_program, tmp_path / "bundle", tmp_path / "opa.log")
    with gateway(stage, tmp_path, url=opa.url) as house:
        checked = house.ostiary("check", "--config", str(house.stack.config))
        assert checked.returncode == 1
        assert "FAIL policy: policy.url: OPA can't be asked" in checked.stdout
        stage.run(house.stack.spawn())
        try:
            end = time.monotonic() + 60
            while "policy" not in str(state := _readiness(house)):
                assert time.monotonic() < end, state
                time.sleep(0.05)
            with opa:
                while _readiness(house).get("ready") is not True:
                    assert time.monotonic() < end
                    time.sleep(0.05)
                passes(house)
                checked = house.ostiary("check", "--config", str(house.stack.config))
                assert "ok   policy: revision default-4" in checked.stdout, checked.stdout
        finally:
            stage.run(house.stack.stop())


def _readiness(house: House) -> dict[str, Any]:
    try:
        return house.readiness()[1]
    except httpx.TransportError:
        return {}


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"url": "http://opa.example.com:8181"}, "policy.url: must be https://"),
        ({"url": "http://127.0.0.1:8181/v1/data/x"}, "policy.url: must have no path"),
        ({"url": "http://127.0.0.1:8181", "path": "bundle"}, "policy.path: there is no such setting"),
        ({"url": "http://127.0.0.1:8181", "tls": {"ca": "x"}}, "policy.tls: is for an https:// url"),
        ({"url": "https://opa.example.com", "tls": {"cert": "x"}}, "policy.tls: cert and key go together"),
        ({"url": "http://127.0.0.1:8181", "deadline_s": 1}, "policy.deadline_s: "),
        ({"url": "http://127.0.0.1:8181", "token_env": "NOT_THERE"}, "policy.token_env: the environment variable"),
        ({}, "policy.url: is required"),
    ],
)
def test_what_is_unsafe_or_cannot_be_is_named(
    stage: Stage, tmp_path: Path, policy: dict[str, Any], words: str
) -> None:
    """OPS-07: settings of another engine, a policy asked in the clear, half a certificate: no start."""
    with gateway(stage, tmp_path) as house:
        document = yaml.safe_load(house.stack.config.read_text())
        document["policy"] = {"engine": "opa", **policy}
        house.stack.config.write_text(yaml.safe_dump(document))
        checked = house.ostiary("check", "--config", str(house.stack.config))
        assert checked.returncode != 0
        assert words in checked.stdout + checked.stderr
        assert ISSUER not in words
