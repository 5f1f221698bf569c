"""A backend over a store fulfills the contract of backends, starts a new epoch with an empty store, and survives what
other programs write under its keys."""

from __future__ import annotations

import threading

import pytest
from elastic_testing import BackendContract, Background, eventually
from elastic_testing.backend_contract import RoundPromises
from store_place import KEYS, Place, shown

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.interfaces.backend import EntryDroppedError, ForeignStateError
from elastic_core.rendezvous.store_backend import StoreBackend
from elastic_core.rendezvous.store_connection import FactoryConnector
from elastic_core.rendezvous.versions import KEPT, Keys

LONG = 60.0


class TestOverStore(BackendContract):
    @pytest.fixture
    def backend(self):
        self.place = Place()
        yield self.peer(None)
        self.place.close()

    def peer(self, backend):
        return self.place.backend()

    def other_job(self, backend):
        return self.place.backend("other")

    def lose(self, backend):
        self.place.away = True

    def forget(self, backend):
        self.place.restart()

    def spoil(self, backend):
        if not self.place.store.check([KEYS.id]):
            self.place.begin()
        epoch = self.place.store.get(KEYS.id).decode()
        self.place.store.set(Keys("job", epoch).state(1), "hello")


def only(kept):
    """Decorator that drops all other tests of a contract; they hold as over any store."""

    def decorated(contract):
        for name in dir(contract):
            if name.startswith("test_") and not kept(name):
                setattr(contract, name, None)
        return contract

    return decorated


losses_only = only(lambda name: name.endswith("after_data_loss"))


@losses_only
class TestOverAStoreWhoseClientReconnectsByItself(TestOverStore):
    """No node is notified that the store restarted."""

    def forget(self, backend):
        self.place.empty()


@losses_only
class TestOverAStoreThatComesBackWithOlderData(TestOverStore):
    """With the data from before any node joined, except the name of the epoch."""

    def peer(self, backend):
        made = self.place.backend()
        made.connect()  # creates the epoch
        return made

    def forget(self, backend):
        self.place.restart({KEYS.id: self.place.store.get(KEYS.id)})


@only(lambda name: not hasattr(RoundPromises, name))  # no handler observes
class TestObserversThatTakePartAfterAll(TestOverStore):
    def peer(self, backend):
        return self.place.backend(observes=True)

    def forget(self, backend):
        self.place.empty()


def fails(call):
    """Whether the call reports that the store is unreachable."""
    try:
        call()
    except RendezvousConnectionError:
        return True
    return False


# -- connections


def test_unreachable_store_error_names_place_and_cause(place):
    place.away = True
    with pytest.raises(RendezvousConnectionError, match="connecting at a place in memory failed: connection refused"):
        place.backend().get_state()


def test_broken_connection_is_replaced_on_the_next_call(place):
    backend = place.backend()
    backend.announce("a/1", b"1")
    place.away = True
    with pytest.raises(RendezvousConnectionError, match="reading the roster at a place in memory failed"):
        backend.roster()
    place.away = False
    assert shown(backend) == [("a/1", b"1")]


@pytest.mark.parametrize("error", [ValueError("I/O operation on closed file"), AttributeError("no recv")])
def test_client_that_raises_any_error_is_replaced(place, error):
    backend = place.backend()
    backend.announce("a/1", b"1")

    def breaks():
        raise error

    place.before("compare_set", KEYS.head, breaks)
    with pytest.raises(type(error)):
        backend.get_state()
    made = place.connections
    assert shown(backend) == [("a/1", b"1")]
    assert place.connections == made + 1


def test_closing_ends_a_wait_and_its_connection(place):
    backend = place.backend()
    backend.announce("a/1", b"1")
    waiting = Background(lambda: backend.wait_for_state(None, LONG))
    eventually(lambda: place.connections == 2)
    backend.close()
    assert waiting.result() is False
    assert place.closed == 2


def test_withdrawal_by_another_node_spares_a_new_entry(place):
    node, leader = place.backend(), place.backend()
    node.announce("a/1", b"1")
    leader.roster()

    def reannounce():
        with pytest.raises(EntryDroppedError):
            node.beat("a/1", False, False)
        node.announce("a/1", b"2")

    place.before("add", KEYS.slots, reannounce)
    leader.withdraw("a/1")
    assert shown(leader) == [("a/1", b"2")]


