"""One node's side of the backend. It writes the node's entry, its lease and the leader's key, and reads the entries of
other nodes.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from elastic_core.plugin import (
    Announced,
    ConfigurationError,
    EntryDroppedError,
    RendezvousConnectionError,
    RendezvousError,
    RosterBackend,
    SystemClock,
)
from elastic_etcd.backend.key_cache import NodeCache, RoundCache
from elastic_etcd.backend.keys import NOTHING, Keys, StateKey, StateVersion
from elastic_etcd.client.errors import (
    EtcdClosed,
    EtcdError,
    EtcdFull,
    EtcdLeaseGone,
    EtcdRefused,
    EtcdTooLarge,
    EtcdUnreachable,
)
from elastic_etcd.client.lease_keeper import LeaseKeeper
from elastic_etcd.client.values import Committed, Compare, Delete, Field, Get, KeyValue, Put, Transaction, end_of
from elastic_etcd.plugin import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elastic_core.plugin import Clock, Duration, Token
    from elastic_etcd.client.client import EtcdClient
    from elastic_etcd.server import EtcdServer
    from elastic_etcd.server.member import ServedCluster

_ATTEMPTS = 5
_TRUSTED: Duration = 25.0  # the longest time that a node with a watch goes without a read, unless it leads
_NEVER = StateVersion(-1, 0)  # matches no state


class EtcdRendezvousBackend(RosterBackend):
    """A rendezvous backend over etcd's v3 API. For each node, etcd has to keep one lease, which the node renews, and
    one watch. The leader has a second watch. etcd drops a lost node's entry when the node's lease expires. A job's keys
    disappear a few minutes after its last node has left.

    Every method but `close` may raise two errors. RendezvousConnectionError means that no member answers, that the
    job's keys are too large for one response, or that the quota was used up after a successful announcement. A running
    job may survive these problems, and the next call tries again. RendezvousError means that etcd rejects the request
    because of a missing permission, a wrong password, or a lack of space for the first announcement.

    Args:
        client: closed by the backend.
        run_id: the job's run id; jobs with different ids do not see each other.
        lease_ttl: seconds without a heartbeat after which a node is lost; at least 2.
        server: an etcd server in this process, stopped by `close`.
        grace: how many seconds beyond `lease_ttl` nodes keep their workers running while no member answers. Without a
            quorum, etcd lets no lease expire, so no node is considered lost.
        served: the cluster, if the job's agents serve it; `close` stops this agent's member.
    """

    name = "etcd"
    lease_ttl: Duration = 5.0
    grace: Duration = 30.0

    def __init__(
        self,
        client: EtcdClient,
        run_id: str,
        prefix: str = PREFIX,
        lease_ttl: Duration = lease_ttl,
        clock: Clock | None = None,
        server: EtcdServer | None = None,
        grace: Duration = grace,
        served: ServedCluster | None = None,
    ) -> None:
        self._client = client
        self._server = server
        self._served = served
        self.grace = grace
        self.lease_ttl = lease_ttl
        self._clock = clock = clock or SystemClock()
        self._keys = Keys(prefix, run_id)
        self._lease = LeaseKeeper(client, lease_ttl, clock=clock)
        self._round = RoundCache(client, self._keys, clock)
        self._nodes = NodeCache(client, self._keys, clock)
        self._state = StateKey(client, self._keys.state, clock)
        self._version = NOTHING
        self._announced: dict[str, int] = {}
        self._unproven = False  # whether a renewal was due since the last read of our entry
        self._read_at = clock.now()  # when our entry was last read
        self._signs = (0, 0)  # the round watch's signs of a loss when our entry was last known to exist
        self._written_after = 0  # the number of losses when this node last wrote the state
        self._has_been_announced = False
        self._leads = False
        self._contested = False
        self._leader_beats = 0

    def get_state(self) -> tuple[bytes, Token] | None:
        with self._while("reading the state"):
            pair = self._round.state()
        if pair is None:
            self._version = NOTHING
            return None
        state, self._version = self._state.shown(pair)
        return state, self._version

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        fence = NOTHING if token is None else token if isinstance(token, StateVersion) else _NEVER
        losses = self._round.losses
        with self._while("writing the state"):
            found, written = self._state.write(state, fence, lost=losses != self._written_after)
        if written:
            self._written_after = losses
        if found is None:
            return None
        self._round.wrote(found)
        shown, self._version = self._state.shown(found)
        return shown, self._version, written

    def announce(self, key: str, entry: bytes) -> int:
        with self._while("announcing this node"):
            for _ in range(_ATTEMPTS):
                with contextlib.suppress(EtcdLeaseGone):  # the next attempt uses another lease
                    if (older := self._put_entry(key, entry)) is not None:
                        return older
            raise EtcdUnreachable(f"all {_ATTEMPTS} attempts to announce {key} failed")

    def withdraw(self, key: str) -> None:
        with self._while("withdrawing a node"):
            own, lease = key in self._announced, self._lease.lease
            ours = Compare(self._keys.lead, Field.VALUE, key.encode())
            drop = Delete(self._keys.node(key))
            lead = [Delete(self._keys.lead)] if own and self._leads else []
            mark = [] if own or not lease else [Put(self._keys.withdrawn, key.encode(), lease)]
            self._client.transact(Transaction([ours] if lead else [], [drop, *lead, *mark], [drop]))
            if own:
                del self._announced[key]
                self._leads = False
                self._lease.release()

    def beat(self, key: str, leading: bool, look: bool) -> int | None:
        with self._while("sending a heartbeat"):
            self._unproven = self._unproven or self._lease.due_in() <= 0
            if not self._lease.renew_if_due():
                self._announced.pop(key, None)
                self._leads = False
                raise EntryDroppedError(
                    "etcd has ended this node's lease, because no renewal reached etcd in time (this process was "
                    "suspended or cut off); the node announces itself again"
                )
            trusted = min(self.grace, _TRUSTED) if self._round.follows and not leading else 0.0
            due = self._unproven and self._clock.now() - self._read_at >= trusted
            if due or self._round.signs != self._signs:
                self._check_entry(key)
                self._unproven, self._read_at = False, self._clock.now()
            if leading:
                self._lead(key.encode())
                self._state.keep()
            else:
                self._nodes.forget()
                self._step_back(key.encode())
        if not leading and self._round.holder not in (None, key.encode()):
            self._leader_beats += 1  # etcd itself monitors the leader
        return self._leader_beats if leading or look else None

    def roster(self) -> tuple[Announced, ...]:
        with self._while("reading the roster"):
            found = self._nodes.entries(self._version.revision)
        return tuple(Announced(key, pair.value, None) for pair in found if (key := self._keys.key_of(pair.key)))

    def wait_for_state(self, token: Token | None, timeout: Duration) -> bool:
        return self._wait(lambda: self._round.wait(NOTHING if token is None else token, timeout))

    def wait_for_roster(self, timeout: Duration, more: int = 1) -> bool:
        return self._wait(lambda: self._nodes.wait(timeout, more))

    @property
    def hosts_store(self) -> bool:
        return self._server is not None or (self._served is not None and self._served.hosts)

    def hand_over(self, heirs: Sequence[str], timeout: Duration) -> bool:
        return self._served is not None and self._served.leave(timeout)

    def store_members(self) -> Sequence[str]:
        return () if self._served is None else self._served.shown()

    @property
    def vacant(self) -> bool:
        return self._round.vacant

    def close(self) -> None:
        """Unblock all calls. Waits return False, and other calls raise RendezvousConnectionError. Entries that were not
        withdrawn disappear when their lease expires."""
        self._round.close()
        self._nodes.close()
        self._client.close()
        for server in (self._server, self._served):
            if server is not None:
                server.stop()

    def _put_entry(self, key: str, entry: bytes) -> int | None:
        """Write this node's entry. Return the approximate number of older entries, or None if etcd holds an
        announcement by this node of which the node did not know.

        A stalled member may carry out a put later, after the client has given up on it. Each put therefore names the
        entry that it replaces, so that it cannot replace a newer one.
        """
        signs = self._round.signs
        where = self._keys.node(key)
        count = Get(self._keys.nodes, end_of(self._keys.nodes), count_only=True)
        fence = Compare(where, Field.MODIFIED, self._announced.get(key, 0))
        done, _ = self._put_leased(lambda lease: Transaction([fence], [Put(where, entry, lease), count], [Get(where)]))
        self._has_been_announced = True
        if done.succeeded:
            self._announced[key], self._signs = done.revision, signs
            return max(0, done.ranges[1].count - 1)
        found = done.ranges[0].first
        self._announced[key] = 0 if found is None else found.mod_revision
        return None

    def _check_entry(self, key: str) -> None:
        """Check that etcd still holds this node's latest entry. A restored backup may contain the lease but an older
        entry or none. The read also proves that the member in use takes part in the cluster. A renewed lease does not,
        because the member only forwards renewals: if its disk hangs, it would report no changes to this node."""
        signs, announced = self._round.signs, self._announced.get(key)
        if announced is None:
            return
        found = self._client.read(self._keys.node(key), keys_only=True).first
        if found is None or found.mod_revision != announced:
            raise EntryDroppedError(
                "etcd no longer holds this node's latest entry, perhaps because it was wiped or restored; the node "
                "announces itself again"
            )
        self._signs = signs

    def _lead(self, name: bytes) -> None:
        """Announce that this node leads. If two nodes lead, the one that is not first in the succession order steps
        back when it sees the other's heartbeats. The first one takes the key back with its next heartbeat."""
        holder = self._round.holder
        contested = self._leads and holder is not None and holder != name
        if contested and not self._contested:
            self._contested = True
            self._leader_beats += 2
            return
        self._contested = False
        if not self._leads or holder != name:
            done, lease = self._put_leased(lambda lease: Transaction([], [Put(self._keys.lead, name, lease)]))
            self._round.wrote(KeyValue(self._keys.lead, name, done.revision, done.revision, 1, lease))
            self._leads = True
        self._leader_beats += 1

    def _step_back(self, name: bytes) -> None:
        if self._leads:
            ours = Compare(self._keys.lead, Field.VALUE, name)
            self._client.transact(Transaction([ours], [Delete(self._keys.lead)]))
        self._leads = self._contested = False

    def _put_leased(self, transaction: Callable[[int], Transaction]) -> tuple[Committed, int]:
        """Carry out the transaction with this node's lease. Return the outcome and the lease."""
        lease = self._lease.ensure()
        try:
            return self._client.transact(transaction(lease)), lease
        except EtcdLeaseGone:
            self._lease.gone(lease)
            raise

    @contextlib.contextmanager
    def _while(self, doing: str) -> Iterator[None]:
        """Convert the client's errors into the core's errors."""
        try:
            yield
        except (EtcdUnreachable, EtcdClosed, EtcdLeaseGone) as error:
            unserved = isinstance(error, EtcdUnreachable) and self._served is not None and self._served.diagnosis()
            raise RendezvousConnectionError(f"{doing}: {unserved or error}") from error
        except EtcdRefused as error:
            passes = isinstance(error, EtcdTooLarge) or (isinstance(error, EtcdFull) and self._has_been_announced)
            raise (RendezvousConnectionError if passes else RendezvousError)(f"{doing}: {error}") from error
        except ConfigurationError:
            raise
        except ValueError as error:  # the transaction exceeds etcd's limits
            raise RendezvousError(f"{doing}: {error}") from error

    def _wait(self, wait: Callable[[], bool]) -> bool:
        try:
            return wait()
        except EtcdClosed:
            return False
        except EtcdError as error:
            raise RendezvousConnectionError(f"waiting for changes: {error}") from error
