"""`elastic drain`: asking a node to leave."""

from __future__ import annotations

import select
from dataclasses import replace

import pytest
from elastic_testing import FakeClock

from elastic_core.clock import SystemClock
from elastic_core.compose.plan import plan_of
from elastic_core.config import Reading
from elastic_core.errors import NotFoundError, RendezvousConnectionError, RendezvousTimeoutError
from elastic_core.hooks.records import RendezvousBackendRecord
from elastic_core.operate import drain as draining
from elastic_core.operate.drain import ask, departure, drain, node_called, stop
from elastic_core.rendezvous.codec import decoded_state, encoded_entry, encoded_state
from elastic_core.rendezvous.lifeline import Lifeline
from elastic_core.rendezvous.model import Cause, closed, ended, refused, verdict
from elastic_core.rendezvous.store_backend import with_roster


@pytest.mark.parametrize(("word", "node"), [("a", "a"), ("host-b", "b"), ("1", "b"), ("0", "0")])
def test_node_is_found_by_id_then_host_or_rank(job, word, node):
    seen = job.observation(job.state("ab"), job.entries("ab0"))
    assert node_called(word, seen).node == node


@pytest.mark.parametrize(
    ("word", "found"),
    [("z", r"no node matches 'z' \(nodes: a, b, c\)"), ("2", "no node matches"), ("rack", "matches 2 nodes: b, c")],
)
def test_unknown_or_ambiguous_node_is_an_error(job, word, found):
    entries = (job.entry("a"), job.entry("b", host="rack"), job.entry("c", host="rack"), *job.entries("d"))
    with pytest.raises(NotFoundError, match=found):
        node_called(word, job.observation(job.state("ab"), entries, silent="d"))


def test_rank_of_a_finished_round_matches_no_node(job):
    over = ended(job.state("ab"), Cause.LEFT, "a", "left")
    with pytest.raises(NotFoundError):
        node_called("1", job.observation(over, job.entries("ab")))
    with pytest.raises(NotFoundError, match="nodes: none"):
        node_called("1", job.observation(over))


@pytest.fixture
def store(job, memory_backend):
    """Function that creates a backend that holds a job."""

    def store(state, names="ab", **more):
        inner = memory_backend(**more)
        backend = with_roster(inner, SystemClock())
        if state is not None:
            backend.set_state(encoded_state(state))
        for entry in job.entries(names):
            backend.announce(entry.key, encoded_entry(entry))
        return backend, inner

    return store


def state_in(backend):
    return decoded_state(backend.get_state()[0])


def test_drained_member_is_marked_in_the_state(job, store):
    backend, _ = store(job.state("ab"))
    state = ask(backend, [job.entry("b")])
    assert state == state_in(backend)
    assert (state.draining, state.open) == ({"b/1": None}, True)  # the leader ends the round, if the node's workers run


def test_deadline_is_in_the_state_and_in_the_verdict(job, store):
    backend, _ = store(job.state("ab"))
    state = ask(backend, [job.entry("b")], 20.0)
    assert state == state_in(backend)
    assert (verdict(state, "b/1", state.round).within, verdict(state, "a/1", state.round)) == (20.0, None)


def test_second_drain_writes_nothing(job, store):
    backend, inner = store(job.state("ab"))
    ask(backend, [job.entry("b")])
    writes = inner.writes
    ask(backend, [job.entry("b")])
    assert inner.writes == writes


def test_node_can_be_drained_before_the_first_round(job, store):
    backend, _ = store(None)
    assert ask(backend, [job.entry("b")]).draining == {"b/1": None}
    assert state_in(backend).draining == {"b/1": None}


def test_concurrent_writes_are_kept(job, fixed_backend):
    class Contested(fixed_backend):
        """Another client's writes come first three times; once the backend cannot return the current state."""

        stands, token, refusals = job.state("ab"), 1, 3

        def get_state(self):
            return encoded_state(self.stands), self.token

        def set_state(self, state, token=None):
            if token == self.token and self.refusals == 0:
                self.stands, self.token = decoded_state(state), self.token + 1
                return state, self.token, True
            self.refusals -= 1
            self.stands, self.token = refused(self.stands, [(f"x{self.token}", "why")]), self.token + 1
            return None if self.refusals == 1 else (encoded_state(self.stands), self.token, False)

    backend = Contested((None, []))
    state = ask(backend, [job.entry("b")])
    assert state == backend.stands
    assert (state.draining, len(state.refused)) == ({"b/1": None}, 3)


def test_permanent_write_conflict_is_an_error(job, fixed_backend):
    class Busy(fixed_backend):
        def get_state(self):
            return encoded_state(job.state("ab")), 1

        def set_state(self, state, token=None):
            return None

    with pytest.raises(RendezvousConnectionError, match="other writers were always faster"):
        ask(Busy((None, [])), [job.entry("b")])


