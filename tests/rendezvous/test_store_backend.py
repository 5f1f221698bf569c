"""A backend over a store: it keeps the contract of backends, begins anew with its store, and takes no harm from what
others write under its keys."""

from __future__ import annotations

import threading

import pytest
from elastic_testing import BackendContract, Background, eventually
from store_place import KEYS, Place

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


def losses_only(contract):
    """Leave the promises about a store that comes back empty; the others hold as over any store."""
    for name in dir(contract):
        if name.startswith("test_") and not name.startswith("test_a_store_that_comes_back_empty"):
            setattr(contract, name, None)
    return contract


@losses_only
class TestOverAStoreWhoseClientReconnectsByItself(TestOverStore):
    """Nobody is told that it began anew."""

    def forget(self, backend):
        self.place.empty()


@losses_only
class TestOverAStoreThatComesBackWithOlderData(TestOverStore):
    """With what stood there before anybody took part, but for the name of its epoch."""

    def peer(self, backend):
        made = self.place.backend()
        made.connect()  # which begins the epoch
        return made

    def forget(self, backend):
        older = self.place.store.get(KEYS.id)
        self.place.restart()
        self.place.store.set(KEYS.id, older)


class TestObserversThatTakePartAfterAll(TestOverStore):
    def peer(self, backend):
        return self.place.backend(observes=True)

    def forget(self, backend):
        self.place.empty()


@pytest.fixture
def place():
    place = Place().begin()
    yield place
    place.close()


def shown(backend):
    return [(seen.key, seen.entry) for seen in backend.roster()]


def fails(call):
    """Whether it says that the store is out of reach."""
    try:
        call()
    except RendezvousConnectionError:
        return True
    return False


# -- connections


def test_a_store_that_cannot_be_had_is_told_with_its_place_and_its_words(place):
    place.away = True
    with pytest.raises(RendezvousConnectionError, match="connecting at a place in memory failed: connection refused"):
        place.backend().get_state()


def test_a_connection_that_broke_is_made_anew_with_the_next_call(place):
    backend = place.backend()
    backend.announce("a/1", b"1")
    place.away = True
    with pytest.raises(RendezvousConnectionError, match="reading the roster at a place in memory failed"):
        backend.roster()
    place.away = False
    assert shown(backend) == [("a/1", b"1")]


@pytest.mark.parametrize("error", [ValueError("I/O operation on closed file"), AttributeError("no recv")])
def test_a_client_that_is_broken_for_good_is_replaced_whatever_it_says(place, error):
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


def test_a_wait_that_is_cut_by_the_end_leaves_no_connection(place):
    backend = place.backend()
    backend.announce("a/1", b"1")
    waiting = Background(lambda: backend.wait_for_state(None, LONG))
    eventually(lambda: place.connections == 2)
    backend.close()
    assert waiting.result() is False
    assert place.closed == 2


def test_a_withdrawal_by_another_node_does_not_take_what_was_announced_since(place):
    node, leader = place.backend(), place.backend()
    node.announce("a/1", b"1")
    leader.roster()

    def comes_back():
        with pytest.raises(EntryDroppedError):
            node.beat("a/1", False, False)
        node.announce("a/1", b"2")

    place.before("add", KEYS.slots, comes_back)
    leader.withdraw("a/1")
    assert shown(leader) == [("a/1", b"2")]


def test_to_connect_is_no_more_than_that(place):
    place.backend(observes=True).connect()
    assert place.store.num_keys() == 1  # the name of the epoch, which was there
    place.away = True
    assert fails(place.backend().connect)


# -- a store that began anew, empty


def beats(backend, key, entry):
    """A beat of a node, which announces itself again if the store has lost its entry."""
    try:
        backend.beat(key, leading=False, look=False)
    except EntryDroppedError:
        backend.announce(key, entry)


def test_a_store_that_began_anew_is_noticed_and_the_entry_is_dropped(place):
    """Only the node knows what it has to announce in a store that has lost the state."""
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
    """No connection broke, and no node writes the version that was waited for."""
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


def test_an_observer_begins_nothing_and_sees_the_store_that_began_anew(place):
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


# -- answers that are lost


@pytest.mark.parametrize("lands", [False, True])
@pytest.mark.parametrize(("operation", "key"), [("add", KEYS.slots), ("compare_set", KEYS.slot(1))])
def test_an_announcement_that_broke_off_is_made_again_and_is_one(place, operation, key, lands):
    backend = place.backend()
    place.lose(operation, key, lands)
    assert fails(lambda: backend.announce("a/1", b"1"))
    backend.announce("a/1", b"1")
    assert shown(place.backend(hole_patience=0.0)) == [("a/1", b"1")]
    backend.beat("a/1", leading=False, look=False)


