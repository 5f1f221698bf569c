"""Repair: a node's handling of a state that something outside the job has overwritten. All functions are pure.

The state on which the nodes have agreed is still valid, and the leader writes it back. A node that has not read a state
yet waits for the leader to do so. If nothing has been written back after a few intervals, the node treats the place as
empty, unless the value there may be the state of other nodes. If that state is signed with another secret, the node
challenges the other nodes by overwriting it. If those nodes are alive, they write their state back, and this job cannot
use the place.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.clock import Instant
    from elastic_core.rendezvous.effects import Unreadable
    from elastic_core.rendezvous.model import State
    from elastic_core.rendezvous.settings import RendezvousSettings

_INTERVALS = 5  # heartbeat intervals that the leader gets to restore the state
_MOST_CHALLENGES = 3


class Remedy(enum.Enum):
    """What to do about the unknown value. PUT_BACK: the leader restores the state. WAIT: another node may restore it.
    PASS_OVER: treat the place as empty. CHALLENGE: overwrite the value now. REFUSE: report that the value belongs to
    other nodes, and wait."""

    PUT_BACK = "put back"
    WAIT = "wait"
    PASS_OVER = "pass over"
    CHALLENGE = "challenge"
    REFUSE = "refuse"


@dataclass(frozen=True)
class Repair:
    """The progress of a repair.

    Args:
        since: when the node first saw the unknown value or last overwrote it; None if the state can be read.
        challenges: how many challenges have been made since the node last read this job's state.
    """

    settings: RendezvousSettings
    since: Instant | None = None
    challenges: int = 0

    def sees(self, found: Unreadable, known: State | None, now: Instant) -> tuple[Repair, Remedy]:
        """Return the new progress and the remedy for a node that knows the state `known` and has read `found`."""
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

    def distrusts(self, found: State | None, now: Instant) -> bool:
        """Return whether challenged nodes may still overwrite `found`, which is None or a readable state without a
        round."""
        return bool(self.challenges) and self._may_change(now) and (found is None or not found.round)

    def is_due(self, leads: bool, next_at: Instant, now: Instant) -> bool:
        """Return whether the node should write a state back now. If the stored value is unreadable, only two nodes
        write: the node that has challenged other nodes and, from time to time, the leader."""
        return self.since is None or bool(self.challenges) or (leads and now >= next_at)

    def _may_change(self, now: Instant) -> bool:
        patience = min(self.settings.failure_timeout, _INTERVALS * self.settings.keep_alive_interval)
        return self.since is not None and now - self.since < patience
