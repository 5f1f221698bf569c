"""What the agent knows of a rendezvous: the handler, and what it returns for one round."""

from __future__ import annotations

import abc
import copy
import enum
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from elastic_core.errors import ConfigurationError, Problem, RendezvousStateError
from elastic_core.support.sockets import PortReservation
from elastic_core.text import truth

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_core.clock import Duration, Instant
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.node import Node, RankPolicy, Round
    from elastic_core.interfaces.store import Store

_LONGEST_HOST = 255
_LONGEST_PORT = 5


def check_job(run_id: str, min_nodes: int, max_nodes: int) -> None:
    """Raises ValueError if the run id is empty, or the numbers of nodes are impossible."""
    if not run_id:
        raise ValueError("expected a run id, found an empty one; set --rdzv-id")
    if not 1 <= min_nodes <= max_nodes:
        raise ValueError(f"expected 1 <= min_nodes <= max_nodes, found {min_nodes} and {max_nodes}")


class RendezvousParameters:
    """The parameters that a backend is built from.

    Args:
        backend: the name that selected it.
        endpoint: `host[:port]`, possibly several separated by commas, or empty.
        run_id: the job; never empty.
        min_nodes, max_nodes: 1 <= min_nodes <= max_nodes.
        local_addr: the address that this node advertises; None lets the backend find it.
        node: the description of this node for the others; None for handlers that are made without an agent.
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
        check_job(run_id, min_nodes, max_nodes)
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.local_addr = local_addr
        self.node = node
        self.config = config

    def having(self, config: Mapping[str, Any]) -> RendezvousParameters:
        """A copy with these options added. They may have the names of parameters."""
        made = copy.copy(self)
        made.config = {**self.config, **config}
        return made

    def get(self, key: str, default: Any = None) -> Any:
        """The option `key`, or `default`."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """The option `key` as a truth value. Raises ValueError if it is not one."""
        value = self.get(key, default)
        if value is None:
            return None
        found = truth(value)
        if found is None:
            raise ValueError(f"expected true or false for the option {key!r}, found {value!r}")
        return found

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """The option `key` as a whole number. Raises ValueError if it is not one."""
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

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"
    master_addr: str
    master_port: int

    @classmethod
    def build(
        cls, rank: int, store: Store, local_addr: str | None = None, server_port: int | None = None
    ) -> RendezvousStoreInfo:
        """Rank 0 writes the address of the workers' store into the round's store. All other ranks wait for it, for as
        long as the store waits for a key.

        Args:
            local_addr: rank 0's address; None stands for its fully qualified host name.
            server_port: the port of a server that already runs on rank 0; None chooses a free port, which is not held.
                Where that matters, hold a port (`elastic_core.support.sockets.PortReservation`) and
                pass it here.

        Raises:
            RendezvousStateError: what stands there is no address and no port.
            RendezvousConnectionError and any other error of the store.
        """
        if rank == 0:
            store.set(cls.MASTER_ADDR_KEY, local_addr or socket.getfqdn())
            store.set(cls.MASTER_PORT_KEY, str(_free_port() if server_port is None else server_port))
        address, port = store.get(cls.MASTER_ADDR_KEY), store.get(cls.MASTER_PORT_KEY)
        host = address[: _LONGEST_HOST + 1].decode("utf-8", "replace")
        is_host = 0 < len(host) <= _LONGEST_HOST and host.isprintable()
        if not (is_host and port.isdigit() and len(port) <= _LONGEST_PORT):
            expected = "expected the address and the port of the workers' store in the store of the round"
            raise RendezvousStateError(f"{expected}, found {address[:60]!r} and {port[:60]!r}")
        return RendezvousStoreInfo(host, int(port))


def _free_port() -> int:
    reservation = PortReservation()
    reservation.release()
    return reservation.port


@dataclass(frozen=True)
class RendezvousInfo:
    """One round, as seen by one node: the round's store, and this node's rank among `world_size` nodes. `formed` is
    what all members agree on; None from handlers that do not provide it, such as those written for torchrun.

    The store is empty when the round forms, and of use until the next call of `next_rendezvous` or `shutdown`. From the
    backends c10d, static and etcd it is a `torch.distributed.Store`; over etcd only if torch is imported already when
    the round forms."""

    store: Store
    rank: int
    world_size: int
    bootstrap_store_info: RendezvousStoreInfo
    formed: Round | None = None


def no_restart_left(max_restarts: int) -> str:
    """Why a group that failed does not restart, as the end of a sentence."""
    if max_restarts == 0:
        return "no restart is allowed (--max-restarts=0)"
    if max_restarts == 1:
        return "the only restart is used (--max-restarts=1)"
    return f"all {max_restarts} restarts are used (--max-restarts={max_restarts})"


class Outcome(enum.Enum):
    """How the round of a node ended.

    RESTART: take part in the next round. CLOSED: the job is over. FENCED: the store was out of reach for as long as
        other nodes need to call this node gone; stop the workers, and take part in the next round when the store is
        back. DRAINED: this node was asked to leave.
    """

    RESTART = "restart"
    CLOSED = "closed"
    FENCED = "fenced"
    DRAINED = "drained"


@dataclass(frozen=True)
class Verdict:
    """The outcome of a round and its reason in words.

    Args:
        failed: for RESTART, whether a worker's failure is the cause; otherwise the membership changed.
        succeeded: for CLOSED, whether the job ended well.
        by: for CLOSED, the node that closed the job.
        failures: the known failures of workers of all nodes, by global rank. The failure that counts as the first one
            comes first.
        lost: for RESTART, whether a node was lost.
        judged: for RESTART, whether that is final. If not, the failure may have followed from the loss of a node; the
            next round tells (`Round.ended`).
    """

    outcome: Outcome
    reason: str
    failed: bool = False
    succeeded: bool = False
    by: str = ""
    failures: Mapping[int, ProcessFailure] = field(default_factory=dict)
    lost: bool = False
    judged: bool = True


class RendezvousHandler(abc.ABC):
    """The agent's side of a rendezvous. The agent's thread calls its methods, with two exceptions: a helper thread
    calls `next_rendezvous`, so that the agent answers signals while it blocks, and any thread may call `shutdown`."""

    @abc.abstractmethod
    def get_backend(self) -> str:
        """The backend's name."""

    @abc.abstractmethod
    def get_run_id(self) -> str:
        """The run id of the job."""

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
        """Close the rendezvous for all nodes: the job has finished or failed, and no further round forms."""

    @abc.abstractmethod
    def num_nodes_waiting(self) -> int:
        """The number of nodes that wait for the next round."""

    @abc.abstractmethod
    def shutdown(self) -> bool:
        """Release everything that this node holds, and let a blocked `next_rendezvous` return. Does not close the
        rendezvous. Returns whether everything was released. Idempotent."""

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers use the store that the agent of rank 0 hosts; otherwise rank 0's worker hosts it."""
        return False

    @property
    def polled(self) -> bool:
        """Whether the agent has to poll `num_nodes_waiting` about once a second while workers run. False if no node can
        join, or if the handler itself reports a node that joins."""
        return True

    @property
    def outage_patience(self) -> Duration | None:
        """Seconds for which `num_nodes_waiting` may fail before the agent stops healthy workers, because the other
        nodes may have formed a round without this node by then. None: the agent never stops them for that."""
        return 60.0


