"""A node's copy of a run's keys, kept up to date by a watch, so that reads cost etcd nothing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from elastic_etcd.backend.key_cache import KeyCache

from elastic_core.plugin import later
from elastic_etcd_legacy.document import view_of

if TYPE_CHECKING:
    from elastic_etcd.client.client import EtcdClient
    from elastic_etcd.client.values import Range

    from elastic_core.plugin import Clock, Duration
    from elastic_etcd_legacy.document import DocumentView
    from elastic_etcd_legacy.settings import Keys


class RunCache(KeyCache):
    """A cache of one run's keys. Thread-safe. Call `start` before any other method; then `started` is true."""

    def __init__(self, client: EtcdClient, keys: Keys, clock: Clock) -> None:
        super().__init__(client, keys.followed, clock)
        self._keys = keys
        self._starting = threading.Lock()
        self.started = False

    @property
    def changes(self) -> int:
        """The number of changes so far, as an argument for `wait`."""
        with self._changed:
            return self._changes

    def start(self) -> None:
        """Read all keys and start a watch, unless one is running and has not been refused.

        Raises:
            EtcdUnreachable, EtcdClosed, EtcdRefused: the keys could not be read.
        """
        with self._starting:
            if not self.started or self._error is not None:
                self.forget()
                self.read()
                self.follow()
                self.started = True

    def refresh(self) -> DocumentView:
        """Read all keys now, so that the view includes this node's writes. Raises the same errors as `start`."""
        self.read()
        return self.view()

    def view(self) -> DocumentView:
        """Return the view of the known keys, without invalid records."""
        with self._changed:
            return view_of(self._keys, self._pairs, self._ignore)

    def check(self) -> None:
        """Raise EtcdUnreachable, EtcdClosed or EtcdRefused if the known keys may be stale."""
        with self._changed:
            self._patience()
            if fault := self._error or self._fault:
                raise fault

    def wait(self, changes: int, timeout: Duration) -> None:
        """Block until something has changed since `changes` was read, or for at most `timeout` seconds."""
        deadline = later(self._clock.now(), timeout)
        with self._changed:
            while self._changes == changes and (left := deadline - self._clock.now()) > 0:
                self._changed.wait(min(left, self._patience()))

    def poke(self) -> None:
        """Wake up all waiting threads."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Stop the watch. Idempotent."""
        super().close()
        self.poke()

    def _replace(self, found: Range) -> None:
        super()._replace(found)
        self._changes += 1

    def _cut_off(self) -> None:
        self._changes += 1
