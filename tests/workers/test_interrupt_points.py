"""Signals at any point of the code that holds interrupts."""

from __future__ import annotations

import contextlib
import gc
import inspect
import itertools
import signal
import sys
import time

import pytest

from elastic_core.support import processes
from elastic_core.support.processes import interrupts_held

LONG = 60.0


class HandlerError(Exception):
    """Raised by the handlers of these tests."""


def raise_error(number, frame):
    raise HandlerError


@pytest.fixture
def only_this_code():
    """Turn off garbage collection and coverage. An exception from a signal handler would be lost in the former and
    leave a lock taken in the latter."""
    tracer = sys.gettrace()
    sys.settrace(None)
    gc.disable()
    yield
    gc.enable()
    sys.settrace(tracer)


def spin():
    """Wait for the alarm. A blocking call could miss a signal that comes just before it. This is a function because in
    Python 3.13.0 an exception raised in a loop directly inside a `with` skips its end."""
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        pass


@pytest.mark.usefixtures("only_this_code")
def test_signal_at_any_time_leaves_the_block_whole(handle):
    """The alarm comes at every point, also on entry and exit."""

    handle(signal.SIGALRM, raise_error)
    for turn in range(1000):
        steps = []
        with pytest.raises(HandlerError):
            signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + turn % 200))
            with interrupts_held():
                steps.append("first")
                steps.append("last")
            spin()
        assert steps in ([], ["first", "last"])
        assert signal.getsignal(signal.SIGALRM) is raise_error


@contextlib.contextmanager
def signal_at(step, signum, raised):
    """Raise the signal at one step of the code that holds interrupts: before a line runs, or when a function begins or
    returns. `raised` then gets the signal."""
    steps = itertools.count()

    def trace(frame, event, arg):
        if frame.f_code.co_filename not in (processes.__file__, contextlib.__file__, signal.__file__):
            return None
        if event != "line" and frame.f_code.co_flags & inspect.CO_GENERATOR:
            return trace  # here, unlike a signal, an exception from the tracer would end the generator
        if next(steps) == step:
            raised.append(signum)
            signal.raise_signal(signum)
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def signals_at_every_step(signum):
    """One context manager for each step, until a step is past the end."""
    for step in itertools.count():
        raised = []
        yield signal_at(step, signum, raised)
        if not raised:
            assert step > 50
            return


BOTH_ENDS = pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGALRM])  # replaced first, and last


@BOTH_ENDS
@pytest.mark.usefixtures("only_this_code")
def test_signal_at_any_step_restores_and_runs_all_handlers(handle, signum):
    """Including the handlers of other signals, if one raises."""
    seen = []

    def note(number, frame):
        seen.append(number)

    def note_and_raise(number, frame):
        seen.append(number)
        raise HandlerError

    handle(signum, raise_error)
    handle(signal.SIGTERM, note_and_raise)
    handle(signal.SIGHUP, note)
    for signal_raised in signals_at_every_step(signum):
        steps = []
        seen.clear()
        with contextlib.suppress(HandlerError), signal_raised, interrupts_held():
            for other in (signal.SIGTERM, signal.SIGHUP):
                signal.raise_signal(other)
                steps.append(other)
        assert steps in ([], [signal.SIGTERM, signal.SIGHUP])
        assert seen == steps
        found = [signal.getsignal(number) for number in (signum, signal.SIGTERM, signal.SIGHUP)]
        assert found == [raise_error, note_and_raise, note]
