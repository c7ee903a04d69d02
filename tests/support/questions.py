"""Random data for the shipped rules, and random questions that come near it: what two engines are compared on.

Everything comes from one `random.Random`: the same seed makes the same cases.
"""

from __future__ import annotations

import random
from typing import Any

TOOLS = (
    "read", "write", "r\u0435ad", "READ", "caf\u00e9", "cafe\u0301", "a/b", 'x"]; allow := true #', "", "\u202eread",
)  # fmt: skip
PROMPTS = ("greet", "guarded", "Greet")
URIS = (
    "file:///srv/", "file:///srv/public/", "file:///srv/public/payroll/", "file:///srv/public/a.txt", "status://all",
    "file:///srv/public/../payroll/x", "file:///srv/public//x", "file:///srv/public/%2e%2e/x", "file:///srv/%41",
    "file:///srv/%C3%A9", "file:///srv/public/./x", "file:///srv/{name}", "file:///{+path}", "file:///other/x",
    "file:///srv/public/x?y=..", "file:///srv/public/\u00e9", "", "file:///srv",
)  # fmt: skip
METHODS = (
    "tools/list", "prompts/list", "resources/list", "resources/templates/list", "server/discover",
    "completion/complete", "subscriptions/listen", "tasks/get", "tasks/update", "tasks/cancel", "acme/report",
)  # fmt: skip
SCOPES = ("mcp:use", "files:read", "files:write")
TENANTS = ("", "acme", "umbrella")
ENVIRONMENTS = ("", "test", "production")
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Pacific/Auckland")
TIMES = (
    1_795_996_800, 1_796_040_000, 1_796_054_399, 1_796_054_400, 1_796_083_199, 1_774_746_000, 1_793_494_800, 0,
)  # fmt: skip
"""Seconds: midnights, mid-days, edges of hours, the nights of summer time."""
VALUES: tuple[Any, ...] = (
    "/srv/public/a", "/srv/public/../x", "/srv/public", "/srv/public/%2e%2e/x", "select 1", "select pg_sleep(1)",
    "SELECT count(*) FROM t WHERE a IN (1, 2)", "drop table t", "select a.b from a", "eur", "", "\u00e9", "\u212a", 0,
    1, 1.0, 50, 1000.5, -1, 1e300, 9_007_199_254_740_993, True, None, [], ["/srv/public/a"], ["/srv/public/a", 1], {},
    {"a": 1},
)  # fmt: skip
ODD: tuple[Any, ...] = (None, True, 0, 1.5, "text", [], ["x"], {}, {"effect": "read"})


