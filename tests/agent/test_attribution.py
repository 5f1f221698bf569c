"""The first failure, when several nodes report one."""

from __future__ import annotations

import pytest

from elastic_core.agent.supervise import together
from elastic_core.errors import ProcessFailure


def failure(rank, node="node0", **fields):
    return ProcessFailure(rank, 100 + rank, 1, global_rank=rank, node=node, **fields)


def attributed(failures):
    return {rank: failure.caused_by for rank, failure in failures.items()}


def test_failures_known_only_locally_stay_unchanged():
    own = {1: failure(1, timestamp=5.0), 0: failure(0, caused_by=1)}
    assert together(own, {}) == own
    assert together({}, {}) == {}


def test_first_failure_of_the_job_is_the_cause_despite_clocks():
    job = {9: failure(9, "node2", timestamp=900.0), 4: failure(4, "node1", timestamp=5.0)}
    own = {1: failure(1, timestamp=1.0)}
    found = together(own, job)
    assert attributed(found) == {9: None, 4: 9, 1: 9}
    assert found[9].node == "node2"


def test_own_failure_record_replaces_the_reported_one():
    job = {1: failure(1, message="half"), 9: failure(9, "node2", caused_by=1)}
    found = together({1: failure(1, message="all of it")}, job)
    assert attributed(found) == {1: None, 9: 1}
    assert found[1].message == "all of it"


@pytest.mark.parametrize("own", [{}, {1: failure(1)}])
def test_job_failures_without_a_first_one_stay_unchanged(own):
    job = {9: failure(9, caused_by=3)}
    assert together(own, job) == {**job, **own}
