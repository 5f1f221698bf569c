"""The client as the rest of this package uses it. `EtcdClient` is the one over gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from elastic_core.clock import Duration
    from elastic_etcd.client.values import Committed, Lease, News, Range, Transaction


class Watch(Protocol):
    """Follows a range of keys. It goes on by itself when members die: from the revision after the last one told, on
    any member, so that nothing is lost or told twice. Used from one thread, except `close`."""

    def next(self, timeout: Duration) -> News | None:
        """Block until there is news, for `timeout` seconds at most (then None), or until it is closed (None).

        The first news comes as soon as the watch stands.

        Raises:
            EtcdRefused: the server will not let us watch.
            EtcdUnreachable: no member could be reached for longer than the client's timeout. The watch can be used on.
        """

    def close(self) -> None:
        """Let a blocked `next` come back at once. Idempotent."""


class Client(Protocol):
    """Every call raises EtcdUnreachable, EtcdClosed or EtcdRefused. May be used from several threads at once."""

    @property
    def where(self) -> str:
        """The endpoints, for messages."""

    def read(self, key: bytes, end: bytes = b"", keys_only: bool = False) -> Range:
        """A key, or with `end` all up to it, in the order of their creation. Linearizable. Repeated on other members
        until `timeout`."""

    def transact(self, transaction: Transaction) -> Committed:
        """Carry out a transaction. It is repeated on other members only if it cannot have landed before, or reads only;
        else EtcdUnreachable with `landed` tells that it may have, and the caller finds out by what is unique in it."""

    def grant(self, ttl: Duration) -> Lease:
        """A new lease, of at least 2 s. Repeated freely: one whose grant was not answered is found again."""

    def revoke(self, lease: int) -> None:
        """End the lease, and with it its keys. Nothing happens if it is gone."""

    def renew(self, lease: int) -> Duration:
        """Renew a lease once. Returns its time to live. Raises EtcdLeaseGone."""

    def watch(self, key: bytes, end: bytes = b"", after: int = 0) -> Watch:
        """Follow a key, or with `end` all up to it, from the revision after `after` on (0: from now on)."""

    def close(self) -> None:
        """Every blocked call comes back at once with EtcdClosed. Idempotent. Leases are left to expire."""
