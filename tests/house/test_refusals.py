"""House rules about the refusal table: codes in their ranges, no row twice, every row documented once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.contract.refusals import Refusal, Refused

ALLOWED_SPEC_CODES = {-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022}
PAGE = (Path(__file__).parents[2] / "docs" / "refusals.md").read_text()
SECTIONS = re.findall(r"^### (\S+)\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)

PROMISED = {
    "origin_forbidden": (403, -32600), "host_forbidden": (403, -32600), "method_not_post": (405, -32600),
    "accept_unsupported": (406, -32600), "content_unsupported": (415, -32600), "request_timeout": (408, -32600),
    "body_too_large": (413, -32600), "head_too_large": (431, -32600), "server_unknown": (404, -32600),
    "body_not_json": (400, -32700), "body_ambiguous": (400, -32600), "envelope_invalid": (400, -32600),
    "meta_missing": (400, -32602), "params_invalid": (400, -32602), "header_mismatch": (400, -32020),
    "version_unsupported": (400, -32022), "method_unknown": (404, -32601), "capability_missing": (400, -32021),
    "token_missing": (401, 40101), "token_invalid": (401, 40102), "scope_insufficient": (403, 40301),
    "policy_denied": (403, 40302), "approval_required": (403, 40303), "approval_refused": (403, 40304),
    "state_not_accepted": (400, -32602), "idempotency_conflict": (409, 40901), "rate_limited": (429, 42901),
    "keys_unavailable": (503, 50301), "policy_unavailable": (503, 50302), "approvals_unavailable": (503, 50303),
    "audit_unavailable": (503, 50304), "overloaded": (503, 50305), "upstream_unreachable": (502, 50201),
    "upstream_invalid": (502, 50202), "upstream_timeout": (504, 50401), "internal_error": (500, -32603),
}  # fmt: skip
"""The contract's table: other tools rely on these rows; rows may be added."""


def test_codes_stay_in_their_ranges() -> None:
    """A row's code is one of the spec's, or HTTP status x 100 + ordinal (contract.md section 7)."""
    for refusal in Refusal:
        row = refusal.value
        assert row.code in ALLOWED_SPEC_CODES or row.code // 100 == row.status, refusal.name


def test_the_promised_rows_stand() -> None:
    """RPC-07: status and code of every row that the contract names."""
    rows = {refusal.reason: (refusal.value.status, refusal.value.code) for refusal in Refusal}
    assert PROMISED.items() <= rows.items()


def test_no_row_is_another_ones_alias() -> None:
    """Every name is a row of its own, with a sentence of its own and, above the spec's codes, a code of its own."""
    assert len(Refusal.__members__) == len(list(Refusal)) == len({refusal.value.sentence for refusal in Refusal})
    own = [refusal.value.code for refusal in Refusal if refusal.value.code > 0]
    assert len(own) == len(set(own))


def test_challenges_belong_to_401_and_missing_scopes() -> None:
    """`WWW-Authenticate` goes with every 401 and with insufficient scope, and with nothing else."""
    for refusal in Refusal:
        row = refusal.value
        assert (row.challenge is not None) == (row.status == 401 or refusal is Refusal.SCOPE_INSUFFICIENT)


def test_every_row_is_documented_exactly_once() -> None:
    """docs/refusals.md has one section per row, found by the row's reason, and no other."""
    assert sorted(name for name, _ in SECTIONS) == sorted(refusal.reason for refusal in Refusal)


@pytest.mark.parametrize("refusal", Refusal)
def test_the_documentation_says_what_the_row_says(refusal: Refusal) -> None:
    """A section names status, code, whom it concerns and what to do, and admits when the connection is closed."""
    text = dict(SECTIONS)[refusal.reason]
    row = refusal.value
    assert text.startswith(f"{row.status} · {row.code} · **".replace("-", "−"))
    assert "*Do:*" in text
    assert ("connection was closed" in text) == row.close


def test_a_refusal_keeps_its_detail_to_itself() -> None:
    """`detail` is for the record; what the caller may read is `message` and `data` alone."""
    refused = Refused(Refusal.POLICY_DENIED, "canary", note=1)
    assert refused.data == {"note": 1}
    assert refused.message is None
    assert refused.refusal.reason == "policy_denied"
