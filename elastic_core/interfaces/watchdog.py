"""What the agent knows of a watchdog: something that notices that a worker hangs."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Expiry:
    """A timer that a worker did not release in time."""

    worker_pid: int
    scope: str


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
        """Variables by which the workers' clients find this watchdog."""