class Cases:
    """Data and questions. `odd` is how often a member has a wrong type, is misspelt or one too many."""

    def __init__(self, seed: int, odd: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._odd = odd

    def data(self) -> dict[str, Any]:
        """What stands below `servers` in a `data.json`."""
        return {name: self._server() for name in self._some(("files", "mail"), 1)}

    def question(self) -> dict[str, Any]:
        """One complete question, as the gateway would put it."""
        pick = self._random.choice
        phase, kind = "call", pick(("tool", "tool", "prompt", "resource", "other"))
        method, name, arguments, candidates = "tools/call", None, self._arguments(), None
        if kind == "tool":
            name = pick(TOOLS)
        elif kind == "prompt":
            method, name = "prompts/get", pick(PROMPTS)
        elif kind == "resource":
            method, name = "resources/read", pick(URIS)
        elif kind == "other":
            method = pick(METHODS)
            arguments = self._named(method)
            if method.endswith("/list") and self._chance(0.8):
                phase, candidates = "list", self._candidates(method)
        tasks = [
            {"id": f"t{n}", "tool": pick((*TOOLS[:3], None)), "approved": self._chance(0.5)}
            for n in range(self._random.randrange(3))
        ]
        question: dict[str, Any] = {
            "phase": phase if self._chance(0.99) else pick(("", "calls", None)),
            "server": {
                "name": pick(("files", "files", "files", "mail", "mail", "none")),
                "resource": "https://gw.example/files",
                "environment": pick(ENVIRONMENTS),
            },
            "subject": {
                "issuer": "https://idp.example.com", "id": pick(("alice", "bob")), "client_id": "c",
                "tenant": pick(TENANTS), "scopes": sorted(self._some(SCOPES)), "claims": {"groups": ["payers"]},
            },
            "request": {
                "method": method, "kind": kind, "name": name, "arguments": arguments, "input_responses": None,
                "tasks": tasks, "leg": pick((0, 0, 1, 3)), "approved": self._chance(0.3),
            },
            "tool": pick((None, {"annotations": {}, "digest": "sha256:0", "pinned": True})),
        }  # fmt: skip
        if candidates is not None:
            question["candidates"] = candidates
        question["now_ns"] = (pick(TIMES) + pick((-1, 0, 0, 1))) * 1_000_000_000
        return question

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _some(self, of: tuple[Any, ...], least: int = 0) -> list[Any]:
        return self._random.sample(of, self._random.randint(least, len(of)))

    def _maybe_odd(self, value: Any) -> Any:
        return self._random.choice(ODD) if self._chance(self._odd) else value

    def _server(self) -> Any:
        made: dict[str, Any] = {}
        if self._chance(0.8):
            made["tools"] = {name: self._called(self._entry()) for name in self._some(TOOLS, 6)}
        if self._chance(0.6):
            made["prompts"] = {name: self._called(self._entry()) for name in self._some(PROMPTS)}
        if self._chance(0.7):
            made["resources"] = {name: self._entry() for name in self._some(URIS, 8)}
        if self._chance(0.7):
            made["methods"] = {name: self._entry() for name in self._some(METHODS)}
        for member, values in (("scopes", SCOPES), ("environments", ENVIRONMENTS), ("tenants", TENANTS)):
            if self._chance(0.1):
                made[member] = sorted(self._some(values, 1))
        if self._chance(0.1):
            made["hours"] = self._hours()
        if self._chance(0.1):
            made["budgets"] = self._budgets()
        if self._chance(self._odd):
            made[self._random.choice(("tolls", "Tools", "note"))] = {}
        return {name: self._maybe_odd(value) for name, value in made.items()}

    def _entry(self) -> Any:
        if self._chance(0.12):
            return False
        entry: dict[str, Any] = {}
        if self._chance(0.7):
            entry["effect"] = self._random.choice(("read", "read", "write"))
        if entry.get("effect") == "write" or self._chance(0.3):
            entry["approval"] = self._approval()
        for member, values in (
            ("scopes", SCOPES), ("environments", ENVIRONMENTS), ("tenants", TENANTS), ("clear", ("/a", "/b")),
            ("mask", ("/c",)),
        ):  # fmt: skip
            if self._chance(0.1):
                entry[member] = sorted(self._some(values, 1))
        if self._chance(0.15):
            entry["hours"] = self._hours()
        if self._chance(0.2):
            entry["disclose"] = self._chance(0.5)
        if self._chance(self._odd):
            entry[self._random.choice(("aproval", "Effect", "scope"))] = ["x"]
        return {name: self._maybe_odd(value) for name, value in entry.items()}

    def _approval(self) -> Any:
        if self._chance(0.3):
            return {"needed": False}
        terms: dict[str, Any] = {"approvers": sorted(self._some(("user:ann", "group:payers", "scope:ops"), 1))}
        if self._chance(0.3):
            terms["needed"] = True
        if self._chance(0.3):
            terms["answers"] = self._random.choice(("covered", "again"))
        if self._chance(0.3):
            terms |= {"uses": self._random.randint(1, 5), "ttl_s": 60, "min_approvers": 1}
        if self._chance(0.3):
            terms["steps"] = [
                {name: self._maybe_odd(value) for name, value in step.items()}
                for step in (
                    {"argument": "/n", "above": self._random.choice((0, 1, 50)), "min_approvers": more}
                    for more in (2, 3)
                )
            ]
        return {name: self._maybe_odd(value) for name, value in terms.items()}

    def _called(self, entry: Any) -> Any:
        """What a tool or a prompt may say besides."""
        if entry is False:
            return entry
        if self._chance(0.4):
            pointers = self._some(("/path", "/n", "/a/b", "/\u00e9"), 1)
            entry["arguments"] = self._maybe_odd({pointer: self._rule() for pointer in pointers})
        if self._chance(0.2):
            entry["budgets"] = self._budgets()
        return entry

    def _rule(self) -> Any:
        rule = {
            member: self._random.choice(values)
            for member, values in (
                ("optional", (True, True, False)), ("each", (True, False)), ("one_of", (["eur", 1], list(VALUES))),
                ("within", (["/srv/public/"], ["/x/", "/srv/public/a/"], ["/"])), ("sql", ("read_only",)),
                ("at_least", (0, 0.5)), ("at_most", (50, 1e9)),
            )
            if self._chance(0.25)
        }  # fmt: skip
        if self._chance(self._odd):
            rule["with_in"] = 1
        return self._maybe_odd({name: self._maybe_odd(value) for name, value in rule.items()})

    def _hours(self) -> Any:
        window: dict[str, Any] = {}
        for member, values in (
            ("days", (["mon"], ["tue", "sun"], ["mon", "tue", "wed", "thu", "fri", "sat", "sun"])),
            ("from", ("00:00", "08:00", "22:00", "23:59")), ("until", ("06:00", "18:00", "24:00")), ("zone", ZONES),
            ("first_day", ("1970-01-01", "2026-12-01")), ("last_day", ("2026-11-30", "2026-12-31")),
        ):  # fmt: skip
            if self._chance(0.4):
                window[member] = self._random.choice(values)
        if self._chance(self._odd):
            window[self._random.choice(("day", "from", "last_day"))] = self._random.choice(
                ("8:00", "2026-1-1", "mon")
            )
        return self._maybe_odd([{name: self._maybe_odd(value) for name, value in window.items()}])

    def _budgets(self) -> Any:
        budget: dict[str, Any] = {"count": self._random.randint(1, 9), "window_s": 60}
        if self._chance(0.5):
            budget["per"] = self._random.choice(("subject", "client", "tenant", "all"))
        return self._maybe_odd({"b": {name: self._maybe_odd(value) for name, value in budget.items()}})

    def _arguments(self) -> dict[str, Any]:
        if self._chance(0.7):
            value = self._random.choice
            return {"path": value(VALUES), "n": value(VALUES), "a": {"b": value(VALUES)}, "\u00e9": value(VALUES)}
        return self._random.choice(
            ({}, {"a": 1}, {"path": "/srv/x", "n": [1, 2.5, None]}, {"\u00e9": {"b": "\u0000"}})
        )

    def _named(self, method: str) -> Any:
        pick = self._random.choice
        if method == "completion/complete":
            kind = pick(("ref/prompt", "ref/resource", "ref/none"))
            return {"ref": {"type": kind, "name": pick(PROMPTS), "uri": pick(URIS)}, "argument": {"name": "x"}}
        if method == "subscriptions/listen":
            wanted: dict[str, Any] = {}
            if self._chance(0.6):
                wanted["resourceSubscriptions"] = pick((self._some(URIS), "text", [1]))
            if self._chance(0.4):
                wanted["taskIds"] = pick((["t0"], ["t0", "t1"], []))
            return {"notifications": wanted}
        return {}

    def _candidates(self, method: str) -> list[dict[str, Any]]:
        of = {"tools/list": TOOLS, "prompts/list": PROMPTS}.get(method, URIS)
        return [{"id": name} for name in self._some(of)]