def test_connecting_changes_nothing_in_the_store(place):
    place.backend(observes=True).connect()
    assert place.store.num_keys() == 1  # the name of the epoch, which existed
    place.away = True
    assert fails(place.backend().connect)


# -- a store that restarted empty


def beats(backend, key, entry):
    """Send a node's heartbeat; announce the node again if the store has lost its entry."""
    try:
        backend.beat(key, leading=False, look=False)
    except EntryDroppedError:
        backend.announce(key, entry)


def test_empty_store_is_noticed_and_entries_are_dropped(place):
    """Only the node knows what to announce in a store that has lost the state."""
    one = place.backend()
    one.announce("a/1", b"1")
    one.announce("a/1", b"2")
    place.restart()
    assert fails(one.get_state)  # the connection broke
    assert one.get_state() is None
    assert shown(place.backend()) == shown(one) == []
    with pytest.raises(EntryDroppedError):
        one.beat("a/1", leading=True, look=True)
    one.announce("a/1", b"3")
    assert shown(place.backend()) == shown(one) == [("a/1", b"3")]
    one.beat("a/1", leading=True, look=True)


def test_deleted_keys_end_a_wait_for_the_state(place):
    """No connection broke, and no node will write the awaited version."""
    one, begun = place.backend(), threading.Event()
    one.announce("a/1", b"")
    token = written(one, b"1", None)
    place.before("wait", [KEYS.state(2)], begun.set)
    waiting = Background(lambda: one.wait_for_state(token, 5.0))
    assert begun.wait(LONG)
    for key in as_it_is(place.store):
        place.store.delete_key(key)
    with pytest.raises(EntryDroppedError):
        one.beat("a/1", leading=False, look=False)
    assert waiting.result() is True


def test_observer_writes_nothing_to_an_empty_store(place):
    place.restart()
    one, observer = place.backend(), place.backend(observes=True)
    assert (observer.get_state(), observer.roster()) == (None, ())
    assert place.store.num_keys() == 0
    one.set_state(b"1")
    one.announce("a/1", b"1")
    place.restart()
    assert fails(observer.get_state)
    assert (observer.get_state(), observer.roster()) == (None, ())
    assert place.store.num_keys() == 0


# -- lost answers


@pytest.mark.parametrize("lands", [False, True])
@pytest.mark.parametrize(("operation", "key"), [("add", KEYS.slots), ("compare_set", KEYS.slot(1))])
def test_interrupted_announcement_is_repeated_as_one(place, operation, key, lands):
    backend = place.backend()
    place.lose(operation, key, lands)
    assert fails(lambda: backend.announce("a/1", b"1"))
    backend.announce("a/1", b"1")
    assert shown(place.backend(hole_patience=0.0)) == [("a/1", b"1")]
    backend.beat("a/1", leading=False, look=False)


@pytest.mark.parametrize("lands", [False, True])
@pytest.mark.parametrize(("operation", "key"), [("add", KEYS.slots), ("compare_set", KEYS.slot(2))])
def test_interrupted_withdrawal_is_repeated(place, operation, key, lands):
    backend = place.backend()
    backend.announce("a/1", b"1")
    place.lose(operation, key, lands)
    assert fails(lambda: backend.withdraw("a/1"))
    backend.withdraw("a/1")
    assert shown(place.backend(hole_patience=0.0)) == []


def test_withdrawing_node_does_not_return_with_a_new_store(place):
    backend = place.backend()
    backend.announce("a/1", b"1")
    place.lose("add", KEYS.slots, lands=False)
    assert fails(lambda: backend.withdraw("a/1"))
    place.restart()
    backend.withdraw("a/1")
    assert shown(place.backend()) == []


@pytest.mark.parametrize("lands", [False, True])
def test_state_with_a_lost_answer_is_written_once(place, lands):
    backend = place.backend()
    _, token, _ = backend.set_state(b"1")
    place.lose("compare_set", KEYS.state(2), lands)
    assert fails(lambda: backend.set_state(b"2", token))
    _, newer, written = backend.set_state(b"2", token)
    assert written
    assert place.backend().get_state() == (b"2", newer)
    assert newer.number == token.number + 1