class RoundHandler(RendezvousHandler):
    """A handler that also follows the round that it has returned: it pushes the end of the round, and counts the job's
    restarts for all nodes together. After a fence the agent calls `next_rendezvous` again, which waits for the store no
    longer than for other nodes. The agent's reports are carried out in the background, also through outages of the
    store. The methods below return at once unless they say otherwise, and may be called from any thread."""

    @property
    def polled(self) -> bool:
        return False

    @property
    def hosts_store(self) -> bool:
        """Whether the rendezvous store runs in this process, so that the other nodes lose it when this node ends. Such
        a node stays until the workers of all nodes have ended, even if its own have succeeded, unless another node
        takes the store over."""
        return False

    def hand_over(self) -> bool:
        """Let another node serve the store that this process hosts. Blocks for some seconds at most. Returns whether
        this process hosts none now. `shutdown` does it too, while the job goes on without this node."""
        return not self.hosts_store

    def hurry(self) -> None:
        """The user has asked twice for the agent to end: `shutdown` waits for no other node, and hands no store over.
        Here it does what it always does."""

    @property
    def lifeline(self) -> int:
        """The descriptor of a socket by whose end the other nodes see that this agent has ended; -1: there is none. Who
        ends the workers of an agent that was killed holds a copy until they are gone."""
        return -1

    def introduce(self, role: str, local_world_size: int, max_restarts: int, stop_timeout: Duration) -> None:
        """What the agent runs, and what the other nodes therefore learn of this one, see `interfaces.node.Node`. Called
        before the first `next_rendezvous`. A handler that takes it from `RendezvousParameters.node` need not care."""
        return

    def rank_by(self, policy: RankPolicy) -> None:
        """Let `policy` say the order of the nodes of each round, whenever this node is the one that forms it. Called
        before the first `next_rendezvous`.

        Raises:
            ConfigurationError: this handler has an order of its own, as here.
        """
        found = f"found {self.get_backend()!r}, which has an order of its own"
        raise ConfigurationError(Problem("--rank-policy", f"expected a backend whose nodes can be ordered, {found}"))

    @abc.abstractmethod
    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever `verdict` may have changed. It is called from any thread, and must return at
        once."""

    @abc.abstractmethod
    def verdict(self) -> Verdict | None:
        """How the last round that `next_rendezvous` returned has ended; None while it runs."""

    @abc.abstractmethod
    def ask_again(self) -> Instant | None:
        """When the agent must ask for the `verdict` again even without news: if an outage of the store lasts until
        then, this node is fenced. None: never."""

    def stop_by(self) -> Instant | None:
        """By when the workers of a round that is over have to be gone, because the others may go on without this node
        then: at once where they have already. It changes with every answer of the store. None: they wait for as long as
        it takes, as here."""
        return None

    @abc.abstractmethod
    def report_failure(self, failures: Mapping[int, ProcessFailure]) -> None:
        """Workers of this node failed: end the round for all nodes. If no restart is left, or a restart cannot cure the
        failure, the job is closed, and `next_rendezvous` raises RendezvousClosedError.

        Called as soon as an exit is seen, with what is known then, and again with all details after the workers have
        stopped; the second call replaces the first. May also be called after the round has ended."""

    @abc.abstractmethod
    def report_success(self) -> None:
        """All workers of this node succeeded. Once the workers of all members have succeeded, the job is closed, and
        the verdict says so."""

    @abc.abstractmethod
    def leave(self, reason: str, timeout: Duration) -> bool:
        """Announce that this node leaves. The other nodes form a round without it as soon as its workers have stopped,
        which `shutdown` announces. Blocks for at most `timeout` seconds. Returns whether the announcement was written.
        The rendezvous stays open."""

    @abc.abstractmethod
    def progress(self) -> str:
        """A line for people who wait for a round to form, or for the other nodes to succeed: how many nodes are there,
        and which ones are missing. Empty if nothing is known."""
