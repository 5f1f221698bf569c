"""The state and who leads, as one node knows them: read, and kept up to date by what a watch tells."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from elastic_etcd.client.errors import EtcdUnreachable

if TYPE_CHECKING:
    from elastic_core.clock import Clock, Duration
    from elastic_etcd.client.interface import Client, Watch
    from elastic_etcd.client.values import KeyValue, News
    from elastic_etcd.keys import Keys


class RoundKeys:
    """`wait` is called from one thread, all other methods from one other, `close` from any.

    The state of a moment ago is good enough to decide about, since a write names the very state that it replaces; but
    entries that are decided about with it must have been read at its revision or later.
    """

    def __init__(self, client: Client, keys: Keys, clock: Clock) -> None:
        self._client = client
        self._keys = keys
        self._clock = clock
        self._lock = threading.Lock()
        self._pairs: dict[bytes, KeyValue] = {}
        self._revision = 0
        self._news = False
        self._followed = False
        self._resyncs = 0
        self._led = False
        self._told_vacant = False
        self._watch: Watch | None = None
        self._closed = False

    def state(self) -> KeyValue | None:
        """The state: what the watch has told since the last call, else as it stands now."""
        with self._lock:
            pushed, self._news = self._news and self._followed, False
        if not pushed:
            self._read()
        with self._lock:
            return self._pairs.get(self._keys.state)

    def wrote(self, key: bytes, pair: KeyValue | None, revision: int) -> None:
        """What this node has written itself, or was told in an answer."""
        with self._lock:
            known = self._pairs.get(key)
            if revision > max(self._revision, known.mod_revision if known else 0):
                self._set(key, pair)

    @property
    def holder(self) -> bytes | None:
        """Who leads; None if nobody does, or it is not known."""
        with self._lock:
            pair = self._pairs.get(self._keys.lead) if self._followed or self._revision else None
            return None if pair is None else pair.value

    @property
    def vacant(self) -> bool:
        """Whether somebody led, and has gone."""
        with self._lock:
            return self._is_vacant()

    def wait(self, token: int, timeout: Duration) -> bool:
        """Block until the state has another mod_revision than `token`, or whoever led has gone, or for `timeout`
        seconds. Whether something did."""
        until = self._clock.now() + timeout
        watch = self._watching()
        while watch is not None:
            with self._lock:
                if self._has_news(token):
                    return True
            try:
                news = watch.next(max(until - self._clock.now(), 0.0))
            except EtcdUnreachable:
                self._lose()
                raise
            except BaseException:  # it is of no use any more
                self._lose()
                self._forget(watch)
                raise
            if news is None:
                return False
            self._take(news)
        return False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            watch = self._watch
        if watch is not None:
            watch.close()

    def _watching(self) -> Watch | None:
        with self._lock:
            if self._watch is None and not self._closed:
                self._watch = self._client.watch(self._keys.round.begin, self._keys.round.end, self._revision)
                self._followed = self._revision > 0
            return None if self._closed else self._watch

    def _lose(self) -> None:
        with self._lock:
            self._followed = False  # until the next reading

    def _forget(self, watch: Watch) -> None:
        with self._lock:
            self._watch = None
        watch.close()

    def _is_vacant(self) -> bool:
        return self._led and self._keys.lead not in self._pairs

    def _has_news(self, token: int) -> bool:
        if not self._followed:
            return True
        state = self._pairs.get(self._keys.state)
        vacant = self._is_vacant()
        told, self._told_vacant = self._told_vacant, vacant
        return (0 if state is None else state.mod_revision) != token or (vacant and not told)

    def _read(self) -> None:
        with self._lock:
            resyncs = self._resyncs
        found = self._client.read(self._keys.round.begin, self._keys.round.end)
        with self._lock:
            if self._followed and found.revision < self._revision:
                return  # the watch was faster
            self._pairs = {pair.key: pair for pair in found.values}
            self._led = self._led or self._keys.lead in self._pairs
            self._revision = found.revision
            self._followed = self._watch is not None and resyncs == self._resyncs

    def _take(self, news: News) -> None:
        with self._lock:
            for event in news.events:
                known = self._pairs.get(event.pair.key)  # perhaps a later write of our own
                if event.pair.mod_revision > max(self._revision, known.mod_revision if known else 0):
                    self._set(event.pair.key, None if event.deleted else event.pair)
            self._revision = max(self._revision, news.revision)
            if news.resync:
                self._followed = False
                self._resyncs += 1
                self._revision = news.revision  # less than before where etcd has lost its data

    def _set(self, key: bytes, pair: KeyValue | None) -> None:
        self._news = self._news or key == self._keys.state
        self._led = self._led or key == self._keys.lead
        if pair is None:
            self._pairs.pop(key, None)
        else:
            self._pairs[key] = pair
