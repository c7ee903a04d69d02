"""A gateway over TLS on both sides, as real processes: an ordinary client, replicas that ask who it is, renewals.

docs/tls.md; requirements UPS-02, OPS-07, FRM-10.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from click.testing import CliRunner
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from gateway.cli import main
from tests.support.certificates import LOOPBACK, authority
from tests.support.ports import free_port
from tests.support.processes import eventually
from tests.support.stack import Stack, call, lend
from tests.support.upstream import Exchange, ScriptedUpstream, http, result_of

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("read", "write")]


class Replica(ScriptedUpstream):
    """A server that asks for a certificate of the authority `clients`, and answers with whose it saw."""

    async def whom(self, exchange: Exchange) -> None:
        """One request."""
        asked = json.loads(exchange.seen.body)
        if asked["method"] != "tools/call":
            await exchange.send(http(200, result_of(asked["id"], tools=TOOLS, ttlMs=60_000, cacheScope="public")))
            return
        shown = exchange.writer.get_extra_info("peercert")
        name = dict(part[0] for part in shown["subject"])["commonName"]
        await exchange.send(http(200, result_of(asked["id"], content=[{"type": "text", "text": name}])))


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[Replica]:
    """One of them."""
    own = authority("servers").sign(*LOOPBACK).write(tmp_path, "server")
    one = Replica(tls=authority("servers").server_context(own, authority("clients")))
    one.script = one.whom
    async with one:
        yield one


def tls_stack(folder: Path, replica: Replica, workers: int = 1) -> Stack:
    """A gateway with certificates on both sides."""
    authority().sign(*LOOPBACK).write(folder, "listener")
    authority("clients").sign("gateway").write(folder, "gateway")
    authority("servers").write(folder, "servers-ca")
    port = free_port()
    listen = {"port": port, "tls": {"cert": "listener.pem", "key": "listener.key"}}
    towards = {"ca": "servers-ca.pem", "cert": "gateway.pem", "key": "gateway.key"}
    return Stack(
        folder,
        {"files": [f"https://localhost:{replica.port}/mcp"]},
        workers=workers,
        changes={"listen": listen},
        settings={"tls": towards},
        port=port,
        tls=authority().client_context(),
    )


async def who_was_seen(stack: Stack, client: httpx.AsyncClient | None = None) -> str:
    """The name under which the replica knows the gateway; every call has to succeed."""
    answer = await stack.post("files", call("read", {}), client=client)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["result"]["content"][0]["text"]
    return text


async def shown(stack: Stack) -> int:
    """The serial number of the certificate that a new connection sees."""
    _, writer = await asyncio.open_connection("127.0.0.1", stack.port, ssl=stack.tls)
    certificate = writer.get_extra_info("peercert")
    writer.close()
    await writer.wait_closed()
    return int(certificate["serialNumber"], 16)


async def metrics(stack: Stack) -> str:
    """What operators see."""
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(f"{stack.admin}/metrics")).text


async def test_tls_on_both_sides_and_renewals_under_traffic(replica: Replica, tmp_path: Path) -> None:
    """OPS-07: certificates of both sides are renewed while calls go on: none fails; a bad one changes nothing.

    The official client works over TLS; plain HTTP on that port is 400, counted and recorded.
    """
    async with tls_stack(tmp_path, replica, workers=2) as stack:
        token = stack.token("files")
        assert stack.tls is not None
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, verify=stack.tls) as http_client:
            transport = streamable_http_client(stack.endpoint("files"), http_client=http_client)
            async with Client(transport, mode="2026-07-28") as client:
                assert (await client.call_tool("read", {})).content[0].text == "gateway"  # type: ignore[union-attr]

        async with httpx.AsyncClient(trust_env=False) as plain:
            answer = await plain.get(f"http://127.0.0.1:{stack.port}/")
        assert answer.status_code == 400
        assert "https://" in answer.json()["error"]["message"]
        decision = answer.headers["ostiary-decision"]

        first = await shown(stack)
        ended = asyncio.Event()

        async def keep_calling() -> int:
            calls = 0
            async with httpx.AsyncClient(trust_env=False, timeout=30, verify=stack.tls or True) as one:
                while not ended.is_set():
                    await who_was_seen(stack, one)
                    await who_was_seen(stack)
                    calls += 2
            return calls

        calling = asyncio.create_task(keep_calling())
        renewed = authority().sign(*LOOPBACK)
        renewed.write(tmp_path, "listener")
        authority("clients").sign("renewed").write(tmp_path, "gateway")

        def told(event: str) -> list[dict[str, Any]]:
            lines = [json.loads(line) for line in stack.log().splitlines() if f'"{event}"' in line]
            return [line for line in lines if line["event"] == event]

        await eventually("both workers took both", lambda: len(told("certificate_replaced")) == 4, 30)
        assert await shown(stack) == renewed.certificate.serial_number != first
        assert await who_was_seen(stack) == "renewed"

        (tmp_path / "listener.key").write_bytes(authority().sign(*LOOPBACK).key_pem)
        (tmp_path / "gateway.pem").write_text("no certificate")
        await eventually("both workers refused both", lambda: len(told("certificate_not_replaced")) == 4, 30)
        assert await shown(stack) == renewed.certificate.serial_number
        assert await who_was_seen(stack) == "renewed"
        ended.set()
        assert await calling > 10

        async def seen() -> bool:
            text = await metrics(stack)
            return all(
                f'ostiary_certificates_current{{setting="{setting}"}} 0.0' in text
                for setting in ("listen.tls", "servers.files.tls")
            )

        await eventually("the metrics say so", seen)
        text = await metrics(stack)
        assert 'ostiary_certificates_total{result="taken"} 4.0' in text
        assert 'ostiary_certificates_total{result="refused"} 4.0' in text
        assert 'ostiary_tls_connections_total{result="plain"} 1.0' in text
        left = re.search(r'^ostiary_certificate_expires_seconds{setting="listen.tls"} (\S+)$', text, re.M)
        assert left is not None
        assert 80_000 < float(left[1]) < 86_400

        authority("strangers").write(tmp_path, "servers-ca")
        authority("clients").sign("again").write(tmp_path, "gateway")
        await eventually("both workers took them", lambda: len(told("certificate_replaced")) == 6, 30)
        answer = await stack.post("files", call("read", {}))
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, 50201)
        assert "certificate" not in answer.text
        refused = answer.headers["ostiary-decision"]
        assert (await stack.stop()) == 0

    records = stack.records() + stack.records(1)
    (refusal,) = [record for record in records if record["decision_id"] == decision]
    assert (refusal["kind"], refusal["status"], refusal["reasons"]) == ("refusal", 400, ["request_malformed"])
    cause = [
        record["detail"] for record in records if record["decision_id"] == refused and record["kind"] == "outcome"
    ]
    assert cause == ["no connection: certificate verify failed: unable to get local issuer certificate"]
    acts = [record for record in records if record["kind"] == "admin" and record["act"].startswith("certificate_")]
    counted = Counter((record["act"], record["facts"]["setting"]) for record in acts)
    assert counted == {
        ("certificate_replaced", "listen.tls"): 2,
        ("certificate_not_replaced", "listen.tls"): 2,
        ("certificate_replaced", "servers.files.tls"): 4,
        ("certificate_not_replaced", "servers.files.tls"): 2,
    }
    whole = CliRunner().invoke(main, ["audit", "verify", "--config", str(stack.config)])
    assert whole.exit_code == 0, whole.output
    secret = (tmp_path / "server.key").read_text().splitlines()[1]
    assert secret not in stack.log()


async def test_ops_07_a_gateway_does_not_start_with_what_it_can_not_show(replica: Replica, tmp_path: Path) -> None:
    """OPS-07: a key that everybody may read: exit code 2, and the setting by name."""
    stack = tls_stack(tmp_path, replica)
    stack.configure()
    (tmp_path / "listener.key").chmod(0o644)
    process = await stack.spawn()
    assert await asyncio.wait_for(process.wait(), 60) == 2
    assert "ostiary.yaml: listen.tls.key: " in stack.log()


def test_check_judges_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ostiary check`: pairs that match, files that are there; an end that is near and a strange name are told."""
    stack = tls_stack(tmp_path, Replica(port=1))
    lend(stack.secrets, monkeypatch.setenv)

    def found() -> tuple[int, list[dict[str, Any]]]:
        stack.configure()
        result = CliRunner().invoke(main, ["check", "--config", str(stack.config), "--json"])
        lines = [json.loads(line) for line in result.output.splitlines()]
        return result.exit_code, [line for line in lines if line["what"] == "certificates"]

    code, lines = found()
    assert (code, [line["ok"] for line in lines]) == (0, [True, True])
    assert all("until 20" in line["detail"] for line in lines)
    authority().sign("other.example", begins_s=-90_000, lives_s=3600).write(tmp_path, "listener")
    code, lines = found()
    assert code == 0
    assert [(line["place"], line["detail"].partition(" ")[0]) for line in lines if "place" in line] == [
        ("listen.tls.cert", "expires"),
        ("listen.tls.cert", "does"),
    ]
    (tmp_path / "gateway.key").write_bytes(authority().pair.key_pem)
    code, lines = found()
    assert code == 1
    assert next(line["detail"] for line in lines if not line["ok"]).startswith("servers.files.tls.key: ")
