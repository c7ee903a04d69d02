"""The cookies of sign-ins and of a session: which name they have, what a browser may do with them, their one reading.

Over https the name begins with `__Host-`: a browser then takes the cookie from this very host alone, with `Secure`,
for all paths and without a domain, so that no neighbour can plant one. Over plain http, which is served on loopback
only, not every browser keeps such a cookie; there the name holds the port, because cookies do not tell ports apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request

MOST_CHARACTERS = 4096


@dataclass(frozen=True, slots=True)
class Cookie:
    """One cookie by its name."""

    name: str
    secure: bool

    @classmethod
    def of(cls, public_url: str, name: str) -> Cookie:
        """The cookie called `name`, as it is where the gateway is known as `public_url`."""
        parts = urlsplit(public_url)
        if parts.scheme == "https":
            return cls(f"__Host-{name}", True)
        return cls(f"{name}-{parts.port or 80}", False)

    def read(self, request: Request) -> str | None:
        """Its value, if the request carries exactly one that is not empty."""
        values = self._values(request)
        return values[0] if len(values) == 1 and 0 < len(values[0]) <= MOST_CHARACTERS else None

    def is_in(self, request: Request) -> bool:
        """Whether the request carries it, whatever its value."""
        return bool(self._values(request))

    def _values(self, request: Request) -> list[str]:
        values = []
        for header, line in request.scope["headers"]:
            if header != b"cookie":
                continue
            for part in line.decode("latin-1").split(";"):
                name, _, value = part.strip(" \t").partition("=")
                if name == self.name:
                    values.append(value)
        return values

    def write(self, value: str, lives_s: float) -> str:
        """The value of a `Set-Cookie` that keeps it so long."""
        secure = "; Secure" if self.secure else ""
        return f"{self.name}={value}; Max-Age={int(lives_s)}; Path=/; HttpOnly; SameSite=Lax{secure}"

    def clear(self) -> str:
        """The value of a `Set-Cookie` that ends it."""
        return self.write("", 0)
