"""docs/configuration.md under test: every setting once, with its real default and an example that loads."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.config import EmbeddedPolicySettings, OpaPolicySettings, Settings
from gateway.config_file import load_settings

PAGE = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
REQUIRED = "*required*"
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if re.match(r"\| `[a-z]", line)
]
DOCUMENT = yaml.safe_load(PAGE.split("```yaml\n")[1].split("```")[0])


def walk(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting by its path: `[]` for entries of a list, `NAME` for those of a map of groups.

    Of groups that exclude each other, each one's; what several have is told as the first has it.
    """
    for name, field in model.model_fields.items():
        path, kind = f"{prefix}{name}", field.annotation
        alternatives = [one for one in map(strip, get_args(kind)) if is_group(one)]
        if len(alternatives) > 1:
            yield from {
                one: found for each in reversed(alternatives) for one, found in walk(each, path + ".")
            }.items()
            continue
        while get_origin(kind) in (Union, types.UnionType, dict, tuple) or getattr(kind, "__metadata__", None):
            groups = [one for one in map(strip, get_args(kind)) if is_group(one)]
            if not groups:
                break
            path += ".NAME" if get_origin(kind) is dict else "[]" if get_origin(kind) is tuple else ""
            kind = groups[0]
        kind = strip(kind)
        if is_group(kind):
            yield from walk(kind, path + ".")
        else:
            yield path, field


def strip(kind: Any) -> Any:
    """A type without its `Annotated`."""
    return get_args(kind)[0] if getattr(kind, "__metadata__", None) else kind


def is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


SETTINGS = dict(walk(Settings))
OPA_ONLY = {f"policy.{path}" for path, _ in walk(OpaPolicySettings)} - {
    f"policy.{path}" for path, _ in walk(EmbeddedPolicySettings)
}


def literal(cell: str) -> Any:
    """What stands between backticks, as YAML."""
    assert cell[0] == cell[-1] == "`", cell
    return yaml.safe_load(cell[1:-1])


def plain(value: Any) -> Any:
    """A setting's value as YAML would have it."""
    return json.loads(json.dumps(value, default=str))


def test_every_setting_is_documented_exactly_once() -> None:
    """The page has one row per setting of gateway/settings/, and no other."""
    assert len(SETTINGS) > 40
    assert sorted(literal(row[0]) for row in ROWS) == sorted(SETTINGS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_says_what_is_so(row: list[str]) -> None:
    """Its default is the real one, and its variable's name is the path's; unit and meaning are there."""
    path, unit, default, _, variable, meaning = row
    field = SETTINGS[literal(path)]
    if field.is_required():
        assert default == REQUIRED
    else:
        assert literal(default) == plain(field.get_default(call_default_factory=True))
    wanted = "OSTIARY_" + literal(path).upper().replace(".", "__")
    assert variable == ("–" if "[]" in path else f"`{wanted}`")
    assert unit
    assert meaning.endswith(".")


SIGN_IN: dict[str, Any] = {"sign_in": {"issuer": "https://idp.example.com", "client_id": "x"}}


def beside(path: str) -> dict[str, Any]:
    """What a server's setting needs beside it."""
    if ".credentials." in path:
        return {"credentials": {"value_env": "X"}}
    if path.endswith(".idempotent_tools"):
        return {"pins": "enforce"}
    if ".forward_identity." in path:
        return {"forward_identity": {"key_env": "X"}}
    if path.startswith("servers.NAME.tls."):
        return {"replicas": ["https://10.0.0.1/mcp"], "tls": {"cert": "/x", "key": "/x"}}
    return {}


def put(path: str, value: Any) -> dict[str, Any]:
    """The page's smallest configuration with one setting more."""
    document = json.loads(json.dumps(DOCUMENT))
    if path.endswith((".jwks_uri", ".jwks_file")):
        document["identity"]["issuers"][0] = {"issuer": "https://idp.example.com"}
    if path.startswith("approvals.webhooks"):
        document["approvals"] = {"webhooks": [{} if ".url" in path else {"url": "https://hooks.example.com/"}]}
    if path in OPA_ONLY:
        document["policy"] = {"engine": "opa", "url": "https://opa.example.com"}
    if path.startswith("policy.shadow."):
        one = "url" if re.search(r"url|token|tls", path) else "path"
        document["policy"]["shadow"] = {one: "https://opa.example.com"}
    if path.startswith("policy.shadow.tls."):
        document["policy"]["shadow"]["tls"] = {"cert": "/x", "key": "/x"}
    document["servers"]["readonly"] |= beside(path)
    if path.startswith("listen.tls."):
        document["listen"] = {"tls": {"cert": "/x", "key": "/x"}}
    if path.startswith("policy.tls."):
        document["policy"]["tls"] = {"cert": "/x", "key": "/x"}
    if path.startswith("sign_in."):
        document |= SIGN_IN
    if path.startswith("sign_in.others"):
        document["identity"]["issuers"].append({"issuer": "https://other.example.com"})
        document["sign_in"] = SIGN_IN["sign_in"] | {
            "others": [{"issuer": "https://other.example.com", "client_id": "x"}]
        }
    place: Any = document
    *parents, last = path.replace("[]", ".0").replace("NAME", "readonly").split(".")
    for name in parents:
        place = place[int(name)] if name.isdigit() else place.setdefault(name, {})
    place[last] = value
    return dict(document)


def look_up(settings: Settings, path: str) -> Any:
    place: Any = settings
    for name in path.replace("[]", ".0").replace("NAME", "readonly").split("."):
        if name.isdigit():
            place = place[int(name)]
        else:
            place = place[name] if isinstance(place, dict) else getattr(place, name)
    return plain(place)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_rows_example_loads(row: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example is accepted in the file and, where the row has a variable, in the environment, with one meaning."""
    path, value = literal(row[0]), literal(row[3])
    file = tmp_path / "ostiary.yaml"
    file.write_text(yaml.safe_dump(put(path, value)))
    from_file = look_up(load_settings(file), path)
    expected = f"{tmp_path}/{value.removeprefix('./')}" if path.endswith("path") and path[0] == "p" else value
    assert from_file == expected
    if row[4] != "–":
        base = put(path, DOCUMENT) if path.endswith("value_env") else DOCUMENT
        if path in OPA_ONLY or path.startswith("policy.shadow."):
            base = put(
                path, "http://127.0.0.1:1" if path.endswith(".url") else 1 if path.endswith(".sample") else "/y"
            )
        base = put("servers.NAME.pins", "enforce") if path.endswith(".idempotent_tools") else base
        base = base | SIGN_IN if path.startswith("sign_in.") else base
        if path.startswith(("servers.NAME.tls.", "listen.tls.", "servers.NAME.forward_identity.")):
            base = put(path, "/y")
        file.write_text(
            yaml.safe_dump(put("servers.NAME.credentials.value_env", "X") if "credentials" in path else base)
        )
        name = row[4].strip("`").replace("NAME", "READONLY")
        monkeypatch.setenv(name, value if isinstance(value, str) else json.dumps(value))
        assert look_up(load_settings(file), path) == from_file


def test_the_smallest_configuration_is_the_smallest(tmp_path: Path) -> None:
    """It loads, and without any of its lines it does not."""
    file = tmp_path / "ostiary.yaml"
    file.write_text(yaml.safe_dump(DOCUMENT))
    assert load_settings(file).public_url == DOCUMENT["public_url"]
    required = {path.split(".")[0].split("[")[0] for path, field in SETTINGS.items() if field.is_required()}
    required = {name for name in required if Settings.model_fields[name].is_required()}
    assert required == set(DOCUMENT)
