"""The state and who leads, as one node knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_etcd.followed_keys import FollowedKeys

if TYPE_CHECKING:
    from elastic_core.clock import Clock, Duration
    from elastic_etcd.client.interface import Client
    from elastic_etcd.client.values import KeyValue, Range
    from elastic_etcd.keys import Keys


class RoundKeys(FollowedKeys):
    """`wait` is called from one thread, all other methods from one other, `close` from any.

    The state of a moment ago is good enough to decide about, since a write names the very state that it replaces; but
    entries that are decided about with it must have been read at its revision or later.
    """

    def __init__(self, client: Client, keys: Keys, clock: Clock) -> None:
        super().__init__(client, keys.round, clock)
        self._keys = keys
        self._news = False
        self._led = False
        self._told_vacant = False

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
            if self._is_newer(key, revision):
                self._put(key, pair)

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
        return self._wait_for(lambda: self._has_news(token), timeout)

    def _is_vacant(self) -> bool:
        return self._led and self._keys.lead not in self._pairs

    def _has_news(self, token: int) -> bool:
        state = self._pairs.get(self._keys.state)
        vacant = self._is_vacant()
        told, self._told_vacant = self._told_vacant, vacant
        return (0 if state is None else state.mod_revision) != token or (vacant and not told)

    def _replace(self, found: Range) -> None:
        super()._replace(found)
        self._led = self._led or self._keys.lead in self._pairs

    def _put(self, key: bytes, pair: KeyValue | None) -> None:
        self._news = self._news or key == self._keys.state
        self._led = self._led or key == self._keys.lead
        super()._put(key, pair)
