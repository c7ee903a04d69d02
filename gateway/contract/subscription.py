"""The rules of one `subscriptions/listen` stream (MCP 2026-07-28, basic/patterns/subscriptions; contract section 5).

The acknowledgement is first, and names nothing that was not asked for. Every notification carries the subscription's
id; a kind that was not acknowledged is dropped, for it is the caller's no that it breaks, not the stream's grammar.
`notifications/cancelled` for the subscription itself may precede the result; nothing else follows it.

The seam for rooms that know whose handles and resources a notification names:

    Rewrite  = Callable[[dict[str, Any]], dict[str, Any] | None]
    Rewriter: async def (admitted: Admitted) -> Rewrite | None

A `Rewriter` (one of `Delivery.rewriters`, wired in app.py) is awaited once per admitted subscription, before a byte
goes upstream; it may raise `Refused`. The `Rewrite` that it returns (`None`: nothing to rewrite) sees each
notification that belongs to this subscription, the acknowledgement included (its `params.notifications` has the
filter's form), in the server's terms: it returns it in the caller's terms, or `None` to drop it. It never changes the
message that it was given, and must not block. What it returns is then held to what the caller asked for: an
acknowledged task id or URI is one of those in the caller's own request, letter by letter. An acknowledgement can't be
dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import orjson

from gateway.contract.envelope import Reserved
from gateway.contract.passage import Admitted, Call

Rewrite = Callable[[dict[str, Any]], dict[str, Any] | None]
"""A notification in the server's terms -> in the caller's terms, or `None`: it is dropped."""


class Rewriter(Protocol):
    """What a room does to the notifications of one subscription, if anything."""

    async def __call__(self, admitted: Admitted, /) -> Rewrite | None:
        """Once per subscription. Raises `Refused`."""
        ...


SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
CANCELLED = "notifications/cancelled"
RESOURCE_UPDATED = "notifications/resources/updated"
TASK_CHANGED = "notifications/tasks"

_LIST_CHANGED = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/prompts/list_changed": "promptsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
}
_NAMED = {RESOURCE_UPDATED: ("resourceSubscriptions", "uri"), TASK_CHANGED: ("taskIds", "taskId")}
_FLAGS = frozenset(_LIST_CHANGED.values())
_LISTS = frozenset(member for member, _ in _NAMED.values())

_WAY_BACK = re.compile(r"/\.|\\|%(?:2[ef]|5c)", re.IGNORECASE)

SUBSCRIBED = frozenset({ACKNOWLEDGED, *_LIST_CHANGED, *_NAMED})
"""The notifications that travel on subscriptions' streams and nowhere else."""

_STEERING = Reserved(
    (
        *("_meta", SUBSCRIPTION_ID, "notifications", "requestId", "progressToken", *_FLAGS, *_LISTS),
        *(name for _, name in _NAMED.values()),
    ),
    usual=("progress", "total", "message", "level", "logger", "data"),
)


class BrokenError(Exception):
    """The stream broke a rule; the text says which."""


def same(found: Any, asked: Any) -> bool:
    """Whether an id or token is the one that was asked for, type included; never where none was."""
    return found is not None and type(found) is type(asked) and bool(found == asked)


def refuse_variants(members: Mapping[str, Any]) -> None:
    """No variant of a name that decides something: another reader would take it for that. Raises `BrokenError`."""
    if meant := _STEERING.variant(members):
        raise BrokenError(f"a variant of the reserved name {meant} in a notification")


def farewell(call: Call) -> bytes:
    """The result that ends a subscription gracefully, as JSON text: the gateway's own word where it must end one."""
    subscription = call.envelope.id
    result = {"resultType": "complete", "_meta": {SUBSCRIPTION_ID: subscription}}
    return orjson.dumps({"jsonrpc": "2.0", "id": subscription, "result": result})


def acknowledgement_of_nothing(call: Call) -> bytes:
    """The first notification of a subscription of which nothing is honoured, as JSON text."""
    params = {"_meta": {SUBSCRIPTION_ID: call.envelope.id}, "notifications": {}}
    return orjson.dumps({"jsonrpc": "2.0", "method": ACKNOWLEDGED, "params": params})


