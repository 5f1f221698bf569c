"""Defines the records that registration hooks return, and the `Context` that factories and the hooks of a running job
receive. A record has a name for users, a summary, typed options and a factory. Each kind of record has its own hook and
usually a flag that selects a record."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from elastic_core import compat
from elastic_core.clock import MISTAKES, Duration
from elastic_core.errors import InvalidPlugin
from elastic_core.hooks.discovery import CORE
from elastic_core.log import Logger, get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from elastic_core.config import Settings
    from elastic_core.errors import Problem
    from elastic_core.interfaces.backend import RendezvousBackend, Store, StoreServer
    from elastic_core.interfaces.handler import RendezvousHandler, RendezvousParameters
    from elastic_core.interfaces.health import AgentView, CheckMoment, CheckResult, HealthCheckServer
    from elastic_core.interfaces.node import Notices, Pause, RankPolicy
    from elastic_core.interfaces.workers import Starter, Watchdog, Work


@dataclass(frozen=True)
class Context:
    """The information about a run that a plugin receives.

    Args:
        run_id: the job's id.
        options: the values of the options that this plugin added. A factory also receives the values of its record's
            options.
        settings: the run's settings by name, without the options of backends and other plugins; read-only.
        log: a logger that writes to the agent's log and adds the plugin's name to every line.
        plan: the run's `Plan`, whose methods may change in any minor release (see `elastic_core.diagnostics`). Only
            health checks and commands with `options` receive it; it is None everywhere else.
    """

    run_id: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may contain secrets
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    log: Logger = field(default_factory=get_logger, repr=False)
    plan: object = field(default=None, repr=False)


OptionType = type[str] | type[int] | type[float] | type[bool]


@dataclass(frozen=True)
class Option:
    """A plugin's option. Users set it as `name=value` in `--rdzv-conf` and similar flags, or as a config table key.

    The core validates each value before it calls the factory, so a plugin receives only valid values.

    Args:
        default: the value if the user does not set the option; None means "unset".
        unit: the unit to display ("seconds", "bytes"); empty if there is none.
        secret: whether `elastic explain` and error messages hide the value.
        least, most: inclusive bounds for a number.
        above: an exclusive lower bound for a number.
        check: receives a typed value that a user has set, and raises ValueError with a message if the value is invalid.
            The core may call it several times, and reports the message before anything starts. If the option is secret,
            the message does not show the value. A bool option cannot have a check.
    """

    name: str
    type: OptionType
    default: str | int | float | bool | None
    help: str
    unit: str = ""
    secret: bool = False
    least: float | None = None
    above: float | None = None
    most: float | None = None
    check: Callable[[Any], object] | None = None


JOIN: Duration = 600.0
LAST_CALL: Duration = 5.0
CLOSE: Duration = 60.0
HEARTBEAT: Duration = 2.0
CONNECT: Duration = 60.0
KEEP_ALIVE_INTERVAL: Duration = 1.0
KEEP_ALIVE_MAX_ATTEMPT = 5

BACKEND_OPTIONS: tuple[Option, ...] = (
    Option(
        "join_timeout", float, JOIN, "time limit for a round to form while no other round is active", "seconds", above=0
    ),
    Option(
        "last_call_timeout",
        float,
        LAST_CALL,
        "how long to wait for more nodes after MIN nodes have joined",
        "seconds",
        least=0,
    ),
    Option("close_timeout", float, CLOSE, "how long members of the previous round have to rejoin", "seconds", above=0),
    Option(
        "heartbeat_timeout", float, HEARTBEAT, "time until a silent store is logged as an outage", "seconds", above=0
    ),
    Option("connect_timeout", float, CONNECT, "time limit for the store's first response", "seconds", above=0),
    Option("keep_alive_interval", float, KEEP_ALIVE_INTERVAL, "time between a node's heartbeats", "seconds", above=0),
    Option(
        "keep_alive_max_attempt",
        int,
        KEEP_ALIVE_MAX_ATTEMPT,
        "missed heartbeats after which a node is considered lost",
        least=2,
    ),
    Option("secret_file", str, None, "file with the shared signing secret; same as --rdzv-secret-file"),
)
"""The options that all backends with dynamic rounds share."""


@dataclass(frozen=True)
class Record:
    """A component that a plugin provides and users select by name.

    Args:
        summary: one line for `elastic plugins`.
        factory: creates the component. It receives a `Context`, whose `options` contains typed values or defaults for
            the record's options and for those that the plugin added. Some record types pass further arguments.
        options: the accepted options. With None, any option is accepted, and its value is a string.
        aliases: alternative names.

    The class variables describe a type of record: its `hook`, the `noun` for messages, the `flag` that selects a record
    by its name, the methods that the factory's result must have (`made`), the distributions that provide known names
    (`homes`), and the `errors` of a record's functions that are replaced with one that names the plugin.
    """

    hook: ClassVar[str]
    noun: ClassVar[str]
    flag: ClassVar[str]
    made: ClassVar[tuple[str, ...]] = ()
    homes: ClassVar[Mapping[str, str]] = {}
    errors: ClassVar[tuple[type[BaseException], ...]] = (Exception, SystemExit)

    name: str
    summary: str
    factory: Callable[..., Any]
    options: tuple[Option, ...] | None = ()
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class RendezvousBackendRecord(Record):
    """A way for nodes to find each other. Users select it with `--rdzv-backend`.

    Args:
        factory: also receives the `RendezvousParameters`, whose config includes the record's options.
        open_backend: creates only the backend, for `elastic status` and `elastic drain`. The backend connects to an
            existing store, but never hosts the store or joins the job. `open_backend` receives the factory's arguments.
            In the parameters, the node counts are placeholders, and `node` is None. The option `join_timeout`, if
            declared, limits the seconds that connecting may take. If `open_backend` is None, these commands do not
            support this backend.
        serve: creates a store server for `elastic serve`. It also receives the endpoint (`host:port`; `0.0.0.0` means
            all addresses) and the number of nodes to support. If `serve` is None, `elastic serve` does not support this
            backend.
        forkable: whether the agent's process may be forked while the handler exists, as the start method `fork` does to
            run functions. Set it to False if the client has threads or connections that do not survive a fork.
        defaults: returns values for settings that the user has not set, such as the endpoint. The result maps fields of
            `Settings` to pairs of a value and the reason that `elastic explain` shows.
        problems: returns the problems in the settings that would prevent a job from starting with this backend. The
            core reports them together with all other configuration problems before anything starts.
        hosts_of: for `elastic doctor`, returns the (host, port) pairs in `settings.rdzv_endpoint`, or no pairs if, for
            example, the endpoint is a file. Raises ConfigurationError if the endpoint is invalid. If `hosts_of` is
            None, an endpoint in the form `HOST[:PORT],...` is checked, and any other one is accepted.
        hosted: whether a node of the job hosts the store, so that nothing listens at the endpoint before the job
            starts.
    """

    hook = "elastic_rendezvous_backends"
    noun, flag = "rendezvous backend", "--rdzv-backend"
    made = ("next_rendezvous",)
    homes = compat.BACKEND_HOMES

    factory: Callable[[Context, RendezvousParameters], RendezvousHandler]
    open_backend: Callable[[Context, RendezvousParameters], RendezvousBackend] | None = None
    serve: Callable[[Context, str, int], StoreServer] | None = None
    forkable: bool = True
    defaults: Callable[[Settings], Mapping[str, tuple[Any, str]]] | None = None
    problems: Callable[[Settings], Iterable[Problem]] | None = None
    hosts_of: Callable[[Settings], Sequence[tuple[str, int]]] | None = None
    hosted: bool = False


@dataclass(frozen=True)
class StoreRecord(Record):
    """A key-value store. The core provides a rendezvous backend of the same name, unless the plugin provides one.

    Args:
        factory: called for every connection, from several threads. Each connection is used by only one thread at a
            time. If the connection has a `close` method, the core calls it when the connection is no longer needed.
        shared: whether other processes can reach the same store. If not, the core does not provide a backend.
        defaults, problems, hosts_of: as in `RendezvousBackendRecord`, for the backend that the core provides.
    """

    hook = "elastic_stores"
    noun = flag = "store"
    made = ("compare_set",)
    homes = compat.STORE_HOMES
    errors = (ImportError, *MISTAKES)  # the core treats all other errors from a store as an outage, and retries

    factory: Callable[[Context], Store]
    shared: bool = True
    defaults: Callable[[Settings], Mapping[str, tuple[Any, str]]] | None = None
    problems: Callable[[Settings], Iterable[Problem]] | None = None
    hosts_of: Callable[[Settings], Sequence[tuple[str, int]]] | None = None


@dataclass(frozen=True)
class WatchdogRecord(Record):
    """A way to detect hung workers. Users select it with `--watchdog`."""

    hook = "elastic_watchdogs"
    noun, flag = "watchdog", "--watchdog"
    made = ("start", "stop", "worker_environment", "fault", "scratch")
    homes = compat.WATCHDOG_HOMES

    factory: Callable[[Context], Watchdog]


@dataclass(frozen=True)
class HealthEndpointRecord(Record):
    """A health endpoint. Users select it with `--health`. `factory` also receives an `AgentView`, the port, and a
    timeout in seconds. If the agent's event loop is inactive for longer than the timeout, the agent is considered
    stuck."""

    hook = "elastic_health_endpoints"
    noun, flag = "health endpoint", "--health"
    made = ("start", "stop")
    homes = compat.HEALTH_HOMES

    factory: Callable[[Context, AgentView, int, float], HealthCheckServer]


@dataclass(frozen=True)
class WorkerStarterRecord(Record):
    """A way to start workers. Users select it with `--worker-starter`.

    Args:
        factory: also receives the `Work` that the workers run. It is called once per agent, and raises
            ConfigurationError if this starter does not support such work.
        forks: whether the starter forks the agent's process, which some store clients do not survive.
        explain: receives the factory's arguments, and returns a mapping of names to JSON values for `elastic explain`
            to show. If there is nothing to show, it returns None or an empty mapping.
    """

    hook = "elastic_worker_starters"
    noun, flag = "worker starter", "--worker-starter"
    made = ("start",)
    homes = compat.STARTER_HOMES

    factory: Callable[[Context, Work], Starter]
    forks: bool = False
    explain: Callable[[Context, Work], Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class RankPolicyRecord(Record):
    """A policy that orders the nodes. Users select it with `--rank-policy`. `factory` returns a `RankPolicy`."""

    hook = "elastic_rank_policies"
    noun, flag = "rank policy", "--rank-policy"
    made = ("__call__",)

    factory: Callable[[Context], RankPolicy]


@dataclass(frozen=True)
class CommandRecord(Record):
    """A command, which users run as `elastic NAME`. The summary is the command's line in `elastic --help`.

    Args:
        factory: runs the command. It also receives the positional arguments, and returns the exit code; None means 0.
        options: the command's flags. If None, the command receives all of its arguments and parses them itself.
            `context.options` also contains the options that the plugin adds to `elastic run`.
            Without `options`, the context contains only the defaults of these.
        settings: the settings of `elastic run` that the command also accepts, with their flags, variables and config
            file keys. A mapping also has a help text for each; an empty text means that of `elastic run`.
            `context.settings` contains their values, resolved as in a run. If `settings` is None, the command reads no
            variables and no config file, so it works even if they are invalid. Only for commands with `options`.
        operands: the names of the required positional arguments, in order.
        like_run: whether the command accepts all flags of `elastic run` and a script, instead of `settings` and
            `operands`. The script may be omitted. `factory` receives its words, and `context.plan` is the run's plan.
            Its `error` contains the problems with the script and the selected records, such as an unknown backend. All
            other problems that `elastic run` would report end the command before `factory` is called. If a single-node
            job has no id, its id is the command's name.
        about: the text between the usage and the flags in the command's help; by default the summary.
        example: a complete command line for the help.
        codes: exit codes with a special meaning for this command, for the help.
        required: those of `settings` that must not be empty, each with the error message to show if it is.
    """

    hook = "elastic_commands"
    noun = flag = "command"
    homes = compat.COMMAND_HOMES
    errors = (Exception,)  # argparse exits

    factory: Callable[[Context, Sequence[str]], int | None]
    settings: Collection[str] | Mapping[str, str] | None = ()
    operands: tuple[str, ...] = ()
    like_run: bool = False
    about: str = ""
    example: str = ""
    codes: Mapping[int, str] = field(default_factory=dict)
    required: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HealthCheckRecord(Record):
    """A check of this machine. All installed checks run; users do not select them. The record must not have options.

    Args:
        factory: runs the check, and returns its result, or yields several results or none. The context contains the
            options that the plugin adds, and the run's plan.
        timeout: seconds after which the check is considered failed.
        when: the moments at which the check runs; if empty, it runs at all moments.
    """

    hook = "elastic_health_checks"
    noun = flag = "health check"

    factory: Callable[[Context], CheckResult | Iterator[CheckResult] | list[CheckResult]]
    timeout: float = 10.0
    when: Collection[CheckMoment] = ()


@dataclass(frozen=True)
class NoticeRecord(Record):
    """A source of notices that this node must leave. All installed sources run; users do not select them. The record
    must not have options. `factory` also receives a `Pause`, the function with which it must wait. It returns an
    iterator of notices."""

    hook = "elastic_notices"
    noun = flag = "notice source"
    made = ("__next__",)

    factory: Callable[[Context, Pause], Notices]


KINDS: tuple[type[Record], ...] = (
    RendezvousBackendRecord,
    StoreRecord,
    WatchdogRecord,
    HealthEndpointRecord,
    WorkerStarterRecord,
    RankPolicyRecord,
    HealthCheckRecord,
    NoticeRecord,
    CommandRecord,
)
"""All types of records, in the order in which their hooks are called."""


OURS: frozenset[str] = frozenset(
    {CORE, "elastic-otel", *compat.FLAG_HOMES.values(), *(home for kind in KINDS for home in kind.homes.values())}
)
"""The distributions of this project, which are released together."""


T = TypeVar("T")

_WORD = re.compile("[a-z0-9][a-z0-9-]*")
_TAKEN = ("plugins", "config", "help", "log-level", "log_level", "log-format", "log_format")
COMMANDS = {
    "run": "start the workers of this node, and restart them after a failure",
    "explain": "show the configuration that `run` would use, with the origin of each value",
    "plugins": "list the installed plugins, what they provide, and any that failed to load",
    "status": "show a running job: round, members, missing nodes, failures",
    "drain": "ask one node to leave its job, and wait until it has left",
    "stop": "ask all nodes of a job to leave, and wait until they have left",
    "serve": "host a rendezvous store in a separate process",
}
"""The core's commands and their summaries, in the order of `elastic --help`."""