# -- keys that other programs have overwritten


def test_epoch_may_have_any_name(place):
    place.store.set(KEYS.id, b"\xff\x00 any bytes")
    one, two = place.backend(), place.backend()
    _, token, _ = one.set_state(b"1")
    one.announce("a/1", b"1")
    assert two.get_state() == (b"1", token)
    assert shown(two) == [("a/1", b"1")]
    assert not two.wait_for_state(token, 0.01)


@pytest.mark.parametrize("value", [b"hello", b"", b"-1", b"1.5", b"9" * 5000])
@pytest.mark.parametrize("key", ["head", "slots", "base"])
def test_invalid_number_raises_for_observers_and_ends_epoch(place, key, value, capsys):
    """An observer changes nothing. An empty value is like a missing one, as for the store itself."""
    name = getattr(KEYS, key)
    place.store.set(name, value)
    observer, node = place.backend(observes=True), place.backend()
    look = observer.get_state if key == "head" else observer.roster
    if value:
        with pytest.raises(RendezvousStateError, match=rf"{name}.*choose another run id"):
            look()
    else:
        assert not look()
    assert not (node.get_state() if key == "head" else node.roster())
    assert capsys.readouterr().err.count(name) == bool(value)
    assert (place.store.get(KEYS.id).decode() == KEYS.epoch) is not bool(value)
    assert not look()


def state_of(backend):
    """The state in the store; empty for a foreign one."""
    try:
        return backend.get_state()
    except ForeignStateError as error:
        return b"", error.token


def foreign_state(place, act):
    """A node, and a leader that has seen it, after another program has changed the keys of their job."""
    node, leader = place.backend(hole_patience=0.0), place.backend(hole_patience=0.0)
    node.announce("a/1", b"1")
    leader.announce("b/1", b"2")
    _, token, _ = leader.set_state(b"1")
    leader.roster()
    act(place.store)
    return node, leader, token


