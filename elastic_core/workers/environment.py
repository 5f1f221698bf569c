"""The environment of a worker, as a pure function. It has torchrun's variables, in torchrun's spelling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.errors import ConfigurationError, Problem

if TYPE_CHECKING:
    from elastic_core.interfaces.workers import RoundPlan, WorkerRanks


EnvironmentMaker = Callable[["RoundPlan", "WorkerRanks", Mapping[str, str], str], dict[str, str]]
"""Makes the environment of one worker from the round's plan, its ranks, what it inherits, and its error file."""


@dataclass(frozen=True)
class EnvironmentPolicy:
    """The user's choices about the workers' environment. `faulthandler`: workers may be asked for their stacks."""

    virtual_local_rank: bool = False
    faulthandler: bool = False

    def __call__(
        self, plan: RoundPlan, ranks: WorkerRanks, parent: Mapping[str, str], error_file: str
    ) -> dict[str, str]:
        """All variables of one worker: the parent's, then those that plugins contribute, then the agent's. The agent's
        defaults (OMP_NUM_THREADS, TORCH_NCCL_ASYNC_ERROR_HANDLING, PYTHONFAULTHANDLER) do not replace either."""
        given = {**parent, **plan.contributed}
        variables = {**given, **_ours(plan, ranks, given, error_file)}
        if self.faulthandler:
            variables.setdefault("PYTHONFAULTHANDLER", "1")
        if self.virtual_local_rank:
            device = _own_device(ranks.local, given.get("CUDA_VISIBLE_DEVICES"))
            variables |= {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": device}
        return variables


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
        variables["OMP_NUM_THREADS"] = "1"  # several workers, each with a thread per core, would compete for the cores
    return variables


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
    """The arguments with `${local_rank}` replaced, as torchrun does."""
    return [argument.replace("${local_rank}", str(local_rank)) for argument in arguments]
