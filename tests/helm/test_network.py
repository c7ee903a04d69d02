"""Who may connect to whom, as a cluster that enforces NetworkPolicies would have it (networking.k8s.io/v1)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from tests.helm.chart import SETS, Helm, Manifest, containers, gateway_of, merged, one, pods, rendered, values_of


@dataclass(frozen=True)
class End:
    """A pod, or an address outside: `namespace` is empty there."""

    namespace: str = ""
    labels: Mapping[str, str] | None = None
    address: str = ""
    ports: Mapping[str, int] | None = None


def _selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    selector = selector or {}
    assert selector.keys() <= {"matchLabels"}
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def _is_peer(peer: Mapping[str, Any], end: End, home: str) -> bool:
    if block := peer.get("ipBlock"):
        return bool(end.address) and ip_address(end.address) in ip_network(block["cidr"])
    if not end.namespace:
        return False
    there = {"kubernetes.io/metadata.name": end.namespace}
    if "namespaceSelector" in peer:
        return _selects(peer["namespaceSelector"], there) and _selects(peer.get("podSelector"), end.labels or {})
    return end.namespace == home and _selects(peer["podSelector"], end.labels or {})


def _holds(policies: Iterable[Manifest], end: End, kind: str) -> list[Manifest]:
    """The policies of a kind that isolate a pod."""
    return [
        policy
        for policy in policies
        if end.namespace == policy["metadata"].get("namespace", "mcp")
        and kind in policy["spec"]["policyTypes"]
        and _selects(policy["spec"]["podSelector"], end.labels or {})
    ]


def _lets(policies: list[Manifest], kind: str, other: End, to: End, gate: tuple[int, str]) -> bool:
    """Whether one of the rules that isolate a pod lets this through; with no such policy everything is."""
    peers, rules = ("from", "ingress") if kind == "Ingress" else ("to", "egress")
    for policy in policies:
        home = policy["metadata"].get("namespace", "mcp")
        for rule in policy["spec"].get(rules) or ():
            ports = [(p.get("port"), p.get("protocol", "TCP")) for p in rule.get("ports", ())]
            numbers = [((to.ports or {}).get(p, p) if isinstance(p, str) else p, of) for p, of in ports]
            if (not ports or gate in numbers) and (
                peers not in rule or any(_is_peer(peer, other, home) for peer in rule[peers])
            ):
                return True
    return not policies


def connects(made: Iterable[Manifest], source: End, to: End, port: int, protocol: str = "TCP") -> bool:
    """Whether a connection is let out of where it starts and into where it ends."""
    policies = [item for item in made if item["kind"] == "NetworkPolicy"]
    out, into = _holds(policies, source, "Egress"), _holds(policies, to, "Ingress")
    return _lets(out, "Egress", to, to, (port, protocol)) and _lets(into, "Ingress", source, to, (port, protocol))


def pod_of(made: tuple[Manifest, ...] | list[Manifest], name: str) -> End:
    """A pod of the release by `kind/name`, or the gateway's."""
    found = dict(pods(made))
    pod = gateway_of(made)["spec"]["template"] if name == "gateway" else found[name]
    ports = {p["name"]: p["containerPort"] for c in containers(pod) for p in c.get("ports", ())}
    return End("mcp", pod["metadata"]["labels"], ports=ports)


DNS = End("kube-system", {"k8s-app": "kube-dns"})
STRANGER = End("mcp", {"app": "somebody"})
INGRESS = End("ingress-nginx", {"app": "controller"})
PROMETHEUS = End("monitoring", {"app": "prometheus"})
PAYMENTS = End("payments", {"app": "payments-mcp"})
NAMESAKE = End("mcp", {"app": "payments-mcp"})