@pytest.mark.parametrize("lands", [False, True])
@pytest.mark.parametrize(("operation", "key"), [("add", KEYS.slots), ("compare_set", KEYS.slot(2))])
def test_a_withdrawal_that_broke_off_is_made_again(place, operation, key, lands):
    backend = place.backend()
    backend.announce("a/1", b"1")
    place.lose(operation, key, lands)
    assert fails(lambda: backend.withdraw("a/1"))
    backend.withdraw("a/1")
    assert shown(place.backend(hole_patience=0.0)) == []


def test_a_node_that_was_about_to_withdraw_does_not_come_back_with_a_new_store(place):
    backend = place.backend()
    backend.announce("a/1", b"1")
    place.lose("add", KEYS.slots, lands=False)
    assert fails(lambda: backend.withdraw("a/1"))
    place.restart()
    backend.withdraw("a/1")
    assert shown(place.backend()) == []


@pytest.mark.parametrize("lands", [False, True])
def test_a_state_whose_answer_was_lost_is_written_once(place, lands):
    backend = place.backend()
    _, token, _ = backend.set_state(b"1")
    place.lose("compare_set", KEYS.state(2), lands)
    assert fails(lambda: backend.set_state(b"2", token))
    _, newer, written = backend.set_state(b"2", token)
    assert written
    assert place.backend().get_state() == (b"2", newer)
    assert newer.number == token.number + 1


# -- jobs, and what others write under the keys of one


def test_the_epoch_of_a_store_may_have_any_name(place):
    place.store.set(KEYS.id, b"\xff\x00 any bytes")
    one, two = place.backend(), place.backend()
    _, token, _ = one.set_state(b"1")
    one.announce("a/1", b"1")
    assert two.get_state() == (b"1", token)
    assert shown(two) == [("a/1", b"1")]
    assert not two.wait_for_state(token, 0.01)


@pytest.mark.parametrize("value", [b"hello", b"", b"-1", b"1.5", b"9" * 5000])
@pytest.mark.parametrize("key", ["head", "slots", "base"])
def test_what_is_no_number_where_one_belongs_is_named_and_left_behind(place, key, value, capsys):
    """An observer changes nothing. An empty value is none, as it is for the store itself."""
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
    """What stands there, with nothing for what something else has written."""
    try:
        return backend.get_state()
    except ForeignStateError as error:
        return b"", error.token


def foreign_state(place, act):
    """A node, and a leader that has seen it, once something else has done that to the keys of their job, and one of
    them has looked."""
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
def test_keys_that_contradict_each_other_are_left_behind_by_all(place, act):
    """As a store that began anew: whoever waits for the state is told, and the nodes announce themselves again."""
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


def test_a_slot_that_something_else_has_filled_is_told_once_and_passed_over(place, capsys):
    place.store.set(KEYS.slot(1), "hello")
    backend = place.backend()
    backend.announce("a/1", b"1")
    assert shown(backend) == shown(backend) == [("a/1", b"1")]
    assert capsys.readouterr().err.count("entry not readable") == 1


@pytest.mark.parametrize("value", [b"", b"x", b"-", b"1", b"1 ", b"x a/1", b"9" * 19 + b" a/1", b"1 \xff entry"])
def test_whatever_fills_a_slot_the_log_is_read_on(place, value):
    place.store.set(KEYS.slot(place.store.add(KEYS.slots, 1)), value)
    backend = place.backend()
    backend.announce("b/1", b"2")
    assert shown(backend) == shown(place.backend()) == [("b/1", b"2")]


@pytest.mark.parametrize("value", [b"hello", b"", b"-7", b"9" * 5000])
def test_a_counter_of_beats_that_something_else_has_written_to_is_that_nodes_affair_alone(place, value):
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
def test_a_counter_of_leaders_that_something_else_has_written_to_begins_anew(place, value):
    one, two = place.backend(), place.backend()
    one.announce("a/1", b"")
    two.announce("b/1", b"")
    place.store.set(KEYS.lead, value)
    assert two.beat("b/1", leading=False, look=True) == 0
    assert [one.beat("a/1", leading=True, look=False) for _ in range(2)] == [1, 2]
    assert two.beat("b/1", leading=False, look=True) == 2


# -- what is left in the store


class Counting:
    """How many keys there were at most, from now on."""

    def __init__(self, place):
        self._place = place
        self.most = 0

    def look(self):
        self.most = max(self.most, self._place.store.num_keys())


def rounds(place, count, during):
    """So many rounds of two nodes, as their backends see them; the most keys that there were."""
    leader, member, keys = place.backend(), place.backend(), Counting(place)
    token = None
    for number in range(count):
        leader.announce("leader/1", b"%d" % number)
        member.announce("member/1", b"%d" % number)
        _, token, written = leader.set_state(b"round %d" % number, token)
        assert written
        during(number, leader)
        leader.beat("leader/1", leading=True, look=True)
        member.beat("member/1", leading=False, look=True)
        leader.roster()
        keys.look()
    assert {"leader/1", "member/1"} <= {seen.key for seen in member.roster()}
    return keys.most


