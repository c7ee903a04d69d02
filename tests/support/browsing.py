"""A person's browser without a window: cookies kept, redirects followed by hand, forms filled in."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import unescape
from types import TracebackType
from typing import Self
from urllib.parse import urljoin

import httpx


@dataclass
class Browser:
    """One person's cookies."""

    http: httpx.Client = field(default_factory=lambda: httpx.Client(trust_env=False, timeout=30.0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()

    def get(self, url: str) -> httpx.Response:
        """Look at one place, without going on where it sends."""
        return self.http.get(url)

    def begin(self, review_url: str, place: str = "/review") -> str:
        """Begin to sign in -> where the issuer is asked."""
        answer = self.http.get(f"{review_url}/sign-in", params={"next": place})
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    def pick(self, there: str, person: str) -> str:
        """At the demo's issuer: pick somebody -> where the browser is sent back to."""
        page = self.http.get(there)
        assert page.status_code == 200, page.text
        found = re.search(r'name="handle" value="([^"]+)"', page.text)
        assert found is not None
        answer = self.http.post(urljoin(there, "/authorize"), data={"handle": unescape(found[1]), "person": person})
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    def sign_in(self, review_url: str, person: str, place: str = "/review") -> httpx.Response:
        """The whole way -> the answer that ends it."""
        return self.http.get(self.pick(self.begin(review_url, place), person))

    def cookie(self, prefix: str) -> str | None:
        """The value of the one cookie whose name begins so."""
        found = [cookie.value for cookie in self.http.cookies.jar if cookie.name.startswith(prefix)]
        assert len(found) <= 1
        return found[0] if found else None
