"""The requests of the revision, as one table: their kind, their parameters' form, and the member `Mcp-Name` mirrors.

Source: tests/vectors/mcp-2026-07-28.schema.json, `ClientRequest`. Only what steers a decision is held to its type
here; the rest of a request's form is the server's business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


class _Texts:
    """The shape of an array of strings."""


class _TaskIds:
    """The shape of an array of strings that is not too long to be opened one by one."""


TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
"""The label under which a client declares that it can handle tasks."""

MAX_TASK_IDS = 128
"""How many tasks one subscription may name: each is opened on the event loop."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An object's form: the members that must be there, those that may, and the JSON type or shape of each."""

    required: Mapping[str, type | Shape] = field(default_factory=dict)
    optional: Mapping[str, type | Shape] = field(default_factory=dict)

    def misfit(self, members: Mapping[str, Any]) -> str | None:
        """The first member that is missing or has the wrong form, or `None`."""
        for name, form in self.required.items():
            if name not in members or not _fits(members[name], form):
                return name
        for name, form in self.optional.items():
            if name in members and not _fits(members[name], form):
                return name
        return None


def _fits(value: Any, form: type | Shape) -> bool:
    if isinstance(form, Shape):
        return type(value) is dict and form.misfit(value) is None
    if form is _Texts:
        return type(value) is list and all(type(item) is str for item in value)
    if form is _TaskIds:
        return _fits(value, _Texts) and len(value) <= MAX_TASK_IDS
    return type(value) is form


@dataclass(frozen=True)
class Method:
    """A request's method.

    `mirrored` is the member of `params` that `Mcp-Name` must equal. A method that has one takes no members but those
    of its shape: neither the policy nor an approver would see them. The others show all of theirs as arguments.
    """

    kind: str
    params: Shape = Shape()
    mirrored: str | None = None

    @cached_property
    def members(self) -> frozenset[str]:
        """All members that `params` may have where it is closed."""
        return frozenset({"_meta", *self.params.required, *self.params.optional})


_RETRY: Mapping[str, type] = {"requestState": str, "inputResponses": dict}
_PAGE = Shape(optional={"cursor": str})
_FILTER: Mapping[str, type] = {
    "toolsListChanged": bool,
    "promptsListChanged": bool,
    "resourcesListChanged": bool,
    "resourceSubscriptions": _Texts,
    "taskIds": _TaskIds,
}

METHODS: Mapping[str, Method] = {
    "server/discover": Method("discover"),
    "tools/list": Method("list", _PAGE),
    "tools/call": Method("tool", Shape({"name": str}, {"arguments": dict, **_RETRY}), "name"),
    "prompts/list": Method("list", _PAGE),
    "prompts/get": Method("prompt", Shape({"name": str}, {"arguments": dict, **_RETRY}), "name"),
    "resources/list": Method("list", _PAGE),
    "resources/templates/list": Method("list", _PAGE),
    "resources/read": Method("resource", Shape({"uri": str}, _RETRY), "uri"),
    "completion/complete": Method(
        "completion",
        Shape(
            {
                "ref": Shape({"type": str}, {"name": str, "uri": str}),
                "argument": Shape({"name": str, "value": str}),
            },
            {"context": Shape(optional={"arguments": dict})},
        ),
    ),
    "subscriptions/listen": Method("subscription", Shape({"notifications": Shape(optional=_FILTER)})),
    "tasks/get": Method("task", Shape({"taskId": str}), "taskId"),
    "tasks/update": Method("task", Shape({"taskId": str, "inputResponses": dict}), "taskId"),
    "tasks/cancel": Method("task", Shape({"taskId": str}), "taskId"),
}
"""Everything else is unknown, unless the server's configuration lists it as an extension's method."""

REMOVED: Mapping[str, str] = {"tools/call": "task"}
"""Method -> the member of its parameters that 2025-11-25 had and that servers must ignore since. It is taken off, so
that no server which still knows it acts on what nobody judged (SEP-2663, "Backward Compatibility")."""

UNGUARDED = re.compile(r"tasks/.*|notifications/cancelled", re.DOTALL)
"""Unknown whatever a configuration lists, unless the table above has them: they act on a handle or an id, and nothing
proves whose that is (the prefix `tasks/` is the extension's own)."""

EXTENSION = Method("extension")
"""A method that only the server's configuration knows."""


def task_ids_of(method: Method, params: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The ids of the tasks that a request of the right form names; `None` where it is about no task at all."""
    if method.kind == "task":
        return (params["taskId"],)
    if method.kind == "subscription" and "taskIds" in params["notifications"]:
        return tuple(params["notifications"]["taskIds"])
    return None


def declares_tasks(capabilities: Mapping[str, Any]) -> bool:
    """Whether the client says, in this request, that it can handle tasks."""
    extensions = capabilities.get("extensions")
    return type(extensions) is dict and type(extensions.get(TASKS_EXTENSION)) is dict
