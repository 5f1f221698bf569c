"""The leases of one node: a short one that says that it lives, and a long one that outlives it. Renewed by a thread."""

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

_RETRY: Duration = 0.5  # seconds after a renewal that failed
_LONGEST: Duration = 60.0
_PATIENCE: Duration = 10.0  # for the thread to end


class Leases:
    """From any thread.

    Args:
        alive: seconds without renewal after which the node is gone.
        kept: seconds that what a run leaves stays.
        on_loss: called, from any thread, when the short one was lost.
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
        self._changed = threading.Event()
        self._closed = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def alive(self) -> int:
        """The short lease. Raises EtcdUnreachable, EtcdClosed or EtcdRefused."""
        return self._held(self._alive)

    def run(self) -> int:
        """The long lease. Raises EtcdUnreachable, EtcdClosed or EtcdRefused."""
        return self._held(self._run)

    @property
    def run_if_held(self) -> int | None:
        """The long lease, without asking for one."""
        return self._run.lease

    def gone(self, lease: int) -> None:
        """The server said that this lease does not exist; nothing happens if it is none of these."""
        self._alive.gone(lease)
        self._run.gone(lease)

    def end_alive(self) -> None:
        """Let go of the short lease: the others see at once that the node has left its round."""
        self._alive.release()

    def close(self, end_run: bool) -> None:
        """Stop renewing, and let go of the short lease; of the long one where nothing hangs on it. Idempotent."""
        with self._starting:  # one that is just being started is waited for, too
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
                self._thread = threading.Thread(target=self._renew, name="etcd-legacy leases", daemon=True)
                self._thread.start()
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
        except EtcdError:
            return False  # the server alone says that a lease is gone, and it has not
        return True
