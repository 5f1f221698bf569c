"""The layout of a job's keys in etcd, and every fenced write of the state.

/<prefix>/<run id>/round/state     the state; its mod_revision is the fencing token
/<prefix>/<run id>/round/lead      the leader, while its lease lives
/<prefix>/<run id>/round/withdrawn the node that another one withdrew last, while that one's lease lives
/<prefix>/<run id>/nodes/<key>     a node's entry, while its lease lives
/<prefix>/<run id>/store/          the rounds' stores

All nodes watch `round/`, and the leader also watches `nodes/`.

A write of the state names the mod_revision that it replaces, and etcd carries it out only if that revision is still
current. A node that was suspended therefore cannot overwrite a newer state with an old decision.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

from elastic_core.plugin import ForeignStateError
from elastic_etcd.client.errors import EtcdLeaseGone, EtcdUnreachable
from elastic_etcd.client.values import Compare, Field, Get, KeyValue, Put, Transaction

if TYPE_CHECKING:
    from elastic_core.plugin import Clock, Duration, Instant
    from elastic_etcd.client.client import EtcdClient

RUN_TTL: Duration = 600.0
_MARK = 8  # bytes at the beginning of each value
_LONGEST_NAME = 4096  # bytes; a quoted character takes up to twelve


class Keys:
    """One job's keys, which all begin with `prefix`. Names of jobs and nodes are quoted, so no two names share a
    key."""

    def __init__(self, prefix: str, run_id: str) -> None:
        self.base = f"/{prefix.strip('/')}/{quote(run_id, safe='')}/"
        self.state = f"{self.base}round/state".encode()
        self.lead = f"{self.base}round/lead".encode()
        self.withdrawn = f"{self.base}round/withdrawn".encode()
        self.round = f"{self.base}round/".encode()
        self.nodes = f"{self.base}nodes/".encode()
        self.store = f"{self.base}store/"

    def round_store(self, name: str) -> str:
        """Return the prefix of the keys in this round's store. Later rounds sort after it."""
        return f"{self.earlier_rounds(name)}{name.lstrip('0123456789')}/"

    def earlier_rounds(self, name: str) -> str:
        """Return the end of the range of keys that belong to rounds with lower numbers."""
        return f"{self.store}{name.partition('-')[0]:0>20}"

    def node(self, key: str) -> bytes:
        """Return the key of this node's entry."""
        return self.nodes + quote(key, safe="").encode()

    def key_of(self, name: bytes) -> str | None:
        """Return the key of the node whose entry has this name, or None if `node` would not create such a name."""
        if len(name) > len(self.nodes) + _LONGEST_NAME:
            return None
        key = unquote(name[len(self.nodes) :].decode("utf-8", "replace"))
        return key if key.isprintable() and self.node(key) == name else None


class StateVersion(NamedTuple):
    """A token: the state's mod_revision, its lease, and a mark that is chosen at random for each write. The mark is
    needed because a wiped or restored store repeats revisions, and a state from a backup has the same lease."""

    revision: int
    lease: int
    mark: bytes = b""


NOTHING = StateVersion(0, 0)


def version_of(pair: KeyValue | None) -> StateVersion:
    """Return the token for a value of the state's key. `pair` is None if the key does not exist."""
    return NOTHING if pair is None else StateVersion(pair.mod_revision, pair.lease, pair.value[:_MARK])


class StateKey:
    """The job's state under one key. It is used from one thread.

    The key has a separate lease, which the leader renews and which outlives the nodes by `RUN_TTL` seconds. A job's
    keys therefore disappear on their own, but until then, a job that has lost all its nodes can be resumed.
    """

    def __init__(self, client: EtcdClient, key: bytes, clock: Clock) -> None:
        self._client = client
        self._key = key
        self._clock = clock
        self._lease = 0
        self._renewed: Instant | None = None

    def shown(self, pair: KeyValue) -> tuple[bytes, StateVersion]:
        """Return the state in this value, and its token. Raises ForeignStateError if the value has another format."""
        token = version_of(pair)
        if pair.value[_MARK : _MARK + 1] != b":":
            raise ForeignStateError(
                f"expected a state written by elastic-etcd under the key {self._key.decode()!r}, found "
                f"{pair.value[:60]!r}; choose another --rdzv-id, or another prefix",
                token,
            )
        self._lease = pair.lease
        return pair.value[_MARK + 1 :], token

    def write(self, state: bytes, token: StateVersion, lost: bool = False) -> tuple[KeyValue | None, bool]:
        """Replace the state that `token` identifies. Returns the key's current value, and whether this call wrote it.

        The random mark at the beginning of each value distinguishes the writes of two nodes that write the same state.
        A node that received no answer to its write also recognizes from the mark that the write succeeded. `lost` is
        true if the store was wiped or restored since the last write. The state then gets a new lease. Otherwise, an old
        token could be valid by chance, because etcd compares revisions and leases, but not marks.
        """
        value = secrets.token_hex(_MARK // 2).encode() + b":" + state
        self._lease = 0 if lost else self._lease
        before = self._lease
        try:
            found, written = self._attempt(value, token)
        except EtcdLeaseGone:  # the old lease expired, because there was no leader for a long time
            self._lease = before = 0
            found, written = self._attempt(value, token)
        if not written and self._lease != before:  # the new lease is not needed
            self._client.revoke(self._lease)
            self._lease = before
        return found, written

    def _attempt(self, value: bytes, token: StateVersion) -> tuple[KeyValue | None, bool]:
        put = Put(self._key, value, self._run_lease())
        fence = [Compare(self._key, Field.MODIFIED, token.revision), Compare(self._key, Field.LEASE, token.lease)]
        try:
            done = self._client.transact(Transaction(fence, [put], [Get(self._key)]))
        except EtcdUnreachable as error:
            if not error.landed:
                raise
            found = self._client.read(self._key).first
            if found is None or version_of(found) == token:
                raise
            return found, found.value == value
        if done.succeeded:
            return KeyValue(self._key, value, 0, done.revision, 1, put.lease), True
        return done.ranges[0].first, False

    def _run_lease(self) -> int:
        if not self._lease:
            self._lease = self._client.grant(RUN_TTL).id
            self._renewed = self._clock.now()
        return self._lease

    def keep(self) -> None:
        """Renew the state's lease when it is due. The leader calls this with every heartbeat."""
        now = self._clock.now()
        if not self._lease or (self._renewed is not None and now - self._renewed < RUN_TTL / 3):
            return
        self._renewed = now
        try:
            self._client.renew(self._lease)
        except EtcdLeaseGone:
            self._lease = 0
