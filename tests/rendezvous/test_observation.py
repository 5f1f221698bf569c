from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from elastic_core.clock import Instant
from elastic_core.interfaces.node import Node
from elastic_core.rendezvous.model import Entry, RoundId, State, succeeded
from elastic_core.rendezvous.roster import CONFIRM, Observation, Registration

INTERVAL, ATTEMPTS = 1.0, 5
NONE = State()


def looked(seen, beats, now, state=NONE):
    found = tuple(Registration(key, None, value) for key, value in beats.items())
    return seen.after_look(found, state, Instant(now))


def watched(looks, value=7):
    """Read the counter at these times, each time with this value."""
    seen = Observation(INTERVAL, ATTEMPTS)
    for now in looks:
        seen = looked(seen, {"a": value}, now)
    return seen


def test_new_entry_ends_lateness():
    """A leader that was cut off has returned, and its next heartbeat is not due yet."""
    seen, entry = Observation(INTERVAL, ATTEMPTS), Entry.of(Node("a"), "a")
    for now in range(8):
        seen = seen.after_look((Registration("a", entry, 7),), NONE, Instant(now))
    assert seen.late("a", Instant(7))
    seen = seen.after_look((Registration("a", replace(entry, after=3), 7),), NONE, Instant(7.1))
    assert not seen.late("a", Instant(7.1))
    assert not seen.roster[0].late


def test_overdue_leader_is_late_until_its_next_heartbeat():
    seen = looked(Observation(INTERVAL, ATTEMPTS), {"a": 7, "b": 3, "c": 1}, 0.0)
    seen = seen.overdue_by_log(["b"], ["c"], Instant(2.5))
    assert [seen.late(key, Instant(2.5)) for key in "abc"] == [False, True, False]
    assert looked(seen, {"b": 3}, 2.6).late("b", Instant(2.6))
    assert not looked(seen, {"b": 4}, 2.6).late("b", Instant(2.6))
    for now in (3.6, 4.6):
        seen = looked(seen, {"b": 3, "c": 1}, now)
    assert seen.late("c", Instant(4.6))  # it may have been about to take over as leader


def test_recent_look_keeps_overdue_leader_alive():
    """It may have just returned from an outage, without time to lead."""
    for pause, late in ((1.0, False), (1.4, False), (1.6, True)):
        seen = looked(looked(Observation(INTERVAL, ATTEMPTS), {"b": 3}, 0.0), {"b": 3}, pause)
        assert seen.overdue_by_log(["b"], [], Instant(pause)).late("b", Instant(pause)) is late


def test_lateness_after_outage_needs_two_more_looks():
    """No node could send a heartbeat, and the observer reads immediately when the store is back."""
    seen = watched([0, 1, 2, 3]).after_outage(Instant(9.0))
    for now, late in ((9.0, False), (9.4, False), (10.0, False), (11.0, True)):
        seen = looked(seen, {"a": 7}, now)
        assert seen.late("a", Instant(now)) is late


def test_missing_node_is_forgotten():
    seen = looked(watched(range(20)), {}, 20)
    assert not seen.late("a", Instant(21))
    assert "a" not in seen.counters


@given(st.lists(st.tuples(st.floats(0.001, 3.0), st.booleans()), max_size=60))
@example([(1.0, False)] * 20 + [(1.0, True), (80.0, False)])  # late, until the next heartbeat
@example([(1000.0, False)])
@example([(100.0, False)] + [(0.01, False)] * 40)  # an outage: no node has had time to send a heartbeat since
@example([(0.1, False)] * 45)
@example([(0.5, False)] * 4 + [(3.0, False)])
@example([(pause, False) for pause in (0.8, 1.1, 0.8, 1.2, 1.1)])
def test_lateness_matches_reference_implementation(looks):
    """The reference keeps all reads since the last change, and counts those that are half an interval apart."""
    seen, now, value = looked(Observation(INTERVAL, ATTEMPTS), {"a": 0}, 0.0), 0.0, 0
    same = [0.0]
    for pause, beats in looks:
        now, value = now + pause, value + beats
        seen = looked(seen, {"a": value}, now)
        same = [now] if beats else [*same, now]
        counted = [same[0]]
        for look in same[1:]:
            if look - counted[-1] >= 0.5 * INTERVAL:
                counted.append(look)
        late = len(counted) - 1 >= ATTEMPTS - 1 and now - same[0] >= ATTEMPTS * INTERVAL
        assert seen.late("a", Instant(now)) is late


