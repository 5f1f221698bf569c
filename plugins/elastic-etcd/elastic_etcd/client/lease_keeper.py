"""One lease, held for as long as its holder asks for it in time.

The server alone says that a lease is gone. The clock here only says when to ask: from the instant *before* the last
renewal was sent, because the server's count began after it. A process that was stopped, or answers that came late, make
the lease doubtful, and a doubtful lease is not handed out before the server has confirmed it.
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
"""The part of its time to live after which a lease is renewed: a little less than a third, so that a holder that asks
every third does so each time, jitter or not."""
ATTEMPTS = 3
"""Answers in a row that may come too late to count."""


class _Held(NamedTuple):
    """A lease, which certainly lived for `ttl` seconds from `since`."""

    id: int
    ttl: Duration
    since: Instant


class LeaseKeeper:
    """Holds one lease. From any thread; calls wait for each other.

    Args:
        client: grants, renews and revokes.
        ttl: seconds that the lease lives without renewal; the server may choose more, and never less than 2.
        on_loss: called once for each lease that was lost, by the thread that found out. Not for one that was released.
        clock: for tests.
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
        self._lock = threading.RLock()  # whoever is told of a loss may ask for another lease at once
        self._held: _Held | None = None

    @property
    def lease(self) -> int | None:
        """The lease as far as is known, without asking; None if there is none."""
        held = self._held
        return held.id if held else None

    def due_in(self) -> Duration:
        """Seconds until `renew_if_due` has something to do; 0 also without a lease."""
        held = self._held
        return max(held.since + DUE * held.ttl - self._clock.now(), 0.0) if held else 0.0

    def ensure(self) -> int:
        """The id of a lease that lives: the one that is held, or a new one. Asks the server only where it must.

        Raises:
            EtcdUnreachable: nobody answered in time; the lease is kept and the call may be repeated.
            EtcdRefused: the server will not grant one.
        """
        with self._lock:
            for _ in range(ATTEMPTS):
                if self._has_aged(1.0):
                    self._renew()
                held = self._held = self._held or self._granted()
                if not self._has_aged(1.0):
                    return held.id
            raise self._too_slow()

    def renew_if_due(self) -> bool:
        """Renew the lease if it is time to. Whether one is held: False if it was lost, or never asked for.

        A renewal whose answer is lost does no harm, so that the call may be repeated.

        Raises:
            EtcdUnreachable: nobody answered in time. The lease is kept: servers that were away may still know it.
            EtcdRefused: the server will not renew it, though it exists.
        """
        with self._lock:
            for _ in range(ATTEMPTS):
                if self._has_aged(DUE):
                    self._renew()
                if not self._has_aged(1.0):
                    return self._held is not None
            raise self._too_slow()

    def gone(self, lease: int) -> None:
        """Another call was told that this lease is gone. Nothing happens if it is not the one that is held."""
        with self._lock:
            if self._held is not None and self._held.id == lease:
                self._lose()

    def release(self) -> None:
        """End the lease and all that is attached to it. If the server cannot be asked, it expires. Idempotent."""
        with self._lock:
            held, self._held = self._held, None
            if held is not None:
                with contextlib.suppress(EtcdError):
                    self._client.revoke(held.id)

    def _has_aged(self, part: float) -> bool:
        """Whether a lease is held that has used up this part of its time to live. With all of it, it may be gone."""
        held = self._held
        return held is not None and self._clock.now() - held.since >= part * held.ttl

    def _granted(self) -> _Held:
        asked = self._clock.now()
        lease = self._client.grant(self._ttl)
        return _Held(lease.id, lease.ttl, asked)

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

    def _too_slow(self) -> EtcdUnreachable:
        return EtcdUnreachable(
            f"expected {self._client.where} to answer within the {self._ttl:g} s that a lease lives, "
            f"found {ATTEMPTS} answers in a row that took longer; look at its load, or let leases live longer"
        )
