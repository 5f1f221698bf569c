"""The stop path as a pure plan: a signal, grace, SIGKILL, a bounded wait, and then giving up."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_core.clock import later

if TYPE_CHECKING:
    from elastic_core.clock import Duration, Instant


class Step(enum.Enum):
    """What to do now with processes that have not ended."""

    WAIT = "wait"
    KILL = "kill"
    GIVE_UP = "give up"


@dataclass(frozen=True)
class StopPlan:
    """One stop, begun at `begun` with a signal that asks. `killed` is when SIGKILL was first sent, if it was.

    Args:
        grace: seconds between the asking signal and SIGKILL.
        patience: seconds after SIGKILL until a process that is still there is reported and left.
    """

    begun: Instant
    grace: Duration
    patience: Duration
    killed: Instant | None = None

    def step(self, now: Instant, urged: bool) -> Step:
        """`urged`: somebody asked again and does not want to wait for the grace period."""
        if self.killed is None:
            return Step.KILL if urged or now >= self.until else Step.WAIT
        return Step.GIVE_UP if now >= self.until else Step.KILL

    @property
    def until(self) -> Instant:
        """When the next step is due."""
        return later(self.begun, self.grace) if self.killed is None else later(self.killed, self.patience)

    def after_kill(self, now: Instant) -> StopPlan:
        """The plan once SIGKILL was sent for the first time."""
        return replace(self, killed=now)
