"""The threads of a handler over backends that behave badly: they neither spin, nor go deaf, nor hang at the end."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest
from handler_job import HangingBackend, rendezvous_threads

from elastic_core import testing
from elastic_core.clock import SystemClock, later
from elastic_core.errors import RendezvousConnectionError
from elastic_core.interfaces.node import Node
from elastic_core.rendezvous.codec import encoded_state
from elastic_core.rendezvous.entry import entry_of
from elastic_core.rendezvous.keeper import Keeper
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout
from elastic_core.rendezvous.state import State, closed
from elastic_core.rendezvous.threads import KeeperThreads
from elastic_core.testing import MemoryBackend, SharedMemory

LONG = 30.0
eventually = partial(testing.eventually, timeout=LONG)


class BadBackend(HangingBackend):
    """Waits that raise or cry wolf, calls that hang.

    Attributes:
        waits_raise: what every wait raises.
        wolf: every wait says at once that there is news.
    """

    def __init__(self, memory):
        super().__init__(memory)
        self.waits_raise = None
        self.wolf = False

    def wait_for_state(self, token, timeout):
        return self._told("wait_for_state") or super().wait_for_state(token, timeout)

    def wait_for_roster(self, timeout, more=1):
        return self._told("wait_for_roster") or super().wait_for_roster(timeout, more)

    def _told(self, method):
        self.calls[method] += 1
        if self.waits_raise is not None:
            raise self.waits_raise
        return self.wolf


class Rig:
    """A keeper with its threads."""

    def __init__(self, memory=None, name="a", max_nodes=1, min_nodes=1, interval=1.0, clock=None):
        self.memory = memory or SharedMemory()
        self.backend = BadBackend(self.memory)
        clock = clock or SystemClock()
        timeout = RendezvousTimeout(last_call=0.0)
        settings = RendezvousSettings("job", min_nodes, max_nodes, timeout, interval, keep_alive_max_attempt=60)
        self.entry = entry_of(Node(name), f"{name}/1")
        self.keeper = Keeper(self.backend, settings, self.entry, clock, lambda view: None)
        self.threads = KeeperThreads(self.keeper, self.backend, clock)

    def start(self):
        self.keeper.want(self.entry)
        self.threads.start()

    @property
    def state(self):
        return self.keeper.view.state or State()


@pytest.fixture
def rig():
    made = []

    def make(*args, **kwargs):
        made.append(Rig(*args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.backend.hold.set()
        one.threads.stop()


def write(memory, state):
    """Another node writes the state."""
    MemoryBackend(memory).set_state(encoded_state(state), memory.state and memory.state[1])


def test_start_and_stop_any_number_of_times(rig):
    before = rendezvous_threads()
    one = rig()
    eventually(one.threads.stop)
    assert (one.threads.started, one.threads.stopped) == (False, True)
    two = rig()
    two.start()
    two.threads.start()
    eventually(lambda: two.state.open)
    assert two.threads.started
    eventually(two.threads.stop)
    assert two.threads.stop()
    two.threads.start()
    assert rendezvous_threads() <= before


class SleepyClock(SystemClock):
    """Once it is `asleep`, a minute passes from one look to the next."""

    asleep, slept = False, 0.0

    def now(self):
        self.slept += 60.0 * self.asleep
        return later(super().now(), self.slept)


def test_threads_of_a_process_that_has_slept_come_to_their_end(rig):
    def stops():
        clock = SleepyClock()
        one = rig(clock=clock)
        one.start()
        eventually(lambda: one.backend.calls["wait_for_state"])
        clock.asleep = True
        return one.threads.stop()

    assert any(stops() for _ in range(5))  # a machine that stalls is too late for some, a fault for all


def test_what_others_write_is_known_at_once(rig):
    one = rig(interval=300.0)
    one.start()
    eventually(lambda: one.state.open)
    write(one.memory, closed(one.state, "b", "enough", succeeded=False))
    eventually(lambda: one.state.closed)  # and not with the next beat


def test_state_that_cannot_be_read_is_no_reason_to_be_busy(rig):
    one = rig()
    one.start()
    eventually(lambda: one.state.open)
    with one.memory.changed:
        one.memory.state = (b"not ours", one.memory.writes + 1)
        one.memory.changed.notify_all()
    eventually(lambda: one.keeper.view.fault)
    one.backend.calls.clear()
    eventually(lambda: one.backend.calls["beat"] >= 2)
    assert one.backend.calls["get_state"] < 30  # in two seconds; thousands, once
    assert one.backend.calls["wait_for_state"] < 30


def test_main_connection_down_while_the_watchers_are_not(rig):
    """They see news that the keeper cannot fetch."""
    one = rig()
    one.start()
    eventually(lambda: one.state.open)
    one.backend.wolf = True
    one.backend.reachable = False
    one.threads.wake()
    eventually(lambda: one.keeper.view.outage)
    one.backend.calls.clear()
    begun = time.monotonic()
    eventually(lambda: time.monotonic() - begun > 1.5)
    assert sum(one.backend.calls.values()) < 60
    one.backend.wolf = False
    one.backend.reachable = True
    eventually(lambda: one.keeper.view.outage is None)


def test_watchers_that_cry_wolf_slow_down(rig):
    one = rig()
    one.backend.wolf = True
    one.start()
    begun = time.monotonic()
    eventually(lambda: one.state.open)
    eventually(lambda: time.monotonic() - begun > 2.0)
    assert one.backend.calls["wait_for_state"] + one.backend.calls["wait_for_roster"] < 40
    assert one.state.open


@pytest.mark.parametrize("error", [RendezvousConnectionError("gone"), RuntimeError("odd")], ids=["known", "odd"])
def test_a_watcher_survives_what_its_wait_raises(rig, capsys, error):
    one = rig()
    one.start()
    eventually(lambda: one.backend.calls["wait_for_state"])
    one.backend.waits_raise = error
    write(one.memory, one.state)  # so that the wait comes back
    eventually(lambda: one.backend.calls["wait_for_state"] >= 3)
    one.backend.waits_raise = None
    write(one.memory, closed(one.state, "b", "enough", succeeded=False))
    eventually(lambda: one.state.closed)
    expected = 0 if isinstance(error, RendezvousConnectionError) else 1
    assert capsys.readouterr().err.count("rendezvous fault") == expected


def test_wakes_are_not_lost(rig):
    one = rig()
    one.start()
    for _ in range(300):
        ticket = one.keeper.amend(lambda state: state)
        one.threads.wake()
        assert ticket.done.wait(LONG)


def test_wakes_of_many_threads_are_not_lost(rig):
    one = rig()
    one.start()
    missing = []

    def ask():
        for _ in range(50):
            ticket = one.keeper.amend(lambda state: state)
            one.threads.wake()
            if not ticket.done.wait(LONG):
                missing.append(ticket)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not missing


def test_stop_does_not_wait_for_a_call_that_hangs(rig, in_time):
    def in_a_call_that_hangs():
        one = rig()
        one.start()
        eventually(lambda: one.state.open)
        one.backend.hold.clear()
        assert one.backend.hung.wait(LONG)
        assert one.keeper.out_of_reach_since() is not None
        return one

    def stop():
        one = rigs.pop()
        assert not one.threads.stop()
        one.backend.hold.set()
        eventually(lambda: one.threads.stop())

    rigs = [in_a_call_that_hangs() for _ in range(3)]
    assert in_time(stop, 4.0, tries=3)


def test_hung_from_the_very_first_call(rig):
    one = rig()
    one.backend.hold.clear()
    one.start()
    eventually(lambda: one.keeper.out_of_reach_since() is not None)
    assert not one.threads.stop()


def test_the_roster_is_waited_for_on_request_where_this_node_does_not_lead(rig, in_time):
    def leader_goes():
        leader = rig(max_nodes=2, min_nodes=2)
        other = rig(leader.memory, "b", max_nodes=2, min_nodes=2)
        leader.start()
        eventually(lambda: leader.keeper.view.announced)
        other.start()
        eventually(lambda: other.state.open)
        assert not other.keeper.leading
        other.keeper.withdraw()
        other.threads.wake()
        eventually(lambda: not other.keeper.view.announced)
        ticket = leader.keeper.withdraw()
        leader.threads.wake()
        other.threads.wait_for_roster(later(SystemClock().now(), LONG))
        assert ticket.done.wait(LONG)

    assert in_time(leader_goes, 4.0)  # and not with the next turn of a node that wants nothing, in five seconds


def seconds_of_work(threads):
    """Of the processor. These live; others of this process may be at work meanwhile."""
    return sum(time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) for thread in threads)


def test_an_idle_round_costs_a_beat_a_second_and_no_time(rig):
    others = rendezvous_threads()
    leader = rig(max_nodes=2, min_nodes=2)
    other = rig(leader.memory, "b", max_nodes=2, min_nodes=2)
    leader.start()
    eventually(lambda: leader.keeper.view.announced)
    other.start()
    eventually(lambda: leader.state.open and other.state.open)
    other.backend.calls.clear()
    eventually(lambda: other.backend.calls["beat"] >= 2)  # whoever watches for the round has begun by then
    leader.backend.calls.clear()
    other.backend.calls.clear()
    threads = rendezvous_threads() - others
    before = seconds_of_work(threads)
    begun = time.monotonic()
    threading.Event().wait(4.0)
    seconds = time.monotonic() - begun
    assert rendezvous_threads() - others == threads
    assert seconds_of_work(threads) - before < 0.1 * seconds
    assert set(other.backend.calls) <= {"beat"}
    assert other.backend.calls["beat"] <= seconds + 1
    assert set(leader.backend.calls) <= {"beat", "roster"}
    assert sum(leader.backend.calls.values()) <= 2 * (seconds + 1)
