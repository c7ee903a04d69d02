"""Values: a schema that knows every one and no other, the gateway's defaults, and a page that explains them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import Settings
from tests.helm import shaping
from tests.helm.chart import CHART, ROOT, SETS, Helm, Manifest, merged, rendered, settings_text, text_of, values_of

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
PAGE = (ROOT / "docs/kubernetes.md").read_text()

REFUSED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "misspelt": ({"replica": 2}, "replica"),
    "misspelt-deep": ({"networkPolicy": {"client": []}}, "client"),
    "misspelt-setting": ({"config": {"limits": {"bodybytes": 1}}}, "bodybytes"),
    "setting-of-another-engine": ({"config": {"policy": {"url": "http://127.0.0.1:8181"}}}, "policy"),
    "setting-beyond-its-bound": ({"config": {"limits": {"grace_s": 601}}}, "grace_s"),
    "no-such-word": ({"config": {"servers": {"notes": {"pins": "maybe"}}}}, "pins"),
    "server's-name": ({"config": {"servers": {"No Name": {"path": "/x", "replicas": ["http://x"]}}}}, "No Name"),
    "path-of-ours": ({"config": {"servers": {"notes": {"path": "/approvals/x"}}}}, "path"),
    "path-of-pages": ({"config": {"servers": {"notes": {"path": "/review"}}}}, "path"),
    "path-of-metadata": ({"config": {"servers": {"notes": {"path": "/.well-known/x"}}}}, "path"),
    "path-with-dots": ({"config": {"servers": {"notes": {"path": "/a/../b"}}}}, "path"),
    "path-that-ends-in-dots": ({"config": {"servers": {"notes": {"path": "/a/.."}}}}, "path"),
    "path-with-nothing": ({"config": {"servers": {"notes": {"path": "/a//b"}}}}, "path"),
    "host-with-a-scheme": ({"config": {"allowed_hosts": ["http://x"]}}, "allowed_hosts"),
    "every-origin": ({"config": {"servers": {"notes": {"allowed_origins": ["*"]}}}}, "allowed_origins"),
    "prefix-of-nothing": ({"config": {"servers": {"notes": {"resources": {"allow": ["x"]}}}}}, "allow"),
    "method-that-is-not-served": ({"config": {"servers": {"notes": {"methods": ["tasks/list"]}}}}, "methods"),
    "deadline-of-nothing": ({"config": {"servers": {"notes": {"deadlines": {"tools/cal": 1}}}}}, "tools/cal"),
    "probe": ({"config": {"servers": {"notes": {"health": {"probe": "ping"}}}}}, "probe"),
    "symmetric": (
        {"config": {"identity": {"issuers": [{"issuer": "https://idp.example.com", "algorithms": ["HS256"]}]}}},
        "algorithms",
    ),
    "publisher": ({"config": {"registry": {"publisher": "Example Com"}}}, "publisher"),
    "no-public-url": ({"config": {"public_url": None}}, "public_url"),
    "no-servers": ({"config": {"servers": None}}, "servers"),
    "replicas-as-text": ({"replicas": "two"}, "replicas"),
    "no-replica": ({"replicas": 0}, "replicas"),
    "too-many-workers": ({"workers": 65}, "workers"),
    "secret-without-key": ({"secretEnv": {"X": {"secret": "x"}}}, "key"),
    "secret-in-clear": ({"secretEnv": {"X": "hunter2"}}, "secretEnv"),
    "number-as-variable": ({"env": {"X": 1}}, "env"),
    "image-with-a-tag": ({"image": {"tag": "a b"}}, "tag"),
    "image's-digest": ({"image": {"digest": "sha256:abc"}}, "digest"),
    "root": ({"runAsUser": 0}, "runAsUser"),
    "relative-mount": ({"mounts": [{"name": "x", "path": "etc", "secret": "x"}]}, "mounts"),
    "peer": ({"networkPolicy": {"clients": [{"podselector": {}}]}}, "podselector"),
    "way-to-everywhere": ({"networkPolicy": {"egress": {"all": [{}]}}}, "egress"),
    "every-port": ({"networkPolicy": {"egress": {"all": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]}}}, "ports"),
    "every-pod-as-server": ({"networkPolicy": {"servers": {"notes": {"podSelector": {}}}}}, "podSelector"),
    "route-to-nowhere": ({"httpRoute": {"enabled": True}}, "httpRoute"),
    "label-that-selects": ({"podLabels": {"app.kubernetes.io/name": "x"}}, "app.kubernetes.io/name"),
    "annotation-of-ours": ({"podAnnotations": {"checksum/config": "x"}}, "checksum/config"),
    "toleration": ({"tolerations": [{"keys": "x"}]}, "keys"),
    "resources": ({"resources": {"limit": {}}}, "limit"),
    "access-of-many": ({"persistence": {"accessMode": "ReadWriteMany"}}, "accessMode"),
    "tls-secret-in-clear": ({"ingress": {"tlsSecret": "-----BEGIN CERTIFICATE-----"}}, "tlsSecret"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_schema_refuses(helm: Helm, case: str) -> None:
    """Helm says which value is wrong, before a template is looked at."""
    change, named = REFUSED[case]
    values = merged(values_of("single"), change)
    if case == "every-pod-as-server":
        values["networkPolicy"]["servers"]["notes"]["podSelector"] = {}
    said = helm.refusal(values)
    assert "values don't meet the specifications of the schema" in said
    assert named in said


def test_a_bare_off_is_what_is_written(helm: Helm) -> None:
    """YAML reads `off` as false, and the gateway takes both: so does the schema, wherever the word may stand."""
    off = {"pins": False, "arguments": False, "legacy_servers": False, "health": {"probe": False}}
    assert helm.render(merged(values_of("single"), {"config": {"servers": {"notes": off}}}))


def _objects(node: Any, at: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every schema of an object, with its place."""
    if isinstance(node, list):
        for number, part in enumerate(node):
            yield from _objects(part, f"{at}/{number}")
    if isinstance(node, dict):
        if node.get("type") == "object" or ("properties" in node and isinstance(node["properties"], dict)):
            yield at, node
        for key, part in node.items():
            yield from _objects(part, f"{at}/{key}")


