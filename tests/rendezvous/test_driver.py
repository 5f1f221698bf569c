"""The driver with its threads, over a memory backend that can hang, fail or hold invalid data. In tests of
notifications and wake-ups the heartbeat interval is so long that heartbeats cannot be the cause."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from dataclasses import replace

import pytest
from elastic_testing import Background, MemoryBackend, SharedMemory, eventually
from handler_job import HangingBackend, rendezvous_threads
from one_node import write

from elastic_core.clock import Backoff, SystemClock
from elastic_core.interfaces import node as described
from elastic_core.interfaces.handler import RendezvousStoreInfo
from elastic_core.rendezvous import model
from elastic_core.rendezvous.codec import encoded_entry
from elastic_core.rendezvous.driver import Driver, Patience
from elastic_core.rendezvous.effects import ChangeState, RefreshRoster
from elastic_core.rendezvous.model import Entry
from elastic_core.rendezvous.node import Node
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout

LONG = 60.0
RARELY = 100.0  # seconds between two heartbeats; every test ends long before
WHERE = RendezvousStoreInfo("127.0.0.1", 1234)


class One:
    """A node with its driver."""

    def __init__(self, memory, name, backend, nodes, interval, attempts, patience):
        self.backend = backend(memory)
        timeout = RendezvousTimeout(last_call=0.1)
        settings = RendezvousSettings("job", *nodes, timeout, interval, attempts)
        node = Node(Entry.of(described.Node(name, max_restarts=3), f"{name}/1"), settings)
        self.driver = Driver(node, self.backend, SystemClock(), patience)

    def join(self):
        self.driver.ask(lambda node, now: node.begin(now))
        self.driver.start()
        self.driver.tell(lambda node: node.want(WHERE))

    def member(self):
        """Wait until the node is a member of a round."""
        self.driver.wait(lambda node, now: node.membership.running or None, lambda node: None)

    @property
    def leads(self):
        return self.driver.ask(lambda node, now: node.election.leading)


@pytest.fixture
def memory():
    return SharedMemory()


@pytest.fixture
def start(memory):
    """Function that creates a node with its driver; all drivers are stopped at the end of the test."""
    made = []

    def start(name="a", backend=HangingBackend, nodes=(1, 1), interval=RARELY, attempts=3, patience=Patience()):
        made.append(One(memory, name, backend, nodes, interval, attempts, patience))
        return made[-1]

    yield start
    for one in made:
        one.backend.hold.set()
    for call in [Background(one.driver.stop) for one in made]:
        call.result()


@pytest.fixture
def gathering(start):
    """A node that leads and waits for other nodes."""
    one = start(nodes=(3, 3))
    one.join()
    eventually(lambda: one.leads)
    return one


@pytest.fixture
def following(gathering, start):
    """A node that waits for other nodes and does not lead."""
    return followed(start)


def followed(start, **options):
    one = start("b", nodes=(3, 3), **options)
    one.join()
    eventually(lambda: one.driver.ask(lambda node, now: node.registered))
    return one


@pytest.fixture
def member(start):
    """The only member of a round, which it leads. Its threads wait for changes of the state and of the roster."""
    one = start(nodes=(1, 2))
    one.join()
    one.member()
    return one


def closed(state):
    return model.closed(state, "somebody", "enough", True)


def failing_change(state):
    raise ZeroDivisionError("a change that cannot be made")


# -- operations run when they are due


def test_driver_sleeps_until_the_next_heartbeat(start):
    one = start(interval=0.1, attempts=50)
    one.join()
    one.member()
    eventually(lambda: one.backend.calls["beat"] > 3)  # the new round's work is finished
    one.backend.calls.clear()
    begun = time.monotonic()
    eventually(lambda: one.backend.calls["beat"] >= 5)
    beats = (time.monotonic() - begun) / 0.1 + 2
    assert one.backend.calls["beat"] <= beats
    assert one.backend.calls["roster"] <= beats
    assert set(one.backend.calls) <= {"beat", "roster"}


def test_heartbeats_do_not_wake_waiters(start):
    """Otherwise every node of a large job would wake two threads per heartbeat."""
    one, looks, over = start(interval=0.05, attempts=400), [], threading.Event()
    one.join()
    one.member()

    def look(node, now):
        looks.append(now)
        return over.is_set() or None

    beats = one.backend.calls["beat"]
    waiting = Background(lambda: one.driver.wait(look, lambda node: None))
    eventually(lambda: one.backend.calls["beat"] > beats + 5)
    assert len(looks) <= 3
    over.set()
    one.driver.tell(lambda node: None)
    assert waiting.result()


@pytest.mark.parametrize("who", ["following", "member"])
def test_news_of_the_state_wakes_the_node(request, memory, who):
    one = request.getfixturevalue(who)
    write(memory, closed)
    eventually(lambda: one.driver.ask(lambda node, now: node.state.closed))


def test_news_of_the_roster_wakes_the_leader(member, start):
    other = start("b", nodes=(1, 2))
    other.join()
    eventually(
        lambda: not member.driver.ask(lambda node, now: node.state.open)
    )  # so that both nodes are in the next round


class Pushing(HangingBackend):
    """Notifies of each newcomer, regardless of `more`, as etcd's watch does."""

    def wait_for_roster(self, timeout, more=1):
        return super().wait_for_roster(timeout)


