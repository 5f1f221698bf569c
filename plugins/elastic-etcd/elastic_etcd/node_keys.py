"""The entries of all nodes, as one node knows them: read once, and kept up to date by what a watch tells."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from elastic_etcd.client.errors import EtcdUnreachable

if TYPE_CHECKING:
    from elastic_core.clock import Clock, Duration
    from elastic_etcd.client.interface import Client, Watch
    from elastic_etcd.client.values import Event, KeyValue, News
    from elastic_etcd.keys import KeyRange


class NodeKeys:
    """`entries` is called from one thread, `wait` from one other, `close` from any."""

    def __init__(self, client: Client, where: KeyRange, clock: Clock) -> None:
        self._client = client
        self._where = where
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[bytes, KeyValue] = {}
        self._revision = 0
        self._followed = False
        self._resyncs = 0
        self._changes = 0
        self._watch: Watch | None = None
        self._closed = False

    def entries(self, at_least: int) -> tuple[KeyValue, ...]:
        """All entries, those created first first, as they were at revision `at_least` or later."""
        with self._lock:
            self._changes = 0
            current = self._followed and self._revision >= at_least
        if not current:
            self._read()
        with self._lock:
            return tuple(sorted(self._known.values(), key=lambda pair: pair.create_revision))

    def wait(self, timeout: Duration, more: int) -> bool:
        """Block until `more` changes have come since `entries`, or for `timeout` seconds. Whether something did."""
        until = self._clock.now() + timeout
        watch = self._watching()
        while watch is not None:
            with self._lock:
                if self._changes >= more or not self._followed:
                    return True
            news = self._next(watch, until - self._clock.now())
            if news is None:
                break
            self._take(news)
        return False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            watch = self._watch
        if watch is not None:
            watch.close()

    def forget(self) -> None:
        """Follow the entries no more, until `wait` is called again."""
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
            self._known = {pair.key: pair for pair in found.values}
            self._revision = found.revision
            self._followed = self._watch is not None and resyncs == self._resyncs

    def _watching(self) -> Watch | None:
        with self._lock:
            if self._watch is None and not self._closed:
                self._watch = self._client.watch(self._where.begin, self._where.end, self._revision)
                self._followed = self._revision > 0
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
                self._apply(event)
            self._revision = max(self._revision, news.revision)
            if news.resync:
                self._followed = False
                self._resyncs += 1
                self._revision = news.revision  # less than before where etcd has lost its data

    def _apply(self, event: Event) -> None:
        if event.pair.mod_revision <= self._revision:
            return  # it was read already
        self._changes += 1
        if event.deleted:
            self._known.pop(event.pair.key, None)
        else:
            self._known[event.pair.key] = event.pair
