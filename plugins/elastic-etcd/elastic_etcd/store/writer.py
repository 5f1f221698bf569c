"""Writes that take effect exactly once, even if an answer is lost.

If a write receives no answer, it may or may not have been carried out, and a stalled member may still carry it out
later. If it were simply repeated, it could take effect twice. Every write therefore also writes a *write marker*, which
is a key that only this writer uses, on the condition that the marker has not changed since the previous write:

- At most one copy of a write finds the marker unchanged; other copies do nothing.
- A writer that sends a copy and finds the marker changed knows that an earlier copy was carried out.
- If a write fails because of its own conditions while copies may still be on their way, a stalled member could carry
  one out later, once the conditions hold again. Before the writer reports the failure, it therefore changes the marker,
  which *fences off* the copies.

This costs no additional round trip, because the condition and the marker are part of the transaction. A marker serves
only one write at a time, so concurrent threads use different markers. If a write is given up without an answer, its
marker is not used again. Every marker has a lease: the store's, or else the writer's own, which `forget` revokes. etcd
rejects a late copy whose lease no longer exists.
"""

from __future__ import annotations

import itertools
import uuid
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from elastic_core.plugin import later
from elastic_etcd.client.errors import EtcdLeaseGone, EtcdUnreachable
from elastic_etcd.client.lease_keeper import LeaseKeeper
from elastic_etcd.client.values import Committed, Compare, Field, Get, Put, Transaction

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from datetime import timedelta

    from elastic_core.plugin import Clock, Duration
    from elastic_etcd.client.client import EtcdClient
    from elastic_etcd.client.values import KeyValue

_Answer = TypeVar("_Answer")

MOST_OPERATIONS = 120  # in one transaction: etcd's limit is 128, and the marker needs a few
_PAUSE: Duration = 0.1  # seconds before the next attempt if no member answered
_MARKERS_LIVE: Duration = 60.0  # seconds that markers live after the last write if the store is not closed
_WRITTEN = b"written"
_FENCED = b"fenced"


@dataclass
class Marker:
    """A write marker's key, its lease, and the revision of its last write (0 before the first write)."""

    key: bytes
    lease: int
    revision: int = 0

    def unchanged(self) -> Compare:
        return Compare(self.key, Field.MODIFIED, self.revision)

    def put(self, value: bytes) -> Put:
        return Put(self.key, value, self.lease)


class Deadline:
    """The time limit for an operation that begins now. While no member answers, the operation is retried until the
    limit or until `closed` is set."""

    def __init__(self, clock: Clock, patience: timedelta, closed: threading.Event) -> None:
        self.patience = patience
        self._clock = clock
        self._ends = later(clock.now(), patience.total_seconds())
        self._closed = closed

    def left(self) -> Duration:
        """Return how many seconds are left. The result is 0 or less when the time is up."""
        return self._ends - self._clock.now()

    def allows_another(self) -> bool:
        """Pause after an attempt that no member answered. Returns whether there is time for another attempt."""
        return self.left() > 0 and not self._closed.wait(_PAUSE)

    def patiently(self, ask: Callable[[], _Answer]) -> _Answer:
        """Return the result of `ask`, which is repeated while no member answers. Raises EtcdError."""
        while True:
            try:
                return ask()
            except EtcdUnreachable:
                if not self.allows_another():
                    raise


