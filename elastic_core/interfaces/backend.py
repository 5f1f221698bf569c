"""Interfaces for rendezvous backends, the store that a round's members share, and the server of `elastic serve`.

A minimal backend stores one small state and implements only `get_state` and `set_state`. With such a backend, the core
keeps the nodes' entries inside that state and polls the state with backoff. A `RosterBackend` stores each node's entry
separately, counts heartbeats and pushes changes. Only this kind of backend scales to a thousand nodes.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from elastic_core.clock import Duration
    from elastic_core.interfaces.handler import RendezvousStoreInfo


class Store(Protocol):
    """Maps strings to bytes. Method names and semantics are torch's, so a torch store can be used as a `Store`."""

    def get(self, key: str) -> bytes:
        """Return the key's value. If the key does not exist yet, wait for it, up to the store's timeout."""

    def set(self, key: str, value: str | bytes) -> None:
        """Write the key's value."""

    def add(self, key: str, amount: int) -> int:
        """Add `amount` to a counter that starts at 0. Returns the new value."""

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Write `desired` if the value is `expected` or, if `expected` is empty, if the key does not exist. Returns the
        value after the call, or `expected` if the key still does not exist, as torch's stores do."""

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Block until all keys exist."""

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist."""

    def delete_key(self, key: str) -> bool:
        """Remove the key. Returns whether it existed."""

    def num_keys(self) -> int:
        """Return the number of keys."""


class StoreServer(Protocol):
    """Serves the rendezvous store from a separate process. Only one thread calls the methods."""

    def start(self) -> object:
        """Start the server. Returns once clients can connect. The return value is ignored.

        Raises:
            ConfigurationError: the endpoint does not belong to this machine, or its port is already in use.
        """

    @property
    def endpoint(self) -> str:
        """The host and the actual port, in the format of `--rdzv-endpoint`. Read it only after `start`."""

    def stop(self) -> None:
        """Stop the server and close all its connections. Idempotent."""


Token = Any
"""Identifies one write of the state. Only the backend that created a token can interpret it."""


class ForeignStateError(RendezvousStateError):
    """The state's key contains a value that this node does not recognize as the job's state.

    Args:
        token: the token with which `set_state` can replace the value.
        others: whether other nodes of the job may have written the value, for example with another secret or another
            version of elastic-core.
        secret: whether the job has a secret and the value is not signed with it.
    """

    def __init__(self, message: str, token: Token, others: bool = True, secret: bool = False) -> None:
        super().__init__(message)
        self.token = token
        self.others = others
        self.secret = secret


class Seal(Protocol):
    """Signs the values in the store. `place` names a value's location in the store. A signature is valid only at the
    location for which it was created."""

    @property
    def signs(self) -> bool:
        """Whether the job has a secret. Without a secret, values are neither signed nor checked."""

    @property
    def refused(self) -> int:
        """The number of values found without a valid signature for their place."""

    def sealed(self, place: str, data: bytes) -> bytes:
        """Return the data with a signature."""

    def opened(self, place: str, value: bytes) -> bytes | None:
        """Return the data without the signature, or None if the signature is missing or invalid."""

    def is_others(self, value: bytes) -> bool:
        """Return whether the value appears to be signed with a secret that this node does not have."""

    def state(self, place: str, value: bytes, token: Token) -> bytes:
        """Return the state without its signature. Raises ForeignStateError if the signature is missing or invalid."""


class RendezvousBackend(abc.ABC):
    """Stores one job's state and updates it by compare-and-swap. Method names and semantics are torch's.

    Every method may raise RendezvousConnectionError if the store is unreachable; the caller may retry. Every method may
    raise RendezvousStateError if the store contains a value that this job did not write. The nodes can repair the state
    after a ForeignStateError. Several threads call the methods, but never concurrently.
    `elastic_testing.BackendContract` tests these rules.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name by which users select the backend."""

    @abc.abstractmethod
    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state and the token of its last write, or None if there is no state yet."""

    @abc.abstractmethod
    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write `state` if `token` still identifies the last write, or if `token` is None and there is no state yet.

        Returns the current state, its token, and whether this call wrote it. Returns None if the backend does not know
        the current state. Every write has a unique token.
        """


@dataclass(frozen=True)
class Announced:
    """One live entry, as a backend returns it.

    Args:
        key: the node's key. Every agent creates a new key when it starts.
        entry: the node's last announced entry.
        beats: a number that changes with every heartbeat. Each observer times the changes on its own clock. The number
            is None if the backend itself drops the entries of failed nodes, for example with a lease.
    """

    key: str
    entry: bytes
    beats: int | None


class EntryDroppedError(RendezvousConnectionError):
    """The store has dropped the entry of a node that is still alive. The node must announce itself again."""


