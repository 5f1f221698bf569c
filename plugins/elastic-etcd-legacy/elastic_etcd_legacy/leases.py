"""A node's two leases, which a thread renews. The short one expires soon after the node dies, and the long one is for
keys that outlive the node."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from elastic_etcd.client.errors import EtcdError
from elastic_etcd.client.lease_keeper import LeaseKeeper

from elastic_core.plugin import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_etcd.client.client import EtcdClient

    from elastic_core.plugin import Clock, Duration

_PATIENCE: Duration = 10.0  # seconds for the thread to exit


class Leases:
    """Holds and renews the two leases. Thread-safe.

    Args:
        alive: time to live of the short lease, in seconds.
        kept: time to live of the long lease, in seconds.
        on_loss: called from any thread after the short lease was lost.
    """

    def __init__(
        self,
        client: EtcdClient,
        alive: Duration,
        kept: Duration,
        on_loss: Callable[[], None],
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self._alive = LeaseKeeper(client, alive, on_loss, clock)
        self._run = LeaseKeeper(client, kept, clock=clock)
        self._every = alive / 10  # seconds between the checks for a due renewal
        self._closed = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def alive(self) -> int:
        """Return the ID of the short lease, granting it if necessary. Raises EtcdError."""
        return self._held(self._alive)

    def run(self) -> int:
        """Return the ID of the long lease, granting it if necessary. Raises EtcdError."""
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
            self._closed.set()
            thread = self._thread
        if thread is not None:
            thread.join(_PATIENCE)
        self._alive.release()
        if end_run:
            self._run.release()

    def _held(self, keeper: LeaseKeeper) -> int:
        lease = keeper.ensure()
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._renew, name="etcd-legacy leases", daemon=True)
                self._thread.start()
        return lease

    def _renew(self) -> None:
        while not self._closed.wait(self._every):
            # After an error, the leases are kept, because only the server can report that one has expired.
            with contextlib.suppress(EtcdError):
                self._alive.renew_if_due()
                self._run.renew_if_due()