# A thread that pauses after useless news pauses for longer than any test takes.
LONG_PAUSES = Patience(pauses=Backoff(first=RARELY, longest=RARELY))


def test_useful_news_causes_no_pause(start, memory):
    """A leader once paused longer after each newcomer, up to a second, which delayed nodes that arrived one by one."""
    leader, others = start(backend=Pushing, nodes=(999, 999), patience=LONG_PAUSES), MemoryBackend(memory)
    leader.join()
    eventually(lambda: leader.leads)
    for key in (f"n{number}/1" for number in range(50)):
        others.announce(key, encoded_entry(Entry.of(described.Node(key[:-2]), key)))
        eventually(lambda key=key: key in leader.driver.ask(lambda node, now: [s.entry.key for s in node.seen.roster]))


class Exclusive(HangingBackend):
    """Counts the calls that begin before another one has returned, except for the waits."""

    def __init__(self, memory):
        super().__init__(memory)
        self.overlaps = 0
        self._busy = threading.Lock()

    def _alone(self, call, *args):
        if not self._busy.acquire(blocking=False):
            self.overlaps += 1
            return call(*args)
        try:
            time.sleep(0.0005)  # lets the other threads run
            return call(*args)
        finally:
            self._busy.release()

    def get_state(self):
        return self._alone(super().get_state)

    def set_state(self, state, token=None):
        return self._alone(super().set_state, state, token)

    def beat(self, key, leading, look):
        return self._alone(super().beat, key, leading, look)

    def roster(self):
        return self._alone(super().roster)


def test_operations_never_overlap(start, memory):
    """News of the state, news of the roster, heartbeats and requests may all arrive at the same time."""
    one, others = start(backend=Exclusive, nodes=(999, 999), interval=0.01, attempts=9999), MemoryBackend(memory)
    one.join()
    eventually(lambda: one.leads)
    for number in range(100):
        key = f"n{number}/1"
        others.announce(key, encoded_entry(Entry.of(described.Node(key[:-2]), key)))
        write(memory, lambda state, number=number: replace(state, serial=state.serial + 1000 + number))
        assert one.driver.carry_out(lambda node: node.request(RefreshRoster()), LONG)
    eventually(lambda: len(one.driver.ask(lambda node, now: node.seen.roster)) == 101)
    assert one.backend.overlaps == 0


# -- requests wake the driver


@pytest.mark.parametrize("who", ["gathering", "following", "member"])
def test_requests_are_carried_out_immediately(request, who):
    one = request.getfixturevalue(who)
    assert all(one.driver.carry_out(lambda node: node.request(RefreshRoster()), LONG) for _ in range(20))
    assert one.driver.carry_out(lambda node: node.leave("test"), LONG)


def test_node_answers_while_the_store_hangs(member):
    member.backend.hold.clear()
    member.driver.tell(lambda node: node.reread())
    assert member.backend.hung.wait(LONG)
    answers = Background(lambda: [member.driver.ask(lambda node, now: node.key) for _ in range(5)])
    assert answers.result() == ["a/1"] * 5
    assert not member.driver.carry_out(lambda node: node.request(RefreshRoster()), 0.05)
    asked = Background(lambda: member.driver.carry_out(lambda node: node.close("test", True), LONG))
    assert not asked.over(0.1)
    member.backend.hold.set()
    assert asked.result()


def test_unreadable_state_causes_no_busy_loop(gathering, start, memory):
    """Requests are not delayed either."""
    following = followed(start, patience=LONG_PAUSES)
    gathering.backend.hold.clear()  # this node leads and would repair the state
    with memory.changed:
        foreign_state = memory.writes + 1
        memory.state = (b"not ours", foreign_state)
        memory.changed.notify_all()
    eventually(lambda: following.driver.ask(lambda node, now: node.token == foreign_state))
    begun, first = time.monotonic(), following.backend.calls["get_state"]
    for _ in range(10):
        looks = following.backend.calls["get_state"]
        following.driver.tell(lambda node: node.reread())
        eventually(lambda looks=looks: following.backend.calls["get_state"] > looks)
    assert time.monotonic() - begun < RARELY
    assert following.backend.calls["get_state"] - first < 50


def test_driver_uses_at_most_three_threads(start, memory):
    before = rendezvous_threads()
    one = start(nodes=(1, 2))
    one.join()
    for number in range(100):
        one.driver.tell(lambda node: None)
        if number % 10 == 0:
            assert one.driver.carry_out(lambda node: node.request(RefreshRoster()), LONG)
        assert len(rendezvous_threads() - before) <= 3
    one.member()
    eventually(lambda: len(rendezvous_threads() - before) == 3)


