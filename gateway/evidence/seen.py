"""A pack as its checks read it: exchanges, the record's lines, metrics, each from its bytes alone.

Nothing here trusts a file: what is missing or of another form raises `Unproven`, and the check fails.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import orjson

from gateway.contract.chain import read_line
from gateway.contract.refusals import Refusal

RECORD: Final = "audit/record.jsonl"
LOG: Final = "audit/log.jsonl"
_OF_REQUESTS: Final = frozenset({"decision", "outcome", "refusal"})
_SAMPLE: Final = re.compile(r"^(\w+)(?:\{([^}\n]*)\})? (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(?<!\w)(\w+)="([^"]*)"')


class Unproven(Exception):  # noqa: N818 - says what came instead
    """What was expected is not what was kept."""


def need(holds: object, instead: str) -> None:
    """Raises `Unproven` with what came instead."""
    if not holds:
        raise Unproven(instead)


@dataclass(frozen=True)
class Exchange:
    """One exchange of a transcript (wire.py), whose body is read once."""

    told: Mapping[str, Any]

    @property
    def status(self) -> int:
        """The HTTP status, 0 where no answer came."""
        answer = self.told["answer"]
        return int(answer["status"]) if answer else 0

    @property
    def headers(self) -> Mapping[str, str]:
        """The answer's headers, names in lower case."""
        answer = self.told["answer"]
        headers: Mapping[str, str] = answer["headers"] if answer else {}
        return headers

    @property
    def text(self) -> str:
        """The answer's body as it came."""
        answer = self.told["answer"]
        return str(answer["body"]) if answer else ""

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """The messages of an event stream, in order; those that are whole."""
        found = []
        for line in self.text.splitlines():
            if line.startswith("data:"):
                try:
                    message = orjson.loads(line[5:])
                except ValueError:
                    continue
                if isinstance(message, dict):
                    found.append(message)
        return found

    @cached_property
    def document(self) -> dict[str, Any]:
        """The one JSON-RPC response, or the JSON document; empty where there is none."""
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            return next((one for one in reversed(self.events) if "result" in one or "error" in one), {})
        try:
            document = orjson.loads(self.text)
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}

    @property
    def error(self) -> Mapping[str, Any]:
        """The JSON-RPC error, empty where there is none."""
        error = self.document.get("error")
        return error if isinstance(error, dict) else {}

    @property
    def result(self) -> Mapping[str, Any]:
        """The result, empty where there is none."""
        result = self.document.get("result")
        return result if isinstance(result, dict) else {}

    @property
    def ticket(self) -> Mapping[str, Any]:
        """The ticket that an error names, empty where there is none."""
        data = self.error.get("data")
        ticket = data.get("ticket") if isinstance(data, dict) else None
        return ticket if isinstance(ticket, dict) else {}

    @property
    def decision(self) -> str:
        """The id that the answer and its records share."""
        return self.headers.get("ostiary-decision", "")

    @property
    def trace(self) -> str:
        """The trace id that the request carried."""
        return str(self.told["trace"])

    @property
    def short(self) -> str:
        """What came, in a few words."""
        if not self.status:
            return f"no answer ({self.told['fault']})"
        code = self.error.get("code")
        name = f", {code}" if code is not None else ", isError" if self.result.get("isError") else ""
        broke = f", then {self.told['fault']}" if self.told["fault"] else ""
        return f"HTTP {self.status}{name}{broke}"


