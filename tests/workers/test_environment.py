"""A worker's environment variables; their names match torchrun's."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from elastic_core.errors import ConfigurationError
from elastic_core.interfaces.workers import WorkerRanks
from elastic_core.workers.process import EnvironmentPolicy, substitute_local_rank

PLAIN = EnvironmentPolicy()
VIRTUAL = EnvironmentPolicy(virtual_local_rank=True)


def environment(plan, local=0, parent=None, policy=PLAIN, **changes):
    made = plan(**changes)
    return policy(made, made.ranks[local], parent or {}, "/errors/file")


def test_worker_environment_has_every_variable(plan):
    made = plan(
        round=5,
        run_id="run",
        role="trainer",
        group_rank=1,
        group_world_size=3,
        world_size=7,
        role_world_size=6,
        master_addr="node0",
        master_port=1234,
        use_agent_store=True,
        restart_count=2,
        max_restarts=4,
        ranks=(WorkerRanks(0, 3, 2), WorkerRanks(1, 4, 3)),
    )
    assert EnvironmentPolicy()(made, made.ranks[1], {"HOME": "/h"}, "/e") == {
        "HOME": "/h",
        "RANK": "4",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "1",
        "ROLE_RANK": "3",
        "ROLE_NAME": "trainer",
        "LOCAL_WORLD_SIZE": "2",
        "WORLD_SIZE": "7",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_WORLD_SIZE": "6",
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "1234",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "4",
        "TORCHELASTIC_RUN_ID": "run",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": "/e",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.parametrize(
    ("workers", "parent", "contributed", "expected"),
    [
        (1, {}, {}, None),
        (2, {}, {}, "1"),
        (2, {"OMP_NUM_THREADS": "6"}, {}, "6"),
        (1, {"OMP_NUM_THREADS": "6"}, {}, "6"),
        (2, {}, {"OMP_NUM_THREADS": "3"}, "3"),
        (2, {"OMP_NUM_THREADS": "6"}, {"OMP_NUM_THREADS": "3"}, "3"),
    ],
)
def test_omp_num_threads_is_1_for_several_workers_unless_set(plan, workers, parent, contributed, expected):
    found = environment(plan, parent=parent, workers=workers, contributed=contributed)
    assert found.get("OMP_NUM_THREADS") == expected


def test_nccl_error_handling_can_be_overridden(plan):
    given = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    assert environment(plan, parent=given)["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert environment(plan, contributed=given)["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"


def test_faulthandler_is_enabled_for_watched_workers_unless_set(plan):
    watched = EnvironmentPolicy(faulthandler=True)
    assert "PYTHONFAULTHANDLER" not in environment(plan)
    assert environment(plan, policy=watched)["PYTHONFAULTHANDLER"] == "1"
    assert environment(plan, policy=watched, parent={"PYTHONFAULTHANDLER": ""})["PYTHONFAULTHANDLER"] == ""
    assert environment(plan, policy=watched, contributed={"PYTHONFAULTHANDLER": ""})["PYTHONFAULTHANDLER"] == ""


def test_contributions_override_the_parent_except_for_ranks(plan):
    parent = {"RANK": "77", "TORCHELASTIC_ERROR_FILE": "/other", "A": "parent", "B": "parent"}
    found = environment(plan, parent=parent, contributed={"A": "plugin", "WORLD_SIZE": "99"})
    assert (found["RANK"], found["TORCHELASTIC_ERROR_FILE"], found["WORLD_SIZE"]) == ("0", "/errors/file", "1")
    assert (found["A"], found["B"]) == ("plugin", "parent")


@pytest.mark.parametrize(
    ("visible", "devices"),
    [(None, ["0", "1"]), ("4,5,6", ["4", "5"]), (" GPU-a , MIG-b,", ["GPU-a", "MIG-b"])],
)
def test_virtual_local_rank_gives_each_worker_one_device(plan, visible, devices):
    parent = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = [environment(plan, local, parent, VIRTUAL, workers=2) for local in (0, 1)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == devices
    assert [one["LOCAL_RANK"] for one in found] == ["0", "0"]
    assert [one["RANK"] for one in found] == ["0", "1"]


def test_virtual_local_rank_sees_contributed_devices(plan):
    found = environment(plan, 1, {}, VIRTUAL, workers=2, contributed={"CUDA_VISIBLE_DEVICES": "7,3"})
    assert found["CUDA_VISIBLE_DEVICES"] == "3"


def test_devices_are_inherited_without_virtual_local_rank(plan):
    found = environment(plan, 1, {"CUDA_VISIBLE_DEVICES": "7,3"}, workers=2)
    assert (found["CUDA_VISIBLE_DEVICES"], found["LOCAL_RANK"]) == ("7,3", "1")


@pytest.mark.parametrize("visible", ["4", "", " , "])
def test_too_few_devices_fail_naming_the_local_rank(plan, visible):
    with pytest.raises(ConfigurationError, match=r"CUDA_VISIBLE_DEVICES: .*none for local rank 1"):
        environment(plan, 1, {"CUDA_VISIBLE_DEVICES": visible}, VIRTUAL, workers=2)


def test_local_rank_is_substituted_in_arguments():
    assert substitute_local_rank(("a${local_rank}b", "${local_rank}${local_rank}", "$local_rank", "c"), 12) == [
        "a12b",
        "1212",
        "$local_rank",
        "c",
    ]


DUMP = """
import json, os, sys
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    json.dump(dict(os.environ), file)
"""


@pytest.mark.torch
def test_variables_are_those_of_torchrun_and_the_stop_page(tmp_path):
    script = tmp_path / "dump.py"
    script.write_text(DUMP)
    clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}

    def variables(*command):
        folder = tmp_path / command[-1]
        folder.mkdir()
        subprocess.run(
            [sys.executable, "-m", *command, "--nproc-per-node=2", str(script), str(folder)],
            env=clean,
            check=True,
            capture_output=True,
            timeout=100,
        )
        return [set(json.loads((folder / rank).read_text())) - set(clean) for rank in ("0", "1")]

    ours = variables("elastic_core", "run")
    theirs = variables("torch.distributed.run")
    left_out = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}  # meant for torchrun's agent; workers only inherit it
    assert [names | left_out for names in ours] == [
        names | left_out | {"ELASTIC_STOP_FILE", "ELASTIC_SHUTDOWN_TIMEOUT"} for names in theirs
    ]
