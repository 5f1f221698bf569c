"""The agent's interface to a rendezvous: the handler, and the information that it returns for each round."""

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
    from collections.abc import Callable, Mapping, Sequence

    from elastic_core.clock import Duration, Instant
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.backend import Seal, Store
    from elastic_core.interfaces.health import StopStatus
    from elastic_core.interfaces.node import Node, RankPolicy, Round

_LONGEST_HOST = 255
_LONGEST_PORT = 5


def check_job(run_id: str, min_nodes: int, max_nodes: int) -> None:
    """Check a job's id and size. Raises ValueError if the run id is empty or the node counts are invalid."""
    if not run_id:
        raise ValueError("the run id is empty; set --rdzv-id")
    if not 1 <= min_nodes <= max_nodes:
        raise ValueError(f"expected 1 <= min_nodes <= max_nodes, found {min_nodes} and {max_nodes}")


class RendezvousParameters:
    """The parameters from which a backend is created.

    Args:
        backend: the name by which the user selected the backend.
        endpoint: one or more `host[:port]`, separated by commas; may be empty.
        run_id: the job's id; never empty.
        min_nodes, max_nodes: the job's size; 1 <= min_nodes <= max_nodes.
        local_addr: the address that this node advertises; if None, the backend determines the address.
        node: this node's description; None for a handler that is created without an agent.
        config: the backend's options, as strings or already typed.

    Raises:
        ValueError: `backend` or `run_id` is empty, or the node counts are invalid.
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
            raise ValueError("the name of the rendezvous backend is empty")
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
        """Return a copy with these options added. An option may have the same name as a parameter."""
        made = copy.copy(self)
        made.config = {**self.config, **config}
        return made

    def get(self, key: str, default: Any = None) -> Any:
        """Return the option `key`, or `default` if it is not set."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """Return the option `key` as a Boolean. Raises ValueError if its value is not a Boolean."""
        value = self.get(key, default)
        if value is None:
            return None
        found = truth(value)
        if found is None:
            raise ValueError(f"expected true or false for the option {key!r}, found {value!r}")
        return found

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """Return the option `key` as an integer. Raises ValueError if its value is not an integer."""
        value = self.get(key, default)
        if value is None:
            return None
        try:
            return int(value)
        except (TypeError, ValueError):
            raise ValueError(f"expected a whole number for the option {key!r}, found {value!r}") from None


@dataclass(frozen=True)
class RendezvousStoreInfo:
    """The address of the workers' store: `MASTER_ADDR` and `MASTER_PORT`."""

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"
    master_addr: str
    master_port: int

    @classmethod
    def build(
        cls, rank: int, store: Store, local_addr: str | None = None, server_port: int | None = None
    ) -> RendezvousStoreInfo:
        """Publish the address of the workers' store (rank 0), or wait for it (all other ranks).

        The ranks exchange the address through the round's store, whose timeout limits the wait.

        Args:
            local_addr: rank 0's address; defaults to its fully qualified host name.
            server_port: the port of a server that is already running on rank 0. If it is None, a free port is chosen
                but not reserved. To use a reserved port, pass the port of an `elastic_core.plugin.PortReservation`.

        Raises:
            RendezvousStateError: the store contains an invalid address or port.
            RendezvousConnectionError, and any other error that the store raises.
        """
        if rank == 0:
            store.set(cls.MASTER_ADDR_KEY, local_addr or socket.getfqdn())
            store.set(cls.MASTER_PORT_KEY, str(_free_port() if server_port is None else server_port))
        address, port = store.get(cls.MASTER_ADDR_KEY), store.get(cls.MASTER_PORT_KEY)
        host = address[: _LONGEST_HOST + 1].decode("utf-8", "replace")
        is_host = 0 < len(host) <= _LONGEST_HOST and host.isprintable()
        if not (is_host and port.isdigit() and len(port) <= _LONGEST_PORT):
            expected = "expected the address and port of the workers' store in the round's store"
            raise RendezvousStateError(f"{expected}, found {address[:60]!r} and {port[:60]!r}")
        return RendezvousStoreInfo(host, int(port))


def _free_port() -> int:
    reservation = PortReservation()
    reservation.release()
    return reservation.port


