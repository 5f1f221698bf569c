"""What the agent knows of a health endpoint: something that others ask whether this agent is well."""

from __future__ import annotations

import abc


class HealthCheckServer(abc.ABC):
    """Started before the first rendezvous and stopped last. Factories receive `alive_callback` (returns the
    time of the agent loop's last turn, seconds since the epoch), `port` and `timeout` (seconds)."""

    @abc.abstractmethod
    def start(self) -> None:
        """Begin to answer. Raises OSError when the port cannot be had."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop answering and release the port. Idempotent; bounded."""
