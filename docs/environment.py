"""The reference page of environment variables: from the tables of the code, and from those below for what is read or
set at one place only. A test looks for variables in the code, and holds the page equal to what it finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.config import SPECS
from elastic_core.config.schedulers import READ

if TYPE_CHECKING:
    from collections.abc import Iterable

TORCHRUN = {
    "TORCHELASTIC_ENABLE_FILE_TIMER": "`1`: means `--watchdog file`",
    "TORCHELASTIC_HEALTH_CHECK_PORT": "means `--health http --health-port` with its value",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "means `--log-line-prefix-template`",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "means `--shutdown-timeout`",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "means `--kill-timeout`; 0 or less: the default",
}
SCHEDULER = {
    "SLURM_STEP_NUM_TASKS": "one task on each node is expected; otherwise `--nnodes` must be given",
    "SLURM_HET_SIZE": "above 1: a heterogeneous job, whose `--nnodes` and `--rdzv-id` must be given",
    "SLURM_STEP_NODELIST": "with `SLURM_NODELIST`: whether the step is one of this job, or called sbatch",
    "SLURM_NODELIST": "see `SLURM_STEP_NODELIST`",
    "SLURM_JOB_NUM_NODES": "without a step: `explain` says that the other nodes of the allocation are not used",
    "SLURM_NNODES": "the same, if `SLURM_JOB_NUM_NODES` is unset",
}
AGENT = {
    "ELASTIC_DISABLE_PLUGINS": "names of distributions or entry points, separated by commas, that are not loaded",
    "PYTHON_EXEC": "interpreter for the script, in place of the agent's",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "`1`: rank 0's worker, not its agent, hosts the workers' store",
    "CUDA_VISIBLE_DEVICES": "the devices that `--virtual-local-rank` and `--numa-binding` assign to the workers",
    "TORCHELASTIC_ERROR_FILE": "set if the agent is itself a worker of another one: it writes its first failure there",
    "PATH": "folders in which the command of `--no-python`, py-spy (stacks of a hung worker) and etcd are found",
    "HOME": "the search for a config file ends in that folder",
    "PWD": "the former path of a current folder that was removed",
    "TMPDIR": "folder for workers' output without `--log-dir`, for pipes, for `EtcdServer`; unset: Python's default",
    "NO_COLOR": "not empty: the agent's messages and its report have no colors, not even on a terminal",
    "TERM": "`dumb`: the same",
}
PLUGINS = {
    "OTEL_TRACES_EXPORTER": ("elastic-otel", "exporter for spans of recoveries, by name; `none`: off"),
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": (
        "elastic-otel",
        "if `OTEL_TRACES_EXPORTER` is unset: spans go there, by the exporter `otlp`",
    ),
    "OTEL_EXPORTER_OTLP_ENDPOINT": ("elastic-otel", "the same, for traces and all else"),
    "ELASTIC_ETCD_PASSWORD": (
        "elastic-etcd",
        "password of the `user`, unless `password_env` names another variable; workers do not get it",
    ),
    "TORCHELASTIC_ETCD_BINARY_PATH": ("elastic-etcd", "the etcd that `EtcdServer` starts; unset: see `PATH`"),
    "TORCHELASTIC_TIMER_FILE": (
        "elastic-file-timer",
        "where the watchdog `file` makes its pipe, unless the agent is itself a worker that is watched",
    ),
}
SET = {
    "TORCH_CPP_LOG_LEVEL": "`FATAL`, if it is unset, in the agent while elastic-c10d and elastic-etcd import torch,"
    " and in the process that hosts the workers' store; workers do not inherit it",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "`1` in the agent while it calls a handler that was written for torchrun,"
    " if it is unset; workers do not inherit it",
}
WORKER_READS = {
    "ELASTIC_BEAT_FILE": "`elastic_core.watchdog.beat`",
    "ELASTIC_TIMER_CLIENT": "`elastic_core.watchdog.expires`",
    "TORCHELASTIC_TIMER_FILE": "the client of elastic-file-timer",
    "TORCHELASTIC_RUN_ID": "the client of elastic-file-timer: a pipe takes only requests of its own job",
    "TORCHELASTIC_ERROR_FILE": "workers that are Python functions: they write their error there",
    "PYTHONFAULTHANDLER": "workers that are Python functions: whether a signal that ends them leaves a stack",
}
CAMPAIGN = {
    "CAMPAIGN_HISTORY": "the file that workers write their events to",
    "CAMPAIGN_FOLDER": "has the checkpoint, and what tells workers to finish",
    "CAMPAIGN_NODE": "the name of the node",
    "CAMPAIGN_STOPS_S": "for so many seconds rank 0 saves a checkpoint before it ends (0)",
    "CAMPAIGN_CLOCK": "the file that says by how much its wall clock is wrong; `LD_PRELOAD` is what reads it",
    "GLOO_SOCKET_IFNAME": "the link of the machine that the node is on",
}
PREFIXES = {
    "LD_": "the guardian, which ends the workers of a killed agent, has only these: the dynamic loader's",
    "DYLD_": "the same",
}


def page(note: str) -> str:
    """The page; `note` says that it is generated."""
    parts = [
        "# Environment variables\n",
        note,
        "[Worker environment](worker-environment.md) describes the variables of the workers.",
        "\n## Settings\n",
        "[Settings](settings.md) has the precedence and the meaning of each. An empty variable counts as unset. An",
        "option that a plugin adds is read from `ELASTIC_` and its name. A variable that begins with `ELASTIC_` and is",
        "almost that of a setting, or holds the address of a Kubernetes service, is left out with a warning; other",
        "unknown variables are ignored.\n",
        *_table(("flag", "variables"), _settings()),
        "Variables that torchrun has without a flag:\n",
        *_table(("variable", "meaning"), TORCHRUN.items()),
        "## Of a scheduler\n",
        "[Slurm](../guides/slurm.md) and [Kubernetes](../guides/kubernetes.md) describe when they count.\n",
        *_table(("flag", "taken from"), ((SPECS[name].flag, _listed(names)) for name, names in READ.items())),
        *_table(("also read", "for"), SCHEDULER.items()),
        "## Of the agent\n",
        *_table(("variable", "meaning"), AGENT.items()),
        "## Of plugins\n",
        *_table(("variable", "plugin", "meaning"), ((name, *row) for name, row in PLUGINS.items())),
        "## Set and passed on\n",
        "The workers inherit the agent's variables. With a health endpoint they do not inherit `ELASTIC_HEALTH`,",
        "`ELASTIC_HEALTH_CONF`, `ELASTIC_HEALTH_PORT` and `TORCHELASTIC_HEALTH_CHECK_PORT`: only one process can have",
        "the port, and no worker needs the token.\n",
        *_table(("variable", "value"), SET.items()),
        *_table(("variables that begin with", "for"), PREFIXES.items()),
        "## Read in a worker\n",
        "By modules that a training script imports:\n",
        *_table(("variable", "read by"), WORKER_READS.items()),
        "## Set in a campaign\n",
        "In agents and workers, by [`elastic_testing.campaign`](../project/campaign.md):\n",
        *_table(("variable", "value"), CAMPAIGN.items()),
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
