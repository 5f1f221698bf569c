"""Reads settings from the variables that Slurm sets in a step's tasks and Kubernetes sets in an Indexed Job's pods.

These variables override the defaults, but not a config file. They are used only if they certainly describe this job.
For example, a user who types a command on the first node of a four-node allocation may want a single-node job, so only
a multi-node srun step makes a multi-node job. Ambiguous variables are ignored, or reported as an error if the user may
have meant a different job from the one that would start.
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
"""The variables that provide each setting's value. Other variables only determine whether these are used."""

_NODES = "SLURM_STEP_NUM_NODES"
_TASKS = "SLURM_STEP_NUM_TASKS"
_HETEROGENEOUS = "SLURM_HET_SIZE"
_NO_STEP = 0xFFFFFFF0
"""Slurm reserves step numbers from this one upward for batch scripts, interactive steps and similar purposes."""


@dataclass(frozen=True)
class _Step:
    """The step that started this process.

    Attributes:
        nodes: the number of nodes.
        agents: the number of tasks, each of which is assumed to be an agent.
        heterogeneous: whether the step may be part of a heterogeneous job, in which each component is a separate step.
    """

    nodes: int
    agents: int
    heterogeneous: bool


def from_scheduler(settings: Settings, origins: Origins, environ: Mapping[str, str]) -> Changes:
    """Return the scheduler's values for settings that no other source sets."""
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
    """Return a problem for an ambiguous step, or advice if the step's variables caused one of the `others`.

    Pass the settings from before `with_backend`, which turns a job without an endpoint into a single-node job.
    """
    step = None if _alone(settings) else _step(environ)
    if step is None or step.nodes == 1:
        return []
    if origins["nnodes"] == _NODES and any(problem.origin == "--rdzv-endpoint" for problem in others):
        return [Problem(_NODES, f"srun uses {step.nodes} nodes; for a separate job on each node, set --nnodes=1")]
    return [_ambiguous(step)] if origins["nnodes"] == DEFAULT else []


def _ambiguous(step: _Step) -> Problem:
    if step.heterogeneous:
        message = "a heterogeneous job, whose components are separate steps, requires --nnodes and --rdzv-id"
        return Problem(_HETEROGENEOUS, message)
    message = (
        f"expected one task on each of the {step.nodes} nodes, found {step.agents} tasks; start the job with"
        f" srun --ntasks={step.nodes} --ntasks-per-node=1, or set --nnodes={step.agents} to run one agent per task"
    )
    return Problem(_TASKS, message)


def _alone(settings: Settings) -> bool:
    return settings.standalone or settings.rdzv_backend == "local"


def _of_step(step: _Step, settings: Settings, origins: Origins, environ: Mapping[str, str]) -> Changes:
    if step.nodes == 1:  # each task is a separate job, as without Slurm
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
    # A job with more nodes than this step spans several steps, whose ids differ.
    if not 1 < nnodes.max <= step.agents:
        return changes
    rank_from = "SLURM_NODEID" if step.agents == step.nodes else "SLURM_PROCID"
    rank = _count(environ, rank_from)
    if rank is not None and rank < nnodes.max:
        changes["node_rank"] = (rank, rank_from)
    # A finished job's id cannot be reused, so a requeued job gets a new one. SLURM_ARRAY_JOB_ID is not used, because
    # all tasks of an array share it.
    run_id, origin = f"slurm-{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}", "SLURM_JOB_ID and SLURM_STEP_ID"
    restart = _count(environ, "SLURM_RESTART_COUNT")
    again = (f"{run_id}-r{restart}", f"{origin} and SLURM_RESTART_COUNT")
    changes["rdzv_id"] = again if restart else (run_id, origin)
    return changes


def _of_allocation(environ: Mapping[str, str]) -> Changes:
    nodes = _count(environ, "SLURM_JOB_NUM_NODES") or _count(environ, "SLURM_NNODES")
    if nodes is None or nodes == 1 or not environ.get("SLURM_JOB_ID"):
        return {}
    return {
        "nnodes": (NodeRange(1, 1), f"default; srun did not start the agent on the {nodes} nodes of the allocation")
    }


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
    """Return whether the variables were inherited from a step that called sbatch. In a batch script, SLURM_NODELIST
    lists the batch job's nodes, not the inherited step's. In a step, srun sets both lists to the step's nodes."""
    of_step = environ.get("SLURM_STEP_NODELIST")
    return of_step is not None and environ.get("SLURM_NODELIST", of_step) != of_step


def _count(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else None
