"""The table of all settings: their types, defaults, parsers, units, help texts and names.

Settings that torchrun also has keep their torchrun names. A setting's entry here determines its flag, variables, config
file key, help text, and line in the output of `elastic explain`.
"""

# ruff: noqa: RUF009 - `setting` returns a dataclasses.field

from __future__ import annotations

import signal
from collections.abc import Mapping  # noqa: TC003 - dataclass annotations should resolve at run time
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003
from typing import Any

from elastic_core import compat
from elastic_core.config.spec import Spec, setting, specs_of
from elastic_core.parsing import (
    NodeRange,
    Parser,
    StreamMap,
    choice,
    integer,
    parse_boolean,
    parse_filled_text,
    parse_log_level,
    parse_name_or_none,
    parse_names,
    parse_node_range,
    parse_options,
    parse_path,
    parse_process_count,
    parse_ranks,
    parse_signals,
    parse_stream_map,
    parse_text,
    parse_texts,
    printable,
    seconds,
    seconds_or_none,
    some_of,
)

_port = integer(0, 65535)
_count = integer(0, 2**31 - 1)
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
        return text  # the setting's parser reports it


@dataclass(frozen=True)
class Settings:
    """The settings of one `elastic run`. `read` fills in the backend and the run id; see the module `resolve`."""

    nnodes: NodeRange = setting(
        NodeRange(1, 1), parse_node_range, "nodes", "number of nodes; a range makes the job elastic", "N|MIN:MAX"
    )
    nproc_per_node: int | str = setting(
        1,
        parse_process_count,
        "nodes",
        "workers on this node: a number, or a kind of device for one worker per device: cpu, gpu, xpu, ..., or auto"
        " (accelerators, or CPUs if there are none)",
        "N|WHAT",
    )
    node_rank: int | None = setting(
        None, _count, "nodes", "rank of this node (static backend: 0 by default); a hint for other backends", "N"
    )
    node_id: str | None = setting(
        None,
        printable(parse_filled_text),
        "nodes",
        "unique name of this node in the job, for status and drain; by default <hostname>:<pid>.<random>",
        "NAME",
        torchrun=False,
    )
    master_addr: str | None = setting(
        None,
        parse_filled_text,
        "nodes",
        "with the static backend, address of rank 0's machine, for the agents' rendezvous and as MASTER_ADDR of this"
        " node's workers (127.0.0.1 if unset); with local, address of the workers' store (--local-addr or 127.0.0.1 if"
        " unset)",
        "HOST",
    )
    master_port: int | None = setting(
        None,
        _port,
        "nodes",
        "with the static backend, port of the agents' rendezvous (29500 if unset; the workers' store gets a new port in"
        " each round); with local, port of the workers' store (a free port if unset)",
        "PORT",
    )
    local_addr: str | None = setting(
        None,
        printable(parse_filled_text),
        "nodes",
        "address at which other nodes can reach this node; not verified",
        "HOST",
    )
    standalone: bool = setting(
        False,
        parse_boolean,
        "rendezvous",
        "run a single-node job; overrides the flags for backend, endpoint, id and master",
    )
    rdzv_backend: str = setting(
        "",
        parse_text,
        "rendezvous",
        "rendezvous backend; by default local for one node without an endpoint, static for a fixed number of nodes with"
        " --master-addr and no endpoint, and c10d otherwise",
        "NAME",
        aliases=("backend",),
    )
    rdzv_endpoint: str = setting(
        "",
        parse_text,
        "rendezvous",
        "address of the rendezvous; c10d and etcd accept a list",
        "HOST[:PORT]",
        aliases=("endpoint",),
    )
    rdzv_id: str | None = setting(
        None,
        parse_filled_text,
        "rendezvous",
        "id of the job, which must be the same on every node; generated for a single node",
        "ID",
        aliases=("run_id",),
    )
    rdzv_conf: Mapping[str, str] = setting(
        {}, parse_options, "rendezvous", "options for the backend; may be repeated", "K=V,..", adds_up=True
    )
    rdzv_secret_file: str | None = setting(
        None,
        parse_filled_text,
        "rendezvous",
        "file with the signing secret that all nodes share; a second line adds another secret to accept (for rotation)",
        "FILE",
        torchrun=False,
    )
    max_restarts: int = setting(
        0, _count, "workers", "maximum number of restarts after failures; membership changes do not count", "N"
    )
    role: str = setting("default", printable(parse_text), "workers", "the workers' role name", "NAME")
    module: bool = setting(
        False, parse_boolean, "workers", "treat the script as the name of a module, like python -m", short="-m"
    )
    no_python: bool = setting(False, parse_boolean, "workers", "run the script as an executable, without Python")
    run_path: bool = setting(
        False, parse_boolean, "workers", "run the script with runpy.run_path; overrides -m and --no-python"
    )
    start_method: str = setting(
        "spawn",
        choice("spawn", "fork", "forkserver"),
        "workers",
        "start method for workers that run a Python function",
        "spawn|fork|forkserver",
    )
    monitor_interval: float = _duration(
        0.1, "workers", "delay before the first poll of a rendezvous handler that must be polled for new nodes"
    )
    numa_binding: str | None = setting(
        None,
        choice("node", "socket", "exclusive", "core-complex"),
        "workers",
        "bind each worker to the cores near its device; workers that cannot be bound are logged",
        "node|socket|exclusive|core-complex",
    )
    warm_start: bool = setting(
        False,
        parse_boolean,
        "workers",
        "fork workers from a process that has already imported their modules; same as --worker-starter=warm",
        torchrun=False,
    )
    warm_start_cache: Path | None = setting(
        None,
        parse_path,
        "workers",
        "folder for the list of modules to import, so that the first start of the next run is also warm",
        "DIR",
        torchrun=False,
    )
    warm_start_exclude: tuple[str, ...] = setting(
        (),
        parse_texts,
        "workers",
        "modules and packages that are not imported in advance, so that each worker imports them itself",
        "MODULES",
        torchrun=False,
    )
    virtual_local_rank: bool = setting(
        False, parse_boolean, "workers", "give every worker LOCAL_RANK=0 and only its own device"
    )
    log_dir: Path | None = setting(None, parse_path, "output", "folder for the workers' log files", "DIR")
    redirects: StreamMap = setting(
        StreamMap(),
        parse_stream_map,
        "output",
        "streams to redirect to files: 0 none, 1 stdout, 2 stderr, 3 both; may differ by local rank",
        "0..3|R:0..3,..",
        short="-r",
    )
    tee: StreamMap = setting(
        StreamMap(),
        parse_stream_map,
        "output",
        "streams to write to both files and the console; same syntax as --redirects",
        "0..3|R:0..3,..",
        short="-t",
    )
    local_ranks_filter: frozenset[int] = setting(
        frozenset[int](), parse_ranks, "output", "local ranks that write to the console; all if empty", "R,R,.."
    )
    duplicate_stdout_filters: tuple[str, ...] = setting(
        (),
        parse_texts,
        "output",
        "copy stdout lines that contain one of these strings to a file; write `,,` for a comma",
        "TEXT,..",
    )
    duplicate_stderr_filters: tuple[str, ...] = setting(
        (), parse_texts, "output", "copy stderr lines that contain one of these strings to a file", "TEXT,.."
    )
    log_line_prefix_template: str | None = setting(
        None,
        parse_text,
        "output",
        "prefix of a worker's lines on the console and in filtered files; an empty value disables it; by default "
        "`[${role_name}${local_rank}]:` with --tee and in those files, otherwise `[rank${rank}] ` if several workers "
        "write to a terminal",
        "TEXT",
        torchrun=False,
        also_reads={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": str},
    )
    result_file: Path | None = setting(
        None, parse_path, "output", "write the job's outcome to this file as JSON", "PATH", torchrun=False
    )
    log_format: str = setting(
        "human",
        choice("human", "json"),
        "output",
        "format of the agent's log on stderr",
        "human|json",
        torchrun=False,
    )
    log_level: str = setting(
        "info",
        parse_log_level,
        "output",
        "minimum level of the agent's log messages",
        "LEVEL",
        torchrun=False,
        fallbacks=("LOGLEVEL",),
    )
    signals_to_handle: tuple[signal.Signals, ...] = setting(
        _SIGNALS, parse_signals, "stopping", "signals that make the agent stop its workers and exit", "SIGNAL,.."
    )
    shutdown_timeout: float = _duration(
        30.0,
        "stopping",
        "time between SIGTERM and SIGKILL when workers are stopped",
        also_reads={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str},
    )
    stop_at_multiple: int = setting(
        1,
        integer(least=1),
        "stopping",
        "workers that call should_stop stop at a step that is a multiple of this number",
        "N",
        torchrun=False,
    )
    exit_barrier_timeout: float = _duration(
        300.0,
        "stopping",
        "how long a node whose workers have succeeded waits for the other nodes; 0 disables the wait",
        torchrun=False,
    )
    kill_timeout: float = _duration(
        10.0,
        "stopping",
        "how long to wait for a process to exit after SIGKILL before it is reported and abandoned",
        seconds(above=0),
        torchrun=False,
        also_reads={"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": _if_positive},
    )
    hang_timeout: float = _duration(
        0.0,
        "watching",
        "time without progress after which a worker is considered hung and is killed; 0 or none to disable",
        seconds_or_none,
        "S|none",
        torchrun=False,
    )
    hang_warmup: float = _duration(
        60.0,
        "watching",
        "delay before hang detection starts, to allow for imports, data loading and the first step",
        torchrun=False,
    )
    hang_progress: tuple[str, ...] = setting(
        ("log", "cpu", "beat"),
        some_of("log", "cpu", "beat"),
        "watching",
        "signs of progress: output (log), CPU time (cpu; ignored once a worker regularly writes output or calls beat),"
        " and calls to elastic_core.watchdog.beat() (beat)",
        "log,cpu,beat",
        torchrun=False,
    )
    watchdog: str | None = setting(
        None,
        parse_name_or_none,
        "plugins",
        "watchdog that detects hung workers; none to disable",
        "NAME",
        torchrun=False,
        also_reads={"TORCHELASTIC_ENABLE_FILE_TIMER": lambda text: "file" if text == "1" else ""},
    )
    watchdog_conf: Mapping[str, str] = setting(
        {}, parse_options, "plugins", "options for the watchdog", "K=V,..", adds_up=True, torchrun=False
    )
    health: str | None = setting(
        None,
        parse_name_or_none,
        "plugins",
        "health endpoint of this agent; none to disable; defaults to http if --health-port is set",
        "NAME",
        torchrun=False,
        also_reads={"TORCHELASTIC_HEALTH_CHECK_PORT": lambda _: compat.HEALTH_ENDPOINT},
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
        {}, parse_options, "plugins", "options for the health endpoint", "K=V,..", adds_up=True, torchrun=False
    )
    event_log_handler: str = setting(
        "null",
        parse_filled_text,
        "plugins",
        "destination of events: null, console, file:PATH, or the name of a registered handler",
        "NAME",
    )
    worker_starter: str | None = setting(
        None,
        parse_filled_text,
        "plugins",
        "way to start workers; by default subprocess for scripts and commands, and --start-method for functions",
        "NAME",
        torchrun=False,
    )
    worker_starter_conf: Mapping[str, str] = setting(
        {}, parse_options, "plugins", "options for the worker starter", "K=V,..", adds_up=True, torchrun=False
    )
    rank_policy: str = setting(
        "keep",
        parse_filled_text,
        "plugins",
        "rank order of the nodes: keep, host, or a plugin's policy; must be the same on every node",
        "NAME",
        torchrun=False,
    )
    rank_policy_conf: Mapping[str, str] = setting(
        {}, parse_options, "plugins", "options for the rank policy", "K=V,..", adds_up=True, torchrun=False
    )
    plugins: tuple[str, ...] | None = setting(
        None,
        parse_names,
        "plugins",
        "load only the built-in plugins and those of these distributions",
        "NAME,..",
        torchrun=False,
    )
    logs_specs: str | None = setting(
        None, parse_filled_text, "plugins", "name of an entry point in the group torchrun.logs_specs", "NAME"
    )
    config: Path | None = setting(
        None,
        parse_path,
        "configuration",
        "config file; by default the nearest elastic.toml or pyproject.toml with [tool.elastic], in the current"
        " directory or a parent",
        "FILE",
        torchrun=False,
    )


SPECS: dict[str, Spec] = specs_of(Settings)
"""Every setting's spec, by name, in the order of `Settings`."""
