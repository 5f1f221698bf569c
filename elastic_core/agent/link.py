"""The agent's link to the other nodes: one face for handlers that push and count, and for those that only form rounds.

What a plain handler cannot tell is made up for: it is asked now and then whether somebody waits, its failures are
counted by the agent's own budget, and it has no exit barrier.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

from elastic_core.clock import later
from elastic_core.interfaces.handler import Outcome, RoundHandler, Verdict
from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.handler import RendezvousHandler

LEAVE_PATIENCE: Duration = 2.0  # seconds that telling the others may hold up the stop of the workers
LONGEST_INTERVAL: Duration = 1.0  # between two questions whether somebody waits
_SHORTEST_INTERVAL: Duration = 0.001
_SHARE = 9  # an answer that takes long is followed by a pause of so many times that
_OVERDUE: Duration = 0.05  # a handler that wants to be asked in the past is asked this often


class Link(abc.ABC):
    """Used from the agent's thread; `progress` and `leave` also while the handler forms a round in another one."""

    shared_budget = False
    """Whether the handler counts the failures of all nodes together."""

    waits_for_others = False
    """Whether the verdict tells when the others have succeeded too."""

    def joined(self) -> None:
        """A new round has formed."""
        return

    @abc.abstractmethod
    def verdict(self, running: bool) -> Verdict | None:
        """What has become of the round. `running`: this node's workers run. Raises what the handler raises once that
        cannot be tolerated any more."""

    @abc.abstractmethod
    def ask_again(self) -> Instant | None:
        """When to ask for the verdict though nothing has happened; None for never."""

    def report_failure(self, failures: Mapping[int, ProcessFailure]) -> None:
        """Tell the others at once."""
        return

    def report_success(self) -> None:
        """Tell the others."""
        return

    def leave(self, reason: str) -> None:
        """Tell the others that this node goes; blocks for a moment at most, and never raises."""
        return

    def close(self) -> str:
        """The job is over on this node: close the rendezvous where that is the agent's business. Returns what to add
        to the reason if it could not be told."""
        return ""

    def progress(self) -> dict[str, str]:
        """For a line about a wait: who is missing, if that is known."""
        return {}


def link_to(handler: RendezvousHandler, clock: Clock, interval: Duration, listener: Callable[[], None]) -> Link:
    """The link for this kind of handler. `interval`: seconds until a plain one is first asked who waits. `listener` is
    called, from any thread, when there may be a verdict."""
    if isinstance(handler, RoundHandler):
        return RoundLink(handler, clock, listener)
    return PlainLink(handler, clock, interval)


class RoundLink(Link):
    """To a handler that pushes."""

    shared_budget = True
    waits_for_others = True

    def __init__(self, handler: RoundHandler, clock: Clock, listener: Callable[[], None]) -> None:
        self._handler = handler
        self._clock = clock
        self._left = False
        handler.subscribe(listener)

    def verdict(self, running: bool) -> Verdict | None:
        return self._handler.verdict()

    def ask_again(self) -> Instant | None:
        wanted = self._handler.ask_again()
        return None if wanted is None else max(wanted, later(self._clock.now(), _OVERDUE))

    def report_failure(self, failures: Mapping[int, ProcessFailure]) -> None:
        self._handler.report_failure(failures)

    def report_success(self) -> None:
        self._handler.report_success()

    def leave(self, reason: str) -> None:
        if self._left:
            return
        self._left = True
        try:
            if self._nobody_to_tell():
                return
            told = self._handler.leave(reason, LEAVE_PATIENCE)
        except Exception as error:  # noqa: BLE001 - the node leaves, whether or not it can say so
            get_logger().warning("round left", reason=reason, told=False, error=str(error))
            return
        get_logger().info("round left", reason=reason, told=told)

    def progress(self) -> dict[str, str]:
        found = self._handler.progress()
        return {"progress": found} if found else {}

    def _nobody_to_tell(self) -> bool:
        verdict = self._handler.verdict()
        return verdict is not None and verdict.outcome in (Outcome.CLOSED, Outcome.FENCED)


class PlainLink(Link):
    """To a handler that only forms rounds, as those for torchrun do. While workers run it is asked who waits, first
    after `interval` seconds and then ever less often, down to once a second; one that answers slowly more seldom, so
    that a tenth of the agent's time goes into asking at most. What it raises is told and tolerated for the handler's
    `outage_patience`, because healthy workers do not need it."""

    def __init__(self, handler: RendezvousHandler, clock: Clock, interval: Duration) -> None:
        self._handler = handler
        self._clock = clock
        self._first = max(interval, _SHORTEST_INTERVAL)
        self._interval = self._first
        self._due: Instant | None = None
        self._failing_since: Instant | None = None

    def joined(self) -> None:
        self._interval = self._first
        self._failing_since = None
        self._due = later(self._clock.now(), self._interval) if self._handler.polled else None

    def verdict(self, running: bool) -> Verdict | None:
        if not running or self._due is None or self._clock.now() < self._due:
            return None
        begun = self._clock.now()
        waiting = self._waiting()
        took = self._clock.now() - begun
        self._interval = min(2 * self._interval, max(LONGEST_INTERVAL, self._first))
        self._due = later(self._clock.now(), max(self._interval, _SHARE * took))
        return Verdict(Outcome.RESTART, f"{waiting} more node(s) want to take part") if waiting > 0 else None

    def ask_again(self) -> Instant | None:
        return self._due

    def close(self) -> str:
        try:
            self._handler.set_closed()
        except Exception as error:  # noqa: BLE001 - a foreign handler may raise whatever its library does
            return f"; the other nodes could not be told: {error}"
        return ""

    def _waiting(self) -> int:
        try:
            waiting = self._handler.num_nodes_waiting()
        except Exception as error:  # noqa: BLE001 - a foreign handler may raise whatever its library does
            self._tolerate(error)
            return 0
        if self._failing_since is not None:
            seconds = self._clock.now() - self._failing_since
            get_logger().info("rendezvous in reach again", seconds=round(seconds, 3))
            self._failing_since = None
        return waiting

    def _tolerate(self, error: Exception) -> None:
        """Raises `error` when it has been so for too long."""
        now, patience = self._clock.now(), self._handler.outage_patience
        if self._failing_since is None:
            self._failing_since = now
            get_logger().warning("rendezvous out of reach", reason=str(error), tolerated_seconds=patience)
        elif patience is not None and now - self._failing_since >= patience:
            raise error
