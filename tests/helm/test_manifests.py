"""What is rendered is what Kubernetes takes, strictly, by its own schemas, the oldest and the newest."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.chart import CHART, ROOT, SETS, Helm, Manifest, gateway_of, merged, one, rendered, values_of
from tests.helm.schemas import CUSTOM, KUBERNETES, faults, load, validators

STAND_INS = {
    "alerts.yaml": {"groups": [{"name": "x", "rules": [{"alert": "A", "expr": "up == 0", "annotations": {
        "summary": "{{ $labels.instance }} is away: {{ $value }}"}}]}]},
    "dashboard.json": {"title": "Ostiary", "panels": [{"title": "a < b & {{ x }}", "legendFormat": "{{server}}"}]},
}  # fmt: skip


@pytest.mark.parametrize("name", SETS)
def test_the_real_helm_finds_nothing_to_say(helm: Helm, name: str) -> None:
    """`helm lint --strict` passes for each set of values, and an install as far as it goes without a cluster."""
    done = helm.run("lint", "--strict", str(CHART), "--values", str(CHART / f"ci/{name}-values.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 chart(s) linted, 0 chart(s) failed" in done.stdout
    assert "rollout status" in helm.notes(values_of(name))


def test_lint_would_say_so(helm: Helm, tmp_path: Path) -> None:
    """A planted fault is found: the lint above is no matter of course."""
    chart = tmp_path / "ostiary"
    shutil.copytree(CHART, chart)
    (chart / "templates/extra.yaml").write_text("kind: ConfigMap\nmetadata: {{ .Values.nothing.here }}\n")
    done = helm.run("lint", "--strict", str(chart), "--values", str(CHART / "ci/single-values.yaml"))
    assert done.returncode != 0
    assert "extra.yaml" in done.stdout + done.stderr


def test_there_are_enough_sets() -> None:
    """At least five ways to run it, and each says in its first line which."""
    assert len(SETS) >= 5
    assert all((CHART / f"ci/{name}-values.yaml").read_text().startswith("# ") for name in SETS)


def test_kubernetes_takes_every_manifest(manifests: tuple[Manifest, ...]) -> None:
    """No manifest has a field that the oldest Kubernetes of `kubeVersion`, or the newest, does not know."""
    assert len(manifests) > 8
    for item in manifests:
        group = item["apiVersion"].partition("/")[0]
        custom = "monitoring" in group or group.startswith("gateway.")
        if custom:
            found = [faults(item, name) for name in CUSTOM if _kind(item) in validators(name)]
            assert found == [[]]
            item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": item["metadata"]}  # noqa: PLW2901
        for name in KUBERNETES:
            assert faults(item, name) == [], (_kind(item), name)


def _kind(item: Manifest) -> str:
    return f"{item['apiVersion']}/{item['kind']}"


def test_the_schemas_are_strict(helm: Helm) -> None:
    """A misspelt field, a wrong type and a missing member are found, at any depth and in custom resources too."""
    gateway = gateway_of(rendered(helm, "production"))
    for name in KUBERNETES:
        for change in (
            {"containers": [{"name": "x", "redinessProbe": {}}]},
            {"containers": [{"name": "x", "securityContext": {"runAsNonRoot": "yes"}}]},
            {"containers": [{"image": "x"}]},
        ):
            spoiled = {**gateway, "spec": {**gateway["spec"], "template": {"spec": change}}}
            assert faults(spoiled, name), change
    route = one(rendered(helm, "opa-sidecar"), "HTTPRoute")
    assert faults(route, "gateway-api") == []
    assert faults({**route, "spec": {**route["spec"], "hostname": "x"}}, "gateway-api")
    assert faults({**gateway, "apiVersion": "apps/v1beta1"}, "kubernetes-newest")


def test_the_oldest_kubernetes_is_the_one_that_the_chart_names() -> None:
    """`kubeVersion` and the schemas that manifests are held to are of one version."""
    least = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
    source = (ROOT / "tests/vectors/kubernetes/kubernetes-oldest.json").read_text().partition('",')[0]
    assert f"@v{least.removeprefix('>=').removesuffix('.0-0')}." in source
    assert len(load("kubernetes-oldest")) > 100


def test_names_are_one_each_and_everything_is_labelled(manifests: tuple[Manifest, ...]) -> None:
    """No two manifests of a kind share name and namespace, and each says what it belongs to."""
    names = [(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in manifests]
    assert len(names) == len(set(names))
    for item in manifests:
        labels = item["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "ostiary"
        assert labels["helm.sh/chart"].startswith("ostiary-")
        assert item["metadata"].get("namespace") != "default"


def test_the_longest_names_are_still_names(helm: Helm) -> None:
    """63 characters: Services are DNS labels, and the labels that a StatefulSet gives its pods have room (its
    name, a hyphen and ten characters more in `controller-revision-hash`)."""
    database = {"approvals": {"database": f"postgresql://ostiary@{'a' * 35}-trial-postgresql/ostiary"}}
    made = helm.render(merged(values_of("trial"), {"fullnameOverride": "a" * 63, "config": database}))
    sets = [item["metadata"]["name"] for item in made if item["kind"] == "StatefulSet"]
    assert len(sets) == 2
    assert max(map(len, sets)) <= 52
    for item in made:
        if item["kind"] in ("Service", "Pod", "StatefulSet", "Job"):
            assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", item["metadata"]["name"])
    assert one(made, "Service", f"{'a' * 35}-trial-postgresql")


def test_selectors_find_what_they_are_for(manifests: tuple[Manifest, ...]) -> None:
    """Services, disruption budget and workloads select the gateway's pods, and no other pod of the release."""
    gateway = gateway_of(manifests)
    labels = gateway["spec"]["template"]["metadata"]["labels"]
    selectors = [gateway["spec"]["selector"]["matchLabels"]]
    selectors += [m["spec"]["selector"] for m in manifests if m["kind"] == "Service" and "trial" not in str(m)]
    selectors += [m["spec"]["selector"]["matchLabels"] for m in manifests if m["kind"] == "PodDisruptionBudget"]
    assert len(selectors) >= 3
    for selector in selectors:
        assert selector.items() <= labels.items()
        for other in (m for m in manifests if m["kind"] in ("Job", "Pod") or "trial" in m["metadata"]["name"]):
            pod = other if other["kind"] in ("Pod", "Service") else other.get("spec", {}).get("template", other)
            assert not selector.items() <= pod["metadata"].get("labels", {}).items()


