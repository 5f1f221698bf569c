"""Calls that may hang. Each call runs in a separate thread, and the caller waits only up to a time limit."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from elastic_core.errors import RendezvousConnectionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration

T = TypeVar("T")


class CallTimeout(Exception):
    """A call has not returned in time. The call continues in its thread."""


class BackgroundCall(Generic[T]):
    """A call to `action` that starts immediately in a daemon thread. When the call ends, the thread calls `then`."""

    def __init__(
        self, action: Callable[[], T], name: str = "elastic-call", then: Callable[[], object] = lambda: None
    ) -> None:
        self._action, self._then = action, then
        self._changed = threading.Event()  # the call has ended, or `interrupt` was called
        self._over = False
        self._values: list[T] = []
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def wait(self, limit: Duration) -> bool:
        """Wait until the call has ended or `interrupt` is called, for at most `limit` seconds. Returns whether the call
        has ended."""
        self._changed.wait(min(limit, threading.TIMEOUT_MAX))
        return self._over

    def interrupt(self) -> None:
        """Make all current and future calls of `wait` return immediately. Any thread may call this method."""
        self._changed.set()

    def result(self, limit: Duration = 0.0) -> T:
        """Return the call's result, or raise its exception. Raises CallTimeout if the call has not ended within `limit`
        seconds."""
        if not self.wait(limit):
            raise CallTimeout
        if self._error is not None:
            raise self._error
        return self._values[0]

    def _run(self) -> None:
        try:
            self._values.append(self._action())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self._error = error
        self._over = True
        self._changed.set()
        self._then()


def within(limit: Duration, action: Callable[[], T], where: str) -> T:
    """Call `action` in another thread, and return its result or raise its exception. A call that takes longer than
    `limit` seconds continues in that thread.

    Raises:
        RendezvousConnectionError: the call timed out. The message names `where`.
    """
    try:
        return BackgroundCall(action).result(limit)
    except CallTimeout:
        raise RendezvousConnectionError(
            f"the store at {where} has not answered within {limit:g} s; it may be paused or unreachable"
        ) from None
