"""The event queue: wake-ups, pending events, and the agent's last sign of life."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading

import pytest
from elastic_testing import Background, FakeClock, eventually

from elastic_core.agent.event_queue import Departure, EventQueue
from elastic_core.clock import Instant, SystemClock, later
from elastic_core.interfaces.workers import Expiry

INT, TERM = signal.SIGINT, signal.SIGTERM


@pytest.fixture
def make_queue():
    made = []

    def make_queue(clock=None):
        made.append(EventQueue(clock or SystemClock()))
        return made[-1]

    yield make_queue
    for queue in made:
        queue.close()


@pytest.fixture
def queue(make_queue):
    return make_queue()


def in_a_minute():
    return later(SystemClock().now(), 60.0)


def numbers(expired):
    return [expiry.worker_pid for expiry in expired]


def test_event_from_another_thread_wakes_the_waiter(queue):
    begun = SystemClock().now()
    threading.Timer(0.05, queue.signalled, [TERM]).start()
    queue.wait((), in_a_minute())
    assert queue.signals == [TERM]
    threading.Timer(0.05, queue.wake).start()
    queue.wait((), in_a_minute())
    assert SystemClock().now() - begun < 30


def test_event_from_a_signal_handler_wakes_the_waiter(queue):
    before = signal.signal(signal.SIGALRM, lambda number, frame: queue.signalled(TERM))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        begun = SystemClock().now()
        queue.wait((), in_a_minute())
        assert queue.signals == [TERM]
        assert SystemClock().now() - begun < 30
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_events_beyond_pipe_capacity_are_kept(queue):
    count = 70_000  # a pipe holds 65,536 bytes
    for number in range(count):
        queue.expired(Expiry(number, ""))
    queue.wait((), None)
    assert numbers(queue.pop_expired()) == list(range(count))
    queue.signalled(TERM)
    queue.wait((), in_a_minute())
    assert queue.signals == [TERM]


def test_events_from_many_threads_all_arrive(queue):
    def put(thread):
        for number in range(200):
            queue.expired(Expiry(thread * 200 + number, ""))

    threads = [threading.Thread(target=put, args=[thread]) for thread in range(8)]
    for thread in threads:
        thread.start()
    found = []
    while len(found) < 1600:
        queue.wait((), in_a_minute())  # may be empty: an event can be taken before its wake-up is sent
        found += numbers(queue.pop_expired())
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1600))


def test_alive_at_is_now_while_waiting_and_else_the_last_wait(make_queue):
    clock = FakeClock()
    queue = make_queue(clock)
    clock.advance(50.0)
    before = queue.alive_at()
    seen = Background(lambda: (eventually(lambda: queue.alive_at() == clock.timestamp()), queue.wake()))
    queue.wait((), None)
    ended = clock.timestamp()
    clock.advance(50.0)
    assert (ended - before, seen.result()[0], queue.alive_at()) == (50.0, True, ended)


class Watched(FakeClock):
    """Calls `watch` whenever it is read, as if another thread ran at that moment; `watch` may read the clock too."""

    watch = None

    def now(self):
        self._call_watcher()
        return super().now()

    def timestamp(self):
        self._call_watcher()
        return super().timestamp()

    def _call_watcher(self):
        watch, self.watch = self.watch, None
        if watch:
            watch()
        self.watch = watch


def test_ended_wait_leaves_no_gap_in_alive_at(make_queue):
    clock, ages = Watched(), []
    queue = make_queue(clock)
    clock.advance(3600.0)
    clock.watch = lambda: ages.append(clock.timestamp() - queue.alive_at())
    queue.wake()
    queue.wait((), None)
    assert set(ages) == {0.0}


def test_events_after_close_are_dropped(make_queue):
    queue = make_queue()
    queue.close()
    queue.close()
    descriptors = [os.pipe() for _ in range(4)]  # these reuse the numbers of the queue's descriptors
    try:
        queue.signalled(TERM)
        for reader, _ in descriptors:
            os.set_blocking(reader, False)
            with pytest.raises(BlockingIOError):
                os.read(reader, 1)
    finally:
        for end in (end for ends in descriptors for end in ends):
            os.close(end)


def test_close_is_safe_while_threads_add_events(queue):
    begun = threading.Event()

    def put():
        for _ in range(2000):
            queue.wake()
            begun.set()

    threads = [threading.Thread(target=put) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    queue.close()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("handled_immediately", [True, False])
@pytest.mark.parametrize(
    ("signals", "urged"),
    [
        ([(0.0, TERM)], False),
        ([(0.0, TERM), (0.0, TERM)], False),
        ([(0.0, TERM), (0.4, TERM)], False),
        ([(0.0, TERM), (0.5, TERM)], True),
        ([(0.0, TERM), (0.0, INT)], False),
        ([(0.0, INT), (0.4, TERM)], False),
        ([(0.0, TERM), (0.3, INT), (0.3, TERM)], True),
        ([(0.0, TERM), (0.5, INT)], True),
    ],
)
def test_urgency_depends_on_signal_arrival_times(signals, urged, handled_immediately, make_queue):
    """The agent may be busy in between: announcing its departure takes seconds if the store is slow."""
    clock = FakeClock()
    queue = make_queue(clock)
    for after, signum in signals:
        clock.advance(after)
        queue.signalled(signum)
        if handled_immediately:
            queue.wait((), None)
    clock.advance(2.0)
    queue.wake()
    queue.wait((), None)
    assert (queue.signals, queue.urged) == ([signum for _, signum in signals], urged)


@pytest.mark.parametrize(
    ("signals", "request_"),
    [([], None), ([INT], INT), ([INT, TERM], TERM), ([TERM, INT], TERM), ([INT, signal.SIGHUP, TERM], TERM)],
)
def test_sigterm_takes_precedence_within_a_request(signals, request_, make_queue):
    clock = FakeClock()
    queue = make_queue(clock)
    for signum in signals:
        queue.signalled(signum)
        clock.advance(0.1)
    queue.wait((), Instant(0.0))
    assert queue.request is request_


def test_later_request_keeps_the_first_signal(make_queue):
    clock = FakeClock()
    queue = make_queue(clock)
    queue.signalled(INT)
    clock.advance(0.5)
    queue.signalled(TERM)
    queue.wait((), None)
    assert (queue.request, queue.urged) == (INT, True)


@pytest.mark.parametrize("line", range(1, 11))
def test_signal_handlers_may_close_the_queue_during_a_wait(queue, line):
    """Python must not write to the closed descriptor, which may already belong to another file. The second signal
    arrives before this line of `close`."""
    lines, woken = itertools.count(1), []

    def trace(frame, event, arg):
        if frame.f_code is EventQueue.close.__code__ and event == "line" and next(lines) == line:
            signal.raise_signal(signal.SIGUSR1)
        return trace

    def close_slowly(*_):
        tracer = sys.gettrace()
        sys.settrace(trace)
        try:
            queue.close()
        finally:
            sys.settrace(tracer)
        woken.append(signal.set_wakeup_fd(-1))

    handlers = {signal.SIGALRM: close_slowly, signal.SIGUSR1: lambda *_: queue.close()}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            queue.wait(())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert next(lines) > line
    assert woken == [-1]


def test_signal_delivered_to_another_thread_ends_the_wait(queue):
    """The kernel prefers the main thread, but not if that has just received another signal."""
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    before = signal.signal(signal.SIGUSR1, lambda *_: queue.signalled(signal.SIGUSR1))
    sender = threading.Timer(0.2, signal.pthread_kill, (other.ident, signal.SIGUSR1))
    sender.start()
    try:
        begun = SystemClock().now()
        while queue.request is None and SystemClock().now() - begun < 60:
            queue.wait((), later(begun, 60.0))
        assert queue.request is signal.SIGUSR1
        assert SystemClock().now() - begun < 50
    finally:
        signal.signal(signal.SIGUSR1, before)
        over.set()
        for thread in (sender, other):
            thread.join()


# Notices


def departure(clock, seconds, reason="the machine goes"):
    due = later(clock.now(), seconds)
    return Departure(due, later(due, 40.0), reason)


def test_notice_counts_as_sigterm_when_it_is_due(queue):
    begun = SystemClock().now()
    queue.noticed("cloud", departure(SystemClock(), 0.1))
    while queue.request is None and SystemClock().now() - begun < 60:
        queue.wait((), in_a_minute())
    assert SystemClock().now() - begun < 50
    assert (queue.request, queue.signals, queue.why, queue.urged) == (TERM, [TERM], "the machine goes", False)


def test_earliest_notice_is_the_reason(make_queue):
    clock = FakeClock()
    queue = make_queue(clock)
    queue.noticed("cloud", departure(clock, 50.0))
    queue.noticed("scheduler", departure(clock, 20.0, "the time limit"))
    queue.wait((), clock.now())
    assert queue.why == ""
    clock.advance(30.0)
    queue.wait((), clock.now())
    assert queue.why == "the time limit"


@pytest.mark.parametrize("later_notice", [None, 90.0])
def test_withdrawn_or_postponed_notice_has_no_effect(later_notice, make_queue):
    clock = FakeClock()
    queue = make_queue(clock)
    queue.noticed("cloud", departure(clock, 20.0))
    queue.wait((), clock.now())
    queue.noticed("cloud", None if later_notice is None else departure(clock, later_notice))
    clock.advance(30.0)
    queue.wait((), clock.now())
    assert (queue.request, queue.signals) == (None, [])


def test_first_signal_after_a_notice_is_not_urgent(make_queue):
    """A node that is drained on Kubernetes gets its notice first and SIGTERM later."""
    clock = FakeClock()
    queue = make_queue(clock)
    queue.noticed("cloud", departure(clock, 0.0))
    queue.wait((), clock.now())
    clock.advance(5.0)
    queue.signalled(TERM)
    queue.wait((), clock.now())
    assert (queue.urged, queue.why) == (False, "the machine goes")
    clock.advance(5.0)
    queue.signalled(TERM)
    queue.wait((), clock.now())
    assert queue.urged


def test_flood_of_notices_does_not_keep_a_signal_waiting(make_queue):
    clock = FakeClock()
    queue, over = make_queue(clock), threading.Event()

    def flood():
        number = 0
        while not over.is_set():
            number += 1
            queue.noticed("cloud", departure(clock, 1e6, f"reason {number}"))

    source = threading.Thread(target=flood)
    source.start()
    try:
        queue.signalled(TERM)
        queue.wait((), clock.now())
        assert queue.request is TERM
    finally:
        over.set()
        source.join()


def test_notice_after_a_signal_is_ignored(make_queue):
    clock = FakeClock()
    queue = make_queue(clock)
    queue.signalled(INT)
    queue.noticed("cloud", departure(clock, 0.0))
    queue.wait((), clock.now())
    assert (queue.request, queue.why) == (INT, "received SIGINT")
