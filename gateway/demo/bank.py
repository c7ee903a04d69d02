"""The demo's world: a small bank whose books are a file that both replicas append to.

The books are the ground truth of the tour: whether a transfer happened, and how often, is read from here and never
from what any server or gateway says. One line is one append, so lines of two processes do not mix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.demo.doorstep import Arrivals

OPENING = {"operating": 12_000_000, "payroll": 4_500_000, "supplier-acme": 0, "supplier-globex": 0}
"""Opening balances in cents."""


class Declined(Exception):  # noqa: N818 - what a bank says
    """The transfer can't be booked; the text says why."""


@dataclass(frozen=True, slots=True)
class Books(Arrivals):
    """The transfers that happened and the MCP requests that arrived, below one directory."""

    def balance(self, account: str) -> int:
        """The balance in cents. Raises `Declined` for an account that does not exist."""
        if account not in OPENING:
            raise Declined(f"there is no account {account!r}")
        moved = sum(
            line["amount_cents"] * ((line["to_account"] == account) - (line["from_account"] == account))
            for line in self.transfers()
        )
        return OPENING[account] + int(moved)

    def transfer(self, from_account: str, to_account: str, amount_cents: int, memo: str, replica: str) -> int:
        """Book one transfer and return how many there are now. Raises `Declined`."""
        if amount_cents <= 0:
            raise Declined("the amount must be positive")
        self.balance(to_account)
        if amount_cents > self.balance(from_account):
            raise Declined(f"{from_account} does not hold that much")
        self._append(
            "transfers.jsonl",
            {
                "from_account": from_account,
                "to_account": to_account,
                "amount_cents": amount_cents,
                "memo": memo,
                "replica": replica,
            },
        )
        return len(self.transfers())

    def transfers(self) -> list[dict[str, Any]]:
        """Every transfer that was booked, in order."""
        return self._lines("transfers.jsonl")
