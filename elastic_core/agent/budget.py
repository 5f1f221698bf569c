"""The restart budget: how often the job may fail. Membership changes are counted and cost nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class RestartBudget:
    """`max_restarts` failures are forgiven, the next one is final. `failures` is TORCHELASTIC_RESTART_COUNT.

    `shared`: the handler counts, for all nodes together, and decides whether a failure is forgiven; `failures` is what
    the present round says.
    """

    max_restarts: int
    failures: int = 0
    membership_changes: int = 0
    shared: bool = False

    @property
    def exhausted(self) -> bool:
        return self.failures >= self.max_restarts

    def after_failure(self) -> RestartBudget:
        """Raises ValueError when there is nothing left to spend."""
        if self.exhausted:
            raise ValueError(f"expected restarts to be left, found all {self.max_restarts} used")
        return replace(self, failures=self.failures + 1)

    def after_membership_change(self) -> RestartBudget:
        return replace(self, membership_changes=self.membership_changes + 1)

    def in_round(self, restart_count: int) -> RestartBudget:
        """The budget in a round whose members agreed on `restart_count`."""
        return replace(self, failures=restart_count)
