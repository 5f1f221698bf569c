"""What the agent knows of a rendezvous: the handler, and what one round hands out."""

from __future__ import annotations

import abc
import enum
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastic_core.support.sockets import PortReservation
from elastic_core.text import truth

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_core.clock import Duration, Instant
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.node import Node, Round
    from elastic_core.interfaces.store import Store

_ADDRESS_KEY = "MASTER_ADDR"
_PORT_KEY = "MASTER_PORT"


class RendezvousParameters:
    """What a backend is built from.

    Args:
        backend: the name it was selected by.
        endpoint: `host[:port]`, possibly several separated by commas, or empty.
        run_id: the job; never empty.
        min_nodes, max_nodes: 1 <= min_nodes <= max_nodes.
        local_addr: the address this node advertises; None lets the backend find it.
        node: what this node tells the others; None for handlers that are made without an agent.
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
        node: Node | None = None,
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
        self.node = node
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

    @staticmethod
    def build(
        rank: int, store: Store, local_addr: str | None = None, server_port: int | None = None
    ) -> RendezvousStoreInfo:
        """Rank 0 writes the address of the workers' store into the round's store. All other ranks wait for it, for as
        long as the store waits for a key.

        Args:
            local_addr: rank 0's address; None stands for its fully qualified host name.
            server_port: the port of a server that already runs on rank 0; None chooses a free port, which is not held.
                Where that matters, hold a port (`elastic_core.support.sockets.PortReservation`) and
                pass it here.

        Raises:
            RendezvousConnectionError and any other error of the store.
        """
        if rank == 0:
            store.set(_ADDRESS_KEY, local_addr or socket.getfqdn())
            store.set(_PORT_KEY, str(_free_port() if server_port is None else server_port))
        return RendezvousStoreInfo(store.get(_ADDRESS_KEY).decode(), int(store.get(_PORT_KEY)))


def _free_port() -> int:
    reservation = PortReservation()
    reservation.release()
    return reservation.port


@dataclass(frozen=True)
class RendezvousInfo:
    """One round, as seen by one node: the round's store, this node's rank among `world_size` nodes. `formed` is what
    all members agree on; None from handlers that do not tell (those written for torchrun)."""

    store: Store
    rank: int
    world_size: int
    bootstrap_store_info: RendezvousStoreInfo
    formed: Round | None = None


class Outcome(enum.Enum):
    """What has become of the round that a node is in.

    RESTART: it ended, take part in the next one. CLOSED: the job is over. FENCED: the store was out of reach for as
        long as the others need to call this node gone; stop the workers, and take part in the next round when the store
        is back. DRAINED: this node was asked to leave.
    """

    RESTART = "restart"
    CLOSED = "closed"
    FENCED = "fenced"
    DRAINED = "drained"


@dataclass(frozen=True)
class Verdict:
    """The outcome and its reason in words.

    Args:
        failed: for RESTART, whether a worker's failure is the cause (else the membership changed).
        succeeded: for CLOSED, whether the job ended well.
        by: for CLOSED, the node that closed it.
        failures: what is known of the workers' failures, of all nodes, by global rank; the one that counts as the first
            comes first.
    """

    outcome: Outcome
    reason: str
    failed: bool = False
    succeeded: bool = False
    by: str = ""
    failures: Mapping[int, ProcessFailure] = field(default_factory=dict)


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
        """Tell all nodes not to take part again: the job has finished or failed."""

    @abc.abstractmethod
    def num_nodes_waiting(self) -> int:
        """How many nodes wait for the next round."""

    @abc.abstractmethod
    def shutdown(self) -> bool:
        """Release what this node holds, and let a blocked `next_rendezvous` return. Does not close the rendezvous.
        Returns whether all was released. Idempotent."""

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers use the store that the agent of rank 0 hosts; else rank 0's worker hosts it."""
        return False

    @property
    def polled(self) -> bool:
        """Whether the agent has to ask `num_nodes_waiting` again and again, about once a second, while workers run;
        False if no node can come, or the handler reports it by itself."""
        return True

    @property
    def outage_patience(self) -> Duration | None:
        """Seconds for which `num_nodes_waiting` may go on failing before healthy workers are stopped, because by then
        the others may have formed a round without this node; None: they are never stopped for that."""
        return 60.0


class RoundHandler(RendezvousHandler):
    """A handler that also follows the round that it has returned: it reports the round's end by push, and counts the
    job's restarts for all nodes together. A node that it has fenced off comes back to `next_rendezvous`, which waits
    for the store no longer than for other nodes. An agent's reports are carried out in the background, through outages
    of the store; the methods below return at once unless they say otherwise, and may be called from any thread."""

    @property
    def polled(self) -> bool:
        return False

    @property
    def hosts_store(self) -> bool:
        """Whether the rendezvous store lives in this process, so that the others lose it when this node ends. Then a
        node whose workers have succeeded stays for as long as those of others run."""
        return False

    @abc.abstractmethod
    def subscribe(self, listener: Callable[[], None]) -> None:
        """`listener` is called, from any thread, when `verdict` may have changed. It returns at once."""

    @abc.abstractmethod
    def verdict(self) -> Verdict | None:
        """What has become of the round that `next_rendezvous` returned last; None while it goes on."""

    @abc.abstractmethod
    def ask_again(self) -> Instant | None:
        """When `verdict` wants to be asked again even without news: an outage of the store that lasts until then has
        fenced this node off. None for never."""

    @abc.abstractmethod
    def report_failure(self, failures: Mapping[int, ProcessFailure]) -> None:
        """Workers of this node failed: the round ends for all nodes. If the budget is used up, or a restart cannot cure
        it, the job is closed; `next_rendezvous` then raises RendezvousClosedError.

        Called as soon as an exit is seen, with what is known then, and again when the workers have been stopped, with
        everything; the second call replaces the first. Also called when the round has ended already."""

    @abc.abstractmethod
    def report_success(self) -> None:
        """All workers of this node succeeded. When those of all members have, the job is closed, and the verdict says
        so."""

    @abc.abstractmethod
    def leave(self, reason: str, timeout: Duration) -> bool:
        """Tell the others that this node goes, so that they form a round without it as soon as its workers have
        stopped, which `shutdown` says. Blocks for at most `timeout` seconds; returns whether the others could be told.
        The rendezvous stays open."""

    @abc.abstractmethod
    def progress(self) -> str:
        """For people who wait for a round to form or for the others to succeed: how many nodes are there and which are
        missing, if known; empty when nothing is."""
