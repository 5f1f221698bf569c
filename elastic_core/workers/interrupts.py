"""Interrupts: what a signal handler raises waits until a new process is known to who ends it.

Python runs the handlers of signals in the main thread, between any two of its steps, and what they raise there (Ctrl-C
a KeyboardInterrupt, a program's alarm whatever it likes) goes up from that step. Between the fork and the line that
notes the process id it would take the only trace of the process with it. So a gate takes the place of the handlers for
that moment, which notes the signal and returns. `elastic run` needs none of it, since its handlers raise nothing.

Two other ways have a hole. A signal that the main thread blocks goes to another thread, and Python runs its handler in
the main thread all the same. A fork in a thread that is never interrupted makes that thread the worker's parent: who
asked the kernel to end it with its parent (PR_SET_PDEATHSIG) ends with the thread.
"""

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
    """Handlers of SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGALRM that are functions of Python's run on the way out. These
    are the signals that ask a program to end or to stop what it does. What C code has set up over such a handler
    (`faulthandler.register`) is lost, and the flag of `signal.siginterrupt` is set anew; so all others are left alone.

    For moments: a program does not react to Ctrl-C as long. In other threads than the main one nothing is to be done,
    for no handler runs in them. A child that another thread forks meanwhile has the program's handlers.
    """
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
    finally:  # once more, for what an interrupt has kept the first from; else there is nothing left to do
        _gate.open(hold)


@contextlib.contextmanager
def interrupts_let_in() -> Iterator[None]:
    """The reverse, inside `interrupts_held`: for a long step after which still nothing has been started."""
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
    """For a child that was forked inside `interrupts_held` and has set handlers of its own: what came to it before
    comes again, to them."""
    _gate.holds, noted, _gate.noted = [], _gate.noted, {}
    for signum in noted:
        signal.raise_signal(signum)


class _Gate:
    """Stands in for the program's handlers: notes a signal while anybody holds, and passes it on otherwise, so that it
    does no harm where an interrupt has left it in place.

    Why there is no gap, whenever a signal comes:
    - It is closed before it replaces the first handler. One that is not replaced yet may raise, and then nothing has
      been started; it may set another handler, and so what counts is what `signal.signal` says has been replaced.
    - On the way out it first handles what is noted, passing on what comes: a handler may wait for what another raises,
      such as a bound that it has set. Then it goes, but not where a handler has set another in its place.
    - An interrupt on the way out goes up, and all of it is done once more."""

    def __init__(self) -> None:
        self.holds: list[object] = []
        self.noted: dict[int, FrameType | None] = {}  # one of each, as the kernel keeps them
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
                self._handlers[signum] = handler  # to have one, should another signal's raise within the next line
                replaced = signal.signal(signum, self)
                if callable(replaced):
                    self._handlers[signum] = replaced
                else:  # the handler ran just now, and gave the signal up
                    signal.signal(signum, replaced)

    def open(self, hold: object) -> None:
        self.holds = [other for other in self.holds if other is not hold]
        if not self.holds:
            try:
                self.pass_on()
            finally:
                self._put_back()

    def pass_on(self) -> None:
        """What is noted first, in its order; each of it, also when one before raises."""
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
                signal.signal(signum, replaced)  # a handler ran just now, and set this one

    def forked(self) -> None:
        """In a child. One that the holder's own thread has forked goes on to hold, until `raise_noted`: the program's
        handlers are not for it."""
        self.noted.clear()  # those came to the parent
        if self.thread != threading.get_ident():
            self.holds = []
            self._put_back()


_gate = _Gate()
os.register_at_fork(after_in_child=_gate.forked)
