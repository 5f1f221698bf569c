"""What an observer concludes from its looks."""

from __future__ import annotations

import pytest

from elastic_core.errors import RendezvousStateError
from elastic_core.interfaces.backend import Announced
from elastic_core.operate.observation import JobObservation
from elastic_core.rendezvous.codec import encoded_entry, encoded_state
from elastic_core.rendezvous.model import Closed
from elastic_core.rendezvous.roster import Observation

NOTHING = JobObservation(0.0, 0.0, Observation(1.0, 5))


def looks(job, *beats, interval=1.0):
    """The observation after looks that found these heartbeat counts of node `a`, half an interval apart."""
    seen = JobObservation(0.0, 0.0, Observation(interval, 5))
    for number, value in enumerate(beats):
        seen = seen.after_look(None, [job.announced(job.entry("a"), value)], number * interval / 2)
    return seen


def test_heartbeat_age_starts_at_the_look_that_saw_it(job):
    beat = looks(job, 7, 7, 8, 8).beat("a/1")
    assert (beat.age, beat.seen, beat.late) == (0.5, True, False)


def test_first_look_is_no_heartbeat(job):
    beat = looks(job, 7, 7).beat("a/1")
    assert (beat.age, beat.seen) == (0.5, False)
    assert looks(job, 7, 7).silent == {"a/1"}
    assert looks(job, 7, 8).silent == set()


def test_silence_for_the_whole_timeout_is_late(job):
    assert not looks(job, *[7] * 10).beat("a/1").late
    assert looks(job, *[7] * 11).beat("a/1").late
    assert not looks(job, *[7] * 11, 8).beat("a/1").late


def test_entries_with_leases_have_no_age(job):
    seen = looks(job, None, None)
    assert (seen.beat("a/1").age, seen.silent) == (None, set())


def test_newcomer_is_timed_from_its_first_look(job):
    one, two = job.announced(job.entry("a"), 1), job.announced(job.entry("b"), 5)
    seen = NOTHING.after_look(None, [one], 0.0).after_look(None, [one, two], 3.0)
    assert (seen.beat("a/1").age, seen.beat("b/1").age, seen.silent) == (3.0, 0.0, {"a/1", "b/1"})
    assert seen.after_look(None, [two], 3.5).silent == {"b/1"}, "a node that has left is not awaited"


def test_lost_node_is_late_until_its_next_heartbeat(job):
    entries = [job.announced(entry) for entry in job.entries("ab")]
    gone = encoded_state(job.state("ab", gone=("a/1",)))
    seen = NOTHING.after_look(gone, entries, 0.0)
    assert (seen.silent, seen.past) == ({"a/1", "b/1"}, {"a/1"})
    assert (seen.beat("a/1").late, seen.beat("b/1").late) == (True, False)
    without = encoded_state(job.state("b"))
    assert NOTHING.after_look(without, entries, 0.0).past == {"a/1"}


def test_no_node_is_late_in_a_closed_job(job):
    entries = [job.announced(entry) for entry in job.entries("ab")]
    over = encoded_state(job.state("ab", open=False, closed=Closed("a", "done", True)))
    assert NOTHING.after_look(over, entries, 0.0).silent == set()


def test_unreadable_entry_does_not_hide_the_rest(job):
    seen = NOTHING.after_look(None, [Announced("x", b"\x80", 1), job.announced(job.entry("a"))], 0.0)
    assert ([entry.node for entry in seen.entries], seen.unreadable) == (["a"], ("x",))


def test_entry_under_another_key_is_ignored(job):
    copied = Announced("b/1", encoded_entry(job.entry("a")), 1)
    seen = NOTHING.after_look(None, [job.announced(job.entry("a")), copied], 0.0)
    assert ([entry.node for entry in seen.entries], seen.unreadable) == (["a"], ("b/1",))


def test_state_of_another_version_is_an_error():
    with pytest.raises(RendezvousStateError, match="version"):
        NOTHING.after_look(b'{"version":99}', [], 0.0)
