"""The records that registration hooks return: a name for users, a summary, typed options and a factory. And the kinds
of records: the hook that returns each, the flag that selects it, and which of our distributions brings which name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastic_core.compat import choices
from elastic_core.hooks.discovery import CORE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from elastic_core.config import Settings
    from elastic_core.errors import Problem
    from elastic_core.hooks.context import Context
    from elastic_core.interfaces.backend import RendezvousBackend
    from elastic_core.interfaces.handler import RendezvousHandler, RendezvousParameters
    from elastic_core.interfaces.health import AgentView, CheckMoment, CheckResult, HealthCheckServer
    from elastic_core.interfaces.node import RankPolicy
    from elastic_core.interfaces.store import Store, StoreServer
    from elastic_core.interfaces.watchdog import Watchdog
    from elastic_core.interfaces.workers import Starter, Work

OptionType = type[str] | type[int] | type[float] | type[bool]


@dataclass(frozen=True)
class Option:
    """One option that a plugin takes: `name=value` in `--rdzv-conf` and the like, or a key of a config table.

    The core checks each value before the factory is called, so a plugin reads only values that the option allows.

    Args:
        default: None means "unset".
        unit: for people ("seconds", "bytes"); empty where there is none.
        secret: the value is never shown, neither by `elastic explain` nor in errors.
        least, most: inclusive bounds of a number.
        above: a number must be greater than this.
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


@dataclass(frozen=True)
class Record:
    """A component that a plugin provides and users select by name.

    Args:
        summary: one line for `elastic plugins`.
        factory: creates the component. It receives a `Context`, whose `options` are those of the record and those that
            the plugin added, typed, with defaults filled in. The record types list further arguments.
        options: accepted options; None accepts any, as text.
        aliases: alternative names.
    """

    name: str
    summary: str
    factory: Callable[..., Any]
    options: tuple[Option, ...] | None = ()
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class RendezvousBackendRecord(Record):
    """A way for nodes to find each other, selected by `--rdzv-backend`.

    Args:
        factory: also receives parameters, whose config holds the options of the record, too.
        open_backend: receives the same, and makes the backend alone, for `elastic status` and `elastic drain`: a client
            of a store that is already there. It never hosts the store and is no node of the job. The option
            `join_timeout`, if declared, bounds the seconds for connecting; the node bounds in the parameters are
            placeholders, and `node` is None. None: these commands do not work with this backend.
        serve: makes a server of the store for `elastic serve` from the endpoint (`host:port`; the host `0.0.0.0`
            stands for all addresses) and the number of nodes to have room for. None: there is nothing to serve.
        forkable: whether the agent's process may be forked while the handler lives, as the start method `fork` does
            for functions. False for clients whose threads or connections a fork breaks.
        defaults: values for settings that nothing gives, such as the endpoint, by field of `Settings`, each with the
            reason that `elastic explain` shows. Other settings are not changed.
        problems: what in the settings would keep a job from starting with this backend. It is reported with all other
            problems of the configuration, before anything starts.
        hosts_of: the hosts that `settings.rdzv_endpoint` names, as pairs of host and port, for `elastic doctor`; empty
            if it names a file or the like. ConfigurationError: it can be no endpoint. None: it may name anything.
        hosted: whether one of the nodes hosts the store, so that nothing answers at the endpoint before the job begins.
    """

    factory: Callable[[Context, RendezvousParameters], RendezvousHandler]
    open_backend: Callable[[Context, RendezvousParameters], RendezvousBackend] | None = None
    serve: Callable[[str, int], StoreServer] | None = None
    forkable: bool = True
    defaults: Callable[[Settings], Mapping[str, tuple[Any, str]]] | None = None
    problems: Callable[[Settings], Iterable[Problem]] | None = None
    hosts_of: Callable[[Settings], Sequence[tuple[str, int]]] | None = None
    hosted: bool = False


@dataclass(frozen=True)
class StoreRecord(Record):
    """A key-value store. It brings a rendezvous backend of the same name, unless its plugin brings one itself.

    Args:
        factory: called for every connection, from several threads. Only one thread at a time uses the result, which is
            closed if it has a `close`.
        shared: whether other processes reach the same store. False: the store brings no backend.
        defaults, problems, hosts_of: those of its backend, see `RendezvousBackendRecord`.
    """

    factory: Callable[[Context], Store]
    shared: bool = True
    defaults: Callable[[Settings], Mapping[str, tuple[Any, str]]] | None = None
    problems: Callable[[Settings], Iterable[Problem]] | None = None
    hosts_of: Callable[[Settings], Sequence[tuple[str, int]]] | None = None


