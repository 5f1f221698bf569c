"""What a rendezvous backend is: a place for one small state and, if it can do more, for entries with beats and push.

A backend of two methods, `get_state` and `set_state`, works: the core keeps the entries of the nodes inside the state
and reads it again and again, with backoff. A `RosterBackend` keeps entries apart and reports changes; only with it are
a thousand nodes cheap.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_core.errors import RendezvousConnectionError

if TYPE_CHECKING:
    from elastic_core.clock import Duration
    from elastic_core.interfaces.handler import RendezvousStoreInfo
    from elastic_core.interfaces.store import Store

Token = Any
"""Names one write of the state; only the backend that made it looks into it."""


class RendezvousBackend(abc.ABC):
    """Holds the state of one job behind a compare-and-swap. The names and their meaning are torch's.

    Every method may raise RendezvousConnectionError (the store cannot be reached now; the call may be repeated) and
    RendezvousStateError (what is stored there cannot be ours). They are called from several threads, by one at a time.
    `elastic_core.testing.BackendContract` tests what is promised here.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name it is selected by."""

    @abc.abstractmethod
    def get_state(self) -> tuple[bytes, Token] | None:
        """The state and the token of its last write; None when there is none yet."""

    @abc.abstractmethod
    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write `state` if the last write is still the one that `token` names (None: if there is no state yet).

        Returns the state that stands afterwards, its token, and whether this call wrote it; None when the backend
        cannot tell what stands. The token of a write is never that of another.
        """


@dataclass(frozen=True)
class Announced:
    """One live entry as the backend shows it.

    Args:
        key: the node's key, unique for every start of an agent.
        entry: what it announced last.
        beats: a number that changes with every beat, timed by the observer on its own clock; None when the backend
            itself drops the entries of nodes that are gone (a lease).
    """

    key: str
    entry: bytes
    beats: int | None


class EntryDroppedError(RendezvousConnectionError):
    """The store has dropped the entry of a node that beats; the node announces itself anew."""


class RosterBackend(RendezvousBackend):
    """A backend that keeps each node's entry under a key of its own, and pushes.

    `wait_for_state` and `wait_for_roster` are each called from one thread of their own, all other methods from one
    more; `close` from any.
    """

    @abc.abstractmethod
    def announce(self, key: str, entry: bytes) -> int:
        """Create the entry of `key`, or replace it. It is alive from now on, and callers that wait for the roster wake.

        Returns about how many entries are older than the first one of this key; 0 for the oldest. May overestimate.
        """

    @abc.abstractmethod
    def withdraw(self, key: str) -> None:
        """Remove the entry, if there is one: this node's, or one that `roster` has shown. Callers that wait for the
        roster wake."""

    @abc.abstractmethod
    def beat(self, key: str, leading: bool, look: bool) -> int | None:
        """Tell that the node lives. The leader (the node that runs `decide`) also counts up the leaders' counter.

        Returns the leaders' counter if `leading` or `look`, else None. Raises EntryDroppedError if the node's entry is
        not there any more.
        """

    @abc.abstractmethod
    def roster(self) -> tuple[Announced, ...]:
        """All entries, the first announced (by the first entry of their key) first. Entries that have not changed since
        the last call may come from memory; beats are fresh."""

    @abc.abstractmethod
    def wait_for_state(self, token: Token | None, timeout: Duration) -> bool:
        """Block until the state is not the one that `token` names (None: until there is one), or for `timeout` seconds.
        Returns whether it changed; True may be wrong, False may not."""

    @abc.abstractmethod
    def wait_for_roster(self, timeout: Duration, more: int = 1) -> bool:
        """Block until an entry was announced or withdrawn since the last `roster`, or for `timeout` seconds. Returns
        whether one was; True may be wrong. Fewer than `more` of them need not end the wait."""

    @property
    def vacant(self) -> bool:
        """Whether this backend has seen a leader that is known to have gone since, without another in its place. The
        next in line then leads at once. False if the backend cannot know this: then the leaders' counter stands
        still."""
        return False

    @property
    def lease_ttl(self) -> Duration | None:
        """Seconds without a beat after which it drops the entry of a node by itself; None if it does not."""
        return None

    @property
    def grace(self) -> Duration:
        """Seconds that a node keeps its workers without an answer, beyond those after which others call it gone. Above
        0 where it is likelier that the store answers no node for a while, so that no node is called gone, than that it
        answers all others. Called while no answer comes, from any thread; returns at once."""
        return 0.0

    @property
    def hosts_store(self) -> bool:
        """Whether the store itself lives in this process, so that this node should leave last."""
        return False

    @abc.abstractmethod
    def close(self) -> None:
        """Release connections and let waiting calls return False. Idempotent. A store hosted here ends too. The end of
        the job waits for this for at most 10 s."""


class RoundStores(abc.ABC):
    """Gives every round a store of its own for the workers. One node's side of it; used from one thread."""

    @property
    @abc.abstractmethod
    def hosted_by_agent(self) -> bool:
        """Whether rank 0's agent hosts the workers' store; else rank 0's worker does."""

    @abc.abstractmethod
    def reserve(self) -> RendezvousStoreInfo:
        """Where the workers' store will be if this node becomes rank 0. Held until `open` or `release`. A new
        reservation replaces the one before, and ends what an earlier round hosted here."""

    @abc.abstractmethod
    def open(self, number: int, host: RendezvousStoreInfo, is_host: bool) -> Store:
        """The store of round `number`, whose workers find theirs at `host`. `is_host`: this node is rank 0, and
        `host` is what it reserved."""

    @abc.abstractmethod
    def release(self) -> None:
        """Let go of everything. Idempotent."""
