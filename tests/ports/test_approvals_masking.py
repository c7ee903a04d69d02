"""What the policy masks is shown in no form: not by a grant's schemas, and not by answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from approvals.masking import masked_vary
from approvals.printing import sheet
from approvals.review.faces import face
from tests.support.approvals import ALICE, BOB, TERMS, Bench, bench, effect, grant_of

SECRET = "canary-4711"
PIN = {"const": SECRET}
ROOT = {"amount": 1, "pin": SECRET}
LEAKS: list[dict[str, Any]] = [
    {"properties": {"pin": PIN}},
    {"properties": {"pin": {"enum": [SECRET]}}},
    {"properties": {"pin": {"type": "string", "default": SECRET}}},
    {"properties": {"pin": {"examples": [SECRET], "description": SECRET}}},
    {"properties": {"pin": {"pattern": f"^{SECRET}$"}}},
    {"properties": {"pin": {"properties": {"deep": PIN}}}},
    {"patternProperties": {"^p": PIN}},
    {"additionalProperties": PIN},
    {"unevaluatedProperties": PIN},
    {"const": ROOT},
    {"enum": [ROOT]},
    {"default": ROOT},
    {"examples": [ROOT]},
    {"description": SECRET, "$comment": SECRET, "title": SECRET},
    {"allOf": [{"properties": {"pin": PIN}}], "anyOf": [{"const": ROOT}], "oneOf": [{"not": {"const": ROOT}}]},
    {"if": {"properties": {"pin": PIN}}, "then": {"const": ROOT}, "else": {"properties": {"pin": PIN}}},
    {"dependentSchemas": {"amount": {"properties": {"pin": PIN}}}},
    {"dependencies": {"amount": {"properties": {"pin": PIN}}}},
    {"$defs": {"x": PIN}, "properties": {"pin": {"$ref": "#/$defs/x"}}},
    {"definitions": {"x": PIN}, "properties": {"pin": {"$ref": "#/definitions/x"}}},
    {"properties": {"amount": {"$defs": {"x": PIN}}, "pin": {"$ref": "#/properties/amount/$defs/x"}}},
    {"whatever": PIN},
]


@pytest.fixture
async def it(where: Path | str) -> AsyncIterator[Bench]:
    """A desk on a fresh store."""
    async with bench(where) as made:
        yield made


async def granted(it: Bench, schema: Any, bounds: Any, mask: tuple[str, ...]) -> str:
    """A grant that was asked for."""
    asked = grant_of(effect(), schema, bounds)
    shown, _ = await it.desk.request(ALICE, asked, replace(TERMS, uses=5), reasons=(), mask=mask)
    return str(shown["id"])


@pytest.mark.parametrize("schema", LEAKS)
def test_no_keyword_of_a_schema_tells_what_is_masked(schema: dict[str, Any]) -> None:
    """Neither that of whoever asks nor the policy's; without a mask each of them is shown as it is."""
    vary = {"schema": schema, "bounds": schema}
    assert SECRET in orjson.dumps(vary).decode()
    assert masked_vary(vary, ()) == vary
    told = masked_vary(vary, ["/pin"])
    assert SECRET not in orjson.dumps(told).decode()
    assert {one.split("/")[1] for one in told["masked"]} == {"schema", "bounds"}


@pytest.mark.parametrize(
    ("pointer", "schema"),
    [
        ("/card/pin", {"properties": {"card": {"properties": {"pin": PIN}}}}),
        ("/card/pin", {"properties": {"card": {"const": {"pin": SECRET}}}}),
        ("/cards/0/pin", {"properties": {"cards": {"items": {"properties": {"pin": PIN}}}}}),
        ("/cards/0/pin", {"properties": {"cards": {"prefixItems": [{"properties": {"pin": PIN}}]}}}),
        ("/cards/0", {"properties": {"cards": {"contains": PIN}}}),
        ("/a~1b/x~0y", {"properties": {"a/b": {"properties": {"x~y": PIN}}}}),
        ("", {"properties": {"amount": PIN}}),
    ],
)
def test_masks_of_inner_values_hold_in_schemas(pointer: str, schema: dict[str, Any]) -> None:
    """Members of members, items of lists, escaped names, the whole."""
    assert SECRET not in orjson.dumps(masked_vary({"schema": schema, "bounds": {}}, [pointer])).decode()


def test_what_is_not_masked_is_still_shown() -> None:
    """A reviewer sees the bounds of everything else, and where something is hidden."""
    schema = {
        "type": "object", "required": ["amount"], "additionalProperties": False,
        "properties": {"amount": {"maximum": 100}, "pin": PIN, "card": {"type": "object"}},
    }  # fmt: skip
    told = masked_vary({"schema": schema, "bounds": {}}, ["/pin", "/card/number"])
    inner = {**schema["properties"], "pin": "[masked]"}  # type: ignore[dict-item]
    assert told == {"schema": {**schema, "properties": inner}, "bounds": {}, "masked": ["/schema/properties/pin"]}


async def test_a_grants_page_sheet_and_json_hide_what_is_masked(it: Bench) -> None:
    """The API, the command's sheet and the page show the same, and the page says that the policy hides it."""
    schema = {"properties": {"pin": PIN, "amount": {"maximum": 100}}}
    ticket_id = await granted(it, schema, {"properties": {"pin": PIN}}, ("/pin",))
    sight = await it.desk.look(BOB, ticket_id)
    assert SECRET not in orjson.dumps(sight.ticket).decode()
    assert SECRET not in sheet(sight.ticket)
    tables = face(sight).vary
    assert tables is not None
    assert SECRET not in repr(tables)
    assert [[row.value is None for row in table.rows] for table in tables] == [[True, False], [True]]
    clear = await it.desk.show(BOB, await granted(it, {"properties": {"pin": PIN}}, {}, ()))
    assert SECRET in orjson.dumps(clear["vary"]).decode()


async def test_answers_are_masked_like_arguments(it: Bench) -> None:
    """A pointer holds from the root of what else is bound, and in what each answer says."""
    responses = {"q1": {"action": "accept", "content": {"pin": SECRET, "note": "seen"}}}
    for pointer in ("/pin", "/inputResponses/q1/content/pin"):
        asked = replace(effect({"for": pointer}), shown_meta={"inputResponses": responses})
        ticket_id = (await it.held(asked, mask=(pointer,))).ticket.id
        sight = await it.desk.look(BOB, ticket_id)
        assert SECRET not in orjson.dumps(sight.ticket).decode()
        assert sight.ticket["meta"]["inputResponses"]["q1"]["content"] == {"pin": "[masked]", "note": "seen"}
        assert sight.ticket["masked"] == ["/inputResponses/q1/content/pin"]
        meta = face(sight).meta
        assert meta is not None
        assert sum(row.value is None for row in meta.rows) == 1