def test_two_hundred_rounds_leave_few_keys(place):
    assert rounds(place, 200, lambda number, leader: None) < KEPT + 20


def test_nodes_that_died_and_were_withdrawn_by_others_leave_few_keys(place):
    def die(number, leader):
        place.backend().announce(f"dead{number}/1", b"x" * 200)
        assert f"dead{number}/1" in [seen.key for seen in leader.roster()]
        leader.withdraw(f"dead{number}/1")

    assert rounds(place, 200, die) < KEPT + 30


def test_nodes_that_only_seemed_dead_leave_few_keys(place):
    slow = place.backend()

    def seem_dead(number, leader):
        slow.announce("slow/1", b"%d" % number)
        leader.roster()
        leader.withdraw("slow/1")
        with pytest.raises(EntryDroppedError):
            slow.beat("slow/1", leading=False, look=False)

    assert rounds(place, 200, seem_dead) < KEPT + 30


def test_a_node_that_marks_its_last_slot_late_does_not_bring_it_back(place):
    """A reader has seen its next announcement by then, and deleted the one before."""
    node, leader = place.backend(), place.backend()

    def announce_while_it_is_read(number, _):
        last = KEYS.slot(3 * number)  # the two others have announced themselves since
        place.before("compare_set", last, leader.roster)
        place.before("set", last, leader.roster)
        node.announce("node/1", b"%d" % number)

    assert rounds(place, 100, announce_while_it_is_read) < KEPT + 30


def test_a_store_that_cannot_delete_works_as_well(place):
    def refuse():
        raise NotImplementedError

    place.store.delete_key = lambda key: refuse()
    assert rounds(place, 20, lambda number, leader: None) > 40
    assert [seen.key for seen in place.backend().roster()] == ["leader/1", "member/1"]


# -- a store that came back with data of an earlier time


def written(backend, state, token):
    """The token of a write that has to succeed."""
    standing, token, wrote = backend.set_state(state, token)
    assert wrote and standing == state
    return token


def as_it_is(store):
    """What a backup of it has."""
    names = [KEYS.id, KEYS.head, KEYS.slots, KEYS.base, KEYS.lead]
    for number in range(1, 9):
        names += [KEYS.state(number), KEYS.slot(number), *(KEYS.beats(number, key) for key in ("a/1", "b/1"))]
    return {name: store.get(name) for name in names if store.check([name])}


def test_nodes_that_know_more_than_a_store_of_older_data_leave_that_behind(place):
    one, two = place.backend(), place.backend()
    one.announce("a/1", b"")
    two.announce("b/1", b"")
    token = written(one, b"1", None)
    older = as_it_is(place.store)
    for state in (b"2", b"3"):
        token = written(one, state, token)
    assert two.get_state() == (b"3", token)
    place.restart()
    for key, value in older.items():
        place.store.set(key, value)
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


def test_a_head_that_lags_because_its_writer_died_is_no_older_data(place):
    one, two = place.backend(), place.backend()
    token = written(one, b"1", None)
    place.lose("compare_set", KEYS.head, lands=False)
    assert fails(lambda: one.set_state(b"2", token))
    name = place.store.get(KEYS.id)
    assert one.get_state()[0] == two.get_state()[0] == b"2"
    assert place.store.get(KEYS.id) == name


def test_an_observer_of_older_data_changes_nothing(place):
    node, observer = place.backend(), place.backend(observes=True)
    token = written(node, b"1", None)
    older = as_it_is(place.store)
    written(node, b"2", token)
    assert observer.get_state()[0] == b"2"
    place.restart()
    for key, value in older.items():
        place.store.set(key, value)
    assert fails(observer.get_state)
    observer.get_state()
    assert as_it_is(place.store) == older


def test_a_wait_that_connects_while_the_store_begins_anew_is_over(place):
    """It would wait for a version of the epoch before, which nobody writes any more."""
    connections = []

    def client():
        connections.append(1)
        if len(connections) == 2:  # the one that only waits
            place.empty()
            node.roster()
        return place.client()

    node = StoreBackend(FactoryConnector(client, "a place in memory"), "job")
    _, token, _ = node.set_state(b"state")
    assert node.wait_for_state(token, LONG)
    node.close()


def test_another_version_in_the_place_of_the_newest_known_is_noticed(place):
    """A store that came back with older data was written to before this node looked."""
    one, other = place.backend(), place.backend()
    _, token, _ = one.set_state(b"first")
    backup = as_it_is(place.store)
    one.set_state(b"second", token)
    place.empty()
    for key, value in backup.items():
        place.store.set(key, value)
    found, token = other.get_state()
    assert other.set_state(b"another", token)[2]
    assert (found, one.get_state()) == (b"first", None)
    assert other.get_state() is None  # all have left that epoch, and give back what they know
