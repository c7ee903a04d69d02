"""The ids under which requests are recorded and told of."""

from __future__ import annotations

import re
import secrets
from itertools import islice

import pytest

from gateway.decision_ids import AT_ONCE, fresh_ids


def test_an_id_is_128_random_bits_and_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are drawn at once, each is all of its own bits, once, and what is drawn is never drawn again."""
    drawn, system = list[str](), secrets.token_hex

    def draw(count: int) -> str:
        drawn.append(system(count))
        return drawn[-1]

    monkeypatch.setattr(secrets, "token_hex", draw)
    one, other = fresh_ids(), fresh_ids()
    ids = [*islice(one, 2 * AT_ONCE + 1), *islice(other, AT_ONCE)]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[0-9a-f]{32}", found) for found in ids)
    assert "".join(ids[: 2 * AT_ONCE]) == "".join(drawn[:2])
    assert "".join(ids[-AT_ONCE:]) == drawn[3]
