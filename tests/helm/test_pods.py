"""What runs may do nothing that it does not need: Kubernetes' Pod Security Standard "restricted", and more."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.helm.chart import Helm, Manifest, containers, gateway_of, merged, one, pods, rendered, values_of

VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"
}  # fmt: skip
"""The kinds of volumes that "restricted" allows."""


def beyond_restricted(pod: Manifest) -> Iterator[str]:
    """Each control of the standard's "restricted" (and its "baseline") that a pod does not keep."""
    spec = pod["spec"]
    own = spec.get("securityContext", {})
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC", "hostUsers") if spec.get(name))
    for volume in spec.get("volumes", ()):
        yield from (f"volume {kind}" for kind in volume.keys() - {"name"} - VOLUMES)
    if own.get("sysctls") or own.get("seLinuxOptions") or own.get("appArmorProfile"):
        yield "sysctls, SELinux or AppArmor are changed"
    for container in containers(pod):
        has = container.get("securityContext", {})
        both = {**own, **has}
        name = container["name"]
        if has.get("privileged"):
            yield f"{name}: privileged"
        if has.get("allowPrivilegeEscalation") is not False:
            yield f"{name}: allowPrivilegeEscalation"
        if both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0:
            yield f"{name}: runAsNonRoot"
        if both.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{name}: seccompProfile"
        if has.get("capabilities", {}).get("drop") != ["ALL"] or has["capabilities"].get("add"):
            yield f"{name}: capabilities"
        if has.get("procMount") not in (None, "Default"):
            yield f"{name}: procMount"
        yield from (f"{name}: hostPort" for port in container.get("ports", ()) if port.get("hostPort"))
        probes = [container.get(kind, {}) for kind in ("livenessProbe", "readinessProbe", "startupProbe")]
        yield from (f"{name}: a probe's host" for probe in probes if probe.get("httpGet", {}).get("host"))


def beyond_ours(pod: Manifest) -> Iterator[str]:
    """What the standard leaves open and the chart does not."""
    spec = pod["spec"]
    if spec.get("automountServiceAccountToken") is not False:
        yield "a service account's token"
    if spec.get("enableServiceLinks") is not False:
        yield "variables that are named by Services"
    if spec["securityContext"].get("runAsUser", 0) < 999:
        yield "a user of the system"
    for volume in spec.get("volumes", ()):
        if "emptyDir" in volume and not volume["emptyDir"].get("sizeLimit"):
            yield f"volume {volume['name']}: without a bound"
    for container in containers(pod):
        name = container["name"]
        if container["securityContext"].get("readOnlyRootFilesystem") is not True:
            yield f"{name}: readOnlyRootFilesystem"
        resources = container.get("resources", {})
        if not {"cpu", "memory"} <= resources.get("requests", {}).keys() or "memory" not in resources.get(
            "limits", {}
        ):
            yield f"{name}: resources"
        if not re.search(r"(:[A-Za-z0-9._-]+|@sha256:[0-9a-f]{64})$", container["image"]) or container[
            "image"
        ].endswith(":latest"):
            yield f"{name}: an image that moves"
        if not container.get("imagePullPolicy"):
            yield f"{name}: imagePullPolicy"


def test_every_pod_is_restricted(manifests: tuple[Manifest, ...]) -> None:
    """ "Restricted" holds for all pods, hooks and tests included; so does what the chart adds to it."""
    found = dict(pods(manifests))
    assert len(found) >= 2
    for name, pod in found.items():
        assert [*beyond_restricted(pod), *beyond_ours(pod)] == [], name


