"""Holds one lease for as long as its holder asks for it in time.

Only the server decides whether a lease has ended. The local clock only determines when to ask the server. It counts
from the instant *before* the last renewal was sent; the server's count begins later. If this process was suspended or
an answer came late, the lease may have ended, and is not handed out until the server has confirmed it.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, NamedTuple

from elastic_core.plugin import SystemClock
from elastic_etcd.client.errors import EtcdError, EtcdLeaseGone, EtcdUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.plugin import Clock, Duration, Instant
    from elastic_etcd.client.client import EtcdClient

DUE = 0.3
"""The fraction of its time to live after which a lease is renewed. It is slightly below a third. A holder that asks
three times during that time therefore renews the lease with every call, in spite of jitter."""
ATTEMPTS = 3  # the number of consecutive late answers after which a call fails


class _Held(NamedTuple):
    """A lease that is known to live for `ttl` seconds from the instant `since`."""

    id: int
    ttl: Duration
    since: Instant


class LeaseKeeper:
    """Holds one lease. Thread-safe; calls wait for each other.

    Args:
        ttl: seconds that the lease lives without renewal, at least 2. The server may choose a longer time.
        on_loss: called once for each lost lease by the thread that has noticed the loss; not called for a released
            lease.
    """

    def __init__(
        self,
        client: EtcdClient,
        ttl: Duration,
        on_loss: Callable[[], object] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._ttl = ttl
        self._on_loss = on_loss
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()  # `on_loss` may ask for another lease immediately
        self._held: _Held | None = None

    @property
    def lease(self) -> int | None:
        """The held lease, as far as it is known without asking the server, or None."""
        held = self._held
        return held.id if held else None

    def due_in(self) -> Duration:
        """Return the seconds until `renew_if_due` has something to do, or 0 without a lease."""
        held = self._held
        return max(held.since + DUE * held.ttl - self._clock.now(), 0.0) if held else 0.0

    def ensure(self) -> int:
        """Return the id of a live lease. Asks the server only if necessary. Raises EtcdUnreachable if no member
        answered in time; the lease is kept, and the call may be repeated. Raises EtcdRefused if the server does not
        grant a lease."""
        with self._lock:
            held = self._confirmed(1.0, grants=True)
            assert held is not None
            return held.id

    def renew_if_due(self) -> bool:
        """Renew the lease if the renewal is due. Returns whether a lease is held, which is not the case if it was lost
        or never requested. Raises EtcdUnreachable if no member answered in time, and EtcdRefused if the server does not
        renew an existing lease. In both cases the lease is kept, and the call may be repeated."""
        with self._lock:
            return self._confirmed(DUE, grants=False) is not None

    def gone(self, lease: int) -> None:
        """Record that etcd has rejected this lease in another call. Does nothing unless this lease is the held one."""
        with self._lock:
            if self._held is not None and self._held.id == lease:
                self._lose()

    def release(self) -> None:
        """Revoke the lease, which deletes its keys. If no server can be reached, the lease expires. Idempotent."""
        with self._lock:
            held, self._held = self._held, None
            if held is not None:
                with contextlib.suppress(EtcdError):
                    self._client.revoke(held.id)

    def _confirmed(self, due: float, grants: bool) -> _Held | None:
        """Return the lease, after renewing it if this fraction of its time has passed. If `grants` is True, request a
        lease if none is held."""
        for _ in range(ATTEMPTS):
            if self._has_aged(due):
                self._renew()
            if grants and self._held is None:
                asked = self._clock.now()
                lease = self._client.grant(self._ttl)
                self._held = _Held(lease.id, lease.ttl, asked)
            if not self._has_aged(1.0):
                return self._held
        raise EtcdUnreachable(
            f"{ATTEMPTS} responses in a row from {self._client.where} took longer than the {self._ttl:g} s that "
            "a lease lives; check the load there, or use longer leases"
        )

    def _has_aged(self, part: float) -> bool:
        """Return whether this fraction of the lease's time to live is used up. At 1.0, the lease may have ended."""
        held = self._held
        return held is not None and self._clock.now() - held.since >= part * held.ttl

    def _renew(self) -> None:
        held, asked = self._held, self._clock.now()
        assert held is not None
        try:
            self._held = _Held(held.id, self._client.renew(held.id), asked)
        except EtcdLeaseGone:
            self._lose()

    def _lose(self) -> None:
        self._held = None
        self._on_loss()
