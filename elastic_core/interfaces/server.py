"""A server of the rendezvous store in a process of its own, for `elastic serve`."""

from __future__ import annotations

from typing import Protocol


class StoreServer(Protocol):
    """Serves from `start` until `stop`. Used from one thread."""

    def start(self) -> object:
        """Serve from now on. Returns once clients can connect; what it returns is not looked at.

        Raises:
            ConfigurationError: the endpoint is not this machine's, or its port is taken.
        """
        ...

    @property
    def endpoint(self) -> str:
        """Host and port where it serves, a colon between them; the port that it really has. Asked for after `start`."""
        ...

    def stop(self) -> None:
        """End the server and all its connections. Idempotent."""
        ...
