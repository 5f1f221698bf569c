"""The keys of a run as this node knows them, kept up to date by a watch: whoever asks costs etcd nothing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from elastic_etcd.backend.key_cache import KeyCache

from elastic_etcd_legacy.document import view_of

if TYPE_CHECKING:
    from elastic_etcd.client.client import EtcdClient
    from elastic_etcd.client.values import Range

    from elastic_core.plugin import Clock, Duration
    from elastic_etcd_legacy.document import DocumentView
    from elastic_etcd_legacy.settings import Keys


class RunCache(KeyCache):
    """From any thread; `start` before anything else."""

    def __init__(self, client: EtcdClient, keys: Keys, clock: Clock) -> None:
        super().__init__(client, keys.followed, clock)
        self._keys = keys
        self._starting = threading.Lock()
        self._started = False

    @property
    def started(self) -> bool:
        """Whether it follows the keys."""
        return self._started

    @property
    def changes(self) -> int:
        """Counts what has happened; for `wait`."""
        with self._changed:
            return self._changes

    def start(self) -> None:
        """Read everything and follow it from there. Nothing happens if it does already, and was not refused since.

        Raises:
            EtcdUnreachable, EtcdClosed, EtcdRefused.
        """
        with self._starting:
            if not self._started or self._error is not None:
                self.forget()
                self.read()
                self.follow()
                self._started = True

    def refresh(self) -> DocumentView:
        """Read everything now: what this node has written is in the view. Raises as `start` does."""
        self.read()
        return self.view()

    def view(self) -> DocumentView:
        """The keys as they are known, without what is not ours."""
        with self._changed:
            return view_of(self._keys, self._pairs, self._ignore)

    def check(self) -> None:
        """Raises EtcdUnreachable, EtcdClosed or EtcdRefused if what is known may be old."""
        with self._changed:
            if fault := self._error or self._fault:
                raise fault

    def wait(self, changes: int, timeout: Duration) -> None:
        """Block until something has happened since `changes` was counted, for `timeout` seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._changes != changes, max(timeout, 0.0))

    def poke(self) -> None:
        """Let whoever waits look again."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Follow no more. Idempotent."""
        super().close()
        self.poke()

    def _replace(self, found: Range) -> None:
        super()._replace(found)
        self._changes += 1

    def _cut_off(self) -> None:
        self._changes += 1
