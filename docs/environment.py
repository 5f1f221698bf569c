"""Generates the reference page of environment variables, from the code's tables and from the tables below, which list
variables that are read or set in one place only. A test checks that the page lists all variables in the code, and no
others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.config import SPECS
from elastic_core.config.resolve import READ

if TYPE_CHECKING:
    from collections.abc import Iterable

TORCHRUN = {
    "TORCHELASTIC_ENABLE_FILE_TIMER": "`1`: same as `--watchdog file`",
    "TORCHELASTIC_HEALTH_CHECK_PORT": "same as `--health http --health-port` with this value",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "same as `--log-line-prefix-template`",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "same as `--shutdown-timeout`",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "same as `--kill-timeout`; a value of 0 or less means the default",
}
SCHEDULER = {
    "SLURM_STEP_NUM_TASKS": "number of tasks; unless each node has exactly one, `--nnodes` is required",
    "SLURM_HET_SIZE": "above 1 in a heterogeneous job, which requires `--nnodes` and `--rdzv-id`",
    "SLURM_STEP_NODELIST": "differs from `SLURM_NODELIST` if a batch script inherited the variables of another step",
    "SLURM_NODELIST": "see `SLURM_STEP_NODELIST`",
    "SLURM_JOB_NUM_NODES": "outside a step, `explain` reports that the allocation's other nodes are not used",
    "SLURM_NNODES": "used if `SLURM_JOB_NUM_NODES` is unset",
    "SLURM_JOB_END_TIME": "elastic-notices, source `slurm`: when the job ends; used until `squeue` answers",
    "SLURM_TIME_FORMAT": "elastic-notices ignores the value, and sets `%s` for the commands `squeue` and `sinfo`",
}
AGENT = {
    "ELASTIC_DISABLE_PLUGINS": "distributions or entry points that are not loaded; comma-separated names",
    "PYTHON_EXEC": "interpreter for the script; if unset, the agent's interpreter",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "`1`: rank 0's worker, not its agent, hosts the workers' store",
    "CUDA_VISIBLE_DEVICES": "the devices that `--virtual-local-rank` and `--numa-binding` assign to the workers",
    "TORCHELASTIC_ERROR_FILE": "file for the agent's first failure; set if the agent is itself another agent's worker",
    "PATH": "folders to search for the command of `--no-python`, for py-spy (stacks of a hung worker), etcd,"
    " `squeue` and `sinfo`",
    "HOME": "the last folder in which the agent looks for a config file",
    "PWD": "the path of the current folder, if that folder was removed",
    "TMPDIR": "folder for workers' output without `--log-dir`, pipes and `EtcdServer`; Python's default if unset",
    "NO_COLOR": "if not empty, the agent's messages and report have no colors, even on a terminal",
    "TERM": "`dumb`: same as `NO_COLOR`",
}
PLUGINS = {
    "OTEL_TRACES_EXPORTER": ("elastic-otel", "name of the exporter for the spans of recoveries; `none` disables it"),
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": (
        "elastic-otel",
        "if `OTEL_TRACES_EXPORTER` is unset, the URL to which the exporter `otlp` sends spans",
    ),
    "OTEL_EXPORTER_OTLP_ENDPOINT": ("elastic-otel", "the same, but for all kinds of telemetry"),
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": ("elastic-otel", "`grpc`: the exporter `otlp` uses gRPC instead of HTTP"),
    "OTEL_EXPORTER_OTLP_PROTOCOL": ("elastic-otel", "the same, but for all kinds of telemetry"),
    "AWS_EC2_METADATA_SERVICE_ENDPOINT": (
        "elastic-notices",
        "URL of the metadata service for the sources `aws` and `aws-rebalance`, unless `--notice-endpoint` is set",
    ),
    "GCE_METADATA_HOST": (
        "elastic-notices",
        "host of the metadata server for the source `gcp`, unless `--notice-endpoint` is set",
    ),
    "SLURMD_NODENAME": ("elastic-notices", "the node that the source `slurm-node` watches"),
    "ELASTIC_ETCD_PASSWORD": (
        "elastic-etcd",
        "password of the `user`, unless `password_env` names another variable; removed from the workers' environment",
    ),
    "TORCHELASTIC_ETCD_BINARY_PATH": ("elastic-etcd", "the etcd binary that `EtcdServer` starts; if unset, see `PATH`"),
    "TORCHELASTIC_TIMER_FILE": (
        "elastic-file-timer",
        "path at which the watchdog `file` creates its pipe, unless the agent is itself a watched worker",
    ),
}
SET = {
    "TORCH_CPP_LOG_LEVEL": "if unset, `FATAL` in the agent while elastic-c10d and elastic-etcd import torch,"
    " and in the process that hosts the workers' store; workers do not inherit it",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "if unset, `1` in the agent while it calls a handler written for torchrun;"
    " workers do not inherit it",
}
WORKER_READS = {
    "ELASTIC_BEAT_FILE": "`elastic_core.watchdog.beat`",
    "ELASTIC_STOP_FILE": "`elastic_core.should_stop` and the other functions of `elastic_core.stop`",
    "ELASTIC_TIMER_CLIENT": "`elastic_core.watchdog.expires`",
    "TORCHELASTIC_TIMER_FILE": "the client of elastic-file-timer",
    "TORCHELASTIC_RUN_ID": "the client of elastic-file-timer, because a pipe accepts only its own job's requests",
    "TORCHELASTIC_ERROR_FILE": "workers that are Python functions (the file to which they write their error)",
}
CAMPAIGN = {
    "CAMPAIGN_HISTORY": "the file for the workers' events",
    "CAMPAIGN_FOLDER": "the folder of the checkpoint and of the file that makes workers finish",
    "CAMPAIGN_NODE": "the name of the node",
    "CAMPAIGN_STOPS_S": "how many seconds rank 0 takes to save a checkpoint before it exits (default: 0)",
    "CAMPAIGN_TOGETHER": "the folder from which workers import `elastic_core`; if set, they stop after the same step",
    "CAMPAIGN_CLOCK": "the file with the wall clock's offset; read by the library in `LD_PRELOAD`",
    "GLOO_SOCKET_IFNAME": "the network interface of the node's simulated machine",
}
PREFIXES = {
    "LD_": "the guardian, which stops the workers of a killed agent; it inherits only the dynamic loader's variables",
    "DYLD_": "the same",
}


def page(note: str) -> str:
    """Return the page. `note` is a comment that marks it as generated."""
    parts = [
        "# Environment variables\n",
        note,
        "This page lists the variables that agents read and set. [Worker environment](worker-environment.md) lists the",
        "variables that every worker receives.",
        "\n## Settings\n",
        "[Settings](settings.md) describes each setting and the order of precedence. Empty variables are treated as",
        "unset. An option that a plugin adds is read from the variable `ELASTIC_` plus the option's name. A variable",
        "that begins with `ELASTIC_` is ignored with a warning if its name almost matches a setting, or if it contains",
        "the address of a Kubernetes service. Other unknown variables are ignored silently.\n",
        *_table(("flag", "variables"), _settings()),
        "Variables for which torchrun has no flag:\n",
        *_table(("variable", "meaning"), TORCHRUN.items()),
        "## Scheduler\n",
        "[Slurm](../guides/slurm.md) and [Kubernetes](../guides/kubernetes.md) describe when these variables apply.\n",
        *_table(("flag", "taken from"), ((SPECS[name].flag, _listed(names)) for name, names in READ.items())),
        *_table(("also read", "for"), SCHEDULER.items()),
        "## Agent\n",
        *_table(("variable", "meaning"), AGENT.items()),
        "## Plugins\n",
        *_table(("variable", "plugin", "meaning"), ((name, *row) for name, row in PLUGINS.items())),
        "## Set and passed on\n",
        "Workers inherit the agent's variables. With a health endpoint, they do not inherit `ELASTIC_HEALTH`,",
        "`ELASTIC_HEALTH_CONF`, `ELASTIC_HEALTH_PORT` and `TORCHELASTIC_HEALTH_CHECK_PORT`, because only one process",
        "can use the port and no worker needs the token.\n",
        *_table(("variable", "value"), SET.items()),
        *_table(("variables that begin with", "for"), PREFIXES.items()),
        "## Read in a worker\n",
        "These variables are read by modules that a training script imports:\n",
        *_table(("variable", "read by"), WORKER_READS.items()),
        "## Set in a campaign\n",
        "[`elastic_testing.campaign`](../project/campaign.md) sets these variables for agents and workers:\n",
        *_table(("variable", "value"), CAMPAIGN.items()),
    ]
    return "\n".join(parts)


def _settings() -> Iterable[tuple[str, str]]:
    return ((spec.flag, _listed(spec.variables())) for spec in SPECS.values())


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return a table with the first cell of each row in backticks."""
    lines = [f"| {' | '.join((f'`{first}`', *others))} |" for first, *others in rows]
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines, ""]
