"""What the agent knows of a rendezvous: the handler, and what one round hands out."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_core.text import truth

if TYPE_CHECKING:
    from elastic_core.interfaces.store import Store


class RendezvousParameters:
    """What a backend is built from.

    Args:
        backend: the name it was selected by.
        endpoint: `host[:port]`, possibly several separated by commas, or empty.
        run_id: the job; never empty.
        min_nodes, max_nodes: 1 <= min_nodes <= max_nodes.
        local_addr: the address this node advertises; None lets the backend find it.
        config: the backend's own options, as text or already typed.

    Raises:
        ValueError: a bound does not hold.
    """

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        **config: Any,
    ) -> None:
        if not backend:
            raise ValueError("expected the name of a rendezvous backend, found an empty one")
        if not run_id:
            raise ValueError("expected a run id, found an empty one; set --rdzv-id")
        if not 1 <= min_nodes <= max_nodes:
            raise ValueError(f"expected 1 <= min_nodes <= max_nodes, found {min_nodes} and {max_nodes}")
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.local_addr = local_addr
        self.config = config

    def get(self, key: str, default: Any = None) -> Any:
        """The option `key`, or `default`."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """The option `key` as a truth value. Raises ValueError when it is none."""
        value = self.get(key, default)
        if value is None:
            return None
        found = truth(value)
        if found is None:
            raise ValueError(f"expected true or false for the option {key!r}, found {value!r}")
        return found

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """The option `key` as a whole number. Raises ValueError when it is none."""
        value = self.get(key, default)
        if value is None:
            return None
        try:
            return int(value)
        except (TypeError, ValueError):
            raise ValueError(f"expected a whole number for the option {key!r}, found {value!r}") from None


@dataclass(frozen=True)
class RendezvousStoreInfo:
    """Where the workers of a round find their store: `MASTER_ADDR` and `MASTER_PORT`."""

    master_addr: str
    master_port: int


@dataclass(frozen=True)
class RendezvousInfo:
    """One round, as seen by one node: the round's store, this node's rank among `world_size` nodes."""

    store: Store
    rank: int
    world_size: int
    bootstrap_store_info: RendezvousStoreInfo


class RendezvousHandler(abc.ABC):
    """The agent's side of a rendezvous. Called from the agent's thread, except `next_rendezvous` (a helper thread
    of the agent's, so that a signal is answered while it blocks) and `shutdown` (any thread)."""

    @abc.abstractmethod
    def get_backend(self) -> str:
        """The backend's name."""

    @abc.abstractmethod
    def get_run_id(self) -> str:
        """The job."""

    @abc.abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Block until the next round has formed with this node in it.

        Raises:
            RendezvousClosedError, RendezvousTimeoutError, RendezvousConnectionError, RendezvousStateError,
            RendezvousGracefulExitError.
        """

    @abc.abstractmethod
    def is_closed(self) -> bool:
        """Whether the rendezvous was closed."""

    @abc.abstractmethod
    def set_closed(self) -> None:
        """Tell everybody not to take part again: the job has finished or failed."""

    @abc.abstractmethod
    def num_nodes_waiting(self) -> int:
        """How many nodes wait for the next round."""

    @abc.abstractmethod
    def shutdown(self) -> bool:
        """Release what this node holds, and let a `next_rendezvous` that blocks come back. Does not close the
        rendezvous. True when all was released. Idempotent."""

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers use the store that the agent of rank 0 hosts; else rank 0's worker hosts it."""
        return False
