"""Alert rules and dashboard by themselves: whole, documented, and right by promtool's own reckoning."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.contract.refusals import Refusal
from gateway.signals.durations import ROOMS
from tests.house.test_operations import PAGE, families, rows
from tests.signals.files import DASHBOARD, RULES, Alert, alerts, dashboard, metrics_of, queries

NAMES = [alert.name for alert in alerts()]

Series = dict[str, str]

GOOD: Series = {
    "ostiary_ready": "1",
    "ostiary_workers_wanted": "2",
    "ostiary_workers_ready": "2",
    "ostiary_worker_restarts_total": "0",
    'ostiary_requests_total{server="bank",reason="executed"}': "0+60",
    'ostiary_requests_total{server="bank",reason="upstream_unreachable"}': "0+1",
    'ostiary_requests_total{server="bank",reason="overloaded"}': "3",
    'ostiary_room_seconds_bucket{room="judge",le="0.25"}': "0+60",
    'ostiary_room_seconds_bucket{room="judge",le="1.0"}': "0+60",
    'ostiary_room_seconds_bucket{room="judge",le="+Inf"}': "0+60",
    'ostiary_room_seconds_bucket{room="hold",le="0.25"}': "0",
    'ostiary_room_seconds_bucket{room="hold",le="+Inf"}': "0+60",
    "ostiary_loop_lag_seconds": "0.02",
    'ostiary_defects_total{error="KeyError"}': "1",
    'ostiary_replicas{server="bank"}': "2",
    'ostiary_replicas_unreachable{server="bank"}': "0",
    'ostiary_replicas_ejected{server="bank"}': "0",
    'ostiary_replica_out{server="bank",replica="a:1"}': "0",
    'ostiary_replica_ejections_total{server="bank",replica="a:1",why="faults"}': "2",
    'ostiary_upstream_waiting{server="bank"}': "0",
    'ostiary_certificate_expires_seconds{setting="listen.tls"}': "2000000",
    'ostiary_certificates_current{setting="listen.tls"}': "1",
    'ostiary_missing{part="starting"}': "1",
    "ostiary_policy_failures_total": "0",
    "ostiary_policy_evaluations_total": "0+60",
    "ostiary_policy_remembered_total": "0+30",
    "ostiary_policy_current": "1",
    'ostiary_policy_info{revision="a"}': "1",
    'ostiary_loaded_info{part="policy",digest="a"}': "1",
    'ostiary_loaded_info{part="settings",digest="a"}': "1",
    'ostiary_keys_healthy{issuer="i"}': "1",
    'ostiary_keys_age_seconds{issuer="i"}': "300",
    "ostiary_approvals_healthy": "1",
    "ostiary_audit_healthy": "1",
    "ostiary_audit_lag_seconds": "0.01",
    "ostiary_audit_records_lost_total": "0",
    "ostiary_audit_checkpoint_age_seconds": "200",
    'ostiary_webhooks_waiting{webhook="w"}': "0",
    'ostiary_webhook_attempts_total{webhook="w",outcome="delivered"}': "0+1",
    "ostiary_audit_export_waiting": "20",
    "ostiary_audit_export_lost": "0",
    "ostiary_spans_waiting": "20",
    "ostiary_spans_lost_total": "0",
    "ostiary_log_lines_lost_total": "0",
    'ostiary_tickets{state="pending"}': "1",
    'ostiary_tickets{state="unclear"}': "0",
    'ostiary_approval_transitions_total{transition="approve"}': "0+1",
    "ostiary_tools_quarantined": "0",
    "ostiary_pins_healthy": "1",
    'ostiary_registry_drift{server="bank"}': "0",
    'ostiary_registry_age_seconds{server="bank"}': "4000",
    "ostiary_seal_key_age_seconds": "1000000",
}
"""A gateway that is well, at one sample a minute."""

BAD: dict[str, Series] = {
    "OstiaryAbsent": dict.fromkeys(GOOD, "_"),
    "OstiaryUnreachable": {"up": "1x5 0", "ostiary_ready": "1x5 _"},
    "OstiaryNotReady": {"ostiary_ready": "0"},
    "OstiaryWorkersMissing": {"ostiary_workers_ready": "1"},
    "OstiaryWorkersRestart": {"ostiary_worker_restarts_total": "0+1"},
    "OstiaryErrors": {'ostiary_requests_total{server="bank",reason="upstream_unreachable"}': "0+10"},
    "OstiarySlow": {'ostiary_room_seconds_bucket{room="judge",le="0.25"}': "0+50"},
    "OstiaryLoopBlocked": {"ostiary_loop_lag_seconds": "0.6"},
    "OstiaryOverloaded": {'ostiary_requests_total{server="bank",reason="overloaded"}': "3+1"},
    "OstiaryDefect": {'ostiary_defects_total{error="KeyError"}': "1+1"},
    "OstiaryServerUnreachable": {'ostiary_replicas_unreachable{server="bank"}': "2"},
    "OstiaryReplicaOut": {'ostiary_replica_out{server="bank",replica="a:1"}': "1"},
    "OstiaryReplicaFlaps": {'ostiary_replica_ejections_total{server="bank",replica="a:1",why="faults"}': "0+1"},
    "OstiaryReplicasFull": {'ostiary_upstream_waiting{server="bank"}': "1"},
    "OstiaryPolicyMissing": {'ostiary_missing{part="policy"}': "1"},
    "OstiaryPolicyFails": {
        "ostiary_policy_failures_total": "0+1",
        "ostiary_policy_evaluations_total": "0+600",
        "ostiary_policy_remembered_total": "0+570",
    },
    "OstiaryPolicyNotCurrent": {"ostiary_policy_current": "0"},
    "OstiaryPolicyRevisions": {'ostiary_policy_info{revision="b"}': "1"},
    "OstiaryGatewaysDiffer": {'ostiary_loaded_info{part="policy",digest="b"}': "1"},
    "OstiaryKeysMissing": {'ostiary_missing{part="keys"}': "1"},
    "OstiaryKeysNotRefreshed": {'ostiary_keys_healthy{issuer="i"}': "0"},
    "OstiaryKeysOld": {'ostiary_keys_age_seconds{issuer="i"}': "1900"},
    "OstiaryCertificateExpires": {'ostiary_certificate_expires_seconds{setting="listen.tls"}': "1000000"},
    "OstiaryCertificatesNotCurrent": {'ostiary_certificates_current{setting="listen.tls"}': "0"},
    "OstiaryApprovalsDown": {"ostiary_approvals_healthy": "0"},
    "OstiaryAuditDown": {"ostiary_audit_healthy": "0"},
    "OstiaryAuditSlow": {"ostiary_audit_lag_seconds": "0.7"},
    "OstiaryAuditRecordsLost": {"ostiary_audit_records_lost_total": "0+1"},
    "OstiaryCheckpointsOld": {"ostiary_audit_checkpoint_age_seconds": "1000"},
    "OstiaryWebhookBehind": {'ostiary_webhooks_waiting{webhook="w"}': "3"},
    "OstiaryWebhookGaveUp": {'ostiary_webhook_attempts_total{webhook="w",outcome="dead"}': "_x5 1"},
    "OstiaryExportBehind": {"ostiary_spans_waiting": "2000"},
    "OstiaryExportLost": {"ostiary_audit_export_lost": "0+5"},
    "OstiaryLogLinesLost": {"ostiary_log_lines_lost_total": "0+5"},
    "OstiaryUsesUnclear": {'ostiary_tickets{state="unclear"}': "1"},
    "OstiaryNobodyDecides": {'ostiary_approval_transitions_total{transition="approve"}': "7"},
    "OstiaryToolsQuarantined": {"ostiary_tools_quarantined": "1"},
    "OstiaryPinsUnreadable": {"ostiary_pins_healthy": "0"},
    "OstiaryRegistryDrift": {'ostiary_registry_drift{server="bank"}': "1"},
    "OstiaryRegistryNotCompared": {'ostiary_registry_age_seconds{server="bank"}': "15000"},
    "OstiarySealKeyOld": {"ostiary_seal_key_age_seconds": "40000000"},
}
"""Alert -> what is otherwise than `GOOD` when it is to fire."""

ALONGSIDE = {"OstiaryUnreachable": {"OstiaryAbsent"}}
"""It was the only one."""

LONG_MIN = 150


def with_names(series: Series) -> list[dict[str, str]]:
    """promtool's form: one gateway's series for so long."""
    found = []
    for name, values in series.items():
        metric, _, labels = name.partition("{")
        own = f'{metric}{{job="o",instance="g"{"," if labels else ""}{labels or "}"}'
        *first, last = values.split()
        last += f"x{LONG_MIN}" if "x" not in last else ""
        found.append({"series": own, "values": " ".join([*first, last])})
    return found


def unit(series: Series, times: Sequence[int]) -> dict[str, Any]:
    """A promtool test that expects no alert at these minutes."""
    fires = [{"eval_time": f"{at}m", "alertname": name, "exp_alerts": []} for name in NAMES for at in times]
    return {"interval": "1m", "input_series": with_names(series), "alert_rule_test": fires}


Reckoning = dict[str, dict[int, set[str]]]
"""Name of a case -> minute -> what fires then."""


def reckon(folder: Path, asked: Mapping[str, tuple[Series, Sequence[int]]]) -> Reckoning:
    """What promtool says is firing: the alerts for which the expectation of none is wrong."""
    for name, (series, times) in asked.items():
        test = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [unit(series, times)]}
        (folder / name).write_text(yaml.safe_dump(test))
    done = subprocess.run(
        ["promtool", "test", "rules", *(str(folder / name) for name in asked)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    told = done.stdout.split("Unit Testing:")[1:]
    assert len(told) == len(asked), done.stdout
    found: Reckoning = {}
    for (name, (_, times)), text in zip(asked.items(), told, strict=True):
        found[name] = {at: set() for at in times}
        for alert, hours, at in re.findall(r"alertname: (\w+), time: (?:(\d+)h)?(?:(\d+)m)?", text):
            found[name][60 * int(hours or 0) + int(at or 0)].add(alert)
        fails = any(found[name].values())
        assert ("FAILED" in text, "SUCCESS" in text) == (fails, not fails), text
    return found


def minutes(alert: Alert) -> int:
    """How long it has to hold, in whole minutes."""
    number, kind = int(alert.hold[:-1]), alert.hold[-1]
    return {"s": (number + 59) // 60, "m": number, "h": 60 * number}[kind]


@pytest.mark.usefixtures("prometheus_program")
def test_the_rules_are_rules() -> None:
    """promtool reads them, and finds nothing to object to."""
    done = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(NAMES)} rules found" in done.stdout
    assert NAMES
    assert max(Counter(NAMES).values()) == 1


def moments(alert: Alert) -> tuple[int, int]:
    """When what it is about begins, and when it has held; rates and windows need some samples first."""
    begins = 5 if "x5" in "".join(BAD[alert.name].values()) else 0
    return begins, min(LONG_MIN - 1, begins + 2 * minutes(alert) + 20)


@pytest.mark.usefixtures("prometheus_program")
def test_an_alert_fires_when_it_has_held_and_not_before(tmp_path: Path) -> None:
    """Exactly it, from what it is about, and not before its `for` has passed.

    None at a gateway that is well for hours, with all its counters counting and troubles behind it.
    """
    asked: dict[str, tuple[Series, Sequence[int]]] = {"well": (GOOD, (20, LONG_MIN - 1))}
    for alert in alerts():
        asked[alert.name] = ({**GOOD, **BAD[alert.name]}, moments(alert))
    reckoned = reckon(tmp_path, asked)
    assert reckoned.pop("well") == {20: set(), LONG_MIN - 1: set()}
    for alert in alerts():
        begins, held = moments(alert)
        assert reckoned[alert.name][held] == {alert.name} | ALONGSIDE.get(alert.name, set())
        assert alert.name not in reckoned[alert.name][begins]


BESIDE: dict[str, tuple[Series, set[str]]] = {
    "a replica that is replaced has slow calls": (
        {"ostiary_ready": "1x5 0", 'ostiary_missing{part="draining"}': "_x5 2"}, set(),
    ),
    "another deployment is gone as a whole": (
        {'ostiary_ready{namespace="b"}': "1x5 _"}, {"OstiaryAbsent"},
    ),
    "another deployment is replaced": (
        {'ostiary_ready{namespace="b",pod="one"}': "1x5 _", 'ostiary_ready{namespace="b",pod="two"}': "_x5 1"}, set(),
    ),
    "another deployment judges by its own policy": (
        {'ostiary_policy_info{namespace="b",revision="b"}': "1"}, set(),
    ),
    "another deployment serves by its own files": (
        {'ostiary_loaded_info{namespace="b",part="policy",digest="b"}': "1"}, set(),
    ),
    "gateways have addresses of their own": (
        {'ostiary_loaded_info{part="settings",digest="b"}': "1"}, set(),
    ),
    "another deployment's traffic": (
        {**BAD["OstiaryErrors"], 'ostiary_requests_total{namespace="b",server="bank",reason="executed"}': "0+6000"},
        {"OstiaryErrors"},
    ),
    "strangers' traffic": (
        {**BAD["OstiaryErrors"], 'ostiary_requests_total{server="bank",reason="token_missing"}': "0+6000"},
        {"OstiaryErrors"},
    ),
    "another deployment is quick": (
        {**BAD["OstiarySlow"], 'ostiary_room_seconds_bucket{namespace="b",room="judge",le="0.25"}': "0+60000",
         'ostiary_room_seconds_bucket{namespace="b",room="judge",le="+Inf"}': "0+60000"},
        {"OstiarySlow"},
    ),
    "another deployment's people decide": (
        {**BAD["OstiaryNobodyDecides"], 'ostiary_approval_transitions_total{namespace="b",transition="deny"}': "0+1"},
        {"OstiaryNobodyDecides"},
    ),
    "another gateway's policy answers": (
        {**BAD["OstiaryPolicyFails"], 'ostiary_policy_failures_total{pod="two"}': "0",
         'ostiary_policy_evaluations_total{pod="two"}': "0+60000", 'ostiary_policy_remembered_total{pod="two"}': "0"},
        {"OstiaryPolicyFails"},
    ),
    "what was remembered is counted a moment late": (
        {**BAD["OstiaryPolicyFails"], "ostiary_policy_remembered_total": "0+601"}, {"OstiaryPolicyFails"},
    ),
    "all is remembered": (
        {"ostiary_policy_remembered_total": "0+60"}, set(),
    ),
    "all is remembered, and counted a moment late": (
        {"ostiary_policy_remembered_total": "0+61"}, set(),
    ),
    "the policy fails in few of those that it is asked": (
        {"ostiary_policy_failures_total": "0+1", "ostiary_policy_evaluations_total": "0+600"}, set(),
    ),
}  # fmt: skip
"""What happens beside, otherwise than `GOOD`, and what fires all the same."""


@pytest.mark.usefixtures("prometheus_program")
def test_nobody_is_called_for_an_upgrade_and_no_failure_is_hidden_by_others(tmp_path: Path) -> None:
    """A drain is no outage. What adds up does so for one deployment, and shares are of callers with good tokens."""
    held = {one.name: moments(one)[1] for one in alerts()}
    at = {name: max((held[one] for one in fires), default=30) for name, (_, fires) in BESIDE.items()}
    reckoned = reckon(tmp_path, {name: ({**GOOD, **series}, (at[name],)) for name, (series, _) in BESIDE.items()})
    assert {name: found[at[name]] for name, found in reckoned.items()} == {
        name: fires for name, (_, fires) in BESIDE.items()
    }


def anchors() -> set[str]:
    """The page's headings, as links name them."""
    headings = re.findall(r"^#{2,4} (.+)$", PAGE, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_an_alert_says_what_to_do(alert: Alert) -> None:
    """A severity, a summary, a description, and a runbook that is there."""
    assert alert.severity in {"critical", "warning", "info"}
    assert minutes(alert) > 0
    assert alert.annotations.keys() == {"summary", "description", "runbook_url"}
    page, _, anchor = alert.annotations["runbook_url"].partition("#")
    assert (page, anchor in anchors()) == ("docs/operations.md", True)


def exposed() -> dict[str, set[str]]:
    """Names as they stand in /metrics -> labels."""
    return {f"{name}_total" if kind == "counter" else name: labels for name, kind, labels in families()} | {
        "ostiary_worker_restarts_total": set()
    }


def test_alerts_and_dashboard_ask_for_metrics_that_there_are() -> None:
    """Every name is one that a gateway exposes, with the labels that it has there."""
    known = exposed()
    for where, expr in [*((one.name, one.expr) for one in alerts()), *queries()]:
        assert metrics_of(expr) <= known.keys(), where
        for name, labels in re.findall(r"\b(ostiary_\w+)\{([^}]*)\}", expr):
            named = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", labels)) - {"instance", "le"}
            assert named <= known[re.sub(r"_(bucket|sum|count)$", "", name)], where


def test_errors_are_all_that_is_5xx() -> None:
    """The rules' and the dashboard's list of reasons is the table's, and its rooms are rooms."""
    wanted = {one.reason for one in Refusal if one.value.status >= 500}
    exprs = [one.expr for one in alerts() if one.name == "OstiaryErrors"]
    (strangers,) = re.findall(r'reason!~"([^"]+)"', exprs[0])
    assert set(strangers.split("|")) == {one.reason for one in Refusal if one.value.status == 401}
    exprs += [expr for title, expr in queries() if title == "Errors by server"]
    for expr in exprs:
        (reasons,) = re.findall(r'reason=~"([^"]+)"', expr)
        assert set(reasons.split("|")) == wanted
    for _, expr in [*((one.name, one.expr) for one in alerts()), *queries()]:
        for rooms in re.findall(r'room=~"([^"]+)"', expr):
            assert set(rooms.split("|")) <= set(ROOMS)


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    """Schema, unique ids, a data source by variable everywhere, nothing over anything else, every variable used."""
    found = dashboard()
    assert found["schemaVersion"] >= 36
    assert found["title"]
    assert len(found["uid"]) <= 40
    assert "__inputs" not in found
    variables = {one["name"]: one for one in found["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    source = {"type": "prometheus", "uid": "${datasource}"}
    ids, taken = [panel["id"] for panel in found["panels"]], set[tuple[int, int]]()
    assert len(set(ids)) == len(ids) > 30
    assert len({panel["title"] for panel in found["panels"]}) == len(ids)
    for panel in found["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["type"] in {"stat", "timeseries"}
        assert panel["description"].endswith(".")
        assert panel["datasource"] == source
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) > 0
        assert all(target["datasource"] == source and target["expr"] for target in panel["targets"])
    text = DASHBOARD.read_text()
    for name, one in variables.items():
        assert f"${name}" in text or f"${{{name}}}" in text
        if name != "datasource":
            assert (one["type"], one["datasource"]) == ("query", source)
            assert metrics_of(one["query"]["query"]) <= exposed().keys()


def test_the_table_of_dependencies_names_alerts_and_metrics_that_there_are() -> None:
    """Every row is whole; what it says is tried at running gateways in test_dependencies.py."""
    told = (
        rows("| dependency | broken |")
        if PAGE.startswith("| dependency")
        else rows("At a glance; each is told below.")
    )
    assert len(told) == 11
    for row in told:
        assert len(row) == 8
        assert all(row)
        assert row[6].strip("`") in NAMES
        assert metrics_of(row[3]) <= exposed().keys()
