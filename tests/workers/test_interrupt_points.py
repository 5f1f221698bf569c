"""Interrupts at any point of the code that holds them."""

from __future__ import annotations

import contextlib
import gc
import inspect
import itertools
import signal
import sys
import time

import pytest

from elastic_core.workers import interrupts
from elastic_core.workers.interrupts import interrupts_held

LONG = 60.0


class HandlerError(Exception):
    """What a handler of these tests raises."""


@pytest.fixture
def only_this_code():
    """What a handler raises while the garbage collector calls Python code is lost, and what it raises while coverage
    does leaves its lock taken: neither is called between the lines of such a test."""
    tracer = sys.gettrace()
    sys.settrace(None)
    gc.disable()
    yield
    gc.enable()
    sys.settrace(tracer)


def spin():
    """Until the alarm comes. A call that blocks may miss a signal that comes just before it. A function: what is raised
    in a loop right inside a `with` goes past its end in Python 3.13.0."""
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        pass


@pytest.mark.usefixtures("only_this_code")
def test_signal_at_any_time_leaves_the_block_whole(handle):
    """The alarm strikes at every point, on the way in and out too."""

    def raise_error(number, frame):
        raise HandlerError

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
    """Raises the signal at one step: when a line of the code that holds is about to run, or a function of it begins or
    is about to return. `struck` gets it, if it comes to that."""
    steps = itertools.count()

    def trace(frame, event, arg):
        if frame.f_code.co_filename not in (interrupts.__file__, contextlib.__file__, signal.__file__):
            return None
        if event != "line" and frame.f_code.co_flags & inspect.CO_GENERATOR:
            return trace  # what a tracer raises then ends a generator on the spot, which no signal does
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
    """For every step one that strikes there, until one is too late for all."""
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
    """Those of other signals too, when one raises."""
    seen = []

    def raise_error(number, frame):
        raise HandlerError

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
