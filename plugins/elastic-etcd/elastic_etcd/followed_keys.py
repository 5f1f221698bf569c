"""A range of keys as one node knows it: read once, and kept up to date by what a watch tells."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from elastic_etcd.client.errors import EtcdUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Clock, Duration
    from elastic_etcd.client.interface import Client, Watch
    from elastic_etcd.client.values import KeyValue, News, Range
    from elastic_etcd.keys import KeyRange


class FollowedKeys:
    """The base of `NodeKeys` and `RoundKeys`, which say what is asked of the keys and what counts as news.

    `_read` is called from one thread, `_wait_for` from one other, `close` from any. `_lock` guards what is known;
    `_put` and `_replace` are called with it held.
    """

    def __init__(self, client: Client, where: KeyRange, clock: Clock) -> None:
        self._client = client
        self._where = where
        self._clock = clock
        self._lock = threading.Lock()
        self._pairs: dict[bytes, KeyValue] = {}
        self._revision = 0
        self._followed = False  # whether the watch tells all that comes after `_revision`
        self._resyncs = 0
        self._watch: Watch | None = None
        self._closed = False

    def close(self) -> None:
        """Let whoever waits come back at once, for good."""
        with self._lock:
            self._closed = True
            watch = self._watch
        if watch is not None:
            watch.close()

    def forget(self) -> None:
        """Follow the keys no more, until somebody waits again."""
        with self._lock:
            watch, self._watch = self._watch, None
            self._followed = False
        if watch is not None:
            watch.close()

    def _read(self) -> None:
        with self._lock:
            resyncs = self._resyncs
        found = self._client.read(self._where.begin, self._where.end)
        with self._lock:
            if self._followed and found.revision < self._revision:
                return  # the watch was faster
            self._replace(found)
            self._revision = found.revision
            self._followed = self._watch is not None and resyncs == self._resyncs

    def _wait_for(self, has_news: Callable[[], bool], timeout: Duration) -> bool:
        """Block until `has_news`, asked with the lock held, or until the keys have to be read again, or for `timeout`
        seconds. Whether there is a reason to look: always, as long as nothing was read. A watch that began before the
        first reading would tell nothing of what happens between that and its own beginning."""
        until = self._clock.now() + timeout
        with self._lock:
            if not self._revision:
                return not self._closed
        watch = self._watching()
        while watch is not None:
            with self._lock:
                if not self._followed or has_news():
                    return True
            news = self._next(watch, until - self._clock.now())
            if news is None:
                break
            self._take(news)
        return False

    def _replace(self, found: Range) -> None:
        self._pairs = {pair.key: pair for pair in found.values}

    def _put(self, key: bytes, pair: KeyValue | None) -> None:
        """A change since the reading; None: the key is gone."""
        if pair is None:
            self._pairs.pop(key, None)
        else:
            self._pairs[key] = pair

    def _is_newer(self, key: bytes, revision: int) -> bool:
        known = self._pairs.get(key)  # perhaps a write of our own, of which the watch has not told yet
        return revision > max(self._revision, known.mod_revision if known else 0)

    def _watching(self) -> Watch | None:
        with self._lock:
            if self._watch is None and not self._closed:
                self._watch = self._client.watch(self._where.begin, self._where.end, self._revision)
                self._followed = True
            return None if self._closed else self._watch

    def _next(self, watch: Watch, timeout: Duration) -> News | None:
        try:
            return watch.next(max(timeout, 0.0))
        except EtcdUnreachable:
            with self._lock:
                self._followed = False  # until the next reading
            raise
        except BaseException:  # it is of no use any more
            self.forget()
            raise

    def _take(self, news: News) -> None:
        with self._lock:
            for event in news.events:
                if self._is_newer(event.pair.key, event.pair.mod_revision):
                    self._put(event.pair.key, None if event.deleted else event.pair)
            self._revision = max(self._revision, news.revision)
            if news.resync:
                self._followed = False
                self._resyncs += 1
                self._revision = news.revision  # less than before where etcd has lost its data
