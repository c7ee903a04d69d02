"""What the owner of an errand reads: the task that a held call became, as the tasks extension has it.

The row's stage is the task's status; a result, an error or questions come with the status that they belong to and
with no other (docs/tasks.md, "A held call as a task"; the extension's "Task Status").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from approvals.errand import Errand, Questions, Stage
from approvals.showing import iso
from gateway.contract.guard import capability_of, check_input_requests
from gateway.contract.passage import Call
from gateway.contract.refusals import Refusal, Refused

POLL_MS: Final = 2000
INTERRUPTED: Final = "interrupted"
"""Why an errand can't go on whose lease lapsed (`approvals.errand.next_step`)."""

LOST: Final = (
    "This call was approved and begun, and what ran it has stopped: its outcome is unknown; it is not run again."
)
RUNS: Final = "The call was approved and runs."
ANSWERED: Final = "The answers wait for an approval of their own."


def created(errand: Errand, handle: str, says: str) -> dict[str, Any]:
    """A `CreateTaskResult`."""
    return {"resultType": "task", **_state(errand, handle, _status(errand), says)}


def told(errand: Errand, handle: str, says: str, call: Call) -> dict[str, Any]:
    """The result of `tasks/get`. Raises `Refused(CAPABILITY_MISSING)` for a question that its client can't answer."""
    status = _status(errand)
    result = {"resultType": "complete", **_state(errand, handle, status, says)}
    if errand.stage is Stage.ENDED:
        return result | {name: errand.told[name] for name in ("result", "error") if name in errand.told}
    if status == "input_required" and (questions := errand.questions) is not None:
        try:
            check_input_requests(call, questions.open)
        except Refused as refused:
            needed = capability_of(questions.open)
            raise Refused(Refusal.CAPABILITY_MISSING, refused.detail, requiredCapabilities=needed) from None
        result["inputRequests"] = questions.open
    return result


def asked_by(result: Mapping[str, Any], leg: int) -> Questions:
    """A leg's `InputRequiredResult`, whose state is sealed -> the task's questions."""
    requests = result.get("inputRequests") or {}
    return Questions(leg, result["requestState"], {f"{leg}.{key}": one for key, one in requests.items()})


def _status(errand: Errand) -> str:
    if errand.stage is Stage.ENDED:
        return str(errand.told["status"])
    questions = errand.questions
    asks = errand.stage is Stage.ASKED and questions is not None and bool(questions.open)
    return "input_required" if asks else "working"


def _state(errand: Errand, handle: str, status: str, says: str) -> dict[str, Any]:
    state: dict[str, Any] = {"taskId": handle, "status": status}
    if says and status == "working":
        state["statusMessage"] = says
    return state | {
        "createdAt": iso(errand.created_at),
        "lastUpdatedAt": iso(errand.updated_at),
        "ttlMs": max(0, round((errand.expires_at - errand.created_at) * 1000)),
        "pollIntervalMs": POLL_MS,
    }
