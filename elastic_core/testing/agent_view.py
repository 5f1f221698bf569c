"""What a health endpoint sees of an agent that is as the test says."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elastic_core.clock import SystemClock
from elastic_core.interfaces.health import AgentPhase, AgentStatus
from elastic_core.interfaces.node import Member

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeAgentView:
    """See `interfaces.health.AgentView`. Any thread. By default the agent of a job of one node, whose workers run.

    Attributes:
        stuck_for: seconds since the agent's loop last turned.
        fault: of the watchdog.
    """

    def __init__(self, status: AgentStatus | None = None) -> None:
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._subscribers: list[Callable[[], None]] = []
        self._status = status or _at_work(self._clock.timestamp())
        self.stuck_for = 0.0
        self.fault = ""

    @property
    def subscribers(self) -> int:
        """How many there are."""
        return len(self._subscribers)

    def show(self, **changes: Any) -> None:
        """The status is another now, in these fields; whoever subscribed is told."""
        with self._lock:
            self._status = replace(self._status, version=self._status.version + 1, **changes)
            subscribers = list(self._subscribers)
        for changed in subscribers:
            changed()

    def alive_at(self) -> float:
        return self._clock.timestamp() - self.stuck_for

    def watchdog_fault(self) -> str:
        return self.fault

    def status(self) -> AgentStatus:
        return self._status

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        with self._lock:
            self._subscribers.append(changed)
        return lambda: self._forget(changed)

    def _forget(self, changed: Callable[[], None]) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._subscribers.remove(changed)


def _at_work(since: float) -> AgentStatus:
    own = Member("node0", "host0", "10.0.0.0", "trainer", 1)
    return AgentStatus(1, "job", own.node, own.role, AgentPhase.RUNNING, since, round=1, group_rank=0, members=(own,))