class RosterBackend(RendezvousBackend):
    """A backend that stores each node's entry under a separate key and pushes changes.

    `wait_for_state` and `wait_for_roster` are each called from a dedicated thread. All other methods may be called from
    any thread, but never two of them at the same time, except `close`.
    """

    def sign_with(self, seal: Seal) -> bool:
        """Accept the job's seal. Called once if the job has a secret, before any other method except `close`.

        Return True if the backend itself signs each value that it writes. Such a backend must ignore unsigned values,
        and raise ForeignStateError for an unsigned state. If the method returns False, the core signs the state and the
        entries.
        """
        return False

    @abc.abstractmethod
    def announce(self, key: str, entry: bytes) -> int:
        """Create or replace the entry for `key`, mark it as alive, and wake callers of `wait_for_roster`.

        Returns the number of entries that are older than the first entry for this key (0 for the oldest), or an upper
        bound for that number.
        """

    @abc.abstractmethod
    def withdraw(self, key: str) -> None:
        """Remove the entry for `key`, if it exists, and wake callers of `wait_for_roster`. The entry may belong to this
        node or to a node that `roster` returned."""

    @abc.abstractmethod
    def beat(self, key: str, leading: bool, look: bool) -> int | None:
        """Send a heartbeat.

        Args:
            leading: whether this node is the leader, which makes the job's decisions. If so, also increment the leader
                counter.
            look: whether to return the leader counter.

        Returns the leader counter if `leading` or `look` is set, otherwise None. Raises EntryDroppedError if the node's
        entry no longer exists, perhaps because another node has withdrawn it. The check may be less frequent than
        the heartbeats.
        """

    @abc.abstractmethod
    def roster(self) -> tuple[Announced, ...]:
        """Return all entries, in the order in which their keys were first announced. Entries that have not changed
        since the last call may come from a cache, but the heartbeat numbers must be current."""

    @abc.abstractmethod
    def wait_for_state(self, token: Token | None, timeout: Duration) -> bool:
        """Wait up to `timeout` seconds for a write after the one that `token` identifies or, if `token` is None, for
        the first write. Returns whether the state has changed. The method may return True although nothing has changed,
        but it must not miss a change."""

    @abc.abstractmethod
    def wait_for_roster(self, timeout: Duration, more: int = 1) -> bool:
        """Wait up to `timeout` seconds until at least `more` entries have been announced or withdrawn since the last
        `roster` call. Returns whether the roster has changed. The method may return early, and it may return True
        although nothing has changed."""

    @property
    def vacant(self) -> bool:
        """Whether this backend knows that the leader has failed and that no other node has replaced it yet. If so, the
        next node in line immediately becomes leader. A backend that cannot know this returns False. Nodes then detect
        the failure when the leader counter stops changing."""
        return False

    @property
    def lease_ttl(self) -> Duration | None:
        """Seconds without a heartbeat after which the backend drops a node's entry; None if it never does so."""
        return None

    @property
    def grace(self) -> Duration:
        """For how many seconds after the failure timeout a node keeps its workers running while the store does not
        answer. Use a value above 0 if store outages usually affect all nodes, because no node is then considered
        failed. Any thread may read this property, which must not block."""
        return 0.0

    @property
    def hosts_store(self) -> bool:
        """Whether this process hosts the store. If so, this node should leave last."""
        return False

    def hand_over(self, heirs: Sequence[str], timeout: Duration) -> bool:
        """Move this process's store and its contents to the first node in `heirs` (a list of node keys) that can host
        it. Waits up to twice `timeout` seconds for the other nodes to switch to the new host. Returns whether another
        node now hosts the store. By default, the store cannot be moved."""
        return False

    def store_members(self) -> Sequence[str]:
        """Return the status of each member of the job's own store cluster, such as `node0:2379 leads`. Without such a
        cluster, the result is empty. `elastic status` calls this method, which may take at most a few seconds."""
        return ()

    @abc.abstractmethod
    def close(self) -> None:
        """Release all connections, stop the store if this process hosts it, and make waiting calls return False.
        Idempotent. At the end of the job, the agent waits at most 10 s for this call."""


class RoundStores(abc.ABC):
    """Creates and opens the workers' stores on one node. Every round has a separate store. Only one thread calls the
    methods."""

    @property
    @abc.abstractmethod
    def hosted_by_agent(self) -> bool:
        """Whether rank 0's agent hosts the workers' store. If not, rank 0's worker hosts it."""

    @abc.abstractmethod
    def reserve(self) -> RendezvousStoreInfo:
        """Reserve an address for the workers' store, in case this node becomes rank 0. The reservation lasts until
        `open` or `release` is called. A new reservation replaces it, and stops the store that this node hosted for an
        earlier round."""

    def seen_from_here(self, host: RendezvousStoreInfo) -> RendezvousStoreInfo:
        """Return the address at which this node reaches the workers' store that rank 0 advertises as `host`."""
        return host

    @abc.abstractmethod
    def open(self, name: str, host: RendezvousStoreInfo, is_host: bool) -> Store:
        """Open the round's store.

        Args:
            name: the round's number, a hyphen, and a URL-quoted id. Names are unique even if the rendezvous store has
                lost its data and round numbers start over.
            host: the address of the workers' store; on rank 0, this node's own reservation.
            is_host: whether this node is rank 0.

        Raises:
            ConfigurationError: this process cannot open as many files as the store needs.
        """

    @abc.abstractmethod
    def release(self) -> None:
        """Release everything. Idempotent."""