def test_only_the_gateway_reaches_the_servers(helm: Helm) -> None:
    """The gateway does, at the server's port; no other pod of any namespace does, nor a namesake elsewhere."""
    made = rendered(helm, "production")
    gateway = pod_of(made, "gateway")
    assert connects(made, gateway, PAYMENTS, 8000)
    assert not connects(made, gateway, PAYMENTS, 22)
    assert not connects(made, gateway, NAMESAKE, 8000)
    for other in (
        STRANGER,
        INGRESS,
        PROMETHEUS,
        End("payments", {"app": "neighbour"}),
        pod_of(made, "Pod/ostiary-test"),
    ):
        assert not connects(made, other, PAYMENTS, 8000)
    assert not connects(made, End("elsewhere", gateway.labels), PAYMENTS, 8000)
    assert connects(made, STRANGER, End("mcp", {"app": "else"}), 8000)  # what is not a server of ours stays open


def test_clients_come_in_by_the_front_and_operators_by_theirs(helm: Helm) -> None:
    """The Ingress reaches the data plane and not /metrics, Prometheus the reverse, strangers neither."""
    made = rendered(helm, "production")
    gateway = pod_of(made, "gateway")
    assert connects(made, INGRESS, gateway, 8080)
    assert not connects(made, INGRESS, gateway, 9090)
    assert connects(made, PROMETHEUS, gateway, 9090)
    assert not connects(made, PROMETHEUS, gateway, 8080)
    assert not connects(made, STRANGER, gateway, 8080)
    assert not connects(made, STRANGER, gateway, 9090)
    trial = rendered(helm, "trial")  # names no clients: everybody is one
    assert connects(trial, STRANGER, pod_of(trial, "gateway"), 8080)
    assert not connects(trial, STRANGER, pod_of(trial, "gateway"), 9090)


def test_the_gateway_gets_out_where_it_is_said_and_nowhere_else(helm: Helm) -> None:
    """Names, database, issuer and the server outside; no other address, no other port, no metadata service."""
    made = rendered(helm, "production")
    gateway = pod_of(made, "gateway")
    for address, port in (("10.20.0.3", 5432), ("203.0.113.7", 443), ("198.51.100.7", 443)):
        assert connects(made, gateway, End(address=address), port), address
    for address, port in (("10.20.0.3", 22), ("8.8.8.8", 443), ("169.254.169.254", 80), ("10.20.1.1", 5432)):
        assert not connects(made, gateway, End(address=address), port), address
    assert connects(made, gateway, DNS, 53, "UDP")
    assert not connects(made, gateway, DNS, 443)
    assert not connects(made, gateway, STRANGER, 8000)


def test_the_migrations_reach_the_database_alone(helm: Helm) -> None:
    """The job resolves the name and connects, and nobody connects to it."""
    made = rendered(helm, "production")
    job = pod_of(made, "Job/ostiary-migrations")
    assert connects(made, job, End(address="10.20.0.3"), 5432)
    assert connects(made, job, DNS, 53, "UDP")
    assert not connects(made, job, End(address="203.0.113.7"), 443)
    assert not connects(made, job, PAYMENTS, 8000)
    assert not connects(made, STRANGER, job, 1)


@pytest.mark.parametrize("name", SETS)
def test_the_test_reaches_the_gateway_alone(helm: Helm, name: str) -> None:
    """`helm test` gets to both listeners, whoever the clients are, and nowhere else."""
    made = rendered(helm, name)
    test, gateway = pod_of(made, "Pod/ostiary-test"), pod_of(made, "gateway")
    assert connects(made, test, gateway, 8080)
    assert connects(made, test, gateway, 9090)
    assert not connects(made, test, End(address="203.0.113.7"), 443)
    assert not connects(made, test, PAYMENTS, 8000)


def test_the_trial_database_hears_the_gateway_alone(helm: Helm) -> None:
    """Nobody else connects to it, and it connects to nobody."""
    made = rendered(helm, "trial")
    database, gateway = pod_of(made, "StatefulSet/ostiary-trial-postgresql"), pod_of(made, "gateway")
    assert connects(made, gateway, database, 5432)
    assert not connects(made, STRANGER, database, 5432)
    assert not connects(made, database, gateway, 8080)
    assert not connects(made, database, End(address="8.8.8.8"), 53)


