"""When a job is considered to train again, from the recorded steps of its workers."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace

import pytest

from benchmarks.cluster import Cluster, Meeting, Step, StepFile, resumed
from benchmarks.losses import longest_overlap
from benchmarks.processes import now

pytestmark = pytest.mark.integration


def steps(rank, times, restart=0, world_size=2, pid=1):
    return [Step(at, 0, pid, rank, world_size, restart) for at in times]


def test_recovery_is_measured_at_the_slowest_rank():
    assert resumed(steps(0, [1.0, 2.0], pid=7) + steps(1, [1.5, 2.5], pid=8), 2, 2) == (1.5, {7, 8})


def test_recovery_waits_for_every_ranks_steps():
    assert resumed(steps(0, [1.0, 2.0]) + steps(1, [1.5]), 2, 2) is None
    assert resumed([], 1, 1) is None


def test_processes_of_two_rounds_form_no_world():
    assert resumed(steps(0, [1.0, 2.0], pid=7) + steps(1, [3.5, 4.5], pid=8), 2, 2) is None


def test_nodes_with_different_restart_counts_form_a_world():
    """torchrun counts a restart only on the node whose worker failed."""
    late = steps(0, [3.0, 4.0], restart=1, pid=7) + steps(1, [3.5, 4.5], restart=0, pid=8)
    assert resumed(late, 2, 2) == (3.5, {7, 8})


def test_failed_restart_is_ignored():
    early = steps(0, [1.0], restart=0)
    late = steps(0, [3.0, 4.0], restart=1, pid=2) + steps(1, [3.5, 4.5], restart=1, pid=3)
    assert resumed(early + late, 2, 2) == (3.5, {2, 3})


def test_overlap_of_two_groups_is_measured():
    def group(name, *times):
        return [replace(step, group=name) for step in steps(0, times)]

    assert longest_overlap(group("a", 1.0, 2.0) + group("b", 2.5, 9.0)) == 0.0
    assert longest_overlap(group("a", 1.0, 4.0) + group("b", 2.5, 9.0) + group("c", 8.0, 10.0)) == 1.5


def test_lines_are_read_once_and_completely(tmp_path):
    file = StepFile(tmp_path / "steps")
    assert file.more() == []
    first, second = steps(0, [1.0, 2.0])
    line = json.dumps(asdict(second)) + "\n"
    with file.path.open("w") as out:
        out.write(json.dumps(asdict(first)) + "\n" + line[:10])
        out.flush()
        assert file.more() == [first]
        assert file.more() == []
        out.write(line[10:])
        out.flush()
        assert file.more() == [second]


@pytest.mark.parametrize(("age", "other", "trains"), [(0.5, 0, True), (5.0, 0, False), (0.5, 1, False)])
def test_worker_trains_if_its_own_last_step_is_recent(tmp_path, age, other, trains):
    job = Cluster(["launcher"], "1", tmp_path, Meeting("c10d", 29400))
    (step,) = steps(0, [now() - age], pid=os.getpid() + other)
    (tmp_path / "steps").write_text(json.dumps(asdict(step)) + "\n")
    assert job.trains([os.getpid()], 2.0) is trains
