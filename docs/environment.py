"""The reference page of environment variables: from the tables of the code, and from those below for what is read or
set at one place only. A test looks for variables in the code, and holds the page equal to what it finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.config import SPECS
from elastic_core.config.schedulers import READ

if TYPE_CHECKING:
    from collections.abc import Iterable

TORCHRUN = {
    "TORCHELASTIC_ENABLE_FILE_TIMER": "`1`: as `--watchdog file`",
    "TORCHELASTIC_HEALTH_CHECK_PORT": "as `--health http --health-port` with its value",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "as `--log-line-prefix-template`",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "as `--shutdown-timeout`",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "as `--kill-timeout`; 0 or less: the default",
}
SCHEDULER = {
    "SLURM_STEP_NUM_TASKS": "one task on each node is meant; with more or fewer, `--nnodes` must be given",
    "SLURM_HET_SIZE": "above 1: a heterogeneous job, whose `--nnodes` and `--rdzv-id` must be given",
    "SLURM_STEP_NODELIST": "with `SLURM_NODELIST`: whether the step is this job's, or left over from an outer one",
    "SLURM_NODELIST": "see there",
    "SLURM_JOB_NUM_NODES": "without a step: `explain` tells that the other nodes of the allocation are not used",
    "SLURM_NNODES": "the same, where that is unset",
}
AGENT = {
    "ELASTIC_DISABLE_PLUGINS": "names of distributions or entry points, separated by commas, that are not loaded",
    "PYTHON_EXEC": "interpreter for the script, instead of the agent's",
    "CUDA_VISIBLE_DEVICES": "the devices that `--virtual-local-rank` and `--numa-binding` share out among the workers",
    "TORCHELASTIC_ERROR_FILE": "set when the agent is itself a worker: it writes its first failure there",
    "PATH": "where the command of `--no-python`, py-spy (stacks of a worker that hangs) and etcd are looked for",
    "TMPDIR": "folder for workers' output without `--log-dir`, for pipes, for `EtcdServer`; unset: Python's default",
    "NO_COLOR": "not empty: the agent's messages have no colours; they have some on a terminal only",
    "TERM": "`dumb`: the same",
    "OTEL_TRACES_EXPORTER": "exporter for spans of recoveries, by name, with `elastic-core[otel]`; `none`: off",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "where that is unset: spans go there, by the exporter `otlp`",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "the same, for traces and all else",
}
PLUGINS = {
    "ELASTIC_ETCD_PASSWORD": ("elastic-etcd", "password of the `user`, unless `password_env` names another variable"),
    "TORCHELASTIC_ETCD_BINARY_PATH": ("elastic-etcd", "the etcd that `EtcdServer` starts; unset: see `PATH`"),
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": (
        "elastic-c10d",
        "`1`: rank 0's worker hosts the workers' store, not its agent",
    ),
    "TORCHELASTIC_TIMER_FILE": (
        "elastic-file-timer",
        "where the watchdog `file` makes its pipe; not when the agent is itself a worker that is watched",
    ),
}
SET = {
    "TORCH_CPP_LOG_LEVEL": "`FATAL` in the agent while elastic-c10d and elastic-etcd import torch, if it is unset;"
    " workers do not get it",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "`1` in the agent while it calls a handler that was written for torchrun,"
    " if it is unset; workers do not get it",
}
WORKER_READS = {
    "ELASTIC_BEAT_FILE": "`elastic_core.watchdog.beat`",
    "ELASTIC_TIMER_CLIENT": "`elastic_core.watchdog.expires`",
    "TORCHELASTIC_TIMER_FILE": "the client of elastic-file-timer",
    "TORCHELASTIC_RUN_ID": "the same: a pipe takes requests of its own job only",
    "TORCHELASTIC_ERROR_FILE": "workers that are Python functions: their error goes there",
    "PYTHONFAULTHANDLER": "the same: whether signals that end them leave a stack",
}
PREFIXES = {
    "LD_": "all that the process has which ends the workers of an agent that was killed: the dynamic loader's",
    "DYLD_": "the same",
    "ETCD_": "kept from the etcd that `EtcdServer` starts: its flags say everything",
}


def page(note: str) -> str:
    """The page; `note` says that it is generated."""
    parts = [
        "# Environment variables\n",
        note,
        "What the workers find in theirs is told in [worker environment](worker-environment.md).",
        "\n## Settings\n",
        "Precedence as in [settings](settings.md), which says what each means. A variable that is empty counts as",
        "unset. An option that a plugin adds is read from `ELASTIC_` and its name. A variable that begins so and is",
        "almost one of a setting is an error; others may be another program's, and are left alone.\n",
        *_table(("flag", "variables"), _settings()),
        "Those that torchrun has, but not for a flag:\n",
        *_table(("variable", "meaning"), TORCHRUN.items()),
        "## Of a scheduler\n",
        "[Slurm](../slurm.md) and [Kubernetes](../kubernetes.md) say how.\n",
        *_table(("flag", "taken from"), ((SPECS[name].flag, _listed(names)) for name, names in READ.items())),
        *_table(("looked at besides", "for"), SCHEDULER.items()),
        "## Of the agent\n",
        *_table(("variable", "meaning"), AGENT.items()),
        "## Of plugins\n",
        *_table(("variable", "plugin", "meaning"), ((name, *row) for name, row in PLUGINS.items())),
        "## Set and passed on\n",
        "Beside what is set for them, the workers inherit the agent's variables as they are. Where there is a health",
        "endpoint, `ELASTIC_HEALTH`, `ELASTIC_HEALTH_CONF`, `ELASTIC_HEALTH_PORT` and",
        "`TORCHELASTIC_HEALTH_CHECK_PORT` are kept from them: its port can be had once, and its token is not theirs.\n",
        *_table(("variable", "value"), SET.items()),
        *_table(("variables that begin with", "for"), PREFIXES.items()),
        "## Read in a worker\n",
        "By what a training script imports of ours:\n",
        *_table(("variable", "read by"), WORKER_READS.items()),
    ]
    return "\n".join(parts)


def _settings() -> Iterable[tuple[str, str]]:
    return ((spec.flag, _listed(spec.variables())) for spec in SPECS.values())


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """With the first cell of each row in backticks."""
    lines = [f"| {' | '.join((f'`{first}`', *others))} |" for first, *others in rows]
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines, ""]
