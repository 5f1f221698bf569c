"""The view: what a node knows of the rendezvous. The keeper publishes it, everybody else reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.errors import RendezvousConnectionError
    from elastic_core.interfaces.backend import Token
    from elastic_core.rendezvous.decide import Wait
    from elastic_core.rendezvous.entry import Entry
    from elastic_core.rendezvous.state import State


@dataclass(frozen=True)
class View:
    """What a node knows. Frozen; a new one is published whenever something changed.

    Args:
        state: the last state read, None before the first.
        token: of its write.
        announced: the entry that stands in the store.
        gathering: what the round waits for, as seen last; None if this node has not looked.
        waiting: nodes that wait, as seen last.
        outage: why the store cannot be reached now; None while it can.
        fault: what went wrong in the last turn beside that; None if it went through.
    """

    state: State | None = None
    token: Token | None = None
    announced: Entry | None = None
    gathering: Wait | None = None
    waiting: int = 0
    outage: RendezvousConnectionError | None = None
    fault: Exception | None = None

    @property
    def lacking(self) -> int:
        """How many announcements a node that leads needs to be told of at once, while nodes gather: half of those that
        lack, so that a thousand of them wake it ten times and not a thousand. It looks with every beat besides."""
        wait = self.gathering
        if wait is None:
            return 1
        return max(1, (len(wait.missing) or wait.wanted - wait.joined) // 2)