@dataclass
class Seen:
    """All files of a pack, by name."""

    files: Mapping[str, bytes]
    _documents: dict[str, Any] = field(default_factory=dict)
    _steps: dict[str, dict[str, Exchange]] = field(default_factory=dict)

    def raw(self, name: str) -> bytes:
        """A file. Raises `Unproven` where it is missing or was withheld."""
        if name not in self.files:
            raise Unproven(f"{name} is missing: this was not asked")
        data = self.files[name]
        if data.startswith(b'{"withheld":'):
            raise Unproven(f"{name} was withheld, for it held {', '.join(orjson.loads(data)['withheld'])}")
        return data

    def document(self, name: str) -> Any:
        """A file of JSON."""
        if name not in self._documents:
            self._documents[name] = orjson.loads(self.raw(name))
        return self._documents[name]

    def is_transcript(self, name: str) -> bool:
        """Whether a file is one."""
        return name.endswith(".json") and isinstance(told := self.document(name), dict) and "steps" in told

    def steps(self, name: str) -> dict[str, Exchange]:
        """A transcript's exchanges by the names of their steps, in order."""
        if name not in self._steps:
            self._steps[name] = {str(told["step"]): Exchange(told) for told in self.document(name)["steps"]}
        return self._steps[name]

    @cached_property
    def lines(self) -> list[Mapping[str, Any]]:
        """The record's lines whose content is that of their hash; gaps and the statement left out."""
        found = []
        for line in self.raw(RECORD).splitlines(keepends=True):
            record, why = read_line(line)
            if not why:
                found.append(record)
        return found

    @cached_property
    def _by_id(self) -> Mapping[str, list[Mapping[str, Any]]]:
        found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for line in self.lines:
            if line["kind"] not in _OF_REQUESTS:
                continue
            found[str(line.get("decision_id"))].append(line)
            if line.get("trace_id"):
                found[f"trace {line['trace_id']}"].append(line)
        return found

    def records(self, exchange: Exchange) -> Sequence[Mapping[str, Any]]:
        """What was written down of an exchange: by its decision's id, or by its trace where no answer came."""
        by = self._by_id
        return by.get(exchange.decision, ()) if exchange.decision else by.get(f"trace {exchange.trace}", ())

    def refused(self, exchange: Exchange, row: Refusal) -> None:
        """The exchange is refused by exactly this row, on the wire and in the record, and nothing was forwarded."""
        want = row.value
        if want.result:
            need(exchange.status == want.status and exchange.result.get("isError") is True, exchange.short)
        else:
            need((exchange.status, exchange.error.get("code")) == (want.status, want.code), exchange.short)
        if want.challenge is not None:
            told = exchange.headers.get("www-authenticate", "")
            right = "resource_metadata=" in told and (not want.challenge or f'error="{want.challenge}"' in told)
            need(right, f"{exchange.short} with the challenge {told!r}")
        records = self.records(exchange)
        need(len(records) == 1, f"{exchange.short}, and {len(records)} records of it")
        record = records[0]
        reasons = list(record.get("reasons") or [])
        found = f"a record of kind {record['kind']} with the reasons {', '.join(map(str, reasons)) or '-'}"
        need(record["kind"] == "refusal" and reasons[:1] == [row.reason], found)
        need((record.get("status"), record.get("code")) == (want.status, want.code), f"{found}, another status")

    def passed(self, exchange: Exchange, outcome: str = "executed") -> Mapping[str, Any]:
        """The exchange was answered with a result, after one decision and one outcome -> the outcome's record."""
        need(exchange.status == 200 and exchange.result and not exchange.told["fault"], exchange.short)
        records = self.records(exchange)
        kinds = [record["kind"] for record in records]
        need(sorted(kinds) == ["decision", "outcome"], f"{exchange.short}, and the records {kinds}")
        ended = records[kinds.index("outcome")]
        need(ended.get("outcome") == outcome, f"{exchange.short}, and the outcome {ended.get('outcome')}")
        return ended

    def decided(self, exchange: Exchange) -> Mapping[str, Any]:
        """The record of the decision. Raises `Unproven` where there is not exactly one."""
        found = [record for record in self.records(exchange) if record["kind"] == "decision"]
        need(len(found) == 1, f"{exchange.short}, and {len(found)} decisions of it")
        return found[0]


def metric(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    """A metric's samples in Prometheus' text format: (labels, value)."""
    return [
        (dict(_LABEL.findall(labels)), float(value))
        for found, labels, value in _SAMPLE.findall(text)
        if found == name
    ]