class Writer:
    """Performs the writes to one store. Thread-safe. `lease` returns, within the deadline, the lease to attach to
    everything written. If it returns 0, only markers have a lease, which ends when `forget` is called, or one minute
    after the last write."""

    def __init__(self, client: EtcdClient, prefix: bytes, lease: Callable[[Deadline], int], clock: Clock) -> None:
        self._client = client
        self._prefix = prefix + uuid.uuid4().hex.encode() + b"/"
        self._lease = lease
        self._own = LeaseKeeper(client, _MARKERS_LIVE, clock=clock)
        self._numbers = itertools.count()
        self._idle: deque[Marker] = deque()

    def write(self, transaction: Transaction, deadline: Deadline) -> Committed:
        """If the transaction's conditions hold, carry out its writes exactly once. Otherwise, nothing is written, now
        or later, and the result contains the results of `otherwise`. While no member answers, tries again until the
        deadline. Raises EtcdUnreachable if the write was not confirmed in time. If `landed` is set, the write may have
        taken effect, or may still do so. May also raise EtcdRefused or EtcdClosed."""
        lease = self._lease(deadline)
        if lease:
            then = [it._replace(lease=lease) if isinstance(it, Put) else it for it in transaction.then]
            transaction = transaction._replace(then=then)
        while True:
            marker = self._marker(lease or deadline.patiently(self._own_lease))
            try:
                outcome = self._carried_out(marker, transaction, deadline)
            except EtcdLeaseGone:
                if lease:
                    raise
                self._own.gone(marker.lease)
            else:
                self._idle.append(marker)  # after an error, the marker is not used again
                return outcome

    def forget(self) -> None:
        """Revoke the markers' lease, unless they use the store's lease. Nothing may be written afterwards."""
        self._own.release()

    def _marker(self, lease: int) -> Marker:
        try:
            while (marker := self._idle.pop()).lease != lease:
                pass  # the marker ended with its lease
        except IndexError:  # not checked before, because another thread may take the last one
            marker = Marker(self._prefix + b"%d" % next(self._numbers), lease)
        return marker

    def _own_lease(self) -> int:
        self._own.renew_if_due()
        return self._own.ensure()

    def _carried_out(self, marker: Marker, asked: Transaction, deadline: Deadline) -> Committed:
        conditions, then, otherwise = asked
        otherwise = (Get(marker.key), *otherwise) if conditions else ()
        marked = Transaction((marker.unchanged(), *conditions), (*then, marker.put(_WRITTEN)), otherwise)
        done, outstanding = self._answered(marked, deadline)
        if done.succeeded:
            marker.revision = done.revision
            return done
        if not conditions:  # only the marker's condition can have failed; the marker is not read above, to save time
            return self._fenced_off(marker, deadline, outstanding) or done
        landed = _landed(marker, done.ranges[0].first, outstanding)
        if landed is None and outstanding:
            landed = self._fenced_off(marker, deadline, outstanding)
        return landed or done._replace(ranges=done.ranges[1:])

    def _answered(
        self, transaction: Transaction, deadline: Deadline, outstanding: bool = False
    ) -> tuple[Committed, bool]:
        """Return the first answer, and whether unanswered copies of the request may still be on their way."""
        while True:
            try:
                return self._client.transact(transaction), outstanding
            except EtcdUnreachable as error:
                outstanding = outstanding or error.landed
                if not deadline.allows_another():
                    raise EtcdUnreachable(str(error), outstanding) from error
            except EtcdLeaseGone as error:
                if not outstanding:
                    raise
                reason = f"the lease of the write marker expired before the write was confirmed: {error}"
                raise EtcdUnreachable(f"{reason}; the write may have taken effect", landed=True) from error

    def _fenced_off(self, marker: Marker, deadline: Deadline, outstanding: bool) -> Committed | None:
        """Change the marker, so that no copy of the write can be carried out afterwards. Returns the write's outcome if
        a copy was carried out before the change, and None otherwise. Raises EtcdUnreachable if a copy was `outstanding`
        and the marker no longer exists."""
        fence = Transaction((marker.unchanged(),), (marker.put(_FENCED),), (Get(marker.key),))
        done, _ = self._answered(fence, deadline, outstanding=True)
        if done.succeeded:
            marker.revision = done.revision
            return None
        return _landed(marker, done.ranges[0].first, outstanding)


def _landed(marker: Marker, found: KeyValue | None, outstanding: bool) -> Committed | None:
    """Return the outcome of a write whose marker has the value `found`, or None if it was not carried out. Updates the
    marker. Raises EtcdUnreachable if a copy was `outstanding` and the marker no longer exists."""
    if outstanding and found is None and marker.revision:
        reason = "the write marker was deleted or expired before the write was confirmed"
        raise EtcdUnreachable(f"{reason}; the write may have taken effect", landed=True)
    revision = found.mod_revision if found else 0
    if revision == marker.revision:
        return None
    marker.revision = revision
    return Committed(True, revision) if found and found.value == _WRITTEN else None
