"""Signals at the moment a process starts: which are held, which are allowed, and their effect."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import inspect
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time

import pytest

from elastic_core.support import processes
from elastic_core.support.processes import interrupts_allowed, interrupts_held
from elastic_core.workers.hang import pyspy_dump

pytestmark = pytest.mark.integration

LONG = 60.0
SLEEP = "import time; time.sleep(600)"


class HandlerError(Exception):
    """Raised by the handlers of these tests."""


def raise_error(number, frame):
    raise HandlerError


class InterruptedStarter:
    """A starter that gets Ctrl-C right after its process has started, before the process is registered."""

    def __init__(self, starter, started):
        self._starter = starter
        self._started = started

    def start(self, launch):
        child = self._starter.start(launch)
        self._started.append(child.pid)
        signal.raise_signal(signal.SIGINT)
        return child

    def result(self, launch):
        return self._starter.result(launch)


@pytest.fixture(params=["subprocess", "fork", "spawn", "forkserver"])
def sleeping(request, python, call):
    """A starter of workers that sleep."""
    return python(SLEEP) if request.param == "subprocess" else call(time.sleep, 600, method=request.param)


@pytest.mark.usefixtures("interruptible")
def test_worker_started_during_ctrl_c_is_killed(sleeping, local_workers, plan, running, clean_up):
    rounds = local_workers(InterruptedStarter(sleeping, clean_up))
    with pytest.raises(KeyboardInterrupt):
        rounds.start(plan(2))
    assert len(clean_up) == 1  # the second was not started
    assert not running(clean_up[0])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("interruptible")
def test_py_spy_is_killed_on_ctrl_c(spy, tmp_path, until, running):
    environment = spy(f"echo $$ > {tmp_path}/pid\nkill -INT $PPID\nexec sleep 600")
    with pytest.raises(KeyboardInterrupt):
        pyspy_dump(77, environment, LONG)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not running(pid), "the end of py-spy")


def test_held_signals_are_handled_in_order_on_exit(handle):
    seen = []
    for signum in (signal.SIGTERM, signal.SIGHUP):
        handle(signum, lambda number, frame: seen.append(number))
    with interrupts_held():
        for signum in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(signum)
        assert seen == []
    assert seen == [signal.SIGHUP, signal.SIGTERM]  # one of each, as with blocked signals


def test_raising_handler_does_not_prevent_other_handlers(handle):
    seen = []

    raising = [signal.SIGTERM, signal.SIGALRM, signal.SIGINT]
    for signum in raising:
        handle(signum, raise_error)
    handle(signal.SIGHUP, lambda number, frame: seen.append(number))
    with pytest.raises(HandlerError), interrupts_held():
        for signum in (*raising, signal.SIGHUP):
            signal.raise_signal(signum)
    assert seen == [signal.SIGHUP]
    assert [signal.getsignal(signum) for signum in raising] == [raise_error] * 3


def test_error_in_the_block_is_kept_as_context(handle):
    handle(signal.SIGTERM, raise_error)
    with pytest.raises(HandlerError) as raised, interrupts_held():
        signal.raise_signal(signal.SIGTERM)
        raise OSError("no process left")
    assert isinstance(raised.value.__context__, OSError)


def test_nested_blocks_hold_until_the_outer_exit(handle):
    seen = []
    handle(signal.SIGTERM, lambda number, frame: seen.append(number))
    with interrupts_held():
        with interrupts_held():
            signal.raise_signal(signal.SIGTERM)
        assert seen == []
    assert seen == [signal.SIGTERM]


def test_handler_installed_in_the_block_is_kept(handle):
    def new(number, frame):
        pass

    handle(signal.SIGTERM, lambda number, frame: None)
    with interrupts_held():
        signal.signal(signal.SIGTERM, new)
    assert signal.getsignal(signal.SIGTERM) is new


def test_ignored_and_default_signals_are_left_alone(handle):
    handle(signal.SIGTERM, signal.SIG_IGN)
    with interrupts_held():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL


def test_signal_raised_by_a_handler_runs_before_the_next_held(handle):
    seen = []

    def pass_it_on(number, frame):
        seen.append(number)
        signal.raise_signal(signal.SIGALRM)

    handle(signal.SIGTERM, pass_it_on)
    for signum in (signal.SIGALRM, signal.SIGHUP):
        handle(signum, lambda number, frame: seen.append(number))
    with interrupts_held():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
    assert seen == [signal.SIGTERM, signal.SIGALRM, signal.SIGHUP]


def test_exception_interrupts_a_running_handler(handle):
    """For example, a handler can set a time limit for itself."""
    continued = []

    def end(number, frame):
        signal.raise_signal(signal.SIGALRM)
        continued.append(number)

    handle(signal.SIGALRM, raise_error)
    handle(signal.SIGTERM, end)
    with pytest.raises(HandlerError), interrupts_held():
        signal.raise_signal(signal.SIGTERM)
    assert continued == []


def test_faulthandler_registration_is_kept(handle, tmp_path):
    """Users register stack dumps on demand in this way, chained to their handler."""
    seen = []
    handle(signal.SIGUSR1, lambda number, frame: seen.append(number))
    with open(tmp_path / "stacks", "w+") as file:
        faulthandler.register(signal.SIGUSR1, file=file, chain=True)
        try:
            with interrupts_held():
                signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
        file.seek(0)
        assert file.read().count("Current thread") == 2
    assert seen == [signal.SIGUSR1] * 2


def test_interrupts_allowed_handles_held_signals(handle):
    seen = []
    handle(signal.SIGTERM, lambda number, frame: seen.append("SIGTERM"))
    with interrupts_held():
        signal.raise_signal(signal.SIGTERM)
        with interrupts_allowed():
            assert seen == ["SIGTERM"]
            signal.raise_signal(signal.SIGTERM)
            assert seen == ["SIGTERM"] * 2
        signal.raise_signal(signal.SIGTERM)
        assert seen == ["SIGTERM"] * 2
    assert seen == ["SIGTERM"] * 3


def test_interrupts_allowed_in_another_thread_has_no_effect(handle):
    seen = []
    handle(signal.SIGTERM, lambda number, frame: seen.append(number))

    def allow():
        with interrupts_allowed():
            pass

    with interrupts_held():
        signal.raise_signal(signal.SIGTERM)
        in_a_thread(allow)
        assert seen == []


class Interrupting:
    """An argument whose pickling is interrupted."""

    def __init__(self, continued):
        self._continued = continued

    def __reduce__(self):
        signal.raise_signal(signal.SIGINT)
        self._continued.append("pickled")
        return list, ()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_ctrl_c_interrupts_pickling_of_arguments(method, call, local_workers, plan):
    continued, others = [], multiprocessing.active_children()
    rounds = local_workers(call(print, Interrupting(continued), method=method))
    with pytest.raises(KeyboardInterrupt):
        rounds.start(plan(1))
    assert continued == []
    assert set(multiprocessing.active_children()) <= set(others)


def in_a_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(LONG)
    assert not thread.is_alive()


def exit_code(pid, running, until):
    until(lambda: not running(pid), "the end of the child")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_child_forked_by_another_thread_holds_no_signals(handle, running, until, clean_up):
    ours, seen = os.getpid(), []

    def end(number, frame):
        os._exit(number)

    def hang_up(number, frame):
        seen.append(number) if os.getpid() == ours else os._exit(number)

    def fork():
        if (pid := os.fork()) == 0:
            if signal.getsignal(signal.SIGTERM) is end:
                signal.raise_signal(signal.SIGTERM)
            os._exit(0)
        clean_up.append(pid)

    handle(signal.SIGTERM, end)
    handle(signal.SIGHUP, hang_up)
    with interrupts_held(), interrupts_held():
        signal.raise_signal(signal.SIGHUP)  # for this process, not for the child
        in_a_thread(fork)
        assert exit_code(clean_up[0], running, until) == signal.SIGTERM
        assert seen == []
    assert seen == [signal.SIGHUP]


in_children: list = []  # run first in every child; the hook itself cannot be removed
os.register_at_fork(after_in_child=lambda: [act() for act in in_children])


def test_early_signal_kills_a_forked_worker(handle, call, local_workers, plan):
    handle(signal.SIGTERM, lambda number, frame: os._exit(1))
    in_children.append(lambda: signal.raise_signal(signal.SIGTERM))
    try:
        [ended] = local_workers(call(time.sleep, 600)).run(plan(1))
    finally:
        in_children.clear()
    assert ended.exitcode == -signal.SIGTERM


def test_interrupts_held_in_another_thread_keeps_handlers(handle):
    def handler(number, frame):
        pass

    handle(signal.SIGTERM, handler)
    found = []

    def read_handler():
        with interrupts_held():
            found.append(signal.getsignal(signal.SIGTERM))

    in_a_thread(read_handler)
    assert found == [handler]


# Signals at any point of the code that holds interrupts


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
@pytest.mark.unit
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
