"""Slurm and Kubernetes variables apply only if they must refer to this job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.config import NodeRange
from elastic_core.config.resolve import READ, from_scheduler
from elastic_core.config.settings import Settings

MEET = "--rdzv-endpoint node1:29400"
ALLOCATION = {
    "SLURM_JOB_ID": "1234",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_NNODES": "4",
    "SLURM_NODELIST": "node[1-4]",
    "SLURM_JOB_NODELIST": "node[1-4]",
}
# A batch script has a rank although it is not a step; salloc's shell has no rank either.
BATCH = {**ALLOCATION, "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}
INTERACTIVE = {
    **BATCH,
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_NODELIST": "node1",
}


def step(nodes=4, tasks=None, task=0, **more):
    """The environment of a task that srun started in an allocation of four nodes."""
    tasks = tasks or nodes
    return {
        **ALLOCATION,
        "SLURM_NNODES": str(nodes),
        "SLURM_NODELIST": f"node[1-{nodes}]",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_NODELIST": f"node[1-{nodes}]",
        "SLURM_NODEID": str(task * nodes // tasks),
        "SLURM_PROCID": str(task),
        **more,
    }


def taken(reading):
    return {name: reading.origins[name] for name in READ if "SLURM" in reading.origins[name]}


def test_slurm_step_sets_nodes_rank_and_run_id(config_reader):
    reading = config_reader.read(f"{MEET} train.py", step(task=2))
    assert (reading.settings.nnodes, reading.settings.node_rank) == (NodeRange(4, 4), 2)
    assert reading.settings.rdzv_id == "slurm-1234.0"
    assert taken(reading) == {
        "nnodes": "SLURM_STEP_NUM_NODES",
        "node_rank": "SLURM_NODEID",
        "rdzv_id": "SLURM_JOB_ID and SLURM_STEP_ID",
    }


def test_slurm_tasks_share_the_job_and_differ_in_rank(config_reader):
    readings = [config_reader.read(f"{MEET} train.py", step(task=task)) for task in range(4)]
    assert len({(reading.settings.nnodes, reading.settings.rdzv_id) for reading in readings}) == 1
    assert [reading.settings.node_rank for reading in readings] == [0, 1, 2, 3]


@pytest.mark.parametrize("environ", [ALLOCATION, BATCH, INTERACTIVE], ids=["salloc", "sbatch", "interactive step"])
@pytest.mark.parametrize("line", ["train.py", f"{MEET} train.py"])
def test_command_without_srun_runs_on_one_node(config_reader, environ, line):
    reading = config_reader.read(line, environ)
    assert (reading.settings.nnodes, reading.settings.node_rank) == (NodeRange(1, 1), None)
    assert reading.settings.rdzv_id == "made-up"
    assert reading.origins["nnodes"] == "default; srun did not start the agent on the 4 nodes of the allocation"


@pytest.mark.parametrize("tasks", [1, 8])
def test_step_on_one_node_runs_on_that_node_only(config_reader, tasks):
    reading = config_reader.read(f"{MEET} train.py", step(nodes=1, tasks=tasks))
    assert (reading.settings.nnodes, reading.settings.node_rank) == (NodeRange(1, 1), None)
    assert (reading.settings.rdzv_id, reading.origins["nnodes"]) == ("made-up", "SLURM_STEP_NUM_NODES")


@pytest.mark.parametrize("line", ["--standalone train.py", "--rdzv-backend local train.py"])
def test_local_job_ignores_the_scheduler(config_reader, line):
    reading = config_reader.read(line, step(task=2, tasks=8))
    assert (reading.settings.nnodes, reading.settings.node_rank) == (NodeRange(1, 1), None)
    assert taken(reading) == {}


@pytest.mark.parametrize(
    ("line", "environ", "file"),
    [
        (f"{MEET} --nnodes 2:4 --node-rank 3 --rdzv-id mine train.py", {}, ""),
        (f"{MEET} train.py", {"ELASTIC_NNODES": "2:4", "PET_NODE_RANK": "3", "PET_RDZV_ID": "mine"}, ""),
        (f"{MEET} train.py", {}, "nnodes = '2:4'\nnode_rank = 3\nrdzv_id = 'mine'"),
    ],
    ids=["flags", "environment", "file"],
)
def test_scheduler_has_the_lowest_precedence(config_reader, line, environ, file):
    config_reader.write(file)
    settings = config_reader.read(line, {**step(), **environ}).settings
    assert (settings.nnodes, settings.node_rank, settings.rdzv_id) == (NodeRange(2, 4), 3, "mine")


@pytest.mark.parametrize(("nodes", "task", "rank"), [("2:4", 1, 1), ("2:2", 2, None)], ids=["member", "spare"])
def test_given_nodes_keep_rank_and_run_id_of_the_step(config_reader, nodes, task, rank):
    settings = config_reader.read(f"{MEET} --nnodes {nodes} train.py", step(task=task)).settings
    assert (str(settings.nnodes), settings.node_rank, settings.rdzv_id) == (nodes, rank, "slurm-1234.0")


def test_job_of_several_steps_requires_a_run_id(config_reader):
    line = f"{MEET} --nnodes 1:8 train.py"
    assert "--rdzv-id" in config_reader.problems(line, step(task=1))
    assert config_reader.read(f"--rdzv-id mine {line}", step(task=1)).settings.node_rank is None


def test_static_job_takes_ranks_from_the_step(config_reader):
    reading = config_reader.read("--master-addr node1 train.py", step(task=3))
    assert (reading.settings.rdzv_backend, reading.settings.node_rank) == ("static", 3)


def test_steps_requeues_and_array_tasks_have_distinct_run_ids(config_reader):
    array = {"SLURM_ARRAY_JOB_ID": "1234", "SLURM_ARRAY_TASK_COUNT": "2"}
    environments = [
        step(),
        step(SLURM_STEP_ID="1"),
        step(SLURM_RESTART_COUNT="1"),
        step(SLURM_RESTART_COUNT="2"),
        step(SLURM_JOB_ID="1235", SLURM_ARRAY_TASK_ID="1", **array),
        step(SLURM_JOB_ID="1236", SLURM_ARRAY_TASK_ID="2", **array),
    ]
    readings = [config_reader.read(f"{MEET} train.py", environ) for environ in environments]
    assert len({reading.settings.rdzv_id for reading in readings}) == len(environments)
    assert readings[2].settings.rdzv_id == "slurm-1234.0-r1"
    assert readings[2].origins["rdzv_id"] == "SLURM_JOB_ID and SLURM_STEP_ID and SLURM_RESTART_COUNT"
    first = config_reader.read(f"{MEET} train.py", step(SLURM_RESTART_COUNT="0"))
    assert first.settings.rdzv_id == "slurm-1234.0"


class TestAmbiguousStep:
    @pytest.mark.parametrize("line", ["train.py", f"{MEET} train.py"])
    def test_several_tasks_per_node_are_rejected(self, config_reader, line):
        problems = config_reader.problems(line, step(nodes=2, tasks=16))
        assert list(problems) == ["SLURM_STEP_NUM_TASKS"]
        assert "srun --ntasks=2 --ntasks-per-node=1" in problems["SLURM_STEP_NUM_TASKS"]

    def test_nnodes_equal_to_tasks_uses_task_ranks(self, config_reader):
        reading = config_reader.read(f"{MEET} --nnodes 16 train.py", step(nodes=2, tasks=16, task=9))
        assert (reading.settings.node_rank, reading.origins["node_rank"]) == (9, "SLURM_PROCID")

    def test_heterogeneous_job_requires_nodes_and_run_id(self, config_reader):
        part = step(nodes=2, SLURM_HET_SIZE="2")
        assert list(config_reader.problems("train.py", part)) == ["SLURM_HET_SIZE"]
        assert list(config_reader.problems(f"{MEET} train.py", part)) == ["SLURM_HET_SIZE"]
        assert set(config_reader.problems(f"{MEET} --nnodes 4 train.py", part)) == {"--rdzv-id"}
        assert config_reader.read(f"{MEET} --nnodes 4 --rdzv-id mine train.py", part).settings.node_rank is None

    def test_missing_endpoint_advice_mentions_the_step(self, config_reader):
        problems = config_reader.problems("train.py", step())
        assert set(problems) == {"--rdzv-endpoint", "SLURM_STEP_NUM_NODES"}
        assert "4 nodes" in problems["SLURM_STEP_NUM_NODES"]
        assert "--nnodes=1" in problems["SLURM_STEP_NUM_NODES"]
        assert config_reader.read("--nnodes 1 train.py", step()).settings.rdzv_backend == "local"

    def test_explicit_nnodes_gets_no_slurm_advice(self, config_reader):
        assert set(config_reader.problems("--nnodes 4 train.py", step())) == {"--rdzv-endpoint"}


def test_step_that_called_sbatch_is_ignored(config_reader):
    left_over = {name: value for name, value in step(nodes=2).items() if "_STEP_" in name}
    reading = config_reader.read(f"{MEET} train.py", {**left_over, **BATCH})
    assert reading.settings.nnodes == NodeRange(1, 1)


@pytest.mark.parametrize("name", ["SLURM_STEP_NUM_NODES", "SLURM_STEP_ID", "SLURM_JOB_ID"])
@pytest.mark.parametrize("text", ["", "many", "-1", "²", "1" * 5000])
def test_unreadable_variables_are_ignored(config_reader, name, text):
    reading = config_reader.read(
        "train.py" if name != "SLURM_JOB_ID" else f"{MEET} --rdzv-id mine train.py", step(**{name: text})
    )
    assert name not in " ".join(reading.origins.values())


@given(st.dictionaries(st.sampled_from(sorted(step(SLURM_HET_SIZE="", SLURM_RESTART_COUNT=""))), st.text()))
def test_any_slurm_environment_can_be_read(environ):
    from_scheduler(Settings(), {}, environ)


INDEXED = f"{MEET} --nnodes 2:4 --rdzv-id job train.py"


@pytest.mark.parametrize(
    ("line", "index", "rank", "origin"),
    [
        (INDEXED, "3", 3, "JOB_COMPLETION_INDEX"),
        (INDEXED, "4", None, "default"),  # a spare
        ("train.py", "3", None, "default"),  # a single pod
        (f"--node-rank 1 {INDEXED}", "3", 1, "--node-rank"),
    ],
)
def test_completion_index_is_the_rank_of_a_member(config_reader, line, index, rank, origin):
    reading = config_reader.read(line, {"JOB_COMPLETION_INDEX": index})
    assert (reading.settings.node_rank, reading.origins["node_rank"]) == (rank, origin)


def test_scheduler_does_not_hide_a_bad_flag(config_reader):
    assert set(config_reader.problems(f"--nnodes some {MEET} train.py", step())) == {"--nnodes"}
