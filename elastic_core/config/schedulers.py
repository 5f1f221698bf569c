"""What a scheduler says about the job: Slurm to the tasks of a step, Kubernetes to the pods of an Indexed Job.

The scheduler is weaker than the config file and stronger than the defaults. Its variables count only where they surely
mean this job: an allocation of four nodes says nothing about a command that somebody types on the first of them. srun
gives each task the variables of its own step, and only a step of several nodes makes a job of several nodes. Ambiguous
variables are ignored; it is an error if the job that starts could be another than the one that is meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.config.spec import DEFAULT
from elastic_core.config.values import NodeRange
from elastic_core.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_core.config.settings import Settings
    from elastic_core.config.spec import Changes, Origins

READ: Mapping[str, tuple[str, ...]] = {
    "nnodes": ("SLURM_STEP_NUM_NODES",),
    "node_rank": ("SLURM_NODEID", "SLURM_PROCID", "JOB_COMPLETION_INDEX"),
    "rdzv_id": ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
}
"""The variables that a setting is taken from. Other variables only decide whether these count."""

_NODES = "SLURM_STEP_NUM_NODES"
_TASKS = "SLURM_STEP_NUM_TASKS"
_HETEROGENEOUS = "SLURM_HET_SIZE"
_NO_STEP = 0xFFFFFFF0
"""Step numbers from this one on stand for shells and scripts: a batch script, an interactive step."""


@dataclass(frozen=True)
class _Step:
    """The step that started this process.

    Attributes:
        nodes: on how many nodes it runs.
        agents: how many tasks it has; each task is taken for an agent.
        heterogeneous: whether it may be part of a heterogeneous job, whose parts are steps of their own.
    """

    nodes: int
    agents: int
    heterogeneous: bool


def from_scheduler(settings: Settings, origins: Origins, environ: Mapping[str, str]) -> Changes:
    """The values that the scheduler gives to settings that nothing else gives."""
    if _alone(settings):
        return {}
    step = _step(environ)
    if step is None:
        changes = {**_of_allocation(environ), **_of_indexed_job(settings, environ)}
    else:
        changes = {**_of_step(step, settings, origins, environ)}
    return {name: change for name, change in changes.items() if origins.get(name, DEFAULT) == DEFAULT}


def scheduler_problems(
    settings: Settings, origins: Origins, environ: Mapping[str, str], others: Sequence[Problem]
) -> list[Problem]:
    """The problem of an ambiguous step; or advice, if one of the `others` follows from the variables of the step.

    The settings are those before `resolve`, which makes a job without an endpoint one of this machine alone.
    """
    step = None if _alone(settings) else _step(environ)
    if step is None or step.nodes == 1:
        return []
    if origins["nnodes"] == _NODES and any(problem.origin == "--rdzv-endpoint" for problem in others):
        return [Problem(_NODES, f"srun runs this on {step.nodes} nodes; for a job of each node alone give --nnodes=1")]
    return [_ambiguous(step)] if origins["nnodes"] == DEFAULT else []


def _ambiguous(step: _Step) -> Problem:
    if step.heterogeneous:
        message = (
            "expected --nnodes and --rdzv-id in a heterogeneous job, whose parts are steps of their own; found none"
        )
        return Problem(_HETEROGENEOUS, message)
    message = (
        f"expected one agent on each of the {step.nodes} nodes, found {step.agents} tasks; start it with"
        f" srun --ntasks={step.nodes} --ntasks-per-node=1, or give --nnodes={step.agents} if that many are meant"
    )
    return Problem(_TASKS, message)


def _alone(settings: Settings) -> bool:
    return settings.standalone or settings.rdzv_backend == "local"


def _of_step(step: _Step, settings: Settings, origins: Origins, environ: Mapping[str, str]) -> Changes:
    if step.nodes == 1:  # each task is a job of its own, as it would be without Slurm
        return {"nnodes": (NodeRange(1, 1), _NODES)}
    if step.heterogeneous:
        return {}
    nnodes = settings.nnodes
    changes: dict[str, tuple[object, str]] = {}
    if origins.get("nnodes", DEFAULT) == DEFAULT:
        if step.agents != step.nodes:
            return {}
        nnodes = NodeRange(step.nodes, step.nodes)
        changes["nnodes"] = (nnodes, _NODES)
    # A job with more nodes than this step has consists of several steps, and their ids would differ.
    if not 1 < nnodes.max <= step.agents:
        return changes
    rank_from = "SLURM_NODEID" if step.agents == step.nodes else "SLURM_PROCID"
    rank = _count(environ, rank_from)
    if rank is not None and rank < nnodes.max:
        changes["node_rank"] = (rank, rank_from)
    # A finished job stays closed under its id, so a requeued job gets another id. SLURM_ARRAY_JOB_ID is not used: all
    # tasks of an array have the same.
    run_id, origin = f"slurm-{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}", "SLURM_JOB_ID and SLURM_STEP_ID"
    restart = _count(environ, "SLURM_RESTART_COUNT")
    again = (f"{run_id}-r{restart}", f"{origin} and SLURM_RESTART_COUNT")
    changes["rdzv_id"] = again if restart else (run_id, origin)
    return changes


def _of_allocation(environ: Mapping[str, str]) -> Changes:
    nodes = _count(environ, "SLURM_JOB_NUM_NODES") or _count(environ, "SLURM_NNODES")
    if nodes is None or nodes == 1 or not environ.get("SLURM_JOB_ID"):
        return {}
    return {"nnodes": (NodeRange(1, 1), f"default; srun did not start this on the {nodes} nodes of the allocation")}


def _of_indexed_job(settings: Settings, environ: Mapping[str, str]) -> Changes:
    index = _count(environ, "JOB_COMPLETION_INDEX")
    if index is None or settings.nnodes.max == 1 or index >= settings.nnodes.max:
        return {}
    return {"node_rank": (index, "JOB_COMPLETION_INDEX")}


def _step(environ: Mapping[str, str]) -> _Step | None:
    nodes, number = _count(environ, _NODES), _count(environ, "SLURM_STEP_ID")
    if not nodes or number is None or number >= _NO_STEP or not _count(environ, "SLURM_JOB_ID") or _left_over(environ):
        return None
    return _Step(nodes, _count(environ, _TASKS) or nodes, (_count(environ, _HETEROGENEOUS) or 0) > 1)


def _left_over(environ: Mapping[str, str]) -> bool:
    """Whether the variables are left over from the step in which sbatch was called, which passes them on.

    srun sets both lists to the nodes of the step; in a batch script the list without STEP has those of its own job.
    """
    of_step = environ.get("SLURM_STEP_NODELIST")
    return of_step is not None and environ.get("SLURM_NODELIST", of_step) != of_step


def _count(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else None
