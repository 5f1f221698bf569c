"""What a rendezvous backend is: a place for one small state and, if it can do more, for entries with beats and push.

A backend with only `get_state` and `set_state` works: the core keeps the entries of the nodes inside the state, and
polls it with backoff. A `RosterBackend` keeps the entries apart and pushes changes; a thousand nodes are cheap only
with such a backend.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.clock import Duration
    from elastic_core.interfaces.handler import RendezvousStoreInfo
    from elastic_core.interfaces.store import Store

Token = Any
"""Identifies one write of the state. Only the backend that made it looks into it."""


class SpoiltStateError(RendezvousStateError):
    """Something else has written in the place of the state.

    Args:
        token: of what stands there, with which it can be replaced.
        others: it may be the state of other nodes, with another secret, say, or another version of elastic-core.
        secret: the job has one, and it is not signed with that.
    """

    def __init__(self, message: str, token: Token, others: bool = True, secret: bool = False) -> None:
        super().__init__(message)
        self.token = token
        self.others = others
        self.secret = secret


class Seal(Protocol):
    """Signs what is written into the store. A place is the name of a value there."""

    @property
    def signs(self) -> bool:
        """Whether the job has a secret; else all bytes pass as they are."""
        ...

    def sealed(self, place: str, data: bytes) -> bytes:
        """The bytes with a signature, for this place only."""
        ...

    def opened(self, place: str, value: bytes) -> bytes | None:
        """The bytes without the signature; None if they are not signed for this place."""
        ...

    def is_others(self, value: bytes) -> bool:
        """Whether it looks as if nodes with another secret, or with one where this one has none, had signed it."""
        ...

    def state(self, place: str, value: bytes, token: Token) -> bytes:
        """The same for a state. Raises SpoiltStateError: it is not signed for this place."""
        ...


class RendezvousBackend(abc.ABC):
    """Holds the state of one job behind a compare-and-swap. The names and their meaning are torch's.

    Every method may raise RendezvousConnectionError (the store cannot be reached now; the call may be repeated) and
    RendezvousStateError (the store holds something that is not ours; a SpoiltStateError lets the nodes put that right).
    The methods are called from several threads, but never at the same time. `elastic_testing.BackendContract`
    tests these promises.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name that selects the backend."""

    @abc.abstractmethod
    def get_state(self) -> tuple[bytes, Token] | None:
        """The state and the token of its last write; None if there is no state yet."""

    @abc.abstractmethod
    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write `state` if `token` still identifies the last write (None: if there is no state yet).

        Returns the state after the call, its token, and whether this call wrote it; None if the backend cannot tell
        the state after the call. Two writes never have the same token.
        """


@dataclass(frozen=True)
class Announced:
    """One live entry, as a backend returns it.

    Args:
        key: the node's key, unique for every start of an agent.
        entry: the last entry that it announced.
        beats: a number that changes with every beat. Observers time the changes on their own clocks. None if the
            backend itself drops the entries of nodes that are gone, as with a lease.
    """

    key: str
    entry: bytes
    beats: int | None


class EntryDroppedError(RendezvousConnectionError):
    """The store has dropped the entry of a node that still beats. The node then announces itself again."""


