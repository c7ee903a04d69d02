"""The chart at a real kube-apiserver: what is admitted and kept, upgrades, rollbacks, and what is left behind."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import built_program
from tests.helm.chart import CHART, NAMESPACE, RELEASE, SETS, Helm, Manifest, containers, gateway_of, rendered
from tests.helm.schemas import CUSTOM, load
from tests.support.kubernetes import Cluster

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}
RBAC = "rbac.authorization.k8s.io"
VERSION = "k8s.io/component-base/version.gitVersion=v1.37.2"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With the namespaces that the sets of values name, each of them restricted."""
    apiserver = built_program("kube-apiserver", "kube", f'-ldflags "-X {VERSION}" ')
    etcd = shutil.which("etcd")
    if etcd is None:
        pytest.skip("etcd is not here: apt-get install --no-install-recommends etcd-server")
    one = Cluster(apiserver, Path(etcd), tmp_path_factory.mktemp("cluster"))
    try:
        one.start()
        for definition in definitions():
            assert one.make(definition).status_code == 201
        for name in (NAMESPACE, "payments", "apps"):
            space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}}
            assert one.make(space).status_code == 201
        # What is a cluster's own: its controllers' default account, and the class that production names.
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        assert one.make(account, NAMESPACE).status_code == 201
        priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
        assert one.make({**priority, "metadata": {"name": "business-critical"}}).status_code == 201
        yield one
    finally:
        one.stop()


def definitions() -> Iterator[dict[str, Any]]:
    """CustomResourceDefinitions of the published schemas, without their rules in CEL (tests/vectors/kubernetes)."""
    schemas = {kind: schema for name in CUSTOM for kind, schema in load(name).items()}
    for kind, several in itertools.groupby(sorted(schemas), lambda key: key.rpartition("/")[2]):
        keys = [key.split("/") for key in several]
        group, plural = keys[0][0], kind.lower() + "s"
        versions = [
            {
                "name": version, "served": True, "storage": version == "v1",
                "schema": {"openAPIV3Schema": schemas[f"{group}/{version}/{kind}"]},
            }
            for _, version, _ in keys
        ]  # fmt: skip
        yield {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{plural}.{group}",
                "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
            },
            "spec": {
                "group": group, "scope": "Namespaced", "versions": versions,
                "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            },
        }  # fmt: skip


