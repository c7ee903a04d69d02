"""House rules about the refusal table."""

from gateway.contract.refusals import Refusal

ALLOWED_SPEC_CODES = {-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022}


def test_codes_stay_in_their_ranges() -> None:
    """A row's code is one of the spec's, or HTTP status x 100 + ordinal (contract.md section 7)."""
    for refusal in Refusal:
        row = refusal.value
        assert row.code in ALLOWED_SPEC_CODES or row.code // 100 == row.status, refusal.name
