from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic_core.clock import Instant
from elastic_core.rendezvous.liveness import Liveness

INTERVAL, ATTEMPTS = 1.0, 5


def watched(looks, value=7):
    """After looks at these times, which found the counter unchanged."""
    liveness = Liveness(INTERVAL, ATTEMPTS)
    for now in looks:
        liveness = liveness.observed({"a": value}, Instant(now))
    return liveness


def test_a_counter_that_stands_still_for_all_attempts_is_late():
    liveness = watched(range(6))
    assert liveness.late("a", Instant(5.0))
    assert not watched(range(5)).late("a", Instant(4.9))


def test_a_beat_refutes_it():
    liveness = watched(range(20)).observed({"a": 8}, Instant(20))
    assert not liveness.late("a", Instant(100))


def test_time_alone_makes_nobody_late():
    """The observer slept, or its store did: it has not looked."""
    assert not watched([0]).late("a", Instant(1000))
    assert not watched([0, 1000]).late("a", Instant(1000))


def test_many_looks_right_after_an_outage_are_one():
    """Nobody could beat during the outage, and nobody has had the time to beat since."""
    liveness = watched([0, *(100 + 0.01 * i for i in range(40))])
    assert not liveness.late("a", Instant(100.4))


def test_many_looks_alone_make_nobody_late():
    assert not watched([0.1 * i for i in range(45)]).late("a", Instant(4.4))


def test_looks_at_an_uneven_pace_count_too():
    assert watched([0, 0.8, 1.9, 2.7, 3.9, 5.0]).late("a", Instant(5.0))


def test_who_is_presumed_late_is_so_at_once_and_until_its_next_beat():
    liveness = watched([0]).presumed_late({"b": 3}, Instant(0.5))
    assert liveness.late("b", Instant(0.5))
    assert not liveness.late("a", Instant(0.5))
    assert liveness.observed({"b": 3}, Instant(0.6)).late("b", Instant(0.6))
    assert not liveness.observed({"b": 4}, Instant(0.6)).late("b", Instant(0.6))


def test_who_is_not_there_any_more_is_forgotten():
    liveness = watched(range(20)).observed({}, Instant(20))
    assert not liveness.late("a", Instant(21))
    assert liveness.age("a", Instant(21)) is None


def test_the_age_of_the_last_beat():
    assert watched([3, 4, 5]).age("a", Instant(6.5)) == 3.5


@given(st.lists(st.tuples(st.floats(0.001, 3.0), st.booleans()), max_size=60))
def test_late_means_silent_for_the_window_and_looked_at_often_enough(looks):
    """Compared with the dumb version: keep all looks since the last change, and count those half an interval apart."""
    liveness, now, value = Liveness(INTERVAL, ATTEMPTS).observed({"a": 0}, Instant(0.0)), 0.0, 0
    same = [0.0]
    for pause, beats in looks:
        now, value = now + pause, value + beats
        liveness = liveness.observed({"a": value}, Instant(now))
        same = [now] if beats else [*same, now]
        counted = [same[0]]
        for look in same[1:]:
            if look - counted[-1] >= 0.5 * INTERVAL:
                counted.append(look)
        late = len(counted) - 1 >= ATTEMPTS - 1 and now - same[0] >= ATTEMPTS * INTERVAL
        assert liveness.late("a", Instant(now)) is late
