"""What the pages say in words: states, verbs, reasons why not. Stable names -> sentences, in one table each."""

from __future__ import annotations

from collections.abc import Mapping

STATES: Mapping[str, str] = {
    "pending": "Waiting for a decision",
    "approved": "Approved",
    "used": "Used",
    "expired": "Expired",
    "revoked": "Revoked",
    "denied": "Denied",
    "withdrawn": "Withdrawn",
}

MEANINGS: Mapping[str, str] = {
    "pending": "The call is held. Nothing has run.",
    "approved": "The call runs once: as soon as its client, or the task that waits for it, makes it again.",
    "used": "The approval was used and is worth nothing any more.",
    "expired": "Its time is over. The call needs a new request.",
    "revoked": "The approval was taken back.",
    "denied": "The same call is refused until this request's time is over.",
    "withdrawn": "Whoever asked took it back.",
}

DONE: Mapping[str, str] = {
    "approve": "approved",
    "deny": "denied",
    "revoke": "revoked the approval",
    "withdraw": "withdrew the request",
    "justify": "added to the justification",
    "resolve": "looked into the unknown outcome",
}

RUNS: Mapping[str, str] = {
    "claimed": "The call began",
    "sent": "The call was sent and is running",
    "waiting": "The server asked for input; the call waits for the answer",
    "executed": "The call ran",
    "failed": "The call failed, or the server answered with an error",
    "unknown": "Nobody knows how the call ended",
    "abandoned": "The call waited for an answer and was given up",
}

BARRED: Mapping[str, str] = {
    "own_request": "You asked for this yourself, or act for whoever did. Somebody else has to decide.",
    "not_an_approver": "You are not among those who may decide this.",
    "already_approved": "You have approved this. It needs the approval of others as well.",
    "insufficient_scope": "Your sign-in does not carry the right to do this.",
    "not_your_request": "Only whoever asked may do this.",
    "said_enough": "You have added to this as often as one can.",
}

MOVED: Mapping[str, str] = {
    "stale": "It is no longer what the page showed.",
    "moved": "Somebody was faster by a moment.",
    "already_approved": "You have approved it already.",
    "nothing_unknown": "It has no outcome that is unknown.",
    "said_enough": "You have added to it as often as one can.",
    "denied": "This very call was denied, and is refused until that request's time is over.",
    "in_flight": "This very call was approved and is running.",
    "waiting": "This very call was approved and waits for an answer that its server asked for.",
    "unknown": "This very call was approved and sent, and nobody knows how it ended.",
}

WRONG: Mapping[str, str] = {
    "comment_required": "Say in a few words what you found out, or why: it stands in the record.",
    "comment_too_long": "The comment is too long.",
    "justification_too_long": "The justification is too long.",
    "seen_missing": "The form does not say what you were shown. Look at the page again and decide there.",
    "query_invalid": "These filters are none that this page knows.",
    "time_invalid": "That is no time. Write 2026-11-30, 2026-11-30T10:15 (UTC), or 2h for two hours ago.",
    "cursor_invalid": "There is no such page of the list.",
    "body_too_large": "That was more than this form takes.",
    "request_timeout": "The form did not arrive in time.",
    "content_unsupported": "That was not sent by this page's form.",
}