# -- stores with leases


LEASED = Observation(INTERVAL, ATTEMPTS)


def test_store_with_leases_drops_dead_nodes(build):
    seen = looked(LEASED, {"a": None, "b": None}, 0.0, build.state("ab"))
    assert seen.leased
    assert not any(seen.late(key, Instant(1000.0)) for key in "ab")


def test_each_missing_entry_is_confirmed_after_a_delay(build):
    state = build.state("abc")
    seen = looked(LEASED, {"a": None, "b": None, "c": None}, 0.0, state)
    assert seen.settled < 0.0
    seen = looked(seen, {"a": None, "b": None}, 10.0, state)
    assert (seen.absent, seen.settled) == ({"c"}, 10.0 + CONFIRM)
    assert looked(seen, {"a": None, "b": None}, 11.0, state).settled == 10.0 + CONFIRM
    assert looked(seen, {"a": None}, 11.0, state).settled == 11.0 + CONFIRM


def test_finished_member_stays_finished_after_its_lease(build):
    """Until the state records it, because the leader may have died before that."""
    state = build.state("ab")
    both = (Registration("a", build.entry("a", done=1), None), Registration("b", build.entry("b"), None))
    seen = LEASED.after_look(both, state, Instant(0.0)).after_look(both[1:], state, Instant(6.0))
    assert [(item.entry.key, item.late) for item in seen.roster] == [("a", True), ("b", False)]
    assert seen.dead(state, Instant(60.0)) is None
    noted = seen.after_look(both[1:], succeeded(state, ["a"], RoundId(1)), Instant(7.0))
    assert [item.entry.key for item in noted.roster] == ["b"]
    lost = LEASED.after_look(both, state, Instant(0.0)).after_look(both[:1], state, Instant(6.0))
    assert [item.entry.key for item in lost.roster] == ["a"]


def test_member_whose_agent_has_ended_is_lost_without_an_entry(build):
    """The host's agent ended, and the store that another node started in its place has no entry for it."""
    state, both = build.state("ab"), entries(build, "a", "b")
    seen = replace(Observation(INTERVAL, ATTEMPTS).after_look(both, state, Instant(0.0)), ended=frozenset("a"))
    for now in (1.0, 2.0):
        seen = seen.after_look(both[1:], state, Instant(now))
        first, _ = seen.roster
        assert (first.entry.key, first.late, first.ended) == ("a", True, True)


def test_latest_return_deadline_is_kept():
    assert LEASED.all_back_by(Instant(5.0)).all_back_by(Instant(3.0)).settled == 5.0


def test_dropped_entry_is_noticed_once():
    found = (Registration("b", None, None),)
    seen = looked(LEASED, {"a": None, "b": None}, 0.0)
    assert seen.drops("a", found)
    assert not looked(seen, {"b": None}, 1.0).drops("a", found)  # reported only once
    assert not seen.drops("b", found)
    assert LEASED.drops("a", found)  # its own announcement was there, though it has not read the roster before


def test_store_with_heartbeats_drops_only_if_empty():
    seen = looked(Observation(INTERVAL, ATTEMPTS), {"a": 1, "b": 1}, 0.0)
    assert not seen.drops("a", (Registration("b", None, 2),))
    assert seen.drops("a", ())


# -- dead entries


def entries(build, *keys):
    return tuple(Registration(key, build.entry(key), 1) for key in keys)


def test_entry_late_for_two_timeouts_is_dead(build):
    seen, found = Observation(INTERVAL, ATTEMPTS), entries(build, "a")
    for now in range(10):
        seen = seen.after_look(found, State(), Instant(now))
        assert seen.dead(State(), Instant(now)) is None
    seen = seen.after_look(found, State(), Instant(10.0))
    assert seen.dead(State(), Instant(10.0)) == "a"
    assert seen.dead(build.state("a"), Instant(10.0)) is None  # the round must end first
