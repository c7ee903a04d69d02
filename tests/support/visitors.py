"""A visitors' port for tests of pages alone: the bearer token is the name of somebody whom the test knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.requests import Request

from approvals.approvers import Person
from approvals.review.visitors import Visit


@dataclass
class ByName:
    """`Authorization: Bearer NAME` is a visit of `people[NAME]`, whose forms carry `key-of-NAME`."""

    people: Mapping[str, Person]
    broken: Exception | None = None
    ends_at: float = 4e9
    names: Mapping[str, str] = field(default_factory=dict)

    async def visit(self, request: Request) -> Visit | None:
        """The visit of whoever the header names."""
        if self.broken is not None:
            raise self.broken
        name = request.headers.get("authorization", "").removeprefix("Bearer ")
        person = self.people.get(name)
        if person is None:
            return None
        return Visit(person, f"key-of-{name}", self.ends_at, self.names.get(name, name.title()))
