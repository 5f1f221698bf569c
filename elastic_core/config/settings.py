"""Every setting, declared once: its type, default, parser, unit, help and names.

Field names are torchrun's where torchrun has the setting. The file is long because it is a table: a new setting is one
entry here, from which flag, variable, file key, help and the output of `elastic explain` are made.
"""

# ruff: noqa: RUF009 - `setting` is dataclasses.field with words; it makes a field, not a default

from __future__ import annotations

import signal
from collections.abc import Mapping  # noqa: TC003 - dataclass annotations should resolve at run time
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003
from typing import Any

from elastic_core.compat import choices
from elastic_core.config.spec import Spec, setting, specs_of
from elastic_core.config.values import (
    NodeRange,
    StreamMap,
    parse_names,
    parse_node_range,
    parse_options,
    parse_ranks,
    parse_signals,
    parse_stream_map,
    parse_texts,
    some_of,
)
from elastic_core.parsing import (
    Parser,
    choice,
    integer,
    parse_boolean,
    parse_filled_text,
    parse_log_level,
    parse_name_or_none,
    parse_path,
    parse_process_count,
    parse_text,
    seconds,
    seconds_or_none,
)

_port = integer(0, 65535)
_count = integer(0)
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def _duration(
    default: float,
    group: str,
    help: str,  # noqa: A002
    parse: Parser[float] = seconds(),  # noqa: B008
    metavar: str = "S",
    **more: Any,
) -> float:
    return setting(default, parse, group, help, metavar, unit="seconds", **more)


def _if_positive(text: str) -> str:
    try:
        return text if float(text) > 0 else ""
    except ValueError:
        return text  # the parser of the setting reports it


