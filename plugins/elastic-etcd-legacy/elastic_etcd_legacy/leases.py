"""A node's two leases, which a thread renews. The short one expires soon after the node dies, and the long one is for
keys that outlive the node."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from elastic_etcd.client.errors import EtcdError
from elastic_etcd.client.lease_keeper import LeaseKeeper

from elastic_core.plugin import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_etcd.client.client import EtcdClient

    from elastic_core.plugin import Clock, Duration

_RETRY: Duration = 0.5  # seconds until the next attempt after a failed renewal
_LONGEST: Duration = 60.0
_PATIENCE: Duration = 10.0  # seconds for the thread to exit


class Leases:
    """Holds and renews the two leases. Thread-safe.

    Args:
        alive: time to live of the short lease, in seconds.
        kept: time to live of the long lease, in seconds.
        on_loss: called from any thread after the short lease was lost.
        check: called after each renewal. It should read something, because a renewal may succeed at a member that takes
            no part in the cluster. May raise EtcdError.
    """

    def __init__(
        self,
        client: EtcdClient,
        alive: Duration,
        kept: Duration,
        on_loss: Callable[[], None],
        check: Callable[[], object],
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self._check = check
        self._alive = LeaseKeeper(client, alive, on_loss, clock)
        self._run = LeaseKeeper(client, kept, clock=clock)
        self._changed = threading.Event()
        self._closed = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def alive(self) -> int:
        """Return the ID of the short lease, granting it if necessary. Raises EtcdUnreachable, EtcdClosed or
        EtcdRefused."""
        return self._held(self._alive)

    def run(self) -> int:
        """Return the ID of the long lease, granting it if necessary. Raises EtcdUnreachable, EtcdClosed or
        EtcdRefused."""
        return self._held(self._run)

    @property
    def run_if_held(self) -> int | None:
        """The ID of the long lease, or None if none has been granted."""
        return self._run.lease

    def gone(self, lease: int) -> None:
        """Forget this lease, which the server no longer knows. Other leases are ignored."""
        self._alive.gone(lease)
        self._run.gone(lease)

    def end_alive(self) -> None:
        """Revoke the short lease, so that the other members see immediately that the node has left its round."""
        self._alive.release()

    def close(self, end_run: bool) -> None:
        """Stop renewing the leases. Revoke the short lease and, if `end_run` is True, the long one. Idempotent."""
        with self._starting:  # a concurrent `_held` may start the thread, which must be joined as well
            self._closed = True
            thread = self._thread
        self._changed.set()
        if thread is not None:
            thread.join(_PATIENCE)
        self._alive.release()
        if end_run:
            self._run.release()

    def _held(self, keeper: LeaseKeeper) -> int:
        lease = keeper.ensure()
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._renew, name="etcd-legacy leases", daemon=True)
                thread.start()
                self._thread = thread
        self._changed.set()
        return lease

    def _renew(self) -> None:
        pause = 0.0
        while not self._closed:
            self._changed.wait(max(pause, self._due_in()))
            self._changed.clear()
            pause = 0.0 if self._renewed() else _RETRY

    def _due_in(self) -> Duration:
        held = (keeper.due_in() for keeper in (self._alive, self._run) if keeper.lease is not None)
        return min(held, default=_LONGEST)

    def _renewed(self) -> bool:
        try:
            for keeper in (self._alive, self._run):
                if keeper.lease is not None and not self._closed:
                    keeper.renew_if_due()
            self._check()
        except EtcdError:
            return False  # keep the lease, because only the server can report that it has expired
        return True
