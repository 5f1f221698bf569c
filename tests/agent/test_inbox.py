from __future__ import annotations

import contextlib
import os
import signal
import threading

import pytest

from elastic_core.agent.inbox import Inbox, Joined, Signalled, TimerExpired
from elastic_core.clock import Instant, SystemClock, later
from elastic_core.interfaces.watchdog import Expiry
from elastic_core.testing import Background, FakeClock, eventually

TERM = Signalled(signal.SIGTERM, Instant(0.0))


@pytest.fixture
def inbox():
    inbox = Inbox(SystemClock())
    yield inbox
    inbox.close()


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):
            os.close(end)


def in_a_minute():
    return later(SystemClock().now(), 60.0)


def test_items_come_out_in_the_order_of_posting(inbox):
    items = [TERM, Joined(ValueError("no")), TimerExpired(Expiry(7, "step"))]
    for item in items:
        inbox.post(item)
    assert inbox.wait((), None) == items
    assert inbox.wait((), SystemClock().now()) == []


def test_a_post_from_another_thread_wakes(inbox):
    threading.Timer(0.05, inbox.post, [TERM]).start()
    begun = SystemClock().now()
    assert inbox.wait((), in_a_minute()) == [TERM]
    assert SystemClock().now() - begun < 30


def test_a_post_from_a_signal_handler_wakes(inbox):
    before = signal.signal(signal.SIGALRM, lambda number, frame: inbox.post(TERM))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        begun = SystemClock().now()
        assert inbox.wait((), in_a_minute()) == [TERM]
        assert SystemClock().now() - begun < 30
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_more_posts_than_the_pipe_holds_lose_nothing(inbox):
    count = 70_000  # a pipe holds 65,536 bytes
    for number in range(count):
        inbox.post(TimerExpired(Expiry(number, "")))
    found = inbox.wait((), None)
    assert [item.expiry.worker_pid for item in found] == list(range(count))
    inbox.post(TERM)
    assert inbox.wait((), in_a_minute()) == [TERM]


def test_posts_of_many_threads_all_arrive(inbox):
    def post(thread):
        for number in range(200):
            inbox.post(TimerExpired(Expiry(thread * 200 + number, "")))

    threads = [threading.Thread(target=post, args=[thread]) for thread in range(8)]
    for thread in threads:
        thread.start()
    found = []
    while len(found) < 1600:
        found += inbox.wait((), in_a_minute())  # may be empty: an item can be taken before its wake-up call is sent
    for thread in threads:
        thread.join()
    assert sorted(item.expiry.worker_pid for item in found) == list(range(1600))


def test_a_readable_descriptor_wakes(inbox, pipe):
    reader, writer = pipe
    os.write(writer, b"!")
    assert inbox.wait([reader], in_a_minute()) == []


def test_a_descriptor_that_nobody_can_write_to_any_more_wakes(inbox, pipe):
    reader, writer = pipe
    os.close(writer)
    assert inbox.wait([reader], in_a_minute()) == []


def test_a_deadline_that_has_passed_does_not_block(inbox, pipe):
    assert inbox.wait([pipe[0]], later(SystemClock().now(), -5.0)) == []


def test_a_deadline_ends_the_wait(inbox):
    begun = SystemClock().now()
    assert inbox.wait((), later(begun, 0.02)) == []
    assert 0.02 <= SystemClock().now() - begun < 30


def test_it_says_whether_somebody_waits(inbox):
    before = inbox.waiting
    seen = Background(lambda: (eventually(lambda: inbox.waiting), inbox.post(TERM)))
    inbox.wait((), in_a_minute())
    assert (before, seen.result()[0], inbox.waiting) == (False, True, False)


def test_after_close_posts_are_dropped_and_touch_no_file():
    inbox = Inbox(FakeClock())
    inbox.close()
    inbox.close()
    descriptors = [os.pipe() for _ in range(4)]  # the numbers of the inbox's own are used again
    try:
        inbox.post(TERM)
        for reader, _ in descriptors:
            os.set_blocking(reader, False)
            with pytest.raises(BlockingIOError):
                os.read(reader, 1)
    finally:
        for end in (end for ends in descriptors for end in ends):
            os.close(end)


def test_nobody_can_wait_in_a_closed_inbox():
    inbox = Inbox(FakeClock())
    inbox.close()
    with pytest.raises(RuntimeError, match="an agent runs once"):
        inbox.wait((), None)


def test_closing_while_others_post_is_safe():
    inbox = Inbox(SystemClock())
    begun = threading.Event()

    def post():
        for _ in range(2000):
            inbox.post(TERM)
            begun.set()

    threads = [threading.Thread(target=post) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(30)
    inbox.close()
    for thread in threads:
        thread.join()
