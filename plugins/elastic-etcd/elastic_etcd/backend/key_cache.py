"""A node's view of a range of keys. `NodeCache` contains the nodes' entries, and `RoundCache` contains the keys that
concern all nodes.

Any client with write access can write anything to these keys. An invalid record is logged once and ignored, and so is
every record beyond the first `MOST_KEYS`. Memory use is therefore bounded, and an invalid record does not affect the
other ones.
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
    from elastic_etcd.client.values import KeyValue, Range

MOST_KEYS = 16_384
_MOST_LOGGED = 32
_LONGEST_SHOWN = 200
_LONGEST_ENTRY = 128 * 1024  # twice the core's limit for an entry, because a signature makes it longer


class KeyCache(Reflector):
    """The keys of one range, up to `most` of them. `_put` is called with the lock held."""

    def __init__(self, client: EtcdClient, prefix: bytes, clock: Clock, most: int = MOST_KEYS) -> None:
        super().__init__(client, prefix, end_of(prefix), clock)
        self._most = most
        self._pairs: dict[bytes, KeyValue] = {}
        self._ignored: set[bytes] = set()
        self._changes = 0

    def _list(self) -> Range:
        return self._client.read(self._key, self._end, limit=self._most)

    def _before(self) -> dict[bytes, int]:
        return {key: pair.mod_revision for key, pair in self._pairs.items()}

    def _replace(self, found: Range) -> None:
        self._pairs = {}  # keys that were known before must not use up the limit
        self._pairs = {pair.key: pair for pair in found.values if self._can_be_ours(pair)}

    def _apply(self, pair: KeyValue, deleted: bool) -> None:
        if self._is_newer(pair):
            exists = not deleted and self._can_be_ours(pair)
            self._put(pair.key, pair if exists else None)

    def _wait(self, has_news: Callable[[], bool], timeout: Duration) -> bool:
        """Wait like `wait_for`, but return True immediately if the keys have not been read yet, so that the caller
        reads them."""
        with self._changed:
            if not self._revision:
                return not self._closed
        return self.wait_for(has_news, timeout)

    def _why_not(self, pair: KeyValue) -> str:
        """Return the reason why this record cannot belong to this job, or an empty string if it can."""
        return ""

    def _can_be_ours(self, pair: KeyValue) -> bool:
        reason = self._why_not(pair)
        if not reason and pair.key not in self._pairs and len(self._pairs) >= self._most:
            reason = f"expected at most {self._most} keys, found more"
        if reason:
            self._ignore(pair.key, reason)
        return not reason

    def _ignore(self, key: bytes, reason: str) -> None:
        """Log an ignored record once. Only the first few records are logged, because a client may write many."""
        if key not in self._ignored and len(self._ignored) < _MOST_LOGGED:
            self._ignored.add(key)
            get_logger().warning("record ignored", key=shown_key(key), reason=reason)

    def _put(self, key: bytes, pair: KeyValue | None) -> None:
        """Handle a change since the list was read. If `pair` is None, the key was deleted."""
        self._changes += 1
        if pair is None:
            self._pairs.pop(key, None)
        else:
            self._pairs[key] = pair

    def _is_newer(self, pair: KeyValue) -> bool:
        known = self._pairs.get(pair.key)  # may be this node's write, which the watch has not reported yet
        return pair.mod_revision > max(self._revision, known.mod_revision if known else 0)


class NodeCache(KeyCache):
    """The entries of all nodes. Thread-safe."""

    def __init__(self, client: EtcdClient, keys: Keys, clock: Clock, most: int = MOST_KEYS) -> None:
        super().__init__(client, keys.nodes, clock, most)
        self._keys = keys

    def entries(self, at_least: int) -> tuple[KeyValue, ...]:
        """Return all entries as of revision `at_least` or later, oldest first."""
        with self._changed:
            self._changes = 0
            current = self._following and self._revision >= at_least
        if not current:
            self.read()
        with self._changed:
            return tuple(sorted(self._pairs.values(), key=lambda pair: pair.create_revision))

    def wait(self, timeout: Duration, more: int) -> bool:
        """Block until `more` changes have arrived since the last call of `entries`, but at most `timeout` seconds.
        Return whether they have arrived."""
        return self._wait(lambda: self._changes >= more, timeout)

    def _why_not(self, pair: KeyValue) -> str:
        if self._keys.key_of(pair.key) is None:
            return "it is not the key of a node"
        if len(pair.value) > _LONGEST_ENTRY:
            return f"expected an entry of at most {_LONGEST_ENTRY} bytes, found {len(pair.value)}"
        return ""


class RoundCache(KeyCache):
    """The state, the leader's key, and the last withdrawal. Thread-safe.

    A slightly outdated state is good enough for a decision, because a write names the state that it replaces. However,
    the entries used in the same decision must have been read at the state's revision or later.
    """

    def __init__(self, client: EtcdClient, keys: Keys, clock: Clock) -> None:
        super().__init__(client, keys.round, clock)
        self._keys = keys
        self._news = False
        self._led = False
        self._reported_vacant = False

    def state(self) -> KeyValue | None:
        """Return the state that the watch has reported since the last call. If it has reported none, read the state
        now."""
        with self._changed:
            pushed, self._news = self._news and self._following, False
        if not pushed:
            self.read()
        with self._changed:
            return self._pairs.get(self._keys.state)

    def wrote(self, pair: KeyValue) -> None:
        """Record a value that this node has written, or has received in a response."""
        with self._changed:
            if self._is_newer(pair):
                self._put(pair.key, pair)

    @property
    def signs(self) -> tuple[int, int]:
        """The number of interruptions, and the revision at which some node last withdrew another one. If either of them
        changes, this node should check that its entry still exists."""
        with self._changed:
            pair = self._pairs.get(self._keys.withdrawn)
            return self.interruptions, pair.mod_revision if pair else 0

    @property
    def holder(self) -> bytes | None:
        """The leader, or None if there is no leader or the leader is unknown."""
        with self._changed:
            pair = self._pairs.get(self._keys.lead)
            return pair and pair.value

    @property
    def vacant(self) -> bool:
        """Whether the leader has left and has no successor."""
        with self._changed:
            return self._led and self._keys.lead not in self._pairs

    def wait(self, token: StateVersion, timeout: Duration) -> bool:
        """Block until the state's version differs from `token` or the leader has left, but at most `timeout` seconds.
        Return whether one of the two has happened."""
        return self._wait(lambda: self._has_news(token), timeout)

    def _has_news(self, token: StateVersion) -> bool:
        state = self._pairs.get(self._keys.state)
        reported, self._reported_vacant = self._reported_vacant, (vacant := self.vacant)
        return version_of(state) != token or (vacant and not reported)

    def _why_not(self, pair: KeyValue) -> str:
        if pair.key in (self._keys.state, self._keys.lead, self._keys.withdrawn):
            return ""
        return "it is not one of the job's own keys"

    def _replace(self, found: Range) -> None:
        super()._replace(found)
        self._led = self._led or self._keys.lead in self._pairs

    def _put(self, key: bytes, pair: KeyValue | None) -> None:
        self._news = self._news or key == self._keys.state
        self._led = self._led or key == self._keys.lead
        super()._put(key, pair)


def shown_key(key: bytes) -> str:
    """Return a key in printable form, because any client may have written it."""
    text = key[:_LONGEST_SHOWN].decode("ascii", "backslashreplace")
    return "".join(it if it.isprintable() else f"\\x{ord(it):02x}" for it in text) + "..." * (len(key) > _LONGEST_SHOWN)
