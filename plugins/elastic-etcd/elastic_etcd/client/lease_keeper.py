"""One lease, held for as long as its holder asks for it in time.

The server alone says that a lease is gone. The clock here only says when to ask: from the instant *before* the last
renewal was sent, because the server's count began after it. A process that was stopped, or answers that came late, make
the lease doubtful, and a doubtful lease is not handed out before the server has confirmed it.
"""

from __future__ import annotations

import contextlib
import enum
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

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


class Need(enum.Enum):
    """What a lease needs. CONFIRM: by the clock it may be gone."""

    GRANT = "grant"
    CONFIRM = "confirm"
    RENEW = "renew"
    NOTHING = "nothing"


@dataclass(frozen=True)
class LeaseState:
    """A lease, and since when its time runs: it was certainly alive for `ttl` seconds from `since`."""

    lease: int
    ttl: Duration
    since: Instant

    def need(self, now: Instant) -> Need:
        """What there is to do about it."""
        age = now - self.since
        if age >= self.ttl:
            return Need.CONFIRM
        return Need.RENEW if age >= DUE * self.ttl else Need.NOTHING

    def due_in(self, now: Instant) -> Duration:
        """Seconds until it should be renewed; 0 when that is overdue."""
        return max(self.since + DUE * self.ttl - now, 0.0)


@dataclass(frozen=True)
class Loss:
    """A lease that is gone, and how many seconds ago it was last known to live."""

    lease: int
    unconfirmed: Duration


class LeaseKeeper:
    """Holds one lease. From any thread; calls wait for each other.

    Args:
        client: grants, renews and revokes.
        ttl: seconds that the lease lives without renewal; the server may choose more, and never less than 2.
        on_loss: told once of each lease that was lost, by the thread that found out. Not of one that was released.
        clock: for tests.
    """

    def __init__(
        self,
        client: EtcdClient,
        ttl: Duration,
        on_loss: Callable[[Loss], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._ttl = ttl
        self._on_loss = on_loss or (lambda _: None)
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()  # whoever is told of a loss may ask for another lease at once
        self._state: LeaseState | None = None

    @property
    def lease(self) -> int | None:
        """The lease as far as is known, without asking; None if there is none."""
        state = self._state
        return state.lease if state else None

    def need(self) -> Need:
        """What the lease needs now."""
        state = self._state
        return state.need(self._clock.now()) if state else Need.GRANT

    def due_in(self) -> Duration:
        """Seconds until `renew_if_due` has something to do; 0 also without a lease."""
        state = self._state
        return state.due_in(self._clock.now()) if state else 0.0

    def ensure(self) -> int:
        """The id of a lease that lives: the one that is held, or a new one. Asks the server only where it must.

        Raises:
            EtcdUnreachable: nobody answered in time; the lease is kept and the call may be repeated.
            EtcdRefused: the server will not grant one.
        """
        with self._lock:
            for _ in range(ATTEMPTS):
                if self.need() is Need.CONFIRM:
                    self._renew()
                state = self._state = self._state or self._granted()
                if self.need() is not Need.CONFIRM:
                    return state.lease
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
                if self.need() in (Need.RENEW, Need.CONFIRM):
                    self._renew()
                if self.need() is not Need.CONFIRM:
                    return self._state is not None
            raise self._too_slow()

    def gone(self, lease: int) -> None:
        """Another call was told that this lease is gone. Nothing happens if it is not the one that is held."""
        with self._lock:
            if self._state is not None and self._state.lease == lease:
                self._lose(self._state)

    def release(self) -> None:
        """End the lease and all that is attached to it. If the server cannot be asked, it expires. Idempotent."""
        with self._lock:
            state, self._state = self._state, None
            if state is not None:
                with contextlib.suppress(EtcdError):
                    self._client.revoke(state.lease)

    def _granted(self) -> LeaseState:
        asked = self._clock.now()
        lease = self._client.grant(self._ttl)
        return LeaseState(lease.id, lease.ttl, asked)

    def _renew(self) -> None:
        state, asked = self._state, self._clock.now()
        assert state is not None
        try:
            ttl = self._client.renew(state.lease)
        except EtcdLeaseGone:
            self._lose(state)
        else:
            self._state = LeaseState(state.lease, ttl, asked)

    def _lose(self, state: LeaseState) -> None:
        self._state = None
        self._on_loss(Loss(state.lease, self._clock.now() - state.since))

    def _too_slow(self) -> EtcdUnreachable:
        return EtcdUnreachable(
            f"expected {self._client.where} to answer within the {self._ttl:g} s that a lease lives, "
            f"found {ATTEMPTS} answers in a row that took longer; look at its load, or let leases live longer"
        )
