"""Timers: a worker acquires one before something that may hang and releases it afterwards; a server, which lives in the
agent, notices those that were not released in time."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.interfaces.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from elastic_core.interfaces.watchdog import Expiry


@dataclass(frozen=True)
class TimerRequest:
    """What a client asks of a server.

    Args:
        worker_id: who asks; its process id, for most clients.
        scope_id: what the timer is for.
        expiration_time: when it expires, seconds since the epoch; less than 0 to release it.
    """

    worker_id: Any
    scope_id: str
    expiration_time: float


class TimerClient(abc.ABC):
    """The worker's side. Any thread, also in a process that was forked since."""

    @abc.abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Start the timer of this process with this scope, or start it anew.

        Args:
            scope_id: what it is for, in words for people.
            expiration_time: when it expires, seconds since the epoch.

        Raises:
            OSError: no server takes the request. Bounded: nobody waits for long to learn that.
            ValueError: arguments that no server can take.
        """

    @abc.abstractmethod
    def release(self, scope_id: str) -> None:
        """Stop it. Never raises because of the server: what the timer was for is done, and must not fail after that."""


class TimerServer(Watchdog):
    """The agent's side: a watchdog that watches by timers."""

    @abc.abstractmethod
    def start(self, on_expiry: Callable[[Expiry], None] | None = None) -> None:
        """Begin watching. Without `on_expiry` the server itself sends workers the signal that they asked for."""