def test_the_monitor_finds_the_port_of_the_metrics(helm: Helm) -> None:
    """The ServiceMonitor selects one Service, by whose port /metrics is served."""
    made = rendered(helm, "production")
    monitor = one(made, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    found = [m for m in made if m["kind"] == "Service" and wanted <= m["metadata"]["labels"].items()]
    assert [m["metadata"]["name"] for m in found] == ["ostiary-admin"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == (found[0]["spec"]["ports"][0]["name"], "/metrics")


def _with_files(tmp_path: Path, files: Mapping[str, Any]) -> Path:
    chart = tmp_path / "ostiary"
    shutil.copytree(CHART, chart)
    for name in STAND_INS:
        (chart / "files" / name).unlink(missing_ok=True)
    for name, document in files.items():
        (chart / "files" / name).write_text(yaml.safe_dump(document) if name.endswith("yaml") else str(document))
    return chart


def test_alerts_and_dashboard_go_in_as_they_lie_there(helm: Helm, tmp_path: Path) -> None:
    """Their own braces are not Helm's; a chart without the files refuses to say that it has them."""
    values = values_of("production") | {"prometheusRule": {"enabled": True}, "dashboard": {"enabled": True}}
    said = helm.refusal(values, chart=_with_files(tmp_path / "without", {}))
    assert "prometheusRule.enabled: this chart holds no files/alerts.yaml" in said
    assert "dashboard.enabled: this chart holds no files/dashboard.json" in said
    made = helm.render(values, chart=_with_files(tmp_path / "with", STAND_INS))
    rule, board = one(made, "PrometheusRule"), one(made, "ConfigMap", "ostiary-dashboard")
    assert rule["spec"] == STAND_INS["alerts.yaml"]
    assert faults(rule, "prometheus-operator") == []
    assert board["data"]["ostiary.json"] == str(STAND_INS["dashboard.json"])
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_the_alerts_and_the_dashboard_are_those_that_are_tried(helm: Helm) -> None:
    """Prometheus and Grafana get helm/files, which tests/signals tries against the running stack, unchanged."""
    made = rendered(helm, "production")
    assert one(made, "PrometheusRule")["spec"] == yaml.safe_load((CHART / "files/alerts.yaml").read_text())
    board = one(made, "ConfigMap", "ostiary-dashboard")["data"]["ostiary.json"]
    assert board == (CHART / "files/dashboard.json").read_text()