class RosterBackend(RendezvousBackend):
    """A backend that keeps each node's entry under a key of its own, and pushes changes.

    `wait_for_state` and `wait_for_roster` have a calling thread each, and all other methods share a third one. `close`
    may be called from any thread.
    """

    def sign_with(self, seal: Seal) -> bool:
        """Called once, before all other methods but `close`, where the job has a secret. A backend that signs what it
        writes by itself, each value for the place where it stands, returns True. It passes over what is not signed; a
        state that is not is a SpoiltStateError. For any other backend, the core signs states and entries."""
        return False

    @abc.abstractmethod
    def announce(self, key: str, entry: bytes) -> int:
        """Create or replace the entry of `key`. From then on the entry is alive. Wakes callers of `wait_for_roster`.

        Returns how many entries are older than the first entry of this key (0 for the oldest). The number may be too
        high.
        """

    @abc.abstractmethod
    def withdraw(self, key: str) -> None:
        """Remove the entry if it exists: this node's, or one that `roster` has returned. Wakes callers of
        `wait_for_roster`."""

    @abc.abstractmethod
    def beat(self, key: str, leading: bool, look: bool) -> int | None:
        """Report that the node is alive.

        Args:
            leading: this node is the leader (it runs `decide`), and also increments the leaders' counter.
            look: this node wants to know the leaders' counter.

        Returns the leaders' counter if `leading` or `look`, else None. Raises EntryDroppedError if the node's entry no
        longer exists.
        """

    @abc.abstractmethod
    def roster(self) -> tuple[Announced, ...]:
        """All entries, ordered by when their key was first announced. Entries that have not changed since the last call
        may come from a cache; the beats are fresh."""

    @abc.abstractmethod
    def wait_for_state(self, token: Token | None, timeout: Duration) -> bool:
        """Block until `token` no longer identifies the state (None: until there is a state), or for `timeout` seconds.
        Returns whether the state changed. True may be wrong; False must be right."""

    @abc.abstractmethod
    def wait_for_roster(self, timeout: Duration, more: int = 1) -> bool:
        """Block until at least `more` entries were announced or withdrawn since the last `roster`, or for `timeout`
        seconds; fewer may end the wait too. Returns whether there were any. True may be wrong."""

    @property
    def vacant(self) -> bool:
        """Whether this backend knows that the leader it has seen is gone, and has no successor yet. The next node in
        line then leads at once. False if the backend cannot know this; the loss then shows in the leaders' counter,
        which stands still."""
        return False

    @property
    def lease_ttl(self) -> Duration | None:
        """Seconds without a beat after which the backend itself drops the entry of a node; None if it does not."""
        return None

    @property
    def grace(self) -> Duration:
        """Seconds that a node without an answer keeps its workers, beyond the time after which other nodes call it
        gone. Above 0 for a store that more probably answers no node for a while (then no node is called gone) than all
        nodes but one. Called from any thread while no answer comes; returns at once."""
        return 0.0

    @property
    def hosts_store(self) -> bool:
        """Whether the store runs in this process, so that this node should leave last."""
        return False

    def hand_over(self, heirs: Sequence[str], timeout: Duration) -> bool:
        """This process hosts the store, and ends soon: let the first of the nodes with these keys that can serve it do
        so, with all that was accepted, and wait for the others to follow. Takes `timeout` seconds, or twice that, at
        most. Returns whether it is elsewhere now; here, that cannot be done."""
        return False

    def store_members(self) -> Sequence[str]:
        """For `elastic status`: of a store that is a cluster of the job's own, how each member stands, such as
        `node0:2379 leads`; else nothing. Takes some seconds at most."""
        return ()

    @abc.abstractmethod
    def close(self) -> None:
        """Release connections, and let waiting calls return False. A store that this process hosts ends too.
        Idempotent. The end of the job waits at most 10 s for this."""


class RoundStores(abc.ABC):
    """One node's side of the workers' stores: every round has a store of its own. Used from one thread."""

    @property
    @abc.abstractmethod
    def hosted_by_agent(self) -> bool:
        """Whether rank 0's agent hosts the workers' store; otherwise rank 0's worker hosts it."""

    @abc.abstractmethod
    def reserve(self) -> RendezvousStoreInfo:
        """The address of the workers' store if this node becomes rank 0. It is held until `open` or `release`. A new
        reservation replaces the previous one, and ends the store that this node hosted for an earlier round."""

    def seen_from_here(self, host: RendezvousStoreInfo) -> RendezvousStoreInfo:
        """Where this node reaches the workers' store of a rank 0 that advertises `host`."""
        return host

    @abc.abstractmethod
    def open(self, name: str, host: RendezvousStoreInfo, is_host: bool) -> Store:
        """The store of the round with this name; its workers find their store at `host`. `is_host`: this node is rank
        0, and `host` is its reservation. A name is the round's number, a hyphen, and an id, quoted as in URLs. It is
        unique, even if the rendezvous store lost its data and numbers are used again. Raises ConfigurationError: this
        process may not open as many files as the store needs."""

    @abc.abstractmethod
    def release(self) -> None:
        """Release everything. Idempotent."""