# -- faults


def test_failed_request_raises_for_its_caller_alone(member):
    bad = Background(lambda: member.driver.carry_out(lambda node: node.request(ChangeState(failing_change)), LONG))
    good = Background(lambda: member.driver.carry_out(lambda node: node.close("enough", True), LONG))
    with pytest.raises(ZeroDivisionError, match="a change that cannot be made"):
        bad.result()
    assert good.result()


class Deaf(HangingBackend):
    """The first `faults` waits for the state raise an error."""

    faults = 2

    def wait_for_state(self, token, timeout):
        if self.faults:
            self.faults -= 1
            raise ValueError("a fault of this backend")
        return super().wait_for_state(token, timeout)


def test_failed_wait_is_logged_once_and_repeated(gathering, start, memory, capsys):
    one = start("b", Deaf, nodes=(3, 3), patience=Patience(pauses=Backoff(first=0.01, longest=0.01)))
    one.join()
    eventually(lambda: not one.backend.faults)
    write(memory, closed)
    eventually(lambda: one.driver.ask(lambda node, now: node.state.closed))
    assert capsys.readouterr().err.count("rendezvous fault") == 1


@pytest.fixture
def no_threads():
    """Function that makes thread creation fail, until it is called with False."""

    def no_threads(scarce=True):
        threading.stack_size(2**46 if scarce else 0)

    yield no_threads
    no_threads(False)


def test_driver_without_threads_raises_and_starts_later(start, no_threads):
    one = start()
    no_threads()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        one.driver.start()
    assert not one.driver.started
    no_threads(False)
    one.join()
    one.member()


def test_node_that_cannot_start_watchers_polls_the_store(start, memory, no_threads, capsys):
    one = start(patience=Patience(pauses=Backoff(first=0.01, longest=0.01)))
    one.driver.start()
    no_threads()
    one.join()
    one.member()
    write(memory, closed)
    eventually(lambda: one.driver.ask(lambda node, now: node.state.closed))
    assert capsys.readouterr().err.count("rendezvous fault") == 1
    assert one.driver.stop()


# -- stopping


@pytest.mark.parametrize("who", ["gathering", "member"])
def test_stop_ends_all_threads_for_good(request, who):
    before = rendezvous_threads()
    one = request.getfixturevalue(who)
    begun = time.monotonic()
    assert one.driver.stop() and one.driver.stop()
    assert time.monotonic() - begun < LONG
    assert rendezvous_threads() <= before
    one.driver.start()
    one.driver.tell(lambda node: None)
    assert rendezvous_threads() <= before
    assert not one.driver.carry_out(lambda node: node.leave("too late"), LONG * 2)


def test_stop_without_start_closes_the_backend(start):
    one = start()
    waiting = Background(lambda: one.backend.wait_for_state(None, LONG * 2))
    assert one.driver.stop()
    assert waiting.result() is False


class Stubborn(HangingBackend):
    """Its waits ignore `close`, which hangs as well."""

    def close(self):
        self.hold.wait(2 * LONG)

    def wait_for_state(self, token, timeout):
        self.hold.wait(2 * LONG)
        return False

    wait_for_roster = wait_for_state


def test_stop_is_bounded_when_everything_hangs(start, capsys):
    one = start(backend=Stubborn, nodes=(1, 2), patience=Patience(closing=0.1, ending=0.2))
    one.join()
    one.member()
    one.backend.hold.clear()
    one.driver.tell(lambda node: node.reread())
    assert one.backend.hung.wait(LONG)
    begun = time.monotonic()
    assert not one.driver.stop()
    assert time.monotonic() - begun < LONG  # the hung calls would take longer
    assert "close within 0.1 s" in capsys.readouterr().err
    before = rendezvous_threads()
    one.backend.hold.set()
    eventually(lambda: not rendezvous_threads() & before)  # the threads end late, but they end


@pytest.mark.integration
def test_forked_child_has_no_driver(member):
    """At the fork, the driver's lock may be held by a thread that does not exist in the child."""
    held, go_on = threading.Event(), threading.Event()
    holding = Background(lambda: member.driver.ask(lambda node, now: held.set() or go_on.wait(LONG)))
    assert held.wait(LONG)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        driver = member.driver
        driver.start()
        key = driver.ask(lambda node, now: node.key)
        done = driver.carry_out(lambda node: node.leave("a child"), LONG)
        answers = (key, driver.started, done, driver.stop(), len(rendezvous_threads()))
        os.write(writer, repr(answers).encode())
        os._exit(0)
    try:
        go_on.set()
        holding.result()
        os.close(writer)
        assert select.select([reader], [], [], LONG)[0]
        assert os.read(reader, 1000) == repr(("a/1", False, False, True, 0)).encode()
    finally:
        os.close(reader)
        os.waitpid(child, 0)
    assert member.driver.carry_out(lambda node: node.request(RefreshRoster()), LONG)
    assert not member.driver.ask(lambda node, now: node.membership.left)