ACTS = {
    "a head without its state": lambda store: store.set(KEYS.head, "1000"),
    "a head far beyond": lambda store: store.add(KEYS.head, 2**40),
    "a counter of slots far beyond": lambda store: store.add(KEYS.slots, 2**40),
    "a counter of slots that jumped": lambda store: store.add(KEYS.slots, 3000),
    "slots before the base": lambda store: (store.set(KEYS.slots, "1"), store.set(KEYS.base, "1000")),
    "no slots": lambda store: store.delete_key(KEYS.slots),
    "another epoch": lambda store: store.set(KEYS.id, "9" * 5000),
    "no epoch": lambda store: store.delete_key(KEYS.id),
    "a marker": lambda store: store.set(KEYS.state(2), "(left for another epoch)"),
    "many versions": lambda store: [store.set(KEYS.state(number), "x") for number in range(2, 400)],
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_all_nodes_leave_an_epoch_with_contradictory_keys(place, act):
    """As with a restarted store: waits for the state end, and the nodes announce themselves again."""
    node, leader, token = foreign_state(place, act)
    waiting = Background(lambda: node.wait_for_state(token, 10 * LONG))
    eventually(lambda: place.connections == 3)
    newcomer = place.backend(hole_patience=0.0)
    newcomer.announce("c/1", b"3")
    nodes, everybody = (node, leader, newcomer), {("a/1", b"1"), ("b/1", b"2"), ("c/1", b"3")}
    of = ((node, "a/1", b"1"), (leader, "b/1", b"2"), (newcomer, "c/1", b"3"))

    def all_have_announced_themselves():  # some nodes notice it only when they check their entry
        for one in of:
            beats(*one)
        return [set(shown(one)) for one in nodes] == [everybody] * 3

    eventually(all_have_announced_themselves)

    def writes():
        standing = state_of(leader)
        return leader.set_state(b"2", None if standing is None else standing[1])[2]

    eventually(writes)
    waiting.result()
    eventually(all_have_announced_themselves)
    assert {state_of(one) for one in (*nodes, place.backend())} == {state_of(leader)}
    assert set(shown(place.backend())) == everybody
    for one, key in ((node, "a/1"), (leader, "b/1"), (newcomer, "c/1")):
        one.beat(key, leading=False, look=False)


def test_foreign_slot_is_logged_once_and_skipped(place, capsys):
    place.store.set(KEYS.slot(1), "hello")
    backend = place.backend()
    backend.announce("a/1", b"1")
    assert shown(backend) == shown(backend) == [("a/1", b"1")]
    assert capsys.readouterr().err.count("entry unreadable") == 1


@pytest.mark.parametrize("value", [b"", b"x", b"-", b"1", b"1 ", b"x a/1", b"9" * 19 + b" a/1", b"1 \xff entry"])
def test_log_continues_after_any_slot_value(place, value):
    place.store.set(KEYS.slot(place.store.add(KEYS.slots, 1)), value)
    backend = place.backend()
    backend.announce("b/1", b"2")
    assert shown(backend) == shown(place.backend()) == [("b/1", b"2")]


@pytest.mark.parametrize("value", [b"hello", b"", b"-7", b"9" * 5000])
def test_invalid_heartbeat_counter_affects_only_its_node(place, value):
    one, two = place.backend(), place.backend()
    one.announce("a/1", b"1")
    two.announce("b/1", b"2")
    place.store.set(KEYS.beats(1, "a/1"), value)
    assert {seen.key: seen.beats for seen in two.roster()} == {"a/1": 0, "b/1": 1}
    with pytest.raises(EntryDroppedError):
        one.beat("a/1", leading=False, look=False)
    one.announce("a/1", b"3")  # as a node does
    one.beat("a/1", leading=False, look=False)
    assert {seen.key: (seen.entry, seen.beats) for seen in two.roster()} == {"a/1": (b"3", 2), "b/1": (b"2", 1)}


@pytest.mark.parametrize("value", [b"hello", b"-7", b"9" * 5000])
def test_invalid_leader_counter_restarts_from_zero(place, value):
    one, two = place.backend(), place.backend()
    one.announce("a/1", b"")
    two.announce("b/1", b"")
    place.store.set(KEYS.lead, value)
    assert two.beat("b/1", leading=False, look=True) == 0
    assert [one.beat("a/1", leading=True, look=False) for _ in range(2)] == [1, 2]
    assert two.beat("b/1", leading=False, look=True) == 2


# -- remaining keys


def rounds(place, count, during):
    """Run this many rounds of two nodes, as their backends see them. Returns the maximum number of keys."""
    leader, member = place.backend(), place.backend()
    token, most = None, 0
    for number in range(count):
        leader.announce("leader/1", b"%d" % number)
        member.announce("member/1", b"%d" % number)
        _, token, written = leader.set_state(b"round %d" % number, token)
        assert written
        during(number, leader)
        leader.beat("leader/1", leading=True, look=True)
        member.beat("member/1", leading=False, look=True)
        leader.roster()
        most = max(most, place.store.num_keys())
    assert {"leader/1", "member/1"} <= {seen.key for seen in member.roster()}
    return most


def test_two_hundred_rounds_leave_few_keys(place):
    assert rounds(place, 200, lambda number, leader: None) < KEPT + 20


def test_dead_nodes_withdrawn_by_others_leave_few_keys(place):
    def die(number, leader):
        place.backend().announce(f"dead{number}/1", b"x" * 200)
        assert f"dead{number}/1" in [seen.key for seen in leader.roster()]
        leader.withdraw(f"dead{number}/1")

    assert rounds(place, 200, die) < KEPT + 30


def test_withdrawn_live_nodes_leave_few_keys(place):
    slow = place.backend()

    def seem_dead(number, leader):
        slow.announce("slow/1", b"%d" % number)
        leader.roster()
        leader.withdraw("slow/1")
        with pytest.raises(EntryDroppedError):
            slow.beat("slow/1", leading=False, look=False)

    assert rounds(place, 200, seem_dead) < KEPT + 30


def test_slot_deleted_while_announcing_is_not_restored(place):
    """By then, a reader has seen the next announcement and deleted the previous one."""
    node, leader = place.backend(), place.backend()

    def announce_while_it_is_read(number, _):
        last = KEYS.slot(3 * number)  # both other announcements came first
        place.before("compare_set", last, leader.roster)
        place.before("set", last, leader.roster)
        node.announce("node/1", b"%d" % number)

    assert rounds(place, 100, announce_while_it_is_read) < KEPT + 30


def test_store_without_deletion_works(place):
    def refuse():
        raise NotImplementedError

    place.store.delete_key = lambda key: refuse()
    assert rounds(place, 20, lambda number, leader: None) > 40
    assert [seen.key for seen in place.backend().roster()] == ["leader/1", "member/1"]


# -- a store that returned with older data


def written(backend, state, token):
    """Write the state, which must succeed. Returns the token."""
    standing, token, wrote = backend.set_state(state, token)
    assert wrote and standing == state
    return token


def as_it_is(store):
    """All keys of the store, as a backup would have them."""
    names = [KEYS.id, KEYS.head, KEYS.slots, KEYS.base, KEYS.lead]
    for number in range(1, 9):
        names += [KEYS.state(number), KEYS.slot(number), *(KEYS.beats(number, key) for key in ("a/1", "b/1"))]
    return {name: store.get(name) for name in names if store.check([name])}


def test_nodes_with_newer_state_leave_an_older_epoch(place):
    one, two = place.backend(), place.backend()
    one.announce("a/1", b"")
    two.announce("b/1", b"")
    token = written(one, b"1", None)
    older = as_it_is(place.store)
    for state in (b"2", b"3"):
        token = written(one, state, token)
    assert two.get_state() == (b"3", token)
    place.restart(older)
    assert fails(one.get_state) and fails(two.get_state)
    assert one.get_state() is None
    newcomer = place.backend()
    assert newcomer.get_state() is None
    assert one.set_state(b"4", token) is None
    now = written(one, b"4", None)
    for node in (newcomer, two, place.backend()):
        assert node.get_state() == (b"4", now)
    beats(one, "a/1", b"")
    beats(two, "b/1", b"")
    assert {seen.key for seen in one.roster()} == {"a/1", "b/1"}


def test_reader_of_a_new_entry_notices_older_data(place):
    """No version would have followed in that data, so the leader waited for one, and the new node for the leader."""
    leader = place.backend()
    leader.announce("a/1", b"")
    assert len(leader.roster()) == 1
    older = as_it_is(place.store)
    written(leader, b"1", None)
    place.restart(older)
    newcomer = place.backend()
    assert newcomer.get_state() is None
    newcomer.announce("b/1", b"")
    assert fails(leader.roster)
    leader.roster()
    with pytest.raises(EntryDroppedError):
        leader.beat("a/1", leading=True, look=False)
    assert leader.get_state() is None


def test_lagging_head_of_a_dead_writer_is_no_older_data(place):
    one, two = place.backend(), place.backend()
    token = written(one, b"1", None)
    place.lose("compare_set", KEYS.head, lands=False)
    assert fails(lambda: one.set_state(b"2", token))
    name = place.store.get(KEYS.id)
    assert one.get_state()[0] == two.get_state()[0] == b"2"
    assert place.store.get(KEYS.id) == name


def test_observer_changes_nothing_in_older_data(place):
    node, observer = place.backend(), place.backend(observes=True)
    token = written(node, b"1", None)
    older = as_it_is(place.store)
    written(node, b"2", token)
    assert observer.get_state()[0] == b"2"
    place.restart(older)
    assert fails(observer.get_state)
    observer.get_state()
    assert as_it_is(place.store) == older


def test_wait_that_connects_to_an_emptied_store_returns(place):
    """Otherwise it would wait for a version of the previous epoch, which no node will write."""
    connections = []

    def client():
        connections.append(1)
        if len(connections) == 2:  # the connection for the wait
            place.empty()
            node.roster()
        return place.client()

    node = StoreBackend(FactoryConnector(client, "a place in memory"), "job")
    _, token, _ = node.set_state(b"state")
    assert node.wait_for_state(token, LONG)
    node.close()


def test_replaced_newest_version_is_noticed(place):
    """A store that returned with older data was written to before this node read it."""
    one, other = place.backend(), place.backend()
    _, token, _ = one.set_state(b"first")
    backup = as_it_is(place.store)
    one.set_state(b"second", token)
    place.empty(backup)
    found, token = other.get_state()
    assert other.set_state(b"another", token)[2]
    assert (found, one.get_state()) == (b"first", None)
    assert other.get_state() is None  # all nodes have left that epoch, and restore what they know