class Subscription:
    """One subscription's notifications: `take` each, in order, and relay what it returns."""

    __slots__ = ("_acknowledged", "_asked", "_cancelled", "_id", "_rewrite")

    def __init__(self, call: Call, rewrite: Rewrite | None = None) -> None:
        asked = call.envelope.params.get("notifications")
        self._id = call.envelope.id
        self._asked: Mapping[str, Any] = asked if type(asked) is dict else {}
        self._rewrite = rewrite
        self._acknowledged: Mapping[str, Any] | None = None
        self._cancelled = False

    @property
    def acknowledged(self) -> bool:
        """Whether the stream has begun as it must."""
        return self._acknowledged is not None

    def take(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """A JSON-RPC notification -> what the caller gets, or `None`. Raises `BrokenError`.

        `message["method"]` is a string, and `message["params"]`, where it is there, an object.
        """
        method, params = message["method"], message.get("params", {})
        if self._cancelled:
            raise BrokenError("a notification after the subscription's cancellation")
        self._check_id(method, params)
        if method == ACKNOWLEDGED:
            if self.acknowledged:
                raise BrokenError("a second acknowledgement")
            _check_form(params)
        elif not self.acknowledged:
            raise BrokenError("a notification before the acknowledgement")
        if method == CANCELLED:
            self._cancelled = True
            return message
        rewritten = message if self._rewrite is None else self._rewrite(message)
        if method == ACKNOWLEDGED:
            if rewritten is None:
                raise BrokenError("an acknowledgement of what is not the caller's")
            self._acknowledge(rewritten["params"]["notifications"])
            return rewritten
        return None if rewritten is None else self._narrow(rewritten)

    def check_end(self) -> None:
        """A result may come now. Raises `BrokenError`."""
        if not self.acknowledged:
            raise BrokenError("a result before the acknowledgement")

    def _check_id(self, method: str, params: Mapping[str, Any]) -> None:
        meta = params.get("_meta", {})
        if type(meta) is not dict:
            raise BrokenError("a notification whose _meta is not an object")
        refuse_variants(meta)
        if method == CANCELLED and not same(params.get("requestId"), self._id):
            raise BrokenError("a cancellation that is not this subscription's")
        if SUBSCRIPTION_ID in meta or method != CANCELLED:
            found = meta.get(SUBSCRIPTION_ID)
            if not same(found, self._id):
                missing = "without the subscription's id" if found is None else "of another subscription"
                raise BrokenError(f"a notification {missing}")

    def _acknowledge(self, honoured: Mapping[str, Any]) -> None:
        """Nothing may be promised that was not asked for."""
        for member, value in honoured.items():
            asked = self._asked.get(member)
            if member in _FLAGS:
                fits = value is False or asked is True
            elif member in _LISTS:
                fits = not value or (type(asked) is list and set(value) <= set(asked))
            else:
                fits = member in self._asked
            if not fits:
                raise BrokenError("an acknowledgement of what was not asked for")
        self._acknowledged = honoured

    def _narrow(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """The notification, if it is of a kind, and about a thing, that was acknowledged.

        A sub-resource may be one that the policy closes, of which nobody was asked: what is told is that something
        changed below the resource that was subscribed to.
        """
        honoured, method, params = self._acknowledged or {}, message["method"], message.get("params", {})
        if method in _LIST_CHANGED:
            return message if honoured.get(_LIST_CHANGED[method]) is True else None
        if method in _NAMED:
            kind, member = _NAMED[method]
            named, about = honoured.get(kind) or (), params.get(member)
            if type(about) is not str:
                return None
            if about in named:
                return message
            above = _subscribed_above(about, named) if method == RESOURCE_UPDATED else None
            if above is None:
                return None
            return {**message, "params": {"uri": above, "_meta": {SUBSCRIPTION_ID: self._id}}}
        # An extension's notification: the revision ties it to no member, so there must be one that it could be of.
        extension = not method.startswith("notifications/") and any(one not in _FLAGS | _LISTS for one in honoured)
        return message if extension else None


def _check_form(params: Mapping[str, Any]) -> None:
    """The acknowledgement's own form: a filter, as in the request."""
    filter_ = params.get("notifications")
    if type(filter_) is not dict:
        raise BrokenError("an acknowledgement without a filter")
    refuse_variants(filter_)
    for member, value in filter_.items():
        if member in _FLAGS and type(value) is not bool:
            raise BrokenError(f"an acknowledgement whose {member} is not a boolean")
        if member in _LISTS and not (type(value) is list and all(type(one) is str for one in value)):
            raise BrokenError(f"an acknowledgement whose {member} are not strings")


def _subscribed_above(uri: str, subscribed: Sequence[str]) -> str | None:
    """The nearest of what was subscribed to of which a URI is a sub-resource: its path continued, and no way back."""
    if _WAY_BACK.search(uri):
        return None
    above = [one for one in subscribed if "://" in one and uri.startswith(one if one.endswith("/") else one + "/")]
    return max(above, key=len, default=None)