OPEN = {"/properties/global", "/properties/policy/properties/data"}
"""What others judge: a parent chart's values, and the bundle's data (its rules, and `ostiary check`)."""
CONDITIONS = ("/if", "/then", "/allOf/1")


def test_no_object_is_open() -> None:
    """Every object of the schema says which members it has, or of what kind they are."""
    found = dict(_objects(SCHEMA))
    assert len(found) > 60
    open_ones = {
        at
        for at, schema in found.items()
        if "additionalProperties" not in schema and "$ref" not in schema and not at.endswith(CONDITIONS)
    }
    assert open_ones == OPEN


def test_the_schema_knows_every_setting() -> None:
    """`config` is gateway/settings as it stands; `python -m tests.helm.shaping` makes it so."""
    file = (CHART / "values.schema.json").read_text()
    assert file == shaping.text(SCHEMA), "settings have changed: python -m tests.helm.shaping"
    assert set(SCHEMA["definitions"]["Settings"]["properties"]) == set(Settings.model_fields)


WHOLE = {"resources", "data", "labels"}
"""Maps that are one value."""


def _leaves(node: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        here = f"{at}{key}"
        if isinstance(value, Mapping) and value and key not in WHOLE:
            yield from _leaves(value, here + ".")
        else:
            yield here, value


def _default(path: str) -> Any:
    """A setting's default in gateway/settings. `KeyError` where it has none."""
    model: Any = Settings
    *parents, last = path.split(".")
    for name in parents:
        kind = model.model_fields[name].annotation
        candidates = [kind, *getattr(kind, "__args__", ())]
        model = next(
            found
            for one in candidates
            for found in (one, *getattr(one, "__args__", ()))
            if hasattr(found, "model_fields")
        )
    field = model.model_fields[last]
    if field.is_required():
        raise KeyError(path)
    return json.loads(json.dumps(field.get_default(call_default_factory=True), default=str))


DEPARTURES = {
    "listen.host": "0.0.0.0",  # a pod's loopback is reached by nobody
    "admin.host": "0.0.0.0",  # the node's probes, and Prometheus; NetworkPolicy says who else
    "audit.file": "/var/lib/ostiary/audit.jsonl",  # required
}
"""Where the chart's `config` is not the gateway's default, and why."""


def test_what_the_chart_sets_is_the_gateways_default_or_a_departure() -> None:
    """No setting is changed in passing: `config`'s defaults are the gateway's own, but for three with a reason."""
    found = dict(_leaves(VALUES["config"]))
    assert DEPARTURES.items() <= found.items()
    assert {path: value for path, value in found.items() if path not in DEPARTURES} == {
        path: _default(path) for path in found.keys() - DEPARTURES.keys()
    }
    assert len(found) > len(DEPARTURES)


def test_what_the_chart_decides_by_is_the_gateways_default() -> None:
    """helm/files/defaults.yaml, by which templates know what is not said, is gateway/settings."""
    said = dict(_leaves(yaml.safe_load((CHART / "files/defaults.yaml").read_text())))
    assert len(said) > 15
    assert said == {path: _default(path) for path in said}
    key = f"audit.checkpoints.key_env {_default('audit.checkpoints.key_env')}"
    assert f'append $needed "{key}"' in (CHART / "templates/_refusals.tpl").read_text()


def test_the_configuration_goes_in_verbatim(helm: Helm) -> None:
    """What is mounted is `config`, no more and no less, and numbers stay numbers."""
    values = values_of("audit-volume")
    mounted = yaml.safe_load(settings_text(rendered(helm, "audit-volume")))
    assert mounted == merged(VALUES["config"], values["config"])
    assert mounted["audit"]["rotate_bytes"] == 1073741824
    assert isinstance(mounted["audit"]["rotate_bytes"], int)


@pytest.mark.parametrize("name", SETS)
def test_rendering_is_the_same_twice(helm: Helm, name: str) -> None:
    """Nothing random, no time: what is reviewed is what is installed."""
    assert helm.text(values_of(name)) == text_of(helm, name)


def test_the_packaged_chart_is_whole(helm: Helm, tmp_path: Path) -> None:
    """`helm package` takes along the shipped rules, which lie elsewhere in the source, and no set of values."""
    done = helm.run("package", str(CHART), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.glob("ostiary-*.tgz")
    assert helm.render(values_of("single"), chart=package) == list(rendered(helm, "single"))
    shutil.unpack_archive(package, tmp_path / "x")
    names = {file.relative_to(tmp_path / "x/ostiary").as_posix() for file in (tmp_path / "x").rglob("*")}
    assert {
        "values.schema.json",
        "files/bundle/mcp/authz/authz.rego",
        "files/defaults.yaml",
        "files/smoke.py",
    } <= names
    assert not [name for name in names if name.startswith("ci")]


def test_the_charts_version_is_the_gateways() -> None:
    """`appVersion` is pyproject.toml's version, so that the image's tag is that of the code."""
    project = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert project is not None
    assert str(yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]) == project[1]


def _rows() -> list[list[str]]:
    table = PAGE[PAGE.index("## Every value") :].partition("\n| ")[2].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()[2:]]


