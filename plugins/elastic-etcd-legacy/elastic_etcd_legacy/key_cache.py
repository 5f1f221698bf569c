"""The keys of a run as this node knows them, kept up to date by a watch: whoever asks costs etcd nothing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from elastic_etcd.client.errors import EtcdClosed, EtcdError, EtcdUnreachable
from elastic_etcd.client.values import end_of

from elastic_etcd_legacy.document import view_of

if TYPE_CHECKING:
    from elastic_etcd.client.client import EtcdClient
    from elastic_etcd.client.values import KeyValue, News, Range
    from elastic_etcd.client.watch import EtcdWatch

    from elastic_core.clock import Duration
    from elastic_etcd_legacy.document import View
    from elastic_etcd_legacy.settings import Keys

_LONGEST: Duration = 60.0
_RETRY: Duration = 0.2  # seconds after the watch could not reach anybody
_PATIENCE: Duration = 5.0  # for the thread to end


class KeyCache:
    """From any thread; `start` before anything else."""

    def __init__(self, client: EtcdClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._pairs: dict[bytes, KeyValue] = {}
        self._revision = 0
        self._changes = 0
        self._fault: EtcdError | None = None
        self._news = threading.Condition()
        self._over = threading.Event()
        self._starting = threading.Lock()
        self._watch: EtcdWatch | None = None
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
                self.refresh()
                prefix = self._keys.followed
                self._begin(self._client.watch(prefix, end_of(prefix), after=self._revision))

    def refresh(self) -> View:
        """Read everything now: what this node has written is in the view. Raises as `start` does."""
        prefix = self._keys.followed
        self._replace(self._client.read(prefix, end_of(prefix)))
        return self.view()

    def view(self) -> View:
        """The keys as they are known. Raises RendezvousStateError when they hold what is not ours."""
        with self._news:
            return view_of(self._keys, self._pairs)

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
        if self._watch is not None:
            self._watch.close()
        if self._thread is not None:
            self._thread.join(_PATIENCE)
        self.poke()

    def _begin(self, watch: EtcdWatch) -> None:
        self._watch = watch
        thread = threading.Thread(target=self._follow, args=(watch,), name="etcd-legacy keys", daemon=True)
        thread.start()
        self._thread = thread  # only now: `close` joins it, and a thread that has not begun cannot be joined

    def _follow(self, watch: EtcdWatch) -> None:
        behind = False
        while not self._over.is_set():
            try:
                if behind:
                    self.refresh()
                    behind = False
                news = watch.next(_LONGEST)
                behind = news is not None and self._take(news)
            except EtcdUnreachable as error:
                self._note(error)
                behind = True  # a watch that stands again need not have anything to tell
                self._over.wait(_RETRY)
            except EtcdClosed:
                return
            except EtcdError as error:  # refused: nobody will tell us anything
                self._note(error)
                return

    def _take(self, news: News) -> bool:
        """Whether all has to be read again."""
        with self._news:
            self._fault = None
            for event in news.events:
                # What a read has told already comes once more by the watch, and may be older than that read.
                if event.pair.mod_revision <= self._revision:
                    continue
                if event.deleted:
                    self._pairs.pop(event.pair.key, None)
                else:
                    self._pairs[event.pair.key] = event.pair
            # After a gap the next read counts, whatever its revision: an etcd that has lost its data begins anew.
            self._revision = 0 if news.resync else max(self._revision, news.revision)
            self._changed()
        return news.resync

    def _replace(self, found: Range) -> None:
        with self._news:
            self._fault = None
            if found.revision >= self._revision:
                self._pairs = {pair.key: pair for pair in found.values}
                self._revision = found.revision
                self._changed()

    def _note(self, fault: EtcdError) -> None:
        with self._news:
            self._fault = fault
            self._changed()

    def _changed(self) -> None:
        self._changes += 1
        self._news.notify_all()
