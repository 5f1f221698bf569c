"""What a health endpoint is given: the agent as it sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock
from elastic_core.interfaces.health import AgentPhase, AgentStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.clock import Clock
    from elastic_core.health.board import StatusBoard


class BoardView:
    """See `interfaces.health.AgentView`: what stands on the board, and how the agent is once there is one. One that is
    being made is alive.

    Attributes:
        board: where the status stands.
    """

    def __init__(self, board: StatusBoard, clock: Clock) -> None:
        self.board = board
        self._loop_alive_at = clock.timestamp
        self._faults: Sequence[Callable[[], str]] = ()

    def follow(self, loop_alive_at: Callable[[], float], faults: Sequence[Callable[[], str]] = ()) -> None:
        """The agent is there.

        Args:
            loop_alive_at: when its loop last turned.
            faults: of each of its watchdogs, see `interfaces.watchdog.Watchdog.fault`.
        """
        self._loop_alive_at = loop_alive_at
        self._faults = faults

    def alive_at(self) -> float:
        return self._loop_alive_at()

    def watchdog_fault(self) -> str:
        return "; ".join(found for fault in self._faults if (found := fault()))

    def status(self) -> AgentStatus:
        return self.board.status()

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        return self.board.subscribe(changed)


class CallbackView:
    """See `interfaces.health.AgentView`: all that is known is when something was last alive, seconds since the epoch.
    The phase is `running` at all times."""

    def __init__(self, alive_callback: Callable[[], float]) -> None:
        self._alive_callback = alive_callback
        self._status = AgentStatus(1, "", "", "", AgentPhase.RUNNING, SystemClock().timestamp())

    def alive_at(self) -> float:
        return self._alive_callback()

    def watchdog_fault(self) -> str:
        return ""

    def status(self) -> AgentStatus:
        return self._status

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        return lambda: None
