"""THE TABLE of every way to be refused, and the one exception that says so.

A row's name in lower case is the audit reason, the metric label and the anchor of `docs/refusals.md`; it is never
written a second time. The caller gets the row's fixed sentence and the allowed `data`; `detail` goes to the
audit record only. Codes outside the JSON-RPC and MCP ranges are HTTP status x 100 + ordinal (contract.md section 7).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022


@dataclass(frozen=True, slots=True)
class Row:
    """One way to be refused.

    `status` is the HTTP status, `code` the JSON-RPC error code, `sentence` what every caller may read.
    `retry_after_s` > 0 sends `Retry-After`. `challenge` is the RFC 6750 `error` of a `WWW-Authenticate` header:
    `None` sends no such header, `""` sends the challenge without an `error` (no token was presented).
    `close` closes the connection, because what follows on it cannot be trusted or was not read.
    `result` answers as the tool itself would, with a result that says `isError`: the model can mend it. The code
    then stands in the record alone.
    """

    status: int
    code: int
    sentence: str
    retry_after_s: int = 0
    challenge: str | None = None
    close: bool = False
    result: bool = False


@unique
class Refusal(Enum):
    """Every way to be refused. The order follows the corridor."""

    REQUEST_MALFORMED = Row(400, INVALID_REQUEST, "The HTTP request is malformed.", close=True)
    SERVER_UNKNOWN = Row(404, INVALID_REQUEST, "No MCP server is served at this path.")
    METHOD_NOT_POST = Row(405, INVALID_REQUEST, "An MCP endpoint answers POST only.")
    HEAD_TOO_LARGE = Row(431, INVALID_REQUEST, "The request's header section is too large.", close=True)
    HOST_FORBIDDEN = Row(403, INVALID_REQUEST, "The Host of the request is not one that is served here.")
    ORIGIN_FORBIDDEN = Row(403, INVALID_REQUEST, "The Origin of the request is not allowed.")
    TOKEN_MISSING = Row(401, 40101, "A bearer token is required.", challenge="")
    TOKEN_INVALID = Row(
        401,
        40102,
        "The bearer token was not accepted; get a new one for exactly this resource.",
        challenge="invalid_token",
    )
    KEYS_UNAVAILABLE = Row(503, 50301, "The issuer's keys are not available; try again.", retry_after_s=5)
    CALLER_BUSY = Row(429, 42902, "Too many requests of this caller are being served; try again.", retry_after_s=1)
    ACCEPT_UNSUPPORTED = Row(406, INVALID_REQUEST, "Accept must admit application/json and text/event-stream.")
    CONTENT_UNSUPPORTED = Row(
        415, INVALID_REQUEST, "The body must be application/json in UTF-8, without a content coding."
    )
    BODY_TOO_LARGE = Row(413, INVALID_REQUEST, "The request body is too large.", close=True)
    REQUEST_TIMEOUT = Row(408, INVALID_REQUEST, "The request did not arrive in time.", close=True)
    BODY_NOT_JSON = Row(400, PARSE_ERROR, "The body is not one strict JSON document.")
    BODY_AMBIGUOUS = Row(
        400, INVALID_REQUEST, "The body has more than one reading: a name is there twice, or nearly a reserved one."
    )
    ENVELOPE_INVALID = Row(400, INVALID_REQUEST, "The body is not one JSON-RPC 2.0 request or notification.")
    PARAMS_INVALID = Row(400, INVALID_PARAMS, "The parameters do not have the form that the method needs.")
    SESSION_MISMATCH = Row(400, INVALID_REQUEST, "The request does not agree with its session.")
    SESSION_UNKNOWN = Row(404, INVALID_REQUEST, "The session is not known here or is over; begin with initialize.")
    HEADER_MISMATCH = Row(400, HEADER_MISMATCH, "A mirrored MCP header does not agree with the body.")
    META_MISSING = Row(
        400,
        INVALID_PARAMS,
        "params._meta must hold io.modelcontextprotocol/protocolVersion (a string) "
        "and io.modelcontextprotocol/clientCapabilities (an object).",
    )
    VERSION_UNSUPPORTED = Row(400, UNSUPPORTED_VERSION, "The protocol version is not supported.")
    METHOD_UNKNOWN = Row(404, METHOD_NOT_FOUND, "The method does not exist here.")
    IDEMPOTENCY_KEY_INVALID = Row(
        400, INVALID_PARAMS, "The idempotency key is not 1 to 255 visible characters, or was given twice."
    )
    CAPABILITY_MISSING = Row(400, MISSING_CAPABILITY, "The client lacks a capability that this needs.")
    STATE_NOT_ACCEPTED = Row(
        400, INVALID_PARAMS, "The requestState was not accepted; start the call anew, without it."
    )
    POLICY_UNAVAILABLE = Row(503, 50302, "The policy could not be asked; try again.", retry_after_s=1)
    SCOPE_INSUFFICIENT = Row(
        403, 40301, "The token lacks a scope that this operation needs.", challenge="insufficient_scope"
    )
    POLICY_DENIED = Row(403, 40302, "The policy does not allow this operation.")
    TASK_UNKNOWN = Row(400, INVALID_PARAMS, "There is no such task.")
    TOOL_QUARANTINED = Row(
        403,
        40305,
        "The tool's definition is new or has changed; whoever answers for the server has to accept it first.",
    )
    ARGUMENTS_INVALID = Row(200, INVALID_PARAMS, "The arguments do not fit the tool's inputSchema.", result=True)
    RATE_LIMITED = Row(429, 42901, "Too many requests; try again later.", retry_after_s=60)
    APPROVAL_REQUIRED = Row(
        403, 40303, "A person must approve this call first; repeat the identical call once it is approved."
    )
    APPROVAL_REFUSED = Row(403, 40304, "This call is not approved and can't be run.")
    APPROVALS_UNAVAILABLE = Row(503, 50303, "The approval store is not available; try again.", retry_after_s=5)
    IDEMPOTENCY_CONFLICT = Row(409, 40901, "The idempotency key was used for another request.")
    IDEMPOTENCY_IN_FLIGHT = Row(
        409,
        40902,
        "A call under this idempotency key is running; repeat it to learn what came of it.",
        retry_after_s=2,
    )
    IDEMPOTENCY_ASKED = Row(
        409,
        40903,
        "The call under this idempotency key waits for answers; go on with the requestState of its question.",
    )
    IDEMPOTENCY_UNKNOWN = Row(
        409, 40904, "The call under this idempotency key was sent and its outcome is unknown; it is not sent again."
    )
    IDEMPOTENCY_NOT_KEPT = Row(
        409, 40905, "The call under this idempotency key has ended and its answer was not kept; it is not sent again."
    )
    AUDIT_UNAVAILABLE = Row(
        503, 50304, "The audit record could not be written, so nothing was done; try again.", retry_after_s=5
    )
    OVERLOADED = Row(503, 50305, "The gateway is busy; try again.", retry_after_s=1)
    UPSTREAM_UNREACHABLE = Row(502, 50201, "The MCP server could not be reached.")
    UPSTREAM_INVALID = Row(502, 50202, "The MCP server's answer could not be accepted.")
    UPSTREAM_TIMEOUT = Row(504, 50401, "The MCP server did not answer in time.")
    REVISION_REQUIRED = Row(400, 40001, "This needs MCP revision 2026-07-28; the client speaks an older one.")
    SIGN_IN_REFUSED = Row(400, 40002, "The sign-in was not accepted; begin again.")
    SIGN_IN_UNAVAILABLE = Row(503, 50306, "Nobody can be signed in at the moment; try again.", retry_after_s=5)
    CLIENT_GONE = Row(499, 49901, "The client went away before its request was decided.")
    INTERNAL_ERROR = Row(500, INTERNAL_ERROR, "The gateway failed; nothing more is known here.")

    @property
    def reason(self) -> str:
        """The stable name: audit reason, metric label, documentation anchor."""
        return self.name.lower()


class Refused(Exception):  # noqa: N818 - a past participle: the value proves that the door stayed shut
    """The request goes no further. Raised by any room of the house, turned into a reply in one place.

    `detail` is for the audit record and never reaches the caller; `data` is what the caller may read beside the
    sentence (members of the JSON-RPC error's `data`), and `message` replaces the row's sentence only where the
    contract wants the header, the versions or the arguments' faults named, or a ticket's page. `request_id` is the
    JSON-RPC id where only the raising room could read it (an envelope that is not valid as a whole). `instead` is a
    result that its caller gets in place of the error; the record keeps the row. `retry_after_s` is known better
    than the row's, where it is not 0.
    """

    __slots__ = ("data", "detail", "instead", "message", "refusal", "request_id", "retry_after_s")

    def __init__(
        self,
        refusal: Refusal,
        detail: str = "",
        *,
        message: str | None = None,
        request_id: str | int | None = None,
        instead: Mapping[str, Any] | None = None,
        retry_after_s: int = 0,
        **data: Any,
    ) -> None:
        super().__init__(refusal.reason, detail)
        self.refusal = refusal
        self.detail = detail
        self.message = message
        self.request_id = request_id
        self.instead = instead
        self.retry_after_s = retry_after_s
        self.data: dict[str, Any] = data