@dataclass(frozen=True)
class Settings:
    """The settings of one `elastic run`. After `read`, backend and run id are filled in; see `resolve`."""

    nnodes: NodeRange = setting(
        NodeRange(1, 1), parse_node_range, "nodes", "nodes of the job; a range makes the job elastic", "N|MIN:MAX"
    )
    nproc_per_node: int | str = setting(
        1,
        parse_process_count,
        "nodes",
        "workers on this node: a number, or auto, cpu, gpu, xpu or another accelerator's name to count those",
        "N|WHAT",
    )
    node_rank: int | None = setting(
        None, _count, "nodes", "rank of this node: binding with the static backend, otherwise a hint", "N"
    )
    node_id: str | None = setting(
        None,
        parse_filled_text,
        "nodes",
        "name of this node, unique in the job, for status and drain; unset: <hostname>:<pid>.<random>",
        "NAME",
        torchrun=False,
    )
    master_addr: str | None = setting(
        None,
        parse_filled_text,
        "nodes",
        "with the backend static, rank 0's machine as this node reaches it: agents meet there, and this node's workers"
        " get it as MASTER_ADDR; with local, address of the workers' store; unset: 127.0.0.1, or with local the value"
        " of --local-addr",
        "HOST",
    )
    master_port: int | None = setting(
        None,
        _port,
        "nodes",
        "with the backend static, port at which the agents meet (the workers' store has a new one in each round);"
        " with local, port of the workers' store; unset: 29500 with static, a free port with local",
        "PORT",
    )
    local_addr: str | None = setting(
        None, parse_filled_text, "nodes", "address at which other nodes reach this one, used as it is written", "HOST"
    )
    standalone: bool = setting(
        False, parse_boolean, "rendezvous", "a job of this node alone: overrides backend, endpoint, id and master"
    )
    rdzv_backend: str = setting(
        "",
        parse_text,
        "rendezvous",
        "how the nodes find each other; unset: local for one node without an endpoint, static for a fixed number"
        " of nodes with --master-addr and no endpoint, otherwise c10d",
        "NAME",
        aliases=("backend",),
    )
    rdzv_endpoint: str = setting(
        "",
        parse_text,
        "rendezvous",
        "where the nodes meet; c10d and etcd take several",
        "HOST[:PORT]",
        aliases=("endpoint",),
    )
    rdzv_id: str | None = setting(
        None,
        parse_filled_text,
        "rendezvous",
        "name of the job, the same on every node; generated for a single node",
        "ID",
        aliases=("run_id",),
    )
    rdzv_conf: Mapping[str, str] = setting(
        {}, parse_options, "rendezvous", "options of the backend; repeated flags add up", "K=V,..", adds_up=True
    )
    rdzv_secret_file: str | None = setting(
        None,
        parse_filled_text,
        "rendezvous",
        "file of a secret, the same on every node, that signs what they write; a second line holds one that is accepted"
        " as well",
        "FILE",
        torchrun=False,
    )
    max_restarts: int = setting(
        0, _count, "workers", "restarts of the workers after a failure; changes of membership do not count", "N"
    )
    role: str = setting("default", parse_text, "workers", "name of the workers' role", "NAME")
    module: bool = setting(
        False, parse_boolean, "workers", "the script is the name of a module, as in python -m", short="-m"
    )
    no_python: bool = setting(False, parse_boolean, "workers", "the script is a command that needs no interpreter")
    run_path: bool = setting(
        False, parse_boolean, "workers", "run the script with runpy.run_path; overrides -m and --no-python"
    )
    start_method: str = setting(
        "spawn",
        choice("spawn", "fork", "forkserver"),
        "workers",
        "how processes start when the workers are Python functions",
        "spawn|fork|forkserver",
    )
    monitor_interval: float = _duration(
        0.1, "workers", "for handlers that do not report newcomers by themselves: time until the agent first asks"
    )
    numa_binding: str | None = setting(
        None,
        choice("node", "socket", "exclusive", "core-complex"),
        "workers",
        "bind workers to the cores near their device; a warning says where that is impossible",
        "node|socket|exclusive|core-complex",
    )
    warm_start: bool = setting(
        False,
        parse_boolean,
        "workers",
        "start workers from a process that has imported what they import; the same as --worker-starter=warm",
        torchrun=False,
    )
    warm_start_cache: Path | None = setting(
        None,
        parse_path,
        "workers",
        "folder where what the workers import is kept, so that the first start of the next run is warm",
        "DIR",
        torchrun=False,
    )
    warm_start_exclude: tuple[str, ...] = setting(
        (), parse_texts, "workers", "modules and packages that only workers import", "MODULES", torchrun=False
    )
    virtual_local_rank: bool = setting(
        False, parse_boolean, "workers", "every worker sees LOCAL_RANK=0 and only its own device"
    )
    log_dir: Path | None = setting(None, parse_path, "output", "folder for the workers' log files", "DIR")
    redirects: StreamMap = setting(
        StreamMap(),
        parse_stream_map,
        "output",
        "streams that go to files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank",
        "0..3|R:0..3,..",
        short="-r",
    )
    tee: StreamMap = setting(
        StreamMap(),
        parse_stream_map,
        "output",
        "streams that go to files and to the console, written as for --redirects",
        "0..3|R:0..3,..",
        short="-t",
    )
    local_ranks_filter: frozenset[int] = setting(
        frozenset[int](), parse_ranks, "output", "only these local ranks write to the console; empty: all", "R,R,.."
    )
    duplicate_stdout_filters: tuple[str, ...] = setting(
        (), parse_texts, "output", "copy lines of stdout with one of these texts to a file; `,,` is a comma", "TEXT,.."
    )
    duplicate_stderr_filters: tuple[str, ...] = setting(
        (), parse_texts, "output", "the same for stderr; `,,` is a comma", "TEXT,.."
    )
    log_line_prefix_template: str | None = setting(
        None,
        parse_text,
        "output",
        "prefix of a worker's lines on the console; unset: `[${role_name}${local_rank}]:` with --tee, else "
        "`[rank${rank}] ` if several workers write to a terminal; empty: none",
        "TEXT",
        torchrun=False,
        also_reads={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": str},
    )
    result_file: Path | None = setting(
        None, parse_path, "output", "file for the outcome of the job, as JSON", "PATH", torchrun=False
    )
    log_format: str = setting(
        "human",
        choice("human", "json"),
        "output",
        "format of the agent's own messages on stderr",
        "human|json",
        torchrun=False,
    )
    log_level: str = setting(
        "info",
        parse_log_level,
        "output",
        "lowest level of the agent's messages",
        "LEVEL",
        torchrun=False,
        fallbacks=("LOGLEVEL",),
    )
    signals_to_handle: tuple[signal.Signals, ...] = setting(
        _SIGNALS, parse_signals, "stopping", "signals on which the agent stops the workers", "SIGNAL,.."
    )
    shutdown_timeout: float = _duration(
        30.0,
        "stopping",
        "time between SIGTERM and SIGKILL, however the workers are stopped",
        also_reads={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str},
    )
    exit_barrier_timeout: float = _duration(
        300.0,
        "stopping",
        "how long a node whose workers have succeeded waits for the other nodes; 0: not at all",
        torchrun=False,
    )
    kill_timeout: float = _duration(
        10.0,
        "stopping",
        "time after SIGKILL until a process that is still alive is reported and left behind",
        seconds(above=0),
        torchrun=False,
        also_reads={"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": _if_positive},
    )
    hang_timeout: float = _duration(
        0.0,
        "watching",
        "time without progress after which a worker counts as hung and is killed; 0 or none: off",
        seconds_or_none,
        "S|none",
        torchrun=False,
    )
    hang_warmup: float = _duration(
        60.0,
        "watching",
        "time after the start of the workers that counts as progress, for imports, data and the first step",
        torchrun=False,
    )
    hang_progress: tuple[str, ...] = setting(
        ("log", "cpu", "beat"),
        some_of("log", "cpu", "beat"),
        "watching",
        "what counts as progress: output, CPU time (until a worker writes or beats regularly), "
        "elastic_core.watchdog.beat()",
        "log,cpu,beat",
        torchrun=False,
    )
    watchdog: str | None = setting(
        None,
        parse_name_or_none,
        "plugins",
        "watchdog that finds hung workers; none: off",
        "NAME",
        torchrun=False,
        also_reads={"TORCHELASTIC_ENABLE_FILE_TIMER": lambda text: "file" if text == "1" else ""},
    )
    watchdog_conf: Mapping[str, str] = setting(
        {}, parse_options, "plugins", "options of the watchdog", "K=V,..", adds_up=True, torchrun=False
    )
    health: str | None = setting(
        None,
        parse_name_or_none,
        "plugins",
        "health endpoint of this agent; none: off; with --health-port alone: http",
        "NAME",
        torchrun=False,
        also_reads={"TORCHELASTIC_HEALTH_CHECK_PORT": lambda _: choices.HEALTH_ENDPOINT},
    )
    health_port: int | None = setting(
        None,
        _port,
        "plugins",
        "port of the health endpoint",
        "PORT",
        torchrun=False,
        also_reads={"TORCHELASTIC_HEALTH_CHECK_PORT": str},
    )
    health_conf: Mapping[str, str] = setting(
        {}, parse_options, "plugins", "options of the health endpoint", "K=V,..", adds_up=True, torchrun=False
    )
    event_log_handler: str = setting(
        "null",
        parse_filled_text,
        "plugins",
        "where events are recorded: null, console, file:PATH, or the name of a registered handler",
        "NAME",
    )
    worker_starter: str | None = setting(
        None,
        parse_filled_text,
        "plugins",
        "how workers are started; unset: subprocess for scripts and commands, the start method for functions",
        "NAME",
        torchrun=False,
    )
    worker_starter_conf: Mapping[str, str] = setting(
        {}, parse_options, "plugins", "options of the worker starter", "K=V,..", adds_up=True, torchrun=False
    )
    rank_policy: str = setting(
        "keep",
        parse_filled_text,
        "plugins",
        "order of the nodes: keep, host or a plugin's; the same on every node",
        "NAME",
        torchrun=False,
    )
    rank_policy_conf: Mapping[str, str] = setting(
        {}, parse_options, "plugins", "options of the rank policy", "K=V,..", adds_up=True, torchrun=False
    )
    plugins: tuple[str, ...] | None = setting(
        None,
        parse_names,
        "plugins",
        "distributions whose plugins may be loaded, beside the core's; unset: all that are installed",
        "NAME,..",
        torchrun=False,
    )
    logs_specs: str | None = setting(
        None, parse_filled_text, "plugins", "entry point in group torchrun.logs_specs", "NAME"
    )
    config: Path | None = setting(
        None,
        parse_path,
        "configuration",
        "config file; unset: the nearest elastic.toml, or pyproject.toml with [tool.elastic], in this folder or above",
        "FILE",
        torchrun=False,
    )


SPECS: dict[str, Spec] = specs_of(Settings)
"""Every setting's spec, by name, in the order of `Settings`."""
