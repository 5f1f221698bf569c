"""How the phases of an agent become the parts of a recovery. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from elastic_core.interfaces.health import AgentPhase

if TYPE_CHECKING:
    from elastic_core.clock import Duration, Instant
    from elastic_core.interfaces.observer import PhaseChanged


class Parts(NamedTuple):
    """See `interfaces.health.Recovery`."""

    detect: Duration
    stop: Duration
    rendezvous: Duration
    start: Duration


@dataclass(frozen=True)
class Marks:
    """When the parts of the recovery that goes on began, on the agent's clock; None for those that have not."""

    sign: Instant | None = None
    stop: Instant | None = None
    join: Instant | None = None
    start: Instant | None = None

    def after(self, fact: PhaseChanged) -> Marks:
        """A phase that is told again, with another reason, began when it was told first. A node that goes or is done
        does not recover."""
        if fact.phase is AgentPhase.STOPPING and self.stop is None:
            sign = fact.at if fact.sign is None else min(fact.sign, fact.at)
            return Marks(sign, fact.at)
        if fact.phase is AgentPhase.JOINING and self.stop is not None and self.join is None:
            return replace(self, join=fact.at)
        if fact.phase is AgentPhase.STARTING and self.join is not None:
            return replace(self, start=fact.at)
        if fact.phase in (AgentPhase.RUNNING, AgentPhase.DRAINING, AgentPhase.FINISHED):
            return Marks()
        return self

    def parts(self, fact: PhaseChanged) -> Parts | None:
        """The parts of the recovery that this phase completes; None if there is none, or it goes on."""
        if fact.phase is not AgentPhase.RUNNING or self.sign is None or self.stop is None:
            return None
        if self.join is None or self.start is None:
            return None
        return Parts(self.stop - self.sign, self.join - self.stop, self.start - self.join, fact.at - self.start)