@dataclass(frozen=True)
class RendezvousInfo:
    """One node's view of a round.

    Args:
        store: the round's store. It is empty when the round forms, and usable until the next call to `next_rendezvous`
            or `shutdown`. With the c10d and static backends, it is a `torch.distributed.Store`. With etcd, it is one
            only if torch has already been imported when the round forms.
        rank: this node's rank.
        world_size: the number of nodes.
        formed: the description of the round on which all members agree; None for handlers that do not provide one, such
            as those written for torchrun.
    """

    store: Store
    rank: int
    world_size: int
    bootstrap_store_info: RendezvousStoreInfo
    formed: Round | None = None


def no_restart_left(max_restarts: int) -> str:
    """Return a clause that explains why a failed group is not restarted."""
    if max_restarts == 0:
        return "no restart is allowed (--max-restarts=0)"
    if max_restarts == 1:
        return "the only restart has been used (--max-restarts=1)"
    return f"all {max_restarts} restarts have been used (--max-restarts={max_restarts})"


class Outcome(enum.Enum):
    """How a node's round ended.

    RESTART: the node must join the next round. CLOSED: the job is over. FENCED: the store has been unreachable for so
    long that other nodes may consider this node failed; the node must stop its workers, and rejoin once the store is
    reachable again. DRAINED: this node was asked to leave.
    """

    RESTART = "restart"
    CLOSED = "closed"
    FENCED = "fenced"
    DRAINED = "drained"


@dataclass(frozen=True)
class Verdict:
    """The outcome of a round and the reason for it.

    Args:
        failed: for RESTART, whether the cause is a worker failure; if not, it is a change of membership.
        succeeded: for CLOSED, whether the job succeeded.
        by: for CLOSED, the node that closed the job.
        failures: the known worker failures on all nodes, by global rank; the root cause comes first.
        lost: for RESTART, whether the cause is the failure of a node.
        judged: for RESTART, whether the cause is final. If not, a node failure may have caused the worker failure, and
            `Round.ended` of the next round has the final cause.
        within: for DRAINED, the number of seconds that the workers get before SIGKILL, if fewer than usual.
    """

    outcome: Outcome
    reason: str
    failed: bool = False
    succeeded: bool = False
    by: str = ""
    failures: Mapping[int, ProcessFailure] = field(default_factory=dict)
    lost: bool = False
    judged: bool = True
    within: Duration | None = None


class RendezvousHandler(abc.ABC):
    """The agent's side of a rendezvous. The agent's thread calls all methods except two. A helper thread calls
    `next_rendezvous`, so that the agent stays responsive to signals. Any thread may call `shutdown`."""

    @abc.abstractmethod
    def get_backend(self) -> str:
        """Return the backend's name."""

    @abc.abstractmethod
    def get_run_id(self) -> str:
        """Return the job's run id."""

    @abc.abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Block until the next round has formed with this node as a member.

        Raises:
            RendezvousClosedError, RendezvousTimeoutError, RendezvousConnectionError, RendezvousStateError,
            RendezvousGracefulExitError.
        """

    @abc.abstractmethod
    def is_closed(self) -> bool:
        """Return whether the rendezvous is closed."""

    @abc.abstractmethod
    def set_closed(self) -> None:
        """Close the rendezvous for all nodes after the job has finished or failed. No further rounds form."""

    @abc.abstractmethod
    def num_nodes_waiting(self) -> int:
        """Return the number of nodes that are waiting for the next round."""

    @abc.abstractmethod
    def shutdown(self) -> bool:
        """Release this node's resources and make a blocked `next_rendezvous` return, without closing the rendezvous.
        Returns whether everything was released. Idempotent."""

    @property
    def use_agent_store(self) -> bool:
        """Whether rank 0's agent hosts the workers' store. If not, rank 0's worker hosts it."""
        return False

    @property
    def polled(self) -> bool:
        """Whether the agent must poll `num_nodes_waiting` about once a second while workers run. This is False if no
        node can join, or if the handler itself reports nodes that want to join."""
        return True

    @property
    def outage_patience(self) -> Duration | None:
        """How many seconds `num_nodes_waiting` may keep failing before the agent stops healthy workers. By then, other
        nodes may have formed a round without this node. If the value is None, the agent never stops workers for this
        reason."""
        return 60.0


