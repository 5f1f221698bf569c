"""What a node does about a state that something else has overwritten. Pure.

What nodes have agreed on still holds, and who leads puts it back. A node that knows nothing waits for that. If nobody
has done it within some intervals, it is as if nothing stood there, unless it may be other nodes'. Where those could
only be of another secret, the node writes its own in its place: they put theirs back, if they live, and then this job
cannot be here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.clock import Duration, Instant
    from elastic_core.rendezvous.effects import Unreadable
    from elastic_core.rendezvous.model import State
    from elastic_core.rendezvous.settings import RendezvousSettings

_INTERVALS = 5  # for the leader to put the state back
_MOST_CHALLENGES = 3  # to other nodes that may not be there, before this one believes in them


class Remedy(enum.Enum):
    """PUT_BACK: write what this node knows, if it leads. WAIT: others may do so. PASS_OVER: nothing stands there.
    CHALLENGE: write what this node knows, or nothing, at once. REFUSE: it is other nodes'; say so, and wait."""

    PUT_BACK = "put back"
    WAIT = "wait"
    PASS_OVER = "pass over"
    CHALLENGE = "challenge"
    REFUSE = "refuse"


@dataclass(frozen=True)
class Repair:
    """See above.

    Args:
        patience: seconds for those that know the state to put it back.
        since: when it was first seen to be overwritten, or was challenged last; None if it can be read.
        challenges: how many there were since a state of this job was read.
    """

    patience: Duration
    since: Instant | None = None
    challenges: int = 0

    @classmethod
    def of(cls, settings: RendezvousSettings) -> Repair:
        """While all is well."""
        return cls(min(settings.failure_timeout, _INTERVALS * settings.keep_alive_interval))

    def sees(self, found: Unreadable, known: State | None, now: Instant) -> tuple[Repair, Remedy]:
        """This stands in the place of the state, of which the node knows that."""
        seen = replace(self, since=now if self.since is None else self.since)
        contested = found.others and found.secret
        if known is not None and (known.round or not contested):
            return seen, Remedy.PUT_BACK
        if not self.challenges and seen._may_change(now):
            return seen, Remedy.WAIT
        if not found.others:
            return seen, Remedy.PASS_OVER
        if contested and self.challenges < _MOST_CHALLENGES:
            return replace(self, since=now, challenges=self.challenges + 1), Remedy.CHALLENGE
        return seen, Remedy.REFUSE

    def doubts(self, found: State | None, now: Instant) -> bool:
        """Whether a state that can be read may be overwritten by those that were challenged: it is of no round."""
        return bool(self.challenges) and self._may_change(now) and (found is None or not found.round)

    def is_due(self, leads: bool, next_at: Instant, now: Instant) -> bool:
        """Whether a state may be written back now: a node that leads does so from time to time."""
        return self.since is None or bool(self.challenges) or (leads and now >= next_at)

    def over(self) -> Repair:
        """A state of this job was read."""
        return Repair(self.patience)

    def _may_change(self, now: Instant) -> bool:
        return self.since is not None and now - self.since < self.patience
