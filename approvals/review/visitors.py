"""Who stands before a page: the port between the pages and whoever signs people in.

A visit carries no authority of its own. Its person is read from the access token that the session keeps, verified
anew for every request like a bearer token of the API; when that token ends, the visit ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from approvals.approvers import Person

if TYPE_CHECKING:
    from starlette.requests import Request

SIGN_IN = "/review/sign-in"
"""Where a visitor without a visit is sent, with `?next=PATH` (a path below `/review`, never another origin's)."""

SIGN_OUT = "/review/sign-out"
"""A form posts here, with the visit's form key."""

REFUSALS = "/review/refusals"
WHY = "/review/why"
"""The house's pages of what was refused to the visitor themselves."""

RECORD = "/review/audit"
RECORD_SCOPE = "audit:read"
"""The house's pages of the whole record, and the scope that they take."""


def comes_by_itself(request: Request) -> bool:
    """Whether an open page asks by its script, with nobody doing anything: such a request keeps no session alive."""
    return bool(getattr(request.state, "comes_by_itself", False))


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of a person who signed in.

    `form_key` is what every form of this session carries as `form_key` (against cross-site requests); `ends_at` is
    when the session is over at the latest, in seconds since the epoch; `name` is what the person is called on pages
    (self-reported by the issuer, never an authority).
    """

    person: Person
    form_key: str
    ends_at: float
    name: str = ""


class Visitors(Protocol):
    """Knows who a request comes from."""

    async def visit(self, request: Request) -> Visit | None:
        """The visit of this request, its token verified now; `None` where nobody signed in or the session is over.

        A request that `comes_by_itself` does not count as one of the person's. Raises `StoreUnavailable`, and the
        house's own refusals where it cannot be known (keys that are away).
        """
        ...
