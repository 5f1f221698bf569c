"""Ranges of keys as one node knows them: `NodeCache` has the entries of the nodes, `RoundCache` the state and the
leader.

Whoever may write there can write anything. A record that cannot be ours is told of once, and counts as absent; so do
all beyond the first `MOST_KEYS`. What is kept is thereby bounded, and one bad record is in nobody's way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.plugin import get_logger
from elastic_etcd.backend.keys import version_of
from elastic_etcd.client.reflector import Reflector
from elastic_etcd.client.values import end_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.plugin import Clock, Duration
    from elastic_etcd.backend.keys import Keys, StateVersion
    from elastic_etcd.client.client import EtcdClient
    from elastic_etcd.client.values import Event, KeyValue, Range

MOST_KEYS = 16_384
_MOST_TOLD = 32
_LONGEST_SHOWN = 200
_LONGEST_ENTRY = 128 * 1024  # twice what the core takes for an entry: what is signed is a little longer


class KeyCache(Reflector):
    """The keys of one range, of which there may be `MOST_KEYS`. `_put` is called with the lock held. The older
    protocol's package follows its keys by this, too."""

    def __init__(self, client: EtcdClient, prefix: bytes, clock: Clock) -> None:
        super().__init__(client, prefix, end_of(prefix), clock)
        self._pairs: dict[bytes, KeyValue] = {}
        self._ignored: set[bytes] = set()
        self._changes = 0

    def _list(self) -> Range:
        return self._client.read(self._key, self._end, limit=MOST_KEYS)

    def _before(self) -> dict[bytes, int]:
        return {key: pair.mod_revision for key, pair in self._pairs.items()}

    def _replace(self, found: Range) -> None:
        self._pairs = {}  # what was known before takes no place
        self._pairs = {pair.key: pair for pair in found.values if self._can_be_ours(pair)}

    def _apply(self, event: Event) -> None:
        if self._is_newer(event.pair):
            stands = not event.deleted and self._can_be_ours(event.pair)
            self._put(event.pair.key, event.pair if stands else None)

    def _wait(self, has_news: Callable[[], bool], timeout: Duration) -> bool:
        """As `wait_for`. As long as nothing was read, there is a reason to look: the reading finds what there is."""
        with self._changed:
            if not self._revision:
                return not self._closed
        return self.wait_for(has_news, timeout)

    def _why_not(self, pair: KeyValue) -> str:
        """Why this record cannot be ours; empty if it can."""
        return ""

    def _can_be_ours(self, pair: KeyValue) -> bool:
        reason = self._why_not(pair)
        if not reason and pair.key not in self._pairs and len(self._pairs) >= MOST_KEYS:
            reason = f"expected {MOST_KEYS} keys at most, found more"
        if reason:
            self._ignore(pair.key, reason)
        return not reason

    def _ignore(self, key: bytes, reason: str) -> None:
        """Tell once of a record that counts as absent; of the first few, as somebody may write many."""
        if key not in self._ignored and len(self._ignored) < _MOST_TOLD:
            self._ignored.add(key)
            get_logger().warning("record ignored", key=shown_key(key), reason=reason)

    def _put(self, key: bytes, pair: KeyValue | None) -> None:
        """A change since the list; None: the key was deleted."""
        self._changes += 1
        if pair is None:
            self._pairs.pop(key, None)
        else:
            self._pairs[key] = pair

    def _is_newer(self, pair: KeyValue) -> bool:
        known = self._pairs.get(pair.key)  # perhaps this node's write, which the watch has not reported yet
        return pair.mod_revision > max(self._revision, known.mod_revision if known else 0)


class NodeCache(KeyCache):
    """The entries of all nodes. `entries` is called from one thread, `wait` from one other, `close` from any."""

    def __init__(self, client: EtcdClient, keys: Keys, clock: Clock) -> None:
        super().__init__(client, keys.nodes, clock)
        self._keys = keys

    def entries(self, at_least: int) -> tuple[KeyValue, ...]:
        """All entries, those created first first, as they were at revision `at_least` or later."""
        with self._changed:
            self._changes = 0
            current = self._following and self._revision >= at_least
        if not current:
            self.read()
        with self._changed:
            return tuple(sorted(self._pairs.values(), key=lambda pair: pair.create_revision))

    def wait(self, timeout: Duration, more: int) -> bool:
        """Block until `more` changes have come since `entries`, or for `timeout` seconds. Whether something did."""
        return self._wait(lambda: self._changes >= more, timeout)

    def _why_not(self, pair: KeyValue) -> str:
        if self._keys.key_of(pair.key) is None:
            return "expected the name of a node in the key, as elastic-etcd writes it, found another"
        if len(pair.value) > _LONGEST_ENTRY:
            return f"expected an entry of {_LONGEST_ENTRY} bytes at most, found {len(pair.value)}"
        return ""


class RoundCache(KeyCache):
    """The state, and who leads. `wait` is called from one thread, all other methods from one other, `close` from any.

    The state of a moment ago is good enough to decide about, since a write names the very state that it replaces; but
    entries that are decided about with it must have been read at its revision or later.
    """

    def __init__(self, client: EtcdClient, keys: Keys, clock: Clock) -> None:
        super().__init__(client, keys.round, clock)
        self._keys = keys
        self._news = False
        self._led = False
        self._told_vacant = False

    def state(self) -> KeyValue | None:
        """The state: what the watch has told since the last call, else as it stands now."""
        with self._changed:
            pushed, self._news = self._news and self._following, False
        if not pushed:
            self.read()
        with self._changed:
            return self._pairs.get(self._keys.state)

    def wrote(self, pair: KeyValue) -> None:
        """What this node has written itself, or was told in an answer."""
        with self._changed:
            if self._is_newer(pair):
                self._put(pair.key, pair)

    @property
    def holder(self) -> bytes | None:
        """Who leads; None if nobody does, or it is not known."""
        with self._changed:
            pair = self._pairs.get(self._keys.lead)
            return pair and pair.value

    @property
    def vacant(self) -> bool:
        """Whether somebody led, and has gone."""
        with self._changed:
            return self._led and self._keys.lead not in self._pairs

    def wait(self, token: StateVersion, timeout: Duration) -> bool:
        """Block until the state has another version than `token`, or whoever led has gone, or for `timeout`
        seconds. Whether something did."""
        return self._wait(lambda: self._has_news(token), timeout)

    def _has_news(self, token: StateVersion) -> bool:
        state = self._pairs.get(self._keys.state)
        told, self._told_vacant = self._told_vacant, (vacant := self.vacant)
        return version_of(state) != token or (vacant and not told)

    def _why_not(self, pair: KeyValue) -> str:
        if pair.key in (self._keys.state, self._keys.lead):
            return ""
        return "expected state and leader of the job alone beside it, found another key"

    def _replace(self, found: Range) -> None:
        super()._replace(found)
        self._led = self._led or self._keys.lead in self._pairs

    def _put(self, key: bytes, pair: KeyValue | None) -> None:
        self._news = self._news or key == self._keys.state
        self._led = self._led or key == self._keys.lead
        super()._put(key, pair)


def shown_key(key: bytes) -> str:
    """A key that anybody may have written, for people."""
    text = key[:_LONGEST_SHOWN].decode("ascii", "backslashreplace")
    return "".join(it if it.isprintable() else f"\\x{ord(it):02x}" for it in text) + "..." * (len(key) > _LONGEST_SHOWN)
