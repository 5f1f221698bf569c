"""A call that may hang, with a bound: it runs in a thread of its own, and is waited for no longer than one likes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from elastic_core.errors import RendezvousConnectionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration

T = TypeVar("T")


class Late(Exception):
    """A call has not come back in time. It is left behind in its thread."""


class Call(Generic[T]):
    """A call of `action` that begins now. Nobody needs to wait for it, and it does not keep the process alive."""

    def __init__(self, action: Callable[[], T], name: str = "elastic-call") -> None:
        self._action = action
        self._changed = threading.Condition()
        self._over = self._cut = False
        self._values: list[T] = []
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def wait(self, limit: Duration) -> bool:
        """Wait until it is over, for `limit` seconds at most, or until `interrupt`. Whether it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._cut, limit)
            return self._over

    def interrupt(self) -> None:
        """Let whoever waits go on without it, now and later. Any thread."""
        with self._changed:
            self._cut = True
            self._changed.notify_all()

    def result(self, limit: Duration = 0.0) -> T:
        """What it returns or raises, if that happens within `limit` seconds from now; else raises Late."""
        if not self.wait(limit):
            raise Late
        if self._error is not None:
            raise self._error
        return self._values[0]

    def _run(self) -> None:
        try:
            self._values.append(self._action())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self._error = error
        with self._changed:
            self._over = True
            self._changed.notify_all()


def within(limit: Duration, action: Callable[[], T], where: str) -> T:
    """What `action` returns or raises, if that happens within `limit` seconds; else it is left behind in its thread.

    Raises:
        RendezvousConnectionError: the time is over; it names `where`.
    """
    try:
        return Call(action).result(limit)
    except Late:
        raise RendezvousConnectionError(
            f"expected an answer of the store at {where} within {limit:g} s, found that there was none; it may be "
            "paused, or out of reach"
        ) from None