class Release:
    """`helm` with the cluster; a release that is there is gone after the test."""

    def __init__(self, helm: Helm, cluster: Cluster, home: Path) -> None:
        self._helm, self.cluster, self._home = helm, cluster, home

    def run(self, command: str, *arguments: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        """One command about the release."""
        return self._helm.run(
            command, RELEASE, *arguments, "--namespace", NAMESPACE, "--kube-apiserver", self.cluster.url,
            "--kube-token", self.cluster.tokens[user], "--kube-ca-file", str(self.cluster.authority),
            home=self._home,
        )  # fmt: skip

    def put(self, command: str, name: str, *more: str, user: str = "root") -> str:
        """`install` or `upgrade` a set of values -> "", or what Helm said when it refused."""
        values = str(CHART / f"ci/{name}-values.yaml")
        with self.cluster.jobs_done(NAMESPACE):
            done = self.run(command, str(CHART), "--values", values, "--timeout", "30s", *more, user=user)
        return done.stderr if done.returncode else ""

    def left(self) -> set[str]:
        """What of the chart's kinds is in the cluster, of whatever namespace."""
        kinds = {(one["apiVersion"], one["kind"]) for name in SETS for one in rendered(self._helm, name)}
        kinds |= {("v1", "Secret"), ("v1", "PersistentVolumeClaim")}
        found = set[str]().union(*(self.cluster.names(version, kind) for version, kind in kinds))
        own = {f"ServiceAccount/{NAMESPACE}/default", "Service/default/kubernetes"}
        return {one for one in found - own if one.split("/")[1] != "kube-system"}

    def live(self, manifest: Manifest) -> Any:
        """A manifest's object as it is kept."""
        place = manifest["metadata"].get("namespace", NAMESPACE)
        return self.cluster.get(manifest["apiVersion"], manifest["kind"], place, manifest["metadata"]["name"])


@pytest.fixture
def release(helm: Helm, cluster: Cluster, tmp_path: Path) -> Iterator[Release]:
    """Nothing is installed yet."""
    one = Release(helm, cluster, tmp_path)
    assert one.left() == set()
    yield one
    one.run("uninstall", "--ignore-not-found")


def lost(given: Any, kept: Any, at: str = "") -> list[str]:
    """Where what is kept does not hold all that was given. An empty list is nothing to the API."""
    if isinstance(given, dict):
        found = [lost(value, (kept or {}).get(key), f"{at}/{key}") for key, value in given.items()]
        return list(itertools.chain(*found))
    if isinstance(given, list):
        if len(given) > len(kept or []):
            return [f"{at}: {given} became {kept}"]
        pairs = enumerate(zip(given, kept or [], strict=False))
        return list(itertools.chain(*(lost(*pair, f"{at}/{number}") for number, pair in pairs)))
    return [] if given in (kept, None) else [f"{at}: {given} became {kept}"]


def pod_of(manifest: Manifest) -> dict[str, Any]:
    """The pod that a controller would make, its claims included."""
    template = manifest["spec"]["template"]
    spec = dict(template["spec"])
    claims = [one["metadata"]["name"] for one in manifest["spec"].get("volumeClaimTemplates", ())]
    more = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
    spec["volumes"] = [*spec.get("volumes", ()), *more]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": "tried"}, "spec": spec}


@pytest.mark.parametrize("name", SETS)
def test_a_set_of_values_is_admitted_and_leaves_nothing(release: Release, helm: Helm, name: str) -> None:
    """OPS-07: no warning, no field lost, every pod admitted in a restricted namespace; an upgrade that changes
    nothing changes no object, and after `helm uninstall` nothing is left."""
    values = str(CHART / f"ci/{name}-values.yaml")
    tried = release.run("install", str(CHART), "--values", values, "--dry-run=server")
    assert tried.returncode == 0, tried.stderr
    assert release.put("install", name) == ""
    manifests = rendered(helm, name)
    standing = [one for one in manifests if "helm.sh/hook" not in one["metadata"].get("annotations", {})]
    for one in standing:
        assert lost(one, release.live(one)) == []
    for one in manifests:
        if one not in standing:
            answer = release.cluster.make(one, one["metadata"].get("namespace", NAMESPACE), dry=True)
            assert (answer.status_code, answer.headers.get("Warning")) == (201, None), answer.text
        if "template" in one.get("spec", ()):
            if not release.cluster.get("v1", "ServiceAccount", NAMESPACE, "ostiary"):
                account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "ostiary"}}
                assert release.cluster.make(account, NAMESPACE).status_code == 201  # opa-external brings its own
            pod = pod_of(one)
            answer = release.cluster.make(pod, NAMESPACE, dry=True)
            assert (answer.status_code, answer.headers.get("Warning")) == (201, None), answer.text
            assert lost(pod, answer.json()) == []
            containers(pod)[0]["securityContext"] = {**containers(pod)[0]["securityContext"], "privileged": True}
            assert release.cluster.make(pod, NAMESPACE, dry=True).status_code in (403, 422)
    before = {one["metadata"]["name"]: release.live(one)["metadata"].get("generation") for one in standing}
    assert release.put("upgrade", name) == ""
    assert {one["metadata"]["name"]: release.live(one)["metadata"].get("generation") for one in standing} == before
    assert release.run("uninstall").returncode == 0
    path = release.cluster.path("v1", "ServiceAccount", NAMESPACE)
    release.cluster.ask("DELETE", f"{path}/ostiary")
    assert release.left() == set()


def test_upgrades_between_all_sets_go_through_or_are_refused_before_anything_changed(release: Release) -> None:
    """OPS-07: what Kubernetes lets nobody change is told by the chart, and the release is as it was; back again it
    goes without a word."""
    refused = set()
    for name, other in itertools.permutations(SETS, 2):
        assert release.put("install", name) == ""
        said = release.put("upgrade", other)
        if said:
            assert "persistence.size was" in said, said
            assert len(json.loads(release.run("history", "--output", "json").stdout)) == 1
            refused.add((name, other))
        else:
            back = release.run("rollback", "1", "--timeout", "30s")
            assert back.returncode == 0, (name, other, back.stderr)
        assert release.run("uninstall").returncode == 0
        assert release.left() == set(), (name, other)
    files = {"single", "trial"}
    assert refused == {("audit-volume", one) for one in files} | {(one, "audit-volume") for one in files}