class RoundHandler(RendezvousHandler):
    """A handler that also tracks the current round. It notifies the agent when the round ends, and counts the job's
    restarts across all nodes.

    After a FENCED round, the agent calls `next_rendezvous` again. This call waits for the store for at most as long as
    it would wait for other nodes. The handler processes the agent's reports in the background, and retries them during
    store outages. Any thread may call the methods below. They do not block unless documented otherwise.
    """

    @property
    def polled(self) -> bool:
        return False

    @property
    def hosts_store(self) -> bool:
        """Whether this process hosts the rendezvous store, which the other nodes would lose if this node left. Such a
        node stays until the workers of all nodes have ended, unless another node takes over the store."""
        return False

    def hand_over(self) -> bool:
        """Move the store that this process hosts to another node. Blocks for at most a few seconds. Returns whether
        this process no longer hosts a store. `shutdown` also moves the store if the job continues without this node."""
        return not self.hosts_store

    def hurry(self) -> None:
        """Make `shutdown` return without waiting for other nodes or moving the store. Called if the user insists on
        exiting immediately."""

    @property
    def lifeline(self) -> int:
        """The descriptor of the lifeline socket, or -1 if there is none. When the socket closes, the other nodes learn
        that this agent has ended. The guardian, which ends the workers of a killed agent, keeps a copy of the
        descriptor open until the workers have ended."""
        return -1

    @property
    def seal(self) -> Seal | None:
        """Signs this node's values and checks those of other nodes. None if the handler cannot use a secret."""
        return None

    def introduce(self, role: str, local_world_size: int, max_restarts: int, stop_timeout: Duration) -> None:
        """Set the attributes of this node that the agent determines (see `interfaces.node.Node`). Called before the
        first `next_rendezvous`. A handler that takes these attributes from `RendezvousParameters.node` may ignore this
        call."""
        return

    def rank_by(self, policy: RankPolicy) -> None:
        """Let `policy` order the nodes of each round that this node forms. Called before the first `next_rendezvous`.

        Raises:
            ConfigurationError: this handler does not support rank policies, which is the default.
        """
        message = f"the backend {self.get_backend()!r} does not support rank policies; it assigns ranks itself"
        raise ConfigurationError(Problem("--rank-policy", message))

    @abc.abstractmethod
    def subscribe(self, listener: Callable[[], None]) -> None:
        """Register a listener. The handler calls it, from any thread, whenever `verdict` may have changed. The listener
        does not block."""

    @abc.abstractmethod
    def verdict(self) -> Verdict | None:
        """Return the outcome of the last round from `next_rendezvous`, or None while that round is running."""

    @abc.abstractmethod
    def ask_again(self) -> Instant | None:
        """Return the time at which the agent must check `verdict` again even without a notification, or None if there
        is no such time. If a store outage lasts until then, the round ends as FENCED."""

    def stop_by(self) -> Instant | None:
        """Return the deadline for stopping the workers of an ended round. After this deadline, the other nodes may form
        a round without this node. If they have already done so, the deadline has passed. Every response from the store
        may change the deadline. None (the default) means that the other nodes wait indefinitely for this node."""
        return None

    def unfinished(self) -> Sequence[int] | None:
        """Return the group ranks of the round's members whose workers have not succeeded. Once the round has ended, all
        members must get the same ranks. None (the default) means that they are unknown."""
        return None

    def report_stop(self, stop: StopStatus) -> None:
        """Report which workers of this node have saved before a stop, so that users can observe the progress.
        Optional."""
        return

    @abc.abstractmethod
    def report_failure(self, failures: Mapping[int, ProcessFailure]) -> None:
        """Report this node's failed workers, and thereby end the round for all nodes. If no restarts are left, or a
        restart cannot help, the job is closed, and `next_rendezvous` raises RendezvousClosedError.

        The agent calls this method as soon as it notices an exit, and again with all details after the workers have
        stopped. The second report replaces the first. The method may also be called after the round has ended."""

    @abc.abstractmethod
    def report_success(self) -> None:
        """Report that all workers of this node have succeeded. Once all members have reported success, the job is
        closed."""

    @abc.abstractmethod
    def leave(self, reason: str, timeout: Duration) -> bool:
        """Announce that this node is leaving. Returns whether the announcement has been written to the store. Blocks
        for at most `timeout` seconds. The rendezvous stays open. The other nodes form a round without this node once
        `shutdown` has announced that its workers have stopped."""

    @abc.abstractmethod
    def progress(self) -> str:
        """Return a status line for users who are waiting for a round to form or for other nodes to succeed. The line
        shows how many nodes have joined and which are missing. It is empty if neither is known."""
