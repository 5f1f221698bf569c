"""The entries of all nodes, as one node knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_etcd.followed_keys import FollowedKeys

if TYPE_CHECKING:
    from elastic_core.clock import Clock, Duration
    from elastic_etcd.client.interface import Client
    from elastic_etcd.client.values import KeyValue
    from elastic_etcd.keys import KeyRange


class NodeKeys(FollowedKeys):
    """`entries` is called from one thread, `wait` from one other, `close` from any."""

    def __init__(self, client: Client, where: KeyRange, clock: Clock) -> None:
        super().__init__(client, where, clock)
        self._changes = 0

    def entries(self, at_least: int) -> tuple[KeyValue, ...]:
        """All entries, those created first first, as they were at revision `at_least` or later."""
        with self._lock:
            self._changes = 0
            current = self._followed and self._revision >= at_least
        if not current:
            self._read()
        with self._lock:
            return tuple(sorted(self._pairs.values(), key=lambda pair: pair.create_revision))

    def wait(self, timeout: Duration, more: int) -> bool:
        """Block until `more` changes have come since `entries`, or for `timeout` seconds. Whether something did."""
        return self._wait_for(lambda: self._changes >= more, timeout)

    def _put(self, key: bytes, pair: KeyValue | None) -> None:
        self._changes += 1
        super()._put(key, pair)