def test_the_same_size_in_other_words_is_the_same(release: Release) -> None:
    """OPS-07: 10240Mi is 10Gi. A class or a number of selected pods is not."""
    assert release.put("install", "single") == ""
    assert release.put("upgrade", "single", "--set", "persistence.size=10240Mi") == ""
    assert "persistence.size was 10Gi" in release.put("upgrade", "single", "--set", "persistence.size=20Gi")
    assert 'storageClass was ""' in release.put("upgrade", "single", "--set", "persistence.storageClass=fast")
    renamed = release.put("upgrade", "single", "--set", "nameOverride=gate,fullnameOverride=ostiary")
    assert "selects its pods by the name ostiary" in renamed


def test_autoscaling_takes_over_without_a_replica_less(release: Release, helm: Helm) -> None:
    """OPS-01: the number stays while it is Helm's, and is the autoscaler's from its first change on; a hand-made
    number stands against an upgrade until that is told to win."""
    gateway = gateway_of(rendered(helm, "production"))
    assert "replicas" not in gateway["spec"]

    def number() -> int:
        found: int = release.live(gateway)["spec"]["replicas"]
        return found

    fixed = ("--set", "autoscaling.enabled=false,replicas=3")
    assert release.put("install", "production", *fixed) == ""
    for _ in range(2):
        assert release.put("upgrade", "production") == ""
        assert number() == 3
    release.cluster.scale(NAMESPACE, RELEASE, 5)
    assert release.put("upgrade", "production") == ""
    assert number() == 5
    assert "Apply failed with 1 conflict" in release.put("upgrade", "production", *fixed)
    assert number() == 5
    assert release.put("upgrade", "production", *fixed, "--force-conflicts") == ""
    assert number() == 3
    scaler = f"HorizontalPodAutoscaler/{NAMESPACE}/{RELEASE}"
    assert scaler not in release.left()
    assert release.put("upgrade", "production") == ""
    release.cluster.scale(NAMESPACE, RELEASE, 4)
    back = ("rollback", "1", "--timeout", "30s")
    assert release.run(*back).returncode != 0
    assert release.run(*back, "--force-conflicts").returncode == 0
    # Helm looks only at what failed last, which had none: docs/kubernetes.md says so.
    assert scaler in release.left()
    place = release.cluster.path("autoscaling/v2", "HorizontalPodAutoscaler", NAMESPACE)
    assert release.cluster.ask("DELETE", f"{place}/{RELEASE}").status_code == 200


def test_rights_in_its_own_namespace_are_enough_and_elsewhere_one_more(release: Release) -> None:
    """OPS-07: what a user with Kubernetes' own roles `admin`, `edit` and `view` in the namespace can install."""

    def allow(kind: str, role: str, namespace: str) -> None:
        binding = {
            "apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": {"name": role.replace(":", ".")},
            "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "deployer"}],
        }  # fmt: skip
        assert release.cluster.make(binding, namespace).status_code == 201

    assert "is forbidden" in release.put("install", "trial", user="deployer")
    for one in ("admin", "edit", "view"):
        allow("ClusterRole", f"system:aggregate-to-{one}", NAMESPACE)  # of these a controller makes `admin`
    assert release.put("install", "trial", user="deployer") == ""
    assert release.run("uninstall", user="deployer").returncode == 0
    told = release.put("install", "opa-external", user="deployer")
    assert 'cannot get resource "networkpolicies"' in told
    assert 'in the namespace "apps"' in told
    verbs = ["get", "list", "create", "patch", "delete"]
    rules = [{"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": verbs}]
    role = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": "networks"}, "rules": rules}
    assert release.cluster.make(role, "apps").status_code == 201
    allow("Role", "networks", "apps")
    assert release.put("install", "opa-external", user="deployer") == ""
    assert release.put("upgrade", "opa-external", user="deployer") == ""
    assert release.run("uninstall", user="deployer").returncode == 0
