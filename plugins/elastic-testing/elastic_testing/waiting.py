"""For tests of calls that block, and of conditions that come true by themselves. All waits are bounded, so a test that
hangs fails."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from elastic_core.clock import SystemClock, later

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.clock import Clock, Duration

T = TypeVar("T")
LONG: Duration = 60.0  # after which the contracts say that something hangs
_PATIENCE: Duration = 60.0
_PAUSE: Duration = 0.01


class Background(Generic[T]):
    """A call in a thread of its own, begun at once. One that hangs does not keep the process from ending.

    Args:
        function: takes nothing.
        timeout: seconds that `result` waits by default (20).
    """

    def __init__(self, function: Callable[[], T], timeout: Duration = _PATIENCE) -> None:
        self._function = function
        self._timeout = timeout
        self._value: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it has not come back yet."""
        return self._thread.is_alive()

    def over(self, timeout: Duration) -> bool:
        """Wait for its end, for `timeout` seconds at most; whether it came."""
        self._thread.join(timeout)
        return not self.running

    def result(self, timeout: Duration | None = None) -> T:
        """What it returned. Raises what it raised, and AssertionError if it still runs after `timeout` seconds."""
        patience = self._timeout if timeout is None else timeout
        if not self.over(patience):
            raise AssertionError(f"expected the call to come back, found it still running after {patience} s")
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def _run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:  # noqa: BLE001 - it is raised again by `result`
            self._error = error


def eventually(
    condition: Callable[[], T],
    timeout: Duration = _PATIENCE,
    what: str = "the condition",
    clock: Clock | None = None,
) -> T:
    """The condition's value as soon as it is true; it is asked again and again. Raises AssertionError, with `what`, if
    that does not come within `timeout` seconds of `clock`, the real one by default."""
    clock = clock or SystemClock()
    deadline = later(clock.now(), timeout)
    pause = threading.Event()
    while not (value := condition()):
        if clock.now() >= deadline:
            raise AssertionError(f"{what} did not come true within {timeout} s")
        pause.wait(_PAUSE)
    return value


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Make all these calls at the same time; what they returned, in their order. Raises what one of them raised."""
    gate = threading.Barrier(len(calls))

    def after_the_gate(call: Callable[[], T]) -> T:
        gate.wait(LONG)
        return call()

    running = [Background(partial(after_the_gate, call), LONG) for call in calls]
    return [call.result() for call in running]


def raised(function: Callable[[], object]) -> Exception | None:
    """What the call raises; None if nothing. Raises AssertionError for a call that hangs."""
    try:
        Background(function, LONG).result()
    except AssertionError:
        raise
    except Exception as error:  # noqa: BLE001 - it is handed out
        return error
    return None