def test_servers_whose_names_are_alike_have_a_policy_each(helm: Helm) -> None:
    """What Kubernetes can't call a thing by (`a_b`, `a-`) gets a name of its own, and takes nobody else's."""
    names = ("a-b", "a_b", "a-", "a_", "a" * 64)
    values = values_of("single")
    server, policy = values["config"]["servers"]["notes"], values["networkPolicy"]["servers"]["notes"]
    values["config"]["servers"] = {name: {**server, "path": f"/{number}"} for number, name in enumerate(names)}
    values["networkPolicy"]["servers"] = dict.fromkeys(names, policy)
    values["policy"] = {"data": {"servers": {}}}
    made = [m["metadata"]["name"] for m in helm.render(values) if "-only-to-" in m["metadata"]["name"]]
    assert len(set(made)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name) for name in made)


def test_releases_of_one_name_share_a_namespace_of_servers(helm: Helm) -> None:
    """`ostiary` of `mcp` and `ostiary` of `staging` have a policy each in `payments`: Helm takes no thing twice."""
    names = [
        {
            (item["metadata"]["namespace"], item["metadata"]["name"])
            for item in made
            if item["metadata"].get("namespace") == "payments"
        }
        for made in (
            rendered(helm, "production"),
            helm.render(values_of("production"), "--namespace", "staging"),
        )
    ]
    assert [len(found) for found in names] == [1, 1]
    assert not names[0] & names[1]


def test_every_pod_is_isolated_in_both_directions(manifests: tuple[Manifest, ...]) -> None:
    """A policy of each kind selects each pod of the release: what none lets through is refused."""
    policies = [item for item in manifests if item["kind"] == "NetworkPolicy"]
    for name, pod in pods(manifests):
        end = End("mcp", pod["metadata"]["labels"])
        assert _holds(policies, end, "Ingress"), name
        assert _holds(policies, end, "Egress"), name


def test_without_it_there_is_none(helm: Helm) -> None:
    """`networkPolicy.enabled: false` renders none, and the notes say what that means."""
    values = merged(values_of("production"), {"networkPolicy": {"enabled": False}})
    assert not [item for item in helm.render(values) if item["kind"] == "NetworkPolicy"]
    assert "networkPolicy is off" in helm.notes(values)
    assert "networkPolicy is off" not in helm.notes(values_of("production"))


def test_routes_lead_to_the_data_plane(helm: Helm) -> None:
    """Ingress and HTTPRoute are of `public_url`'s host, with TLS, and end at the Service's port of the data plane."""
    ingress = one(rendered(helm, "production"), "Ingress")["spec"]
    assert ingress["tls"] == [{"hosts": ["mcp.example.com"], "secretName": "mcp-example-com"}]
    (rule,) = ingress["rules"]
    assert rule["host"] == "mcp.example.com"
    assert rule["http"]["paths"][0]["backend"] == {"service": {"name": "ostiary", "port": {"name": "mcp"}}}
    shouted = {"config": {"public_url": "https://MCP.Example.com:8443"}}
    shouting = one(helm.render(merged(values_of("production"), shouted)), "Ingress")["spec"]
    assert (shouting["tls"][0]["hosts"], shouting["rules"][0]["host"]) == (["mcp.example.com"], "mcp.example.com")
    made = rendered(helm, "opa-sidecar")
    route = one(made, "HTTPRoute")["spec"]
    assert route["hostnames"] == ["mcp.example.com"]
    assert route["parentRefs"] == [{"name": "public", "namespace": "gateways", "sectionName": "https"}]
    (rule,) = route["rules"]
    assert rule["timeouts"] == {"request": "0s"}
    service = one(made, "Service", "ostiary")["spec"]
    assert rule["backendRefs"] == [{"name": "ostiary", "port": service["ports"][0]["port"]}]
    assert service["ports"][0]["targetPort"] == "mcp"
