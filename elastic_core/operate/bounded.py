"""A call that may hang, with a bound: a store that is paused answers nothing at all."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from elastic_core.errors import RendezvousConnectionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration

T = TypeVar("T")


class _Call(Generic[T]):
    def __init__(self, action: Callable[[], T]) -> None:
        self._action = action
        self.done = threading.Event()
        self.values: list[T] = []
        self.errors: list[BaseException] = []

    def run(self) -> None:
        try:
            self.values.append(self._action())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self.errors.append(error)
        self.done.set()


def within(limit: Duration, action: Callable[[], T], where: str) -> T:
    """What `action` returns or raises, if that happens within `limit` seconds; else it is left behind in its thread.

    Raises:
        RendezvousConnectionError: the time is over; it names `where`.
    """
    call = _Call(action)
    threading.Thread(target=call.run, name="elastic-operate", daemon=True).start()
    if not call.done.wait(limit):
        raise RendezvousConnectionError(
            f"expected an answer of the store at {where} within {limit:g} s, found that there was none; it may be "
            "paused, or out of reach"
        )
    if call.errors:
        raise call.errors[0]
    return call.values[0]
