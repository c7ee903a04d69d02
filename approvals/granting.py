"""Which grant a call may run under: the one step that follows from those of its caller for its tool.

A grant is an approval of many calls of one tool, whose arguments fit its schemas. It is looked at only where no
ticket of the very call stands in the way or speaks for it. The policy is asked about each grant that the arguments
fit, with this very call, and holds the grant to today's terms like any approval (docs/approvals.md, "Grants").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from approvals.filed import Filed
from approvals.showing import standing
from approvals.ticket import Covers, Granted, State
from approvals.weighing import Claim, Hold, Lapse, Replace, Step, Today, no_longer_granted, weigh_running

MOST_ASKED = 8
"""Grants that the policy is asked about for one call."""


async def find_grant(
    grants: Sequence[Filed], covers: Covers, today_for: Callable[[Granted], Today | None]
) -> Step | None:
    """`Claim` a grant that covers the call, `Hold` it while all that do are busy, `Lapse` or `Replace` what is in the
    way first; `None` where none covers it. `today_for`: what is asked, on these terms (`None`: unapprovable ones).

    Raises what `covers` raises.
    """
    busy: Hold | None = None
    asked = 0
    for filed in sorted(grants, key=lambda one: one.running is not None):  # free ones first, else as they came
        vary = filed.ticket.asked.vary
        if vary is None or asked == MOST_ASKED:
            continue
        granted = await covers(vary)
        if granted is None:
            continue
        asked += 1
        today = today_for(granted)
        if today is None:
            continue
        if filed.running is not None:
            step = weigh_running(filed, filed.running, today.now)
            if isinstance(step, Lapse):
                return step
            busy = busy or step
        elif standing(filed.ticket, today.now).state is State.APPROVED:
            why = no_longer_granted(filed, today)
            return Replace(((filed, "revoke", why),)) if why else Claim(filed)
    return busy
