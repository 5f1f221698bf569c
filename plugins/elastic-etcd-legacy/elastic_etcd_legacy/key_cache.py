"""The keys of a run as this node knows them, kept up to date by a watch: whoever asks costs etcd nothing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from elastic_etcd.backend.key_cache import KeyCache
from elastic_etcd.backend.keys import KeyRange
from elastic_etcd.client.errors import EtcdClosed, EtcdError, EtcdUnreachable
from elastic_etcd.client.values import end_of

from elastic_etcd_legacy.document import view_of

if TYPE_CHECKING:
    from elastic_etcd.client.client import EtcdClient
    from elastic_etcd.client.values import KeyValue, Range

    from elastic_core.clock import Clock, Duration
    from elastic_etcd_legacy.document import View
    from elastic_etcd_legacy.settings import Keys

_LONGEST: Duration = 60.0
_RETRY: Duration = 0.2  # seconds after the watch could not reach anybody
_PATIENCE: Duration = 5.0  # for the thread to end


class RunCache(KeyCache):
    """From any thread; `start` before anything else."""

    def __init__(self, client: EtcdClient, keys: Keys, clock: Clock) -> None:
        super().__init__(client, KeyRange(keys.followed, end_of(keys.followed)), clock)
        self._keys = keys
        self._changes = 0
        self._fault: EtcdError | None = None
        self._news = threading.Condition(self._lock)
        self._over = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def started(self) -> bool:
        """Whether it follows the keys."""
        return self._thread is not None

    @property
    def changes(self) -> int:
        """Counts what has happened; for `wait`."""
        with self._news:
            return self._changes

    def start(self) -> None:
        """Read everything and follow it from there. Nothing happens if it does already.

        Raises:
            EtcdUnreachable, EtcdClosed, EtcdRefused.
        """
        with self._starting:
            if self._thread is None:
                self._read()
                thread = threading.Thread(target=self._follow, name="etcd-legacy keys", daemon=True)
                thread.start()
                self._thread = thread  # only now: `close` joins it, and one that has not begun cannot be joined

    def refresh(self) -> View:
        """Read everything now: what this node has written is in the view. Raises as `start` does."""
        self._read()
        return self.view()

    def view(self) -> View:
        """The keys as they are known, without what is not ours."""
        with self._news:
            return view_of(self._keys, self._pairs, self._ignore)

    def check(self) -> None:
        """Raises EtcdUnreachable, EtcdClosed or EtcdRefused if what is known may be old."""
        with self._news:
            if self._fault is not None:
                raise self._fault

    def wait(self, changes: int, timeout: Duration) -> None:
        """Block until something has happened since `changes` was counted, for `timeout` seconds at most."""
        with self._news:
            self._news.wait_for(lambda: self._changes != changes, max(timeout, 0.0))

    def poke(self) -> None:
        """Let whoever waits look again."""
        with self._news:
            self._changed()

    def close(self) -> None:
        """Follow no more. Idempotent."""
        self._over.set()
        super().close()
        if self._thread is not None:
            self._thread.join(_PATIENCE)
        self.poke()

    def _follow(self) -> None:
        while not self._over.is_set():
            try:
                if self._wait_for(lambda: False, _LONGEST):  # all has to be read again
                    self._read()
            except EtcdUnreachable as error:
                self._note(error)
                self._over.wait(_RETRY)
            except EtcdClosed:
                return
            except EtcdError as error:  # refused: nobody will tell us anything
                self._note(error)
                return

    def _replace(self, found: Range) -> None:
        super()._replace(found)
        self._fault = None
        self._changed()

    def _put(self, key: bytes, pair: KeyValue | None) -> None:
        super()._put(key, pair)
        self._changed()

    def _note(self, fault: EtcdError) -> None:
        with self._news:
            self._fault = fault
            self._changed()

    def _changed(self) -> None:
        self._changes += 1
        self._news.notify_all()
