"""The environment of a worker, as a pure function. Variables are those of torchrun, spelled as torchrun does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.errors import ConfigurationError, Problem

if TYPE_CHECKING:
    from elastic_core.interfaces.workers import RoundPlan, WorkerRanks


@dataclass(frozen=True)
class EnvironmentPolicy:
    """What the user decided about the workers' environment. `faulthandler`: workers may be asked for their stacks."""

    virtual_local_rank: bool = False
    faulthandler: bool = False

    def __call__(
        self, plan: RoundPlan, ranks: WorkerRanks, parent: Mapping[str, str], error_file: str
    ) -> dict[str, str]:
        return worker_environment(plan, ranks, parent, self, error_file)


EnvironmentMaker = Callable[["RoundPlan", "WorkerRanks", Mapping[str, str], str], dict[str, str]]
"""Gives the environment of one worker, from the plan of the round, its ranks, what it inherits, and its error file."""


def worker_environment(
    plan: RoundPlan,
    ranks: WorkerRanks,
    parent: Mapping[str, str],
    policy: EnvironmentPolicy,
    error_file: str,
) -> dict[str, str]:
    """All variables of one worker: the parent's, then what plugins contribute, then ours. Those of ours that are mere
    defaults (OMP_NUM_THREADS, TORCH_NCCL_ASYNC_ERROR_HANDLING, PYTHONFAULTHANDLER) yield to both."""
    given = {**parent, **plan.contributed}
    stacks = {"PYTHONFAULTHANDLER": "1", **given} if policy.faulthandler else given
    return {**stacks, **_ours(plan, ranks, given, error_file), **_device(ranks, given, policy)}


def _ours(plan: RoundPlan, ranks: WorkerRanks, given: Mapping[str, str], error_file: str) -> dict[str, str]:
    variables = {
        "RANK": str(ranks.world),
        "LOCAL_RANK": str(ranks.local),
        "GROUP_RANK": str(plan.group_rank),
        "ROLE_RANK": str(ranks.role),
        "ROLE_NAME": plan.role,
        "LOCAL_WORLD_SIZE": str(len(plan.ranks)),
        "WORLD_SIZE": str(plan.world_size),
        "GROUP_WORLD_SIZE": str(plan.group_world_size),
        "ROLE_WORLD_SIZE": str(plan.role_world_size),
        "MASTER_ADDR": plan.master_addr,
        "MASTER_PORT": str(plan.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(plan.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(plan.max_restarts),
        "TORCHELASTIC_RUN_ID": plan.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(plan.use_agent_store),
        "TORCHELASTIC_ERROR_FILE": error_file,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": given.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    if len(plan.ranks) > 1 and "OMP_NUM_THREADS" not in given:
        variables["OMP_NUM_THREADS"] = "1"  # n workers with a thread per core each would fight for the cores
    return variables


def _device(ranks: WorkerRanks, given: Mapping[str, str], policy: EnvironmentPolicy) -> dict[str, str]:
    if not policy.virtual_local_rank:
        return {}
    visible = given.get("CUDA_VISIBLE_DEVICES")
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": _own_device(ranks.local, visible)}


def _own_device(local_rank: int, visible: str | None) -> str:
    if visible is None:
        return str(local_rank)
    devices = [device.strip() for device in visible.split(",") if device.strip()]
    if local_rank >= len(devices):
        raise ConfigurationError(
            Problem(
                "CUDA_VISIBLE_DEVICES",
                f"expected a device for every worker, found {len(devices)} in {visible!r} and none for local rank "
                f"{local_rank}; list more devices or lower --nproc-per-node",
            )
        )
    return devices[local_rank]


def substitute_local_rank(arguments: tuple[str, ...], local_rank: int) -> list[str]:
    """The script's arguments with `${local_rank}` replaced, as torchrun does."""
    return [argument.replace("${local_rank}", str(local_rank)) for argument in arguments]
