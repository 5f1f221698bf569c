"""A backend of two methods, as a stranger may write it."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from elastic_core import testing
from elastic_core.builtin.memory_store import MemoryStore
from elastic_core.clock import SystemClock
from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.interfaces.handler import Outcome
from elastic_core.interfaces.node import Node
from elastic_core.rendezvous import DynamicRendezvousHandler, RendezvousBackend, RendezvousTimeout
from elastic_core.rendezvous.state_entries import StateEntries

LONG = 30.0
eventually = partial(testing.eventually, timeout=LONG)


class Place:
    """Where the toys of all nodes keep the state."""

    def __init__(self):
        self.lock = threading.Lock()
        self.state = None
        self.writes = 0


class Toy(RendezvousBackend):
    """Attributes:
    silent: `set_state` does not tell what stands.
    dead: every call hangs, as in a process that was killed.
    lose: so many writes land, and raise then.
    """

    def __init__(self, place, silent=False):
        self.place = place
        self.silent = silent
        self.dead = threading.Event()
        self.lose = 0
        self.calls = 0
        self.closed = 0

    @property
    def name(self):
        return "toy"

    def get_state(self):
        self._live()
        with self.place.lock:
            return None if self.place.state is None else (self.place.state, self.place.writes)

    def set_state(self, state, token=None):
        self._live()
        with self.place.lock:
            written = (self.place.writes or None) == token
            if written:
                self.place.state, self.place.writes = state, self.place.writes + 1
            if written and self.lose:
                self.lose -= 1
                raise RendezvousConnectionError("the answer was lost")
            if self.silent or self.place.state is None:
                return None
            return self.place.state, self.place.writes, written

    def close(self):
        self.closed += 1

    def _live(self):
        self.calls += 1
        while self.dead.is_set():
            threading.Event().wait(0.1)


@pytest.fixture(params=[False, True], ids=["answers", "silent"])
def toys(request):
    place = Place()
    return lambda: Toy(place, request.param)


@pytest.fixture
def entries(toys):
    return lambda: StateEntries(toys(), SystemClock())


def test_the_state_is_written_by_compare_and_swap(entries):
    one, two = entries(), entries()
    assert one.get_state() is None
    data, token, written = one.set_state(b"1")
    assert (data, written) == (b"1", True)
    assert two.get_state() == (b"1", token)
    assert two.set_state(b"2") == (b"1", token, False)
    data, newer, written = two.set_state(b"2", token)
    assert (data, written) == (b"2", True)
    assert one.set_state(b"3", token) == (b"2", newer, False)
    assert newer != token


def test_a_token_of_a_state_that_is_lost(entries):
    one = entries()
    assert one.set_state(b"1", "of the past") is None


def test_entries_are_in_the_order_of_their_first(entries):
    one, two = entries(), entries()
    assert one.announce("a", b"1") == 0
    assert two.announce("b", b"2") == 1
    assert one.announce("a", b"3") == 0
    assert [(item.key, item.entry) for item in two.roster()] == [("a", b"3"), ("b", b"2")]
    two.withdraw("a")
    two.withdraw("a")
    assert [item.key for item in one.roster()] == ["b"]


def test_beats_and_the_counter_of_those_who_lead(entries):
    one, two = entries(), entries()
    one.announce("a", b"")
    (before,) = two.roster()
    assert one.beat("a", leading=True, look=False) == 1
    assert one.beat("a", leading=False, look=False) is None
    assert two.beat("nobody", leading=False, look=True) == 1
    (after,) = two.roster()
    assert after.beats > before.beats


def test_state_and_entries_do_not_disturb_each_other(entries):
    one, two = entries(), entries()
    _, token, _ = one.set_state(b"1")
    two.announce("b", b"")
    two.beat("b", leading=True, look=True)
    assert one.set_state(b"2", token)[2]
    assert [item.key for item in one.roster()] == ["b"]


def test_waits_come_back_with_news_or_without(entries):
    one, two = entries(), entries()
    assert not one.wait_for_state(None, 0.05)
    found = []
    thread = threading.Thread(target=lambda: found.append(one.wait_for_state(None, LONG)))
    thread.start()
    _, token, _ = two.set_state(b"1")
    thread.join(LONG)
    assert found == [True]
    assert not one.wait_for_state(token, 0.05)
    one.roster()
    assert not one.wait_for_roster(0.05)
    two.announce("b", b"")
    assert one.wait_for_roster(LONG)
    one.roster()
    two.beat("b", leading=False, look=False)
    assert not one.wait_for_roster(0.05)


def test_closing_ends_the_waits(toys):
    toy = toys()
    one = StateEntries(toy, SystemClock())
    found = []
    thread = threading.Thread(target=lambda: found.append(one.wait_for_state(None, LONG)))
    thread.start()
    one.close()
    one.close()
    thread.join(30.0)
    assert found == [False]
    assert toy.closed == 1


def test_a_write_whose_answer_was_lost(toys):
    toy = toys()
    one = StateEntries(toy, SystemClock())
    toy.lose = 1
    with pytest.raises(RendezvousConnectionError, match="lost"):
        one.announce("a", b"1")
    assert one.announce("a", b"1") == 0
    assert len(one.roster()) == 1


def test_a_silent_backend_needs_few_attempts(toys):
    toy = toys()
    one = StateEntries(toy, SystemClock())
    for _ in range(10):
        one.beat("a", leading=True, look=True)
    one.announce("a", b"")
    assert toy.calls <= 40


@pytest.mark.parametrize(
    "data",
    [
        b"not ours",
        b"\xff",
        b"[]",
        b"{}",
        b'{"version": 2}',
        b'{"version": 1, "state": null, "serial": 3, "entries": [], "lead": 0}',
        b'{"version": 1, "state": "?", "serial": "", "entries": [], "lead": 0}',
        b'{"version": 1, "state": null, "serial": "", "entries": [["a"]], "lead": 0}',
        b'{"version": 1, "state": null, "serial": "", "entries": [["a", "", "x"]], "lead": 0}',
        b'{"version": 1, "state": null, "serial": "", "entries": 7, "lead": 0}',
        b"[" * 100_000,
    ],
)
def test_what_cannot_be_ours_is_told(toys, data):
    toy = toys()
    toy.place.state, toy.place.writes = data, 1
    one = StateEntries(toy, SystemClock())
    for call in (one.get_state, one.roster, lambda: one.announce("a", b""), lambda: one.wait_for_roster(1.0)):
        with pytest.raises(RendezvousStateError, match=r"expected a rendezvous state of version 1, found b"):
            call()


class Refusing(Toy):
    """Somebody else is always first."""

    def set_state(self, state, token=None):
        with self.place.lock:
            self.place.writes += 1
        return super().set_state(state, token)


def test_never_getting_through_is_bounded():
    one = StateEntries(Refusing(Place()), SystemClock())
    with pytest.raises(RendezvousConnectionError, match="'toy' within 1000 attempts"):
        one.announce("a", b"")


def test_eight_nodes_lose_one_and_go_on(toys):
    backends = [toys() for _ in range(8)]
    timeout = RendezvousTimeout(join=LONG, last_call=LONG)  # all are in the first round, however slow one is
    handlers = [
        DynamicRendezvousHandler.from_backend(
            "job", MemoryStore(), backend, 4, 8, "127.0.0.1", timeout, 0.5, 5, node=Node(f"n{i}", host=f"n{i}")
        )
        for i, backend in enumerate(backends)
    ]
    found = {}

    def join(i):
        found[i] = handlers[i].next_rendezvous()

    def form(members):
        found.clear()
        threads = [threading.Thread(target=join, args=(i,), daemon=True) for i in members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert sorted(info.rank for info in found.values()) == list(range(len(members)))

    try:
        form(range(8))
        dead = next(i for i, info in found.items() if info.rank == 3)
        others = [i for i in range(8) if i != dead]
        backends[dead].dead.set()
        for i in others:
            verdict = eventually(handlers[i].verdict)
            assert (verdict.outcome, verdict.failed) == (Outcome.RESTART, False)
            assert verdict.reason.startswith(f"lost n{dead}:")
        form(others)
        assert {info.formed.number for info in found.values()} == {2}
    finally:
        for backend in backends:
            backend.dead.clear()
        threads = [threading.Thread(target=handler.shutdown) for handler in handlers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
