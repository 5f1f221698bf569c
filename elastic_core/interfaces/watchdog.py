"""What the agent knows of a watchdog, which notices workers that hang."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True)
class Expiry:
    """A worker hangs.

    Args:
        worker_pid: the worker's process, or a process that it started in its own session.
        scope: what the worker was about to do: the scope of the timer.
        reason: how the hang shows, in words that follow "hang: "; empty for a timer that was not released in time.
        late: seconds since the worker should have made progress, as far as that is known.
    """

    worker_pid: int
    scope: str
    reason: str = ""
    late: float = 0.0


class Watchdog(abc.ABC):
    """Made once per agent, before the first worker starts. `stop` is called once, when no worker runs."""

    @abc.abstractmethod
    def start(self, on_expiry: Callable[[Expiry], None]) -> None:
        """Start to watch. `on_expiry` may be called from any thread, and returns at once."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop watching, and release everything. Idempotent; ends within a bound."""

    @abc.abstractmethod
    def worker_environment(self) -> Mapping[str, str]:
        """Variables by which the workers' clients find this watchdog. Called before every round."""

    def fault(self) -> str:
        """Why it does not watch although `start` was called; empty if it does. Called from any thread; returns at
        once."""
        return ""

    def scratch(self) -> Sequence[str]:
        """Absolute paths of the folders that it made for itself alone, and that `stop` removes. If the agent is killed,
        the guardian removes them with their content. Called once, after `start`."""
        return ()
