"""How long an observer watches a job."""

from __future__ import annotations

import pytest
from elastic_testing import FakeClock

from elastic_core.operate.observation import JobObservation, Watcher
from elastic_core.rendezvous.roster import Observation


@pytest.fixture
def watch(fixed_backend):
    def watch(*looks, interval=1.0):
        clock = FakeClock()
        watcher = Watcher(fixed_backend(*looks), clock, clock.advance)
        return watcher.watch(watcher.look(JobObservation(clock.now(), clock.now(), Observation(interval, 5))))

    return watch


def test_watching_ends_when_all_heartbeats_are_seen(job, watch):
    a, b = job.entries("ab")
    beats = [(1, 1), (1, 1), (2, 1), (2, 1), (2, 2), (2, 3)]
    seen = watch(*[(job.state("ab"), [job.announced(a, x), job.announced(b, y)]) for x, y in beats])
    assert seen.now == pytest.approx(0.8)
    assert seen.beat("a/1").age == pytest.approx(0.4)
    assert seen.beat("b/1").age == 0.0
    assert seen.state == job.state("ab")


def test_watching_ends_when_a_node_is_late(job, watch):
    seen = watch((job.state("a"), [job.announced(job.entry("a"), 1)]))
    assert seen.now - seen.since <= seen.longest + 0.2
    assert seen.beat("a/1").late


def test_lost_node_gets_one_more_heartbeat(job, watch):
    a, b = job.entries("ab")
    looks = [(job.state("ab", gone=("b/1",)), [job.announced(a, n), job.announced(b, n // 7)]) for n in range(9)]
    assert watch(*looks).now == pytest.approx(1.4)
    assert not watch(*looks).beat("b/1").late
    silent = watch(*looks[:7], (looks[0][0], [job.announced(a, 7), job.announced(b, 0)]))
    assert silent.now == pytest.approx(1.6)
    assert silent.beat("b/1").late


def test_empty_job_is_read_once(watch):
    assert watch((None, [])).now == 0.0


def test_watching_ends_when_the_job_is_closed(job, watch):
    from elastic_core.rendezvous.model import Closed

    over = job.state("a", open=False, closed=Closed("a", "done", True))
    seen = watch((job.state("a"), [job.announced(job.entry("a"), 1)]), (over, []))
    assert seen.state == over
    assert seen.now == pytest.approx(0.2)
