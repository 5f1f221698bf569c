"""The records that the settings name, with the values of their options. `origins` say where the options come from."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from elastic_core import events
from elastic_core.config.settings import SPECS
from elastic_core.config.spec import DEFAULT
from elastic_core.errors import ConfigurationError, ElasticError, PluginError, Problem
from elastic_core.hooks.options import find_option, needed, not_needed, type_options
from elastic_core.hooks.records import (
    EventSinkRecord,
    HealthEndpointRecord,
    RankPolicyRecord,
    RendezvousBackendRecord,
    WatchdogRecord,
    WorkerStarterRecord,
    kind_of,
)
from elastic_core.hooks.selection import Named, names_of
from elastic_core.interfaces.handler import RendezvousParameters
from elastic_core.log import get_logger
from elastic_core.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from elastic_core.config import Settings
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.hooks.records import Record
    from elastic_core.interfaces.handler import RendezvousHandler
    from elastic_core.interfaces.health import AgentView, HealthCheckServer
    from elastic_core.interfaces.node import Node
    from elastic_core.interfaces.watchdog import Watchdog
    from elastic_core.interfaces.workers import Starter, Work

    Origins = Mapping[str, str] | None


def without_missing(settings: Settings, manager: PluginManager, origins: Mapping[str, str]) -> Settings:
    """Without the watchdog and the health endpoint for which a variable of torchrun's asks and whose package is not
    installed. torchrun runs then, too; a warning says what to install."""
    asked: dict[str, type[Record]] = {"watchdog": WatchdogRecord, "health": HealthEndpointRecord}
    for setting, kind in asked.items():
        name, variable = getattr(settings, setting), origins.get(setting)
        if name is not None and variable in SPECS[setting].also_reads and (home := manager.to_install(kind, name)):
            get_logger().warning("plugin missing", variable=variable, advice=f"pip install {home}")
            left_out: dict[str, Any] = {setting: None}
            settings = replace(settings, **left_out)
    return settings


SECRET = "secret_file"
_ALONE = "local"  # a backend in which nobody else is
_HEALTH_TIMEOUT = 30.0  # seconds without a turn of the agent's loop after which an endpoint may call it stuck


@contextlib.contextmanager
def origins_named(origins: Mapping[str, str]) -> Iterator[None]:
    """Problems that name a flag though the value stands elsewhere name that place: factories do not know it."""
    try:
        yield
    except ConfigurationError as error:
        flags = {SPECS[name].flag: origin for name, origin in origins.items() if name in SPECS and origin != DEFAULT}
        error.problems = tuple(_renamed(problem, flags) for problem in error.problems)
        raise


def _renamed(problem: Problem, flags: Mapping[str, str]) -> Problem:
    flag, colon, option = problem.origin.partition(":")
    return Problem(flags.get(flag, flag) + colon + option, problem.message)


def check_available(
    settings: Settings, manager: PluginManager, origins: Origins = None, tables: Mapping[str, str] | None = None
) -> None:
    """Look up everything that the settings name, before anything is built. `tables`: see `Reading`.

    Raises:
        ConfigurationError: with all that is wrong.
    """
    errors = []
    for check in (backend, watchdog, health_endpoint, event_sink, rank_policy, _worker_starter):
        try:
            check(settings, manager, origins)
        except ConfigurationError as error:
            errors.append(error)
    if misspelt := list(_misspelt(tables or {}, manager)):
        errors.append(ConfigurationError(*misspelt))
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ConfigurationError(*(problem for error in errors for problem in error.problems))


def problems_of(
    manager: PluginManager, settings: Settings, origins: Mapping[str, str], tables: Mapping[str, str]
) -> Sequence[Problem]:
    """The problems that `check_available` raises."""
    try:
        check_available(without_missing(settings, manager, origins), manager, origins, tables)
    except ConfigurationError as error:
        return error.problems
    return ()


def _misspelt(tables: Mapping[str, str], manager: PluginManager) -> Iterator[Problem]:
    """A table may be for a backend that is not installed here; but not for one whose name is nearly that of another."""
    kind = kind_of(RendezvousBackendRecord)
    known = {name for item in manager.records(RendezvousBackendRecord) for name in names_of(item.record)}
    for name, origin in tables.items():
        if name not in known and name not in kind.homes and (advice := did_you_mean(name, known | set(kind.homes))):
            yield Problem(origin, f"expected the name of a rendezvous backend, found {name!r}{advice}")


def starter(settings: Settings, work: Work, manager: PluginManager) -> Starter:
    """The starter of the workers: the one that is asked for, else one for such work.

    Raises:
        ConfigurationError: there is none of that name, it does not run such work, or it would fork a process that must
            not be forked.
    """
    name = starter_name(settings) or (settings.start_method if work.function else "subprocess")
    record = manager.select(WorkerStarterRecord, name)
    if record.forks and not manager.select(RendezvousBackendRecord, settings.rdzv_backend).forkable:
        flag = SPECS["worker_starter" if settings.worker_starter else "start_method"].flag
        expected = f"expected spawn or forkserver with the rendezvous backend {settings.rdzv_backend!r}"
        why = "its client does not survive a fork of the agent's process"
        raise ConfigurationError(Problem(flag, f"{expected}, found {name}: {why}"))
    made = record.factory(work, _typed(record, starter_conf(settings), "worker_starter_conf", None))
    return cast("Starter", _named(made, ("start", "result"), manager, WorkerStarterRecord, name, _HELPED))


def _named(
    made: object,
    calls: tuple[str, ...],
    manager: PluginManager,
    kind: type[Record],
    name: str,
    passed_on: tuple[type[Exception], ...] = (ElasticError,),
) -> object:
    return Named(made, calls, manager.provided(kind, name), kind_of(kind), passed_on)


_HELPED = (ElasticError, OSError)  # for a limit of this machine there is advice


def _worker_starter(settings: Settings, manager: PluginManager, origins: Origins) -> None:
    if name := starter_name(settings):
        _typed(manager.select(WorkerStarterRecord, name), starter_conf(settings), "worker_starter_conf", origins)


def starter_name(settings: Settings) -> str | None:
    return "warm" if settings.warm_start else settings.worker_starter


def starter_conf(settings: Settings) -> dict[str, str]:
    """The options of the starter; those of the warm one have flags of their own."""
    if starter_name(settings) != "warm":
        return dict(settings.worker_starter_conf)
    flags = {"cache": str(settings.warm_start_cache or ""), "exclude": " ".join(settings.warm_start_exclude)}
    return {**{name: value for name, value in flags.items() if value}, **settings.worker_starter_conf}


def explained_starter(settings: Settings, work: Work, manager: PluginManager) -> Mapping[str, Any]:
    """What `elastic explain` shows about the selected worker starter; empty if the starter has no `explain`."""
    if (name := starter_name(settings)) is None:
        return {}
    record = manager.select(WorkerStarterRecord, name)
    if record.explain is None:
        return {}
    found = record.explain(work, _typed(record, starter_conf(settings), "worker_starter_conf", None))
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(found), default=str))
    except (TypeError, ValueError) as error:
        told = f"expected a mapping of JSON values from explain of the worker starter {name!r}, found {found!r}"
        raise PluginError(Problem("--worker-starter", told)) from error
    return plain


def backend(
    settings: Settings, manager: PluginManager, origins: Origins = None
) -> tuple[RendezvousBackendRecord, dict[str, Any]]:
    """The backend and its options."""
    record = manager.select(RendezvousBackendRecord, settings.rdzv_backend)
    declared = {option.name for option in record.options or ()}
    if record.options is None:
        declared.add(SECRET)
    elif settings.rdzv_secret_file and SECRET not in declared and settings.rdzv_backend != _ALONE:
        raise _not_signing(settings.rdzv_backend)
    flags = {
        "master_addr": settings.master_addr,
        "master_port": settings.master_port,
        "rank": settings.node_rank,
        SECRET: settings.rdzv_secret_file,
    }
    conf = needed(record.options, settings.rdzv_conf)
    raw = {
        name: value
        for name, value in flags.items()
        if name in declared and value is not None and find_option(conf, name) is None
    }
    return record, _typed(record, {**raw, **conf}, "rdzv_conf", origins)


def handler(settings: Settings, manager: PluginManager, node: Node) -> RendezvousHandler:
    """The handler of this node, which connects when it joins. Raises ConfigurationError."""
    record, config = backend(settings, manager)
    made = record.factory(
        RendezvousParameters(
            backend=settings.rdzv_backend,
            endpoint=settings.rdzv_endpoint,
            run_id=settings.rdzv_id or "",
            min_nodes=settings.nnodes.min,
            max_nodes=settings.nnodes.max,
            local_addr=settings.local_addr,
            node=node,
        ).having(config)
    )
    asked = config.get(SECRET) or (settings.rdzv_secret_file and settings.rdzv_backend != _ALONE)
    if asked and not getattr(getattr(made, "seal", None), "signs", False):
        raise _not_signing(settings.rdzv_backend)
    return made


def _not_signing(backend: str) -> ConfigurationError:
    expected = "expected a rendezvous backend that signs with the secret, as those over the core's handler do"
    return ConfigurationError(Problem("--rdzv-secret-file", f"{expected}, found {backend!r}"))


def unused_options(settings: Settings, manager: PluginManager) -> list[str]:
    """The options in `--rdzv-conf` that the chosen backend does not need; none if the backend is not there."""
    record = manager.backend_named(settings.rdzv_backend)
    return [] if record is None else not_needed(record.options, settings.rdzv_conf)


def watchdog(
    settings: Settings, manager: PluginManager, origins: Origins = None
) -> tuple[WatchdogRecord, dict[str, Any]] | None:
    """The watchdog and its options; None without one."""
    if settings.watchdog is None:
        return None
    record = manager.select(WatchdogRecord, settings.watchdog)
    return record, _typed(record, settings.watchdog_conf, "watchdog_conf", origins)


def made_watchdog(settings: Settings, manager: PluginManager) -> Watchdog | None:
    """The watchdog of this agent, not started; None without one."""
    found = watchdog(settings, manager)
    if found is None:
        return None
    record, options = found
    made = record.factory(settings.rdzv_id or "", options)
    calls = ("start", "worker_environment", "scratch")
    return cast("Watchdog", _named(made, calls, manager, WatchdogRecord, record.name))


def made_health_endpoint(settings: Settings, manager: PluginManager, view: AgentView) -> HealthCheckServer | None:
    """The health endpoint of this agent, not started; None without one."""
    found = health_endpoint(settings, manager)
    if found is None:
        return None
    record, options = found
    made = record.factory(view, settings.health_port or 0, _HEALTH_TIMEOUT, options)
    passed_on = (ElasticError, OSError)  # which say that the port cannot be had
    return cast("HealthCheckServer", _named(made, ("start",), manager, HealthEndpointRecord, record.name, passed_on))


def health_endpoint(
    settings: Settings, manager: PluginManager, origins: Origins = None
) -> tuple[HealthEndpointRecord, dict[str, Any]] | None:
    """The health endpoint and its options; None without one."""
    if settings.health is None:
        return None
    record = manager.select(HealthEndpointRecord, settings.health)
    return record, _typed(record, settings.health_conf, "health_conf", origins)


def event_sink(
    settings: Settings, manager: PluginManager, origins: Origins = None
) -> tuple[EventSinkRecord, dict[str, Any]]:
    """The sink of events and its options. A handler that the program itself has registered needs no plugin.

    Raises:
        ConfigurationError: a plugin and the program have sinks of that name.
    """
    name = settings.event_log_handler
    handler = events.registered(name)
    if handler is None:
        record = manager.select(EventSinkRecord, name)
    else:
        record = EventSinkRecord(name, "of this program", lambda options: handler)
        for item in manager.records(EventSinkRecord):
            if name in names_of(item.record):
                found = f"expected one event sink {name!r}, found that of {item.source.described} and this program's"
                raise ConfigurationError(Problem("--event-log-handler", f"{found}; register yours under another name"))
    return record, _typed(record, settings.event_log_conf, "event_log_conf", origins)


def rank_policy(
    settings: Settings, manager: PluginManager, origins: Origins = None
) -> tuple[RankPolicyRecord, dict[str, Any]]:
    """The rank policy and its options."""
    record = manager.select(RankPolicyRecord, settings.rank_policy)
    return record, _typed(record, settings.rank_policy_conf, "rank_policy_conf", origins)


def _typed(
    record: Record,
    raw: Mapping[str, object],
    setting: str,
    origins: Origins,
) -> dict[str, Any]:
    spec = SPECS[setting]
    origin = (origins or {}).get(setting, DEFAULT)
    values, problems = type_options(record.options, raw, spec.flag if origin == DEFAULT else origin)
    if problems:
        raise ConfigurationError(*problems)
    return values
