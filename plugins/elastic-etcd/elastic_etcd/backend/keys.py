"""Where a job keeps what in etcd, and the state's key: every fenced write of the state is in this file.

    /<prefix>/<run id>/round/state     the state; its mod_revision is the fence
    /<prefix>/<run id>/round/lead      who leads, while its lease lives
    /<prefix>/<run id>/nodes/<key>     the entry of a node, while its lease lives
    /<prefix>/<run id>/store/          the stores of the rounds

Everybody watches `round/`, who leads watches `nodes/`.

The state's fence is its key's mod_revision: a write names the one that it replaces, and etcd carries it out only if
that one still stands. So a node that slept cannot put what it decided about the past in the place of what came since.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

from elastic_core.plugin import SpoiltStateError
from elastic_etcd.client.errors import EtcdLeaseGone, EtcdUnreachable
from elastic_etcd.client.values import Compare, Field, Get, KeyValue, Put, Transaction

if TYPE_CHECKING:
    from elastic_core.plugin import Clock, Duration, Instant
    from elastic_etcd.client.client import EtcdClient

RUN_TTL: Duration = 600.0
_MARK = 8  # bytes, of each value
_LONGEST_NAME = 4096  # bytes; quoted, a character takes up to twelve


class Keys:
    """Of one job. Names of jobs and nodes are quoted, so that no two share a key.

    Args:
        prefix: the first part of every key; may have several parts with slashes between them.
        run_id: the job.
    """

    def __init__(self, prefix: str, run_id: str) -> None:
        self.base = f"/{prefix.strip('/')}/{quote(run_id, safe='')}/"
        self.state = f"{self.base}round/state".encode()
        self.lead = f"{self.base}round/lead".encode()
        self.round = f"{self.base}round/".encode()
        self.nodes = f"{self.base}nodes/".encode()
        self.store = f"{self.base}store/"

    def round_store(self, name: str) -> str:
        """What the keys of this round's store begin with. Later rounds come after it in the order of keys."""
        return f"{self.earlier_rounds(name)}{name.lstrip('0123456789')}/"

    def earlier_rounds(self, name: str) -> str:
        """Where the keys of rounds with lower numbers end."""
        return f"{self.store}{name.partition('-')[0]:0>20}"

    def node(self, key: str) -> bytes:
        """Of the node with this key."""
        return self.nodes + quote(key, safe="").encode()

    def key_of(self, name: bytes) -> str | None:
        """The node whose entry has this name; None if `node` would not have given it, so that no node has two, or if
        it is longer than names are, or cannot be printed."""
        if len(name) > len(self.nodes) + _LONGEST_NAME:
            return None
        key = unquote(name[len(self.nodes) :].decode("utf-8", "replace"))
        return key if key.isprintable() and self.node(key) == name else None


class StateVersion(NamedTuple):
    """A token: the mod_revision of the state, its lease, and the mark of its value, which is random for each write. A
    store that was wiped or restored counts the same revisions again, and a backup has the same lease."""

    revision: int
    lease: int
    mark: bytes = b""


NOTHING = StateVersion(0, 0)


def version_of(pair: KeyValue | None) -> StateVersion:
    """The token of a value of the state's key; None: the key does not exist."""
    return NOTHING if pair is None else StateVersion(pair.mod_revision, pair.lease, pair.value[:_MARK])


class StateKey:
    """The state of the job under one key. Used from one thread.

    The key has a lease of its own, which outlives the nodes by `RUN_TTL` seconds: who leads renews it, so that what is
    left of a job goes by itself, and a job that lost all its nodes can be taken up again before.
    """

    def __init__(self, client: EtcdClient, key: bytes, clock: Clock) -> None:
        self._client = client
        self._key = key
        self._clock = clock
        self._lease = 0
        self._renewed: Instant | None = None

    def shown(self, pair: KeyValue) -> tuple[bytes, StateVersion]:
        """The state in this value, and its token. Raises SpoiltStateError: it was not written like one."""
        token = version_of(pair)
        if pair.value[_MARK : _MARK + 1] != b":":
            raise SpoiltStateError(
                f"expected a state written by elastic-etcd under the key {self._key.decode()!r}, found "
                f"{pair.value[:60]!r}; choose another --rdzv-id, or another prefix",
                token,
            )
        self._lease = pair.lease
        return pair.value[_MARK + 1 :], token

    def write(self, state: bytes, token: StateVersion, lost: bool = False) -> tuple[KeyValue | None, bool]:
        """Write in the place of what `token` stands for.

        Returns the value that the key has now, and whether this call wrote it. Each value begins with a random mark, so
        of two nodes that write the same state only one believes that it did, and a node whose answer was lost learns
        that its write had succeeded.

        Args:
            lost: the store was wiped or restored since the last write. The state gets a new lease, so that no old token
                is valid by chance: etcd compares revisions and leases, but not marks.
        """
        value = secrets.token_hex(_MARK // 2).encode() + b":" + state
        self._lease = 0 if lost else self._lease
        before = self._lease
        try:
            found, written = self._attempt(value, token)
        except EtcdLeaseGone:  # nobody has led for long
            self._lease = before = 0
            found, written = self._attempt(value, token)
        if not written and self._lease != before:  # a new one, for nothing
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
        """Renew the state's lease when it is due; whoever leads calls this with every beat."""
        now = self._clock.now()
        if not self._lease or (self._renewed is not None and now - self._renewed < RUN_TTL / 3):
            return
        self._renewed = now
        try:
            self._client.renew(self._lease)
        except EtcdLeaseGone:
            self._lease = 0
