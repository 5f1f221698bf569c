"""What the agent knows of a watchdog: something that notices that a worker hangs."""

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
        worker_pid: its process, or one that it started and that is of its session.
        scope: what it was about to do: the scope of the timer.
        reason: how that shows, in words, after "hang: "; empty for a timer that was not released in time.
        late: seconds since it should have come on, as far as that is known.
    """

    worker_pid: int
    scope: str
    reason: str = ""
    late: float = 0.0


class Watchdog(abc.ABC):
    """Made once per agent, before the first worker starts; `stop` is called once, when no worker runs."""

    @abc.abstractmethod
    def start(self, on_expiry: Callable[[Expiry], None]) -> None:
        """Begin watching. `on_expiry` may be called from any thread and returns at once."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End watching and release everything. Idempotent; bounded."""

    @abc.abstractmethod
    def worker_environment(self) -> Mapping[str, str]:
        """Variables by which the workers' clients find this watchdog. Asked for before every round."""

    def fault(self) -> str:
        """Why nobody watches although `start` was called; empty while all is well. Any thread; returns at once."""
        return ""

    def scratch(self) -> Sequence[str]:
        """Folders that it made for itself alone and that `stop` removes, as absolute paths: when the agent is killed
        they are removed for it, with all that is in them. Asked for once, after `start`."""
        return ()