def _set(path: str, value: Any) -> Callable[[Any], None]:
    def change(pod: Any) -> None:
        place = pod
        *parents, last = path.split("/")
        for part in parents:
            place = place[int(part)] if part.isdigit() else place.setdefault(part, {})
        place[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec/hostPID", True),
        ("spec/hostNetwork", True),
        ("spec/automountServiceAccountToken", True),
        ("spec/enableServiceLinks", None),
        ("spec/securityContext/runAsNonRoot", False),
        ("spec/securityContext/seccompProfile/type", "Unconfined"),
        ("spec/volumes", [{"name": "x", "hostPath": {"path": "/"}}]),
        ("spec/volumes", [{"name": "x", "emptyDir": {}}]),
        ("spec/containers/0/securityContext/runAsUser", 0),
        ("spec/containers/0/securityContext/privileged", True),
        ("spec/containers/0/securityContext/allowPrivilegeEscalation", None),
        ("spec/containers/0/securityContext/readOnlyRootFilesystem", False),
        ("spec/containers/0/securityContext/capabilities", {"drop": ["ALL"], "add": ["NET_ADMIN"]}),
        ("spec/containers/0/securityContext/capabilities", {"drop": ["NET_RAW"]}),
        ("spec/containers/0/ports", [{"containerPort": 1, "hostPort": 1}]),
        ("spec/containers/0/resources", {"limits": {"memory": "1Gi"}}),
        ("spec/containers/0/image", "ostiary:latest"),
        ("spec/containers/0/image", "ostiary"),
    ],
)
def test_each_rule_would_be_found_broken(helm: Helm, path: str, value: Any) -> None:
    """One change to a pod that keeps all of them is found."""
    pod = copy.deepcopy(gateway_of(rendered(helm, "production"))["spec"]["template"])
    _set(path, value)(pod)
    assert [*beyond_restricted(pod), *beyond_ours(pod)]


def test_no_secret_is_in_what_is_rendered(manifests: tuple[Manifest, ...]) -> None:
    """No Secret is made; variables in clear are harmless ones, and the rest is taken from Secrets that exist."""
    assert "Secret" not in {item["kind"] for item in manifests}
    referred = 0
    for _, pod in pods(manifests):
        for container in containers(pod):
            for variable in container.get("env", ()):
                if "value" in variable:
                    assert variable["name"] in {"SSL_CERT_FILE", "PGDATA", "POSTGRES_USER", "POSTGRES_DB"}
                else:
                    assert variable["valueFrom"]["secretKeyRef"].keys() == {"name", "key"}
                    referred += 1
    assert referred >= 2


