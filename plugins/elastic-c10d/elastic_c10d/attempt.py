"""Calls that cannot be bounded from within: run in a thread of their own, and waited for no longer than one likes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration

T = TypeVar("T")
_SLICE: Duration = 0.1


class Attempt(Generic[T]):
    """One call of `function`, begun at once. Nobody needs to wait for it, and it does not keep the process alive."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._done = threading.Event()
        self._results: list[T] = []
        self._error: BaseException | None = None
        threading.Thread(target=self._run, args=(function,), name="rendezvous-connect", daemon=True).start()

    def wait(self, timeout: Duration, stop: threading.Event) -> bool:
        """Wait for the end of the call, for `timeout` seconds or until `stop` (noticed within 0.1 s). Whether it
        ended."""
        left = timeout
        while left > 0 and not stop.is_set():
            if self._done.wait(min(_SLICE, left)):
                return True
            left -= _SLICE
        return self._done.is_set()

    def result(self) -> T:
        """What the call returned, after `wait` has returned True. Raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._results.pop()

    def _run(self, function: Callable[[], T]) -> None:
        try:
            self._results.append(function())
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            self._error = error
        finally:
            self._done.set()