@dataclass(frozen=True)
class WatchdogRecord(Record):
    """A way to notice hung workers, selected by `--watchdog`."""

    factory: Callable[[Context], Watchdog]


@dataclass(frozen=True)
class HealthEndpointRecord(Record):
    """A health endpoint, selected by `--health`; `factory` also receives the agent's view, the port, and the seconds
    without a turn of the agent's loop after which the agent counts as stuck."""

    factory: Callable[[Context, AgentView, int, float], HealthCheckServer]


@dataclass(frozen=True)
class WorkerStarterRecord(Record):
    """A way to start workers, selected by `--worker-starter`.

    Args:
        factory: also receives what the workers run. It is called once per agent. A ConfigurationError says that this
            starter does not run such work.
        forks: whether it forks the agent's process, which some clients of stores do not survive.
        explain: receives the same, and returns what `elastic explain` shows, as a mapping of names to JSON values. If
            it is None or returns an empty mapping, nothing is shown.
    """

    factory: Callable[[Context, Work], Starter]
    forks: bool = False
    explain: Callable[[Context, Work], Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class RankPolicyRecord(Record):
    """An order of the nodes, selected by `--rank-policy`; `factory` returns a `RankPolicy`."""

    factory: Callable[[Context], RankPolicy]


@dataclass(frozen=True)
class CommandRecord(Record):
    """A command, called as `elastic NAME`. The summary is its line in `elastic --help`.

    Args:
        factory: runs the command. It also receives the words that are no flags, and returns the exit code; None is 0.
        options: flags of the command. In `context.options` are also those that the plugin adds to `elastic run`. None:
            it reads its words itself, and receives them all.
        settings: settings of `elastic run` that are flags of the command, too, with their variables and keys in the
            config file. Their values are in `context.settings`.
        operands: names of the words that the command needs, in this order.
    """

    factory: Callable[[Context, Sequence[str]], int | None]
    settings: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()


@dataclass(frozen=True)
class HealthCheckRecord(Record):
    """A check of this machine. Every installed check is made; none is selected.

    Args:
        factory: makes the check and returns its result. The context has the options that the plugin adds; the record
            has none.
        timeout: seconds for the check; one that takes longer has failed.
        when: the moments at which it is made; empty: all.
    """

    factory: Callable[[Context], CheckResult]
    timeout: float = 10.0
    when: Collection[CheckMoment] = ()


@dataclass(frozen=True)
class Kind:
    """One kind of record. `flag` selects a record by its name; what its factory makes has the methods `made`; `homes`
    maps our own names to their distributions."""

    record: type[Record]
    hook: str
    noun: str
    flag: str
    made: tuple[str, ...] = ()
    homes: Mapping[str, str] = field(default_factory=dict)


KINDS: tuple[Kind, ...] = (
    Kind(
        RendezvousBackendRecord,
        "elastic_rendezvous_backends",
        "rendezvous backend",
        "--rdzv-backend",
        ("next_rendezvous",),
        choices.BACKEND_HOMES,
    ),
    Kind(
        StoreRecord,
        "elastic_stores",
        "store",
        "store",
        ("compare_set",),
        choices.STORE_HOMES,
    ),
    Kind(
        WatchdogRecord,
        "elastic_watchdogs",
        "watchdog",
        "--watchdog",
        ("start", "stop"),
        choices.WATCHDOG_HOMES,
    ),
    Kind(
        HealthEndpointRecord,
        "elastic_health_endpoints",
        "health endpoint",
        "--health",
        ("start", "stop"),
        choices.HEALTH_HOMES,
    ),
    Kind(
        WorkerStarterRecord,
        "elastic_worker_starters",
        "worker starter",
        "--worker-starter",
        ("start",),
        choices.STARTER_HOMES,
    ),
    Kind(RankPolicyRecord, "elastic_rank_policies", "rank policy", "--rank-policy", ("__call__",)),
    Kind(HealthCheckRecord, "elastic_health_checks", "health check", "health check"),
    Kind(CommandRecord, "elastic_commands", "command", "command", homes=choices.COMMAND_HOMES),
)


OURS: frozenset[str] = frozenset({CORE, *(home for kind in KINDS for home in kind.homes.values())})
"""The distributions that are released together."""


def kind_of(record: type[object]) -> Kind:
    """The kind that a record class stands for. Raises KeyError for any other class."""
    by_record: dict[type[object], Kind] = {kind.record: kind for kind in KINDS}
    return by_record[record]