def test_missing_entry_or_heartbeat_means_departure(job):
    b = job.entry("b")
    assert departure(b, job.observation(job.state("ab"), job.entries("ab"))) is None
    assert departure(b, job.observation(job.state("ab"), job.entries("a"))) == "b has left"
    silent = departure(b, job.observation(job.state("ab"), job.entries("ab"), silent="b"))
    assert silent == "b has failed: no heartbeat for 6.0 s"


class Beating:
    """Between two looks, every node sends a heartbeat, and then `then` is called."""

    def __init__(self, backend, keys, then=lambda looks: None):
        self.clock = FakeClock()
        self._backend, self._keys, self._then = backend, keys, then
        self._looks = 0

    def pause(self, seconds):
        self.clock.advance(seconds)
        self._looks += 1
        entries = {announced.key for announced in self._backend.roster()}
        for key in entries & set(self._keys):
            self._backend.beat(key, False, False)
        self._then(self._looks)


@pytest.fixture
def drained(job, plugins):
    """Function that drains a node and returns the printed lines."""

    def drained(world, inner, word="b", timeout=60.0):
        printed = []
        record = RendezvousBackendRecord("toy", "a test", print, open_backend=lambda context, params: inner)
        drain(plan_of(Reading(job.target), plugins(record)), word, timeout, printed.append, world.clock, world.pause)
        return printed

    return drained


def test_drain_waits_until_the_node_has_left(job, store, drained):
    backend, inner = store(job.state("ab"))
    world = Beating(backend, ["a/1", "b/1"], lambda looks: looks >= 9 and backend.withdraw("b/1"))
    assert drained(world, inner) == [
        "b on host-b was asked to leave; waiting up to 60 s until it has left",
        "b has left",
    ]
    assert state_in(backend).draining == {"b/1": None}


def test_drain_waits_no_longer_than_its_timeout(job, store, drained):
    backend, inner = store(job.state("ab"))
    world = Beating(backend, ["a/1", "b/1"])
    with pytest.raises(RendezvousTimeoutError, match="within 7 s, 1 node did not leave: b"):
        drained(world, inner, timeout=7.0)
    assert 7.0 < world.clock.now() < 10.0


def test_zero_timeout_drains_without_waiting(job, store, drained):
    backend, inner = store(job.state("ab"))
    assert drained(Beating(backend, ["a/1", "b/1"]), inner, timeout=0.0) == ["b on host-b was asked to leave"]
    assert state_in(backend).draining == {"b/1": None}


def test_second_drain_says_that_it_changes_nothing(job, store, drained):
    backend, inner = store(replace(job.state("ab"), draining={"b/1": 9.0}))
    (line,) = drained(Beating(backend, ["a/1", "b/1"]), inner, timeout=0.0)
    assert line == "b on host-b had already been asked to leave, and its deadline stays the same"
    assert state_in(backend).draining == {"b/1": 9.0}


def test_node_that_fails_during_a_drain_is_reported(job, store, drained):
    backend, inner = store(job.state("ab"))
    world = Beating(backend, beats := ["a/1", "b/1"], lambda looks: beats and looks > 5 and beats.pop())
    assert drained(world, inner)[1].startswith("b has failed: no heartbeat for 5.")


@pytest.fixture
def stopped(job, plugins):
    """Function that stops the job and returns the printed lines."""

    def stopped(world, inner, timeout=60.0):
        printed = []
        record = RendezvousBackendRecord("toy", "a test", print, open_backend=lambda context, params: inner)
        stop(plan_of(Reading(job.target), plugins(record)), timeout, printed.append, world.clock, world.pause)
        return printed

    return stopped


def test_stop_asks_all_nodes_and_waits_until_they_have_left(job, store, stopped):
    backend, inner = store(job.state("ab"), "abc")  # c waits for a place
    left = {5: "a/1", 7: "c/1", 9: "b/1"}
    world = Beating(backend, ["a/1", "b/1", "c/1"], lambda looks: looks in left and backend.withdraw(left[looks]))
    first, last = stopped(world, inner)
    assert first.startswith("asked 3 nodes to leave")
    assert last == "all nodes have left"
    assert set(state_in(backend).draining) == {"a/1", "b/1", "c/1"}


def test_stop_names_the_nodes_that_have_not_left_in_time(job, store, stopped):
    backend, inner = store(job.state("ab"))
    world = Beating(backend, ["a/1", "b/1"], lambda looks: looks == 5 and backend.withdraw("a/1"))
    with pytest.raises(RendezvousTimeoutError, match=r"within 7 s, 1 node did not leave: b"):
        stopped(world, inner, timeout=7.0)


def test_stop_with_a_zero_timeout_does_not_wait(job, store, stopped):
    backend, inner = store(job.state("ab"))
    assert stopped(Beating(backend, ["a/1", "b/1"]), inner, timeout=0.0) == ["asked 2 nodes to leave"]


