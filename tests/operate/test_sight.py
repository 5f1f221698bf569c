"""What an observer makes of its looks."""

from __future__ import annotations

import pytest

from elastic_core.errors import RendezvousStateError
from elastic_core.interfaces.backend import Announced
from elastic_core.operate.sight import first_sight, looked
from elastic_core.rendezvous.codec import encoded_state
from elastic_core.rendezvous.model import Closed


def looks(job, *beats, interval=1.0):
    """After looks at these values of the counter of node `a`, half an interval apart."""
    sight = first_sight(0.0, interval, 5)
    for number, value in enumerate(beats):
        sight = looked(sight, None, [job.announced(job.entry("a"), value)], number * interval / 2)
    return sight


def test_the_age_counts_from_the_look_that_saw_the_beat(job):
    beat = looks(job, 7, 7, 8, 8).beat("a/1")
    assert (beat.age, beat.seen, beat.late) == (0.5, True, False)


def test_a_first_look_is_no_beat(job):
    beat = looks(job, 7, 7).beat("a/1")
    assert (beat.age, beat.seen) == (0.5, False)
    assert looks(job, 7, 7).silent == {"a/1"}
    assert looks(job, 7, 8).silent == set()


def test_silence_for_the_whole_window_is_late(job):
    assert not looks(job, *[7] * 10).beat("a/1").late
    assert looks(job, *[7] * 11).beat("a/1").late
    assert not looks(job, *[7] * 11, 8).beat("a/1").late


def test_the_store_may_keep_the_entries_itself(job):
    sight = looks(job, None, None)
    assert (sight.beat("a/1").age, sight.silent) == (None, set())


def test_who_comes_while_looking_is_timed_from_then_on(job):
    one, two = job.announced(job.entry("a"), 1), job.announced(job.entry("b"), 5)
    sight = looked(looked(first_sight(0.0, 1.0, 5), None, [one], 0.0), None, [one, two], 3.0)
    assert (sight.beat("a/1").age, sight.beat("b/1").age, sight.silent) == (3.0, 0.0, {"a/1", "b/1"})
    assert looked(sight, None, [two], 3.5).silent == {"b/1"}, "who is not there any more is not waited for"


def test_who_is_known_to_be_gone_is_late_unless_it_beats(job):
    entries = [job.announced(entry) for entry in job.entries("ab")]
    gone = encoded_state(job.state("ab", gone=("a/1",)))
    sight = looked(first_sight(0.0, 1.0, 5), gone, entries, 0.0)
    assert (sight.silent, sight.past) == ({"a/1", "b/1"}, {"a/1"})
    assert (sight.beat("a/1").late, sight.beat("b/1").late) == (True, False)
    absent = encoded_state(job.state("b", absent=(("a/1", 2),)))
    assert looked(first_sight(0.0, 1.0, 5), absent, entries, 0.0).past == {"a/1"}


def test_nobody_has_to_beat_once_the_job_is_over(job):
    entries = [job.announced(entry) for entry in job.entries("ab")]
    over = encoded_state(job.state("ab", open=False, closed=Closed("a", "done", True)))
    assert looked(first_sight(0.0, 1.0, 5), over, entries, 0.0).silent == set()


def test_one_entry_that_cannot_be_read_does_not_hide_the_others(job):
    sight = looked(first_sight(0.0, 1.0, 5), None, [Announced("x", b"\x80", 1), job.announced(job.entry("a"))], 0.0)
    assert ([entry.node for entry in sight.entries], sight.unreadable) == (["a"], ("x",))


def test_a_state_of_another_version_is_told():
    with pytest.raises(RendezvousStateError, match="version"):
        looked(first_sight(0.0, 1.0, 5), b'{"version":99}', [], 0.0)
