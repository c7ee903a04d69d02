"""`params.arguments` against the tool's own `inputSchema`: the contract that the server published.

Compiled once for each definition; what it may cost is bounded before it runs (effort.py), no pattern backtracks
without limit, nothing outside of the schema is ever read. Arguments that break it are the model's to mend: the
refusal says what is missing, wrong or unknown, and never what was sent. What can't be checked is not let through
(server/tools, "Error handling"; basic, "JSON Schema usage").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import orjson
from jsonschema_rs import (
    Draft202012Validator,
    FancyRegexOptions,
    ReferencingError,
    RegexOptions,
    ValidationError,
    ValidationErrorKind,
    Validator,
    meta,
)

from gateway.contract.complaints import HARD_PATTERN, MOST, complain, missing, pointer, unknown
from gateway.contract.dialects import modernise
from gateway.contract.effort import MOST_WORK, Effort
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.schemas import Schema, Unusable

Mode = Literal["declared", "strict", "off"]

MAX_SCHEMA_BYTES: Final = 262_144
EXPLAINED_WORK: Final = 4_000
"""The validator says everything that is wrong only where that takes milliseconds: it is 500 times slower at it."""

FORMATS: Final = frozenset(
    {"date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "json-pointer", "uri"}
    | {"uri-reference", "uuid"}
)
"""The formats that are asserted where formats are."""

_PATTERN_BYTES: Final = 1 << 20
_BACKTRACKS: Final = 1_000
_HARD_TEXT: Final = 2_048
_HARD_TEXTS: Final = 8_192
_LINEAR: Final = RegexOptions(size_limit=_PATTERN_BYTES, dfa_size_limit=1 << 18)
_FANCY: Final = FancyRegexOptions(backtrack_limit=_BACKTRACKS, size_limit=_PATTERN_BYTES, dfa_size_limit=1 << 18)
_MAX_PATTERNS: Final = 200
_SMALL_BYTES: Final = 16_384
_SMALL: Final = RegexOptions(size_limit=_SMALL_BYTES, dfa_size_limit=1 << 18)

MAX_PATTERN_BYTES: Final = 16 << 20
"""What the patterns of one schema may take when compiled: a short text can make a megabyte of each."""

_SENTENCE: Final = "The tool was not run: its arguments do not fit its inputSchema."


class _Hard:
    """How many characters one check may try on patterns with look-around or back-references."""

    __slots__ = ("exceeded", "left")

    def __init__(self) -> None:
        self.left = _HARD_TEXTS
        self.exceeded = False

    def start(self) -> None:
        """A new check."""
        self.left, self.exceeded = _HARD_TEXTS, False

    def keyword(self) -> type[Any]:
        """The keyword that stands in for `pattern`, which the linear engine can't take."""
        gauge = self

        class HardPattern:
            """One such pattern."""

            def __init__(self, _parent: object, pattern: Any, _path: object) -> None:
                self._validator = Draft202012Validator({"pattern": pattern}, pattern_options=_FANCY, offline=True)

                self._pattern = str(pattern)

            def validate(self, text: Any) -> None:
                """Raise where `text` is one that does not match, or can't be told to match with so little work."""
                if not isinstance(text, str):
                    return
                gauge.left -= len(text)
                if len(text) > _HARD_TEXT or gauge.left < 0:
                    gauge.exceeded = True
                if gauge.exceeded:
                    raise ValueError(self._pattern)
                try:
                    self._validator.validate(text)
                except ValidationError as error:
                    gauge.exceeded |= not isinstance(error.kind, ValidationErrorKind.Pattern)
                    raise ValueError(self._pattern) from None

        return HardPattern