def test_only_what_has_to_be_written_can_be(manifests: tuple[Manifest, ...]) -> None:
    """The gateway writes its state, /tmp and /dev/shm; configuration, bundle and mounted files are read-only."""
    (container,) = gateway_of(manifests)["spec"]["template"]["spec"]["containers"]
    written = {one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")}
    assert written == {"/var/lib/ostiary", "/tmp", "/dev/shm"}


def test_the_migrations_know_the_database_and_no_other_secret(helm: Helm) -> None:
    """The job has the owner's credentials in place of the gateway's, and none of the keys."""
    made = rendered(helm, "production")
    (container,) = one(made, "Job")["spec"]["template"]["spec"]["containers"]
    assert {v["name"]: v["valueFrom"]["secretKeyRef"]["name"] for v in container["env"]} == {
        "OSTIARY_DATABASE": "ostiary-database-owner"
    }
    (gateway,) = gateway_of(made)["spec"]["template"]["spec"]["containers"]
    own = {v["name"]: v["valueFrom"]["secretKeyRef"]["name"] for v in gateway["env"]}
    assert own["OSTIARY_DATABASE"] == "ostiary-database"
    assert "OSTIARY_SEAL_KEYS" in own


def test_migrations_come_before_the_gateway(helm: Helm) -> None:
    """What the job needs is a hook as well, and earlier: of the release nothing is there yet when it runs."""
    made = rendered(helm, "production")
    hooks = {
        m["kind"]: m["metadata"]["annotations"]
        for m in made
        if m["metadata"]["name"] == "ostiary-migrations" and m["metadata"]["annotations"]
    }
    assert set(hooks) == {"Job", "ConfigMap", "NetworkPolicy"}
    assert {one["helm.sh/hook"] for one in hooks.values()} == {"pre-install,pre-upgrade"}
    assert {one["helm.sh/hook-delete-policy"] for one in hooks.values()} == {"before-hook-creation,hook-succeeded"}
    weights = {kind: int(one["helm.sh/hook-weight"]) for kind, one in hooks.items()}
    assert max(weights["ConfigMap"], weights["NetworkPolicy"]) < weights["Job"]
    job = one(made, "Job")["spec"]["template"]["spec"]
    assert "serviceAccountName" not in job  # the release's is not there yet
    assert job["containers"][0]["args"] == ["approvals", "migrate", "--config", "/etc/ostiary/ostiary.yaml"]
    maps = [m for m in made if m["kind"] == "ConfigMap" and m["metadata"]["name"] == "ostiary-migrations"]
    assert maps[0]["data"] == one(made, "ConfigMap", "ostiary-config")["data"]
    for without in ("trial", "single", "opa-external"):
        assert not [m for m in rendered(helm, without) if m["kind"] == "Job"]


def test_the_migrations_wait_for_no_volume_of_a_gateway(helm: Helm) -> None:
    """A claim that one node mounts is with a gateway that runs: the job has the files of maps and Secrets alone."""
    mounts = [
        {"name": "held", "path": "/mnt/held", "claim": "held"},
        {"name": "pins", "path": "/etc/ostiary/pins", "configMap": "ostiary-pins"},
    ]
    made = helm.render(merged(values_of("production"), {"mounts": mounts}))
    claimed = {
        name: [volume["name"] for volume in pod["spec"].get("volumes", ()) if "persistentVolumeClaim" in volume]
        for name, pod in pods(made)
    }
    assert claimed == {"Deployment/ostiary": ["mount-held"], "Job/ostiary-migrations": [], "Pod/ostiary-test": []}
    (container,) = one(made, "Job")["spec"]["template"]["spec"]["containers"]
    assert "/etc/ostiary/pins" in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert "/mnt/held" not in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_all_pods_run_where_the_gateway_may(helm: Helm) -> None:
    """Of the same image, or of the same release: a job on another architecture's node would never end."""
    where = {"nodeSelector": {"kubernetes.io/arch": "amd64"}, "tolerations": [{"key": "x", "operator": "Exists"}]}
    found = {
        name: pod["spec"]
        for base in ("production", "trial")
        for name, pod in pods(helm.render(merged(values_of(base), where)))
    }
    assert {name.partition("/")[0] for name in found} == {"Deployment", "StatefulSet", "Job", "Pod"}
    for spec in found.values():
        assert {key: spec.get(key) for key in where} == where


def test_a_stop_has_the_time_that_it_takes(helm: Helm) -> None:
    """Kubernetes waits for traffic to turn away, for `limits.grace_s` and 15 s more; OPA outlives the gateway."""
    for grace, before, wanted in ((None, 5, 45), (60, 5, 80), (0.5, 10, 26), (600, 0, 615)):
        limits = {} if grace is None else {"config": {"limits": {"grace_s": grace}}}
        made = helm.render(merged(values_of("single"), {"preStopSeconds": before, **limits}))
        spec = gateway_of(made)["spec"]["template"]["spec"]
        assert spec["terminationGracePeriodSeconds"] == wanted
        sleep = spec["containers"][0].get("lifecycle", {}).get("preStop", {}).get("sleep")
        assert sleep == ({"seconds": before} if before else None)
    (opa,) = gateway_of(rendered(helm, "opa-sidecar"))["spec"]["template"]["spec"]["initContainers"]
    assert opa["restartPolicy"] == "Always"


def test_probes_ask_the_operators_listener(manifests: tuple[Manifest, ...]) -> None:
    """Restarts go by /livez, traffic by /readyz, both on the admin port, which is the configuration's."""
    (container,) = gateway_of(manifests)["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"mcp": 8080, "admin": 9090}
    asked = {kind: container[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {kind: one["path"] for kind, one in asked.items()} == {
        "startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"
    }  # fmt: skip
    assert {one["port"] for one in asked.values()} == {"admin"}


def test_what_lies_in_files_has_a_volume_of_its_own(helm: Helm) -> None:
    """Files make a StatefulSet whose volumes are kept; with everything in PostgreSQL a Deployment needs none."""
    for name in ("trial", "audit-volume", "single"):
        spec = gateway_of(rendered(helm, name))["spec"]
        assert gateway_of(rendered(helm, name))["kind"] == "StatefulSet"
        assert [claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]] == ["state"]
        assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
        assert "state" not in {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    for name in ("production", "opa-sidecar", "opa-external"):
        made = gateway_of(rendered(helm, name))
        assert made["kind"] == "Deployment"
        assert made["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_replicas_are_the_autoscalers_where_there_is_one(helm: Helm) -> None:
    """With autoscaling no number of replicas is written, so that an upgrade does not undo it."""
    made = rendered(helm, "production")
    scaler = one(made, "HorizontalPodAutoscaler")["spec"]
    assert "replicas" not in gateway_of(made)["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (3, 12)
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "ostiary"}
    assert gateway_of(rendered(helm, "audit-volume"))["spec"]["replicas"] == 3
    volume = helm.render(merged(values_of("audit-volume"), {"autoscaling": {"enabled": True}}))
    assert one(volume, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["kind"] == "StatefulSet"


def test_replicas_are_spread_and_go_one_at_a_time(helm: Helm) -> None:
    """Over zones and nodes, each rollout for itself; a drain takes one, and none that is ill stands in its way."""
    made = rendered(helm, "production")
    pod = gateway_of(made)["spec"]["template"]
    spread = pod["spec"]["topologySpreadConstraints"]
    assert [(one["topologyKey"], one["whenUnsatisfiable"]) for one in spread] == [
        ("topology.kubernetes.io/zone", "DoNotSchedule"),
        ("kubernetes.io/hostname", "ScheduleAnyway"),
    ]
    for constraint in spread:
        assert constraint["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        assert constraint["matchLabelKeys"] == ["pod-template-hash"]
    budget = one(made, "PodDisruptionBudget")["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    (metric,) = one(made, "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metric["containerResource"]["container"] == pod["spec"]["containers"][0]["name"]


def _annotations(made: list[Manifest]) -> dict[str, str]:
    found: dict[str, str] = gateway_of(made)["spec"]["template"]["metadata"]["annotations"]
    return found


def test_a_changed_setting_rolls_the_pods_and_a_changed_policy_does_not(helm: Helm) -> None:
    """Settings need other pods. A bundle is taken by those that run, under its own revision; OPA's needs new ones."""
    for name in ("single", "opa-sidecar"):
        values = values_of(name)
        before = list(rendered(helm, name))
        assert _annotations(helm.render(values)) == _annotations(before)
        setting = helm.render(merged(values, {"config": {"limits": {"concurrent": 7}}}))
        assert _annotations(setting) != _annotations(before)
        policy = helm.render(merged(values, {"policy": {"data": {"servers": {}, "scopes": ["x"]}}}))
        assert (_annotations(policy) == _annotations(before)) is (name == "single")
        bundles = [one(made, "ConfigMap", "ostiary-policy")["data"] for made in (before, policy, setting)]
        assert bundles[0][".manifest"] != bundles[1][".manifest"]
        assert bundles[0] == bundles[2]
    (config,) = [
        mount
        for mount in gateway_of(before)["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
        if mount["name"] == "config"
    ]
    assert config["subPath"] == "ostiary.yaml"  # one that runs keeps its own until it is replaced
