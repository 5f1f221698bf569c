"""A call that may hang, with a bound: a store that is paused answers nothing at all."""

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
    """A call that begins now, in a thread of its own."""

    def __init__(self, action: Callable[[], T]) -> None:
        self._action = action
        self._done = threading.Event()
        self._values: list[T] = []
        self._errors: list[BaseException] = []
        threading.Thread(target=self._run, name="elastic-operate", daemon=True).start()

    def result(self, limit: Duration) -> T:
        """What it returns or raises, if that happens within `limit` seconds from now; else raises Late."""
        if not self._done.wait(limit):
            raise Late
        if self._errors:
            raise self._errors[0]
        return self._values[0]

    def _run(self) -> None:
        try:
            self._values.append(self._action())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self._errors.append(error)
        self._done.set()


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