class Contract:
    """What a tool's arguments must be. Made once, from the tool's `inputSchema`; raises `Unusable` where it is none.

    `weight` is what keeping it costs (bytes, roughly). One that is `rest`ed holds no compiled schema any more and is
    slower, never laxer. `formats`: whether `format` is asserted, which the revision leaves open and a grant needs;
    `heaviest`: bytes that its patterns may take.
    """

    __slots__ = ("_branches", "_formats", "_hard", "_open", "_required", "_text", "_validator", "_weights", "weight")

    def __init__(
        self, schema: Schema, *, strict: bool, formats: bool = False, heaviest: int = MAX_PATTERN_BYTES
    ) -> None:
        if len(orjson.dumps(schema)) > MAX_SCHEMA_BYTES:
            raise Unusable("too large a schema")
        modern = modernise(schema, formats=formats)
        try:
            meta.validate(modern)
        except ValidationError as error:
            raise Unusable(f"not a JSON Schema: {error.kind.name} at {pointer(error.instance_path)!r}") from None
        effort = Effort(modern)
        if formats:
            _check_formats(effort.schemas)
        if strict:
            for found in list(effort.closed_schemas()):
                found.setdefault("unevaluatedProperties", False)
            effort = Effort(modern)
        self._weights = effort.weights()
        if self._weights.values[0] > MOST_WORK:
            raise Unusable("references that multiply")
        self._hard: _Hard | None = None
        patterns = self._sort_patterns(effort.schemas, heaviest)
        self._required = [name for name in modern.get("required", ()) if isinstance(name, str)][:MOST]
        closed = False in (modern.get("additionalProperties"), modern.get("unevaluatedProperties"))
        plain = modern.keys().isdisjoint(("$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties"))
        self._open = None if not closed or not plain else frozenset(modern.get("properties", ()))
        self._branches = any(not found.keys().isdisjoint(("anyOf", "oneOf")) for found in effort.schemas)
        self._text = orjson.dumps(modern).decode()
        self._formats = formats
        self.weight = len(self._text) + patterns
        self._validator: Validator | None = self._compile()

    def admits(self, arguments: Mapping[str, Any], text: bytes) -> bool:
        """Whether arguments fit, without saying why not; those that are too much to be checked do not."""
        if self._weights.exceed(arguments, text):
            return False
        if self._hard is not None:
            self._hard.start()
        validator = self._validator or self._compile()
        return bool(validator.is_valid(arguments)) and not (self._hard is not None and self._hard.exceeded)

    def check(self, arguments: Mapping[str, Any], text: bytes) -> None:
        """Raise `Refused(ARGUMENTS_INVALID)` for arguments that do not fit, or that are too much to be checked.

        `text` is the JSON text that they were read from, or one that holds it.
        """
        if self._weights.exceed(arguments, text):
            raise _refused("too much to be checked", "They are too large or too deep to be checked.")
        validator = self._validator or self._compile()
        hard = self._hard
        if hard is None:
            if validator.is_valid(arguments):
                return
        else:
            hard.start()
            if validator.is_valid(arguments) and not hard.exceeded:
                return
            if hard.exceeded:
                raise _refused("texts too long for a pattern", "A text is too long for its pattern to be checked.")
        raise self._explain(validator, arguments)

    def rest(self) -> None:
        """Give the compiled schema up."""
        self._validator = None

    def _explain(self, validator: Validator, arguments: Mapping[str, Any]) -> Refused:
        if self._hard is not None:
            self._hard.start()
        if self._weights.of(arguments) <= EXPLAINED_WORK:
            lines, places = complain(validator.iter_errors(arguments))
        else:
            lines, places = self._look_at_the_top(arguments)
            if not lines and not self._branches:
                lines, places = complain(_first_error(validator, arguments))
        more = f"\n- and {len(lines) - MOST} more" if len(lines) > MOST else ""
        told = "\n".join(f"- {line}" for line in lines[:MOST]) + more
        return _refused(" ".join(dict.fromkeys(places[:8])), told or "They are too large to say where.")

    def _look_at_the_top(self, arguments: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """What is missing or unknown among the arguments themselves."""
        lines = [missing(name) for name in self._required if name not in arguments]
        places = ["/required"] if lines else []
        strange = [] if self._open is None else [name for name in arguments if name not in self._open]
        if strange:
            lines.append(unknown(strange))
            places.append("/properties")
        return lines, places

    def _sort_patterns(self, schemas: Sequence[dict[str, Any]], heaviest: int) -> int:
        """Have those patterns tried with a limit that a linear engine can't take -> what they take (bytes, at most).

        Bounded before the whole is compiled: the first pattern too many ends it.
        """
        with_pattern = [found for found in schemas if isinstance(found.get("pattern"), str)]
        names = [pattern for found in schemas for pattern in found.get("patternProperties", ())]
        if len(with_pattern) + len(names) > _MAX_PATTERNS:
            raise Unusable(f"more than {_MAX_PATTERNS} patterns")
        taken = 0
        for pattern in (*(found["pattern"] for found in with_pattern), *names):
            taken += _SMALL_BYTES if _compiles(pattern, _SMALL) else _PATTERN_BYTES
            if taken > heaviest:
                raise Unusable(f"patterns that take more than {heaviest} bytes")
        for found in schemas:
            found.pop(HARD_PATTERN, None)
        for found in with_pattern:
            if not _compiles(found["pattern"], _LINEAR) and _compiles(found["pattern"], _FANCY):
                found[HARD_PATTERN] = found.pop("pattern")
                self._hard = self._hard or _Hard()
        return taken

    def _compile(self) -> Validator:
        keywords = {} if self._hard is None else {HARD_PATTERN: self._hard.keyword()}
        try:
            return Draft202012Validator(
                self._text, pattern_options=_LINEAR, keywords=keywords, validate_formats=self._formats, offline=True
            )
        except (ValidationError, ReferencingError, ValueError) as error:
            raise Unusable(f"not a JSON Schema that can be compiled: {str(error).splitlines()[0][:256]}") from None


def _check_formats(schemas: Sequence[dict[str, Any]]) -> None:
    """Raise `Unusable` for a `format` that would not be asserted: it must not look like a bound and be none."""
    for found in schemas:
        named = found.get("format", "date")
        if named not in FORMATS:
            raise Unusable(f"a format that can't be checked: {str(named)[:64]!r}")


def _first_error(validator: Validator, arguments: Mapping[str, Any]) -> list[ValidationError]:
    """Quick where the schema has no branches, each of which would be explained whole."""
    try:
        validator.validate(arguments)
    except ValidationError as error:
        return [error]
    return []


def _compiles(pattern: str, options: RegexOptions | FancyRegexOptions) -> bool:
    try:
        Draft202012Validator({"pattern": pattern}, pattern_options=options, offline=True)
    except ValueError:
        return False
    return True


def _refused(detail: str, told: str) -> Refused:
    return Refused(Refusal.ARGUMENTS_INVALID, detail, message=f"{_SENTENCE}\n{told}")
