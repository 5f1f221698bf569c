"""Delays exceptions from signal handlers, such as KeyboardInterrupt, while a process is being started.

Python runs signal handlers in the main thread, between any two bytecode steps. An exception between the fork and the
line that records the process id would leave a process that the program cannot end. During that time, a gate replaces
the handlers and only records signals. `elastic run` does not need the gate, because its handlers raise nothing.

Two other solutions have gaps. If the main thread blocks a signal, another thread receives the signal, and Python still
runs the handler in the main thread. If a separate thread forks the worker, that thread becomes the worker's parent. A
worker that has asked the kernel to end it with its parent (PR_SET_PDEATHSIG) then ends with that thread."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    Handler = Callable[[int, FrameType | None], object]

_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Delay Python's handlers for SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGALRM until the end of the block.

    Delaying more signals would remove handlers that C code has installed over Python's (`faulthandler.register`), and
    reset flags set with `signal.siginterrupt`.

    Hold interrupts only briefly, because the program does not react to Ctrl-C in the meantime. In other threads than
    the main thread, this function does nothing, because Python runs no handlers there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hold = object()
    try:
        try:
            _gate.close(hold)
            yield
        finally:
            _gate.open(hold)
    finally:  # an exception may have interrupted the first `open`; otherwise this does nothing
        _gate.open(hold)


@contextlib.contextmanager
def interrupts_allowed() -> Iterator[None]:
    """Suspend an enclosing `interrupts_held` during a long step that starts no process."""
    holds = _gate.holds
    if not holds or _gate.thread != threading.get_ident():
        yield
        return
    try:
        _gate.holds = []
        _gate.pass_on()
        yield
    finally:
        _gate.holds = holds


def raise_noted() -> None:
    """Raise the signals that a child recorded before it set its own handlers. Call this in a child that was forked
    inside `interrupts_held`."""
    _gate.holds, noted, _gate.noted = [], _gate.noted, {}
    for signum in noted:
        signal.raise_signal(signum)


class _Gate:
    """Replaces the program's handlers. While interrupts are held, the gate records signals. Otherwise, the gate passes
    signals on to the program's handlers, so a gate that an exception has left installed does no harm.

    No signal is lost, whenever it arrives:
    - The gate is closed before it replaces the first handler. It keeps the handlers that `signal.signal` returns,
      because a handler that runs in between may install another one.
    - The gate handles the recorded signals before it restores the handlers, because a handler may be waiting for
      another handler's exception, such as that of a time limit. Handlers that have been replaced are not restored.
    - If an exception interrupts the opening, the exception propagates, and the gate is opened again."""

    def __init__(self) -> None:
        self.holds: list[object] = []
        self.noted: dict[int, FrameType | None] = {}  # at most one per signal, as in the kernel
        self.thread = 0
        self._handlers: dict[int, Handler] = {}

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.holds:
            self.noted[signum] = frame
        else:
            self._handlers[signum](signum, frame)

    def close(self, hold: object) -> None:
        self.thread = threading.get_ident()
        self.holds.append(hold)
        for signum in _HELD:
            if callable(handler := signal.getsignal(signum)) and handler is not self:
                self._handlers[signum] = handler  # in case another signal's handler raises during the next line
                replaced = signal.signal(signum, self)
                if callable(replaced):
                    self._handlers[signum] = replaced
                else:  # the handler has just run and uninstalled itself
                    signal.signal(signum, replaced)

    def open(self, hold: object) -> None:
        self.holds = [other for other in self.holds if other is not hold]
        if not self.holds:
            try:
                self.pass_on()
            finally:
                self._put_back()

    def pass_on(self) -> None:
        """Handle all recorded signals in order, even if a handler raises."""
        try:
            for signum in list(self.noted):
                self._handlers[signum](signum, self.noted.pop(signum))
        except BaseException:
            self.pass_on()
            raise

    def _put_back(self) -> None:
        mine: object = self
        for signum, handler in self._handlers.items():
            if signal.getsignal(signum) is mine and (replaced := signal.signal(signum, handler)) is not mine:
                signal.signal(signum, replaced)  # a handler has just run and installed this one

    def forked(self) -> None:
        """Adjust the gate in a forked child. If the thread that holds interrupts has forked, the child keeps holding
        them until `raise_noted`, because the child must not run the program's handlers."""
        self.noted.clear()  # the parent received these
        if self.thread != threading.get_ident():
            self.holds = []
            self._put_back()


_gate = _Gate()
os.register_at_fork(after_in_child=_gate.forked)