def checked(hook: str, returned: Any, expected: type[T]) -> list[T]:
    """Check a registration hook's result and return it as a list. Raises InvalidPlugin if the result is invalid."""
    if not isinstance(returned, (list, tuple)):
        raise InvalidPlugin(f"{hook} must return a list of {expected.__name__}, but returned {_named(returned)}")
    for item in returned:
        if not isinstance(item, expected):
            raise InvalidPlugin(
                f"{hook} must return a list of {expected.__name__}, but the list contains {_named(item)}"
            )
        problems = list(_option_problems(item) if isinstance(item, Option) else _record_problems(item))
        if problems:
            raise InvalidPlugin("; ".join(f"{hook}: {problem}" for problem in problems))
    return list(returned)


def _named(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


def _record_problems(record: Any) -> Iterator[str]:
    names = (record.name, *record.aliases)
    if not all(isinstance(name, str) and name.strip() for name in names):
        yield f"expected a name (and aliases) with at least one letter, found {names!r}"
    if not callable(record.factory):
        yield f"the factory of {record.name!r} is not callable"
    for name in ("open_backend", "serve", "defaults", "problems", "hosts_of", "explain"):
        if getattr(record, name, None) is not None and not callable(getattr(record, name)):
            yield f"{name} of {record.name!r} is not callable"
    if isinstance(record, CommandRecord):
        yield from _command_problems(record)
    if isinstance(record, (HealthCheckRecord, NoticeRecord)) and record.options:
        yield f"{record.name!r} has options, which users cannot set; use elastic_add_options"
    if isinstance(record, HealthCheckRecord) and not (isinstance(record.timeout, (int, float)) and record.timeout > 0):
        yield f"expected a timeout above 0 seconds for {record.name!r}, found {record.timeout!r}"
    if isinstance(record, HealthCheckRecord) and not isinstance(record.when, (tuple, list, set, frozenset)):
        yield f"`when` of {record.name!r} must be a tuple of CheckMoment, not {record.when!r}"
    yield from _option_list_problems(record)


def _command_problems(record: Any) -> Iterator[str]:
    for name in (record.name, *record.aliases):
        if name in COMMANDS:
            yield f"the command name {name!r} is reserved for elastic itself"
        elif not _WORD.fullmatch(name):
            yield f"expected a command name of lower-case letters, digits and hyphens, found {name!r}"
    for option in record.options or ():
        if option.name in _TAKEN:
            yield f"the flag --{option.name} of the command {record.name!r} is reserved for elastic itself"
    if isinstance(record.settings, str) or isinstance(record.operands, str):
        yield f"the settings and operands of the command {record.name!r} must be tuples, not strings"
    elif not set(record.required) <= set(record.settings or ()):
        yield f"the command {record.name!r} requires settings that it does not accept"


def _option_list_problems(record: Any) -> Iterator[str]:
    seen: set[str] = set()
    for option in record.options or ():
        if not isinstance(option, Option):
            yield f"the options of {record.name!r} include {_named(option)}, expected Option"
            continue
        if option.name in seen:
            yield f"{record.name!r} lists the option {option.name!r} twice"
        seen.add(option.name)
        yield from _option_problems(option)


def _option_problems(option: Option) -> Iterator[str]:
    if not isinstance(option.name, str) or not option.name.strip():
        yield f"expected an option name with at least one letter, found {option.name!r}"
    if option.type not in (str, int, float, bool):
        yield f"option {option.name!r}: expected the type str, int, float or bool, found {option.type!r}"
    elif not _fits(option):
        yield f"option {option.name!r}: expected a default of type {option.type.__name__}, found {option.default!r}"
    for name in ("least", "above", "most"):
        if not isinstance(bound := getattr(option, name), (int, float, type(None))):
            yield f"option {option.name!r}: expected a number for {name!r}, found {bound!r}"
    if option.check is not None and (option.type is bool or not callable(option.check)):
        yield f"option {option.name!r}: `check` must be a function, and a bool option cannot have one"


def _fits(option: Option) -> bool:
    if option.default is None:
        return True
    types = (int, float) if option.type is float else option.type
    is_bool = isinstance(option.default, bool)  # bool is a subclass of int
    return isinstance(option.default, types) and is_bool == (option.type is bool)
