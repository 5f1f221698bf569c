"""Helpers for tests of blocking calls, of conditions that become true later, and of leaks. All waits have time limits,
so that a test fails instead of hanging."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from elastic_core.plugin import SystemClock, later

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.plugin import Clock, Duration

T = TypeVar("T")
E = TypeVar("E", bound=Exception)
LONG: Duration = 60.0  # seconds after which a contract reports a hang
_PAUSE: Duration = 0.01


class Background(Generic[T]):
    """A call in a separate daemon thread. The call starts immediately.

    Args:
        function: a function without arguments.
        timeout: the default timeout of `result` in seconds (60).
    """

    def __init__(self, function: Callable[[], T], timeout: Duration = LONG) -> None:
        self._timeout = timeout
        self._value: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(function,), daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the call has not returned yet."""
        return self._thread.is_alive()

    def over(self, timeout: Duration) -> bool:
        """Wait up to `timeout` seconds for the call to return. Returns whether it has."""
        self._thread.join(timeout)
        return not self.running

    def result(self, timeout: Duration | None = None) -> T:
        """Wait for the call to return, and return its value. Raises the call's error, or AssertionError if the call
        is still running after `timeout` seconds."""
        patience = self._timeout if timeout is None else timeout
        if not self.over(patience):
            raise AssertionError(f"the call is still running after {patience} s")
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def _run(self, function: Callable[[], T]) -> None:
        try:
            self._value = function()
        except BaseException as error:  # noqa: BLE001 - raised again by `result`
            self._error = error


def eventually(
    condition: Callable[[], T],
    timeout: Duration = LONG,
    what: str = "the condition",
    clock: Clock | None = None,
) -> T:
    """Poll the condition, and return its value as soon as it is true. Raises AssertionError, with `what` in its
    message, after `timeout` seconds (60), measured by `clock` (default: the system clock)."""
    clock = clock or SystemClock()
    deadline = later(clock.now(), timeout)
    pause = threading.Event()
    while not (value := condition()):
        if clock.now() >= deadline:
            raise AssertionError(f"{what} did not become true within {timeout} s")
        pause.wait(_PAUSE)
    return value


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Run all calls at the same time, and return their results in order. If any call fails, raises the error of the
    first such call."""
    gate = threading.Barrier(len(calls))

    def after_the_gate(call: Callable[[], T]) -> T:
        gate.wait(LONG)
        return call()

    running = [Background(partial(after_the_gate, call), LONG) for call in calls]
    return [call.result() for call in running]


def raised(function: Callable[[], object]) -> Exception | None:
    """Call the function, and return the error that it raises, or None. An AssertionError is not returned but raised, as
    is the AssertionError that reports a hanging call."""
    try:
        Background(function, LONG).result()
    except AssertionError:
        raise
    except Exception as error:  # noqa: BLE001 - returned to the caller
        return error
    return None


def raises(kind: type[E], function: Callable[[], object]) -> E:
    """Call the function, and return the error that it raises, which must be of this kind."""
    error = raised(function)
    assert isinstance(error, kind), f"expected {kind.__name__}, found {error!r}"
    return error


def open_files() -> set[tuple[str, str]]:
    """Return this process's open descriptors and their targets. Other threads may close theirs at any time."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            found.add((link.name, str(link.readlink())))
    return found