def test_every_value_is_explained_with_its_default() -> None:
    """docs/kubernetes.md has one row a value, with the default of values.yaml, and no other row."""
    explained: dict[str, Any] = {}
    for name, default, means in _rows():
        assert name not in explained
        assert means.endswith(".")
        explained[name.strip("`")] = yaml.safe_load(default.strip("`"))
    wanted = dict(_leaves({key: value for key, value in VALUES.items() if key != "config"}))
    wanted |= {f"config.{path}": value for path, value in _leaves(VALUES["config"])}
    assert explained == wanted


def test_the_pages_values_are_rendered(helm: Helm) -> None:
    """Each block of values on the page that is whole is taken by the chart."""
    blocks = re.findall(r"<!-- values: (\w[\w-]*) -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert [name for name, _ in blocks]
    for name, block in blocks:
        made: list[Manifest] = helm.render(yaml.safe_load(block))
        assert len(made) > 8, name


def test_the_pages_commands_wait_for_long_enough() -> None:
    """Where Helm waits, its timeout is beyond the migrations' own: what it calls failed does not go on."""
    waits = re.findall(r"^helm .* --wait\b.*$", PAGE, re.MULTILINE)
    assert len(waits) == 2
    for command in waits:
        (minutes,) = re.findall(r"--timeout (\d+)m\b", command)
        assert 60 * int(minutes) > VALUES["migrations"]["activeDeadlineSeconds"]


def test_the_pages_database_can_be_verified() -> None:
    """`verify-full` names the authority's file, and the page's values mount it: else nothing would ever connect."""
    urls = re.findall(r"postgresql://[^'\s]*sslmode=verify-full[^'\s]*", PAGE)
    assert urls
    (block,) = re.findall(r"<!-- values: first -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
    mounted = [mount["path"] for mount in yaml.safe_load(block)["mounts"]]
    for url in urls:
        (file,) = re.findall(r"[?&]sslrootcert=([^&]+)", url)
        assert str(Path(file).parent) in mounted