def test_stop_names_lost_nodes_which_may_come_back(job, store, stopped, drained):
    """Node c was lost but still has an entry, for example because it is suspended. Node b has none."""
    lost = ended(job.state("abc"), Cause.LOST, "b, c", "b, c were lost", ("b/1", "c/1"))
    backend, inner = store(lost, "ac")
    lines = stopped(Beating(backend, ["a/1"]), inner, timeout=0.0)
    assert lines == ["asked 1 node to leave", "missing: b, c; a node that comes back leaves when it reaches the store"]
    assert set(state_in(backend).draining) == {"a/1", "c/1"}
    assert state_in(backend).stopped == lost.round
    with pytest.raises(NotFoundError, match=r"no node matches 'b' \(nodes: a; missing: b, c\)"):
        drained(Beating(backend, ["a/1"]), inner, word="b")


def test_stop_of_a_job_whose_only_node_is_lost_makes_it_leave_later(job, store, stopped):
    lost = ended(job.state("a"), Cause.LOST, "a", "a was lost", ("a/1",))
    backend, inner = store(lost, "a")
    with pytest.raises(NotFoundError, match=r"the job has no nodes \(missing: a\)"):
        stopped(Beating(backend, []), inner)
    assert (state_in(backend).stopped, set(state_in(backend).draining)) == (lost.round, {"a/1"})


def test_second_stop_says_that_it_changes_nothing(job, store, stopped):
    backend, inner = store(replace(job.state("ab"), draining={"a/1": 9.0, "b/1": 9.0}))
    (line,) = stopped(Beating(backend, ["a/1", "b/1"]), inner, timeout=0.0)
    assert line == "all nodes had already been asked to leave, and their deadlines stay the same"


def test_drain_of_a_finished_job_says_that_it_is_over(job, store, drained):
    backend, inner = store(closed(job.state("ab"), "a", "done", succeeded=True), "")
    with pytest.raises(NotFoundError, match="the job is already over: closed by a: done"):
        drained(Beating(backend, []), inner)


def test_stop_of_a_job_without_nodes_is_an_error(job, store, stopped):
    backend, inner = store(job.state("ab"), "")
    with pytest.raises(NotFoundError):
        stopped(Beating(backend, []), inner)


def test_stop_of_a_closed_job_changes_nothing(job, store, stopped):
    over = closed(job.state("ab"), "a", "done", succeeded=True)
    backend, inner = store(over)
    (line,) = stopped(Beating(backend, ["a/1", "b/1"]), inner)
    assert "the job is already over" in line
    assert state_in(backend) == over


class Host:
    """The agent of `b`, which hosts the store of two nodes. The next `failing` reads of the store fail."""

    def __init__(self, job, store):
        self.agent = Lifeline(lambda: None, print)
        self.backend, self.store = store(job.state("ab"), "a")
        entry = replace(job.entry("b"), address="127.0.0.1", lifeline=self.agent.listen("127.0.0.1"))
        self.backend.announce(entry.key, encoded_entry(entry))
        self.failing = 0
        self._read, self.store.get_state = self.store.get_state, self._answer

    def _answer(self):
        if self.failing > 0:
            self.failing -= 1
            raise RendezvousConnectionError("Failed to recv, got 0 bytes")
        return self._read()


@pytest.fixture
def host(job, store, monkeypatch):
    monkeypatch.setattr(draining, "ANSWER", 2.0)
    made = Host(job, store)
    yield made
    made.agent.close()


@pytest.mark.integration
def test_stop_is_done_when_the_last_node_ends_with_its_store(host, stopped):
    def end(looks):
        if looks == 5:
            host.backend.withdraw("a/1")
        if looks == 9:
            select.select([host.agent.descriptor], [], [], 60.0)  # until the command is connected to the agent
            host.failing = 99
            host.agent.close()

    assert stopped(Beating(host.backend, ["a/1", "b/1"], end), host.store)[-1] == "all nodes have left"


@pytest.mark.integration
@pytest.mark.parametrize(("command", "left"), [("stopped", "2 nodes may not have left: a, b"),
                                               ("drained", "1 node may not have left: b")])  # fmt: skip
def test_nodes_that_still_run_are_named_when_the_store_stops(request, host, command, left):
    def fail(looks):
        host.failing = 99 if looks == 9 else 0

    with pytest.raises(RendezvousConnectionError, match=f"{left}; Failed to recv"):
        request.getfixturevalue(command)(Beating(host.backend, ["a/1", "b/1"], fail), host.store)


@pytest.mark.integration
def test_moved_store_shows_that_the_node_has_left(host, drained):
    def move(looks):
        if looks == 9:
            host.backend.withdraw("b/1")
            host.failing = 1

    assert drained(Beating(host.backend, ["a/1", "b/1"], move), host.store)[-1] == "b has left"


def test_drain_of_a_closed_job_reports_the_result(job, store, drained):
    backend, inner = store(closed(job.state("ab"), "a", "every worker succeeded", True))
    world = Beating(backend, [], lambda looks: backend.withdraw("b/1"))
    assert drained(world, inner) == ["the job is already over: closed by a: every worker succeeded", "b has left"]
