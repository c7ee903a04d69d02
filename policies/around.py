"""A policy around another one: who counts, overhears or shows verdicts changes nothing else about the one within."""

from __future__ import annotations

from policies.port import Policy


class Around:
    """All of `policies.port.Policy` but `judge`, as the policy within has it. Raises what that one raises."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.start, self.close = policy.start, policy.close

    @property
    def revision(self) -> str:
        """See the port."""
        return self._policy.revision

    @property
    def ready(self) -> bool:
        """See the port."""
        return self._policy.ready

    @property
    def remembered(self) -> int:
        """See the port."""
        return self._policy.remembered
