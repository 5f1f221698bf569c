"""The plan for a command: the settings, and the plugin records that they select, with typed options."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from elastic_core import compat
from elastic_core.config.settings import SPECS
from elastic_core.config.spec import with_origins
from elastic_core.errors import ConfigurationError, Problem
from elastic_core.hooks.calls import Contexts
from elastic_core.hooks.records import (
    HealthCheckRecord,
    HealthEndpointRecord,
    RankPolicyRecord,
    Record,
    RendezvousBackendRecord,
    WatchdogRecord,
    WorkerStarterRecord,
)
from elastic_core.hooks.selection import (
    HELPED,
    SECRET,
    AttributedProxy,
    Chosen,
    Provided,
    Selection,
    attributing,
    names_of,
)
from elastic_core.interfaces.handler import RendezvousParameters, RoundHandler
from elastic_core.log import get_logger
from elastic_core.parsing import not_needed
from elastic_core.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_core.clock import Duration
    from elastic_core.config import Reading, Settings
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.hooks.records import Context
    from elastic_core.interfaces.backend import RosterBackend, StoreServer
    from elastic_core.interfaces.handler import RendezvousHandler
    from elastic_core.interfaces.health import AgentView, CheckMoment, HealthCheck, HealthCheckServer
    from elastic_core.interfaces.node import Node, RankPolicy
    from elastic_core.interfaces.workers import Starter, Watchdog, Work
    from elastic_core.rendezvous.seal import HmacSeal

_ALONE = "local"  # the backend of single-node jobs
_HEALTH_TIMEOUT = 30.0  # seconds without an iteration of its loop after which the agent is reported as stuck


def _selections(settings: Settings) -> Iterator[Selection]:
    """Yield a `Selection` for each kind of record that the settings use."""
    of_flags = {
        "master_addr": settings.master_addr,
        "master_port": settings.master_port,
        "rank": settings.node_rank,
        SECRET: settings.rdzv_secret_file,
    }
    yield Selection(RendezvousBackendRecord, settings.rdzv_backend, settings.rdzv_conf, "--rdzv-conf", of_flags)
    yield Selection(RankPolicyRecord, settings.rank_policy, settings.rank_policy_conf, "--rank-policy-conf")
    if settings.watchdog is not None:
        yield Selection(WatchdogRecord, settings.watchdog, settings.watchdog_conf, "--watchdog-conf")
    if settings.health is not None:
        yield Selection(HealthEndpointRecord, settings.health, settings.health_conf, "--health-conf")
    name = compat.WARM_STARTER if settings.warm_start else settings.worker_starter
    if name is None and settings.worker_starter_conf:
        name = "subprocess"  # the default for scripts
    if name is not None:
        cache, excluded = settings.warm_start_cache, " ".join(settings.warm_start_exclude)
        warm = {"cache": cache and str(cache), "exclude": excluded or None} if name == compat.WARM_STARTER else {}
        yield Selection(WorkerStarterRecord, name, settings.worker_starter_conf, "--worker-starter-conf", warm)


@dataclass(frozen=True)
class Plan:
    """Everything that the user has configured. Created by `plan_of`.

    Attributes:
        reading: every setting and added option with its origin, typed and resolved, and the script.
        manager: the plugins.
        chosen: the selected record of each kind that the settings use. A valid plan has at least a rendezvous backend
            and a rank policy.
        error: the problems, or None if the plan is valid.
    """

    reading: Reading
    manager: PluginManager
    chosen: Mapping[type[Record], Chosen[Any]]
    error: ConfigurationError | None = None

    @property
    def settings(self) -> Settings:
        """Every setting, typed and resolved."""
        return self.reading.settings

    def checked(self) -> Plan:
        """Return this plan. Raises a ConfigurationError that lists every problem."""
        if self.error is not None:
            raise self.error
        return self

    @contextlib.contextmanager
    def naming_origins(self) -> Iterator[None]:
        """Make errors raised in this context name the origins of the settings (see `config.spec.with_origins`)."""
        try:
            yield
        except ConfigurationError as error:
            error.problems = with_origins(error.problems, self.reading.origins)
            raise

    @property
    def backend(self) -> Chosen[RendezvousBackendRecord]:
        """The selected rendezvous backend."""
        return self.chosen[RendezvousBackendRecord]

    @functools.cached_property
    def contexts(self) -> Contexts:
        """The plugins' contexts in this run."""
        return Contexts(self.manager, self.settings, self.reading.added)

    def _context(self, chosen: Chosen[Any]) -> Context:
        return self.contexts.of(chosen.source, chosen.options)

    @property
    def unused(self) -> list[str]:
        """The options in `--rdzv-conf` that the backend ignores."""
        return not_needed(self.backend.record.options, self.settings.rdzv_conf)

    def handler(self, node: Node) -> RendezvousHandler:
        """Create this node's rendezvous handler, which connects only when the node joins.

        Raises:
            ConfigurationError: a secret is configured, but the handler does not use it.
        """
        settings, config = self.settings, self.backend.options
        parameters = RendezvousParameters(
            backend=settings.rdzv_backend,
            endpoint=settings.rdzv_endpoint,
            run_id=settings.rdzv_id or "",
            min_nodes=settings.nnodes.min,
            max_nodes=settings.nnodes.max,
            local_addr=settings.local_addr,
            node=node,
        )
        made = self.backend.record.factory(self._context(self.backend), parameters.having(config))
        asked = config.get(SECRET) or (settings.rdzv_secret_file and settings.rdzv_backend != _ALONE)
        seal = made.seal if isinstance(made, RoundHandler) else None
        if asked and (seal is None or not seal.signs):
            raise ConfigurationError(_not_signing(settings.rdzv_backend))
        return made

    @contextlib.contextmanager
    def opened(self, patience: Duration) -> Iterator[tuple[RosterBackend, HmacSeal, RendezvousParameters]]:
        """Open the backend without joining the job, and close it on exit. Yields the backend, the seal for its values,
        and its parameters. Connecting may take up to `patience` seconds. As on the nodes, a backend that has only
        `get_state` and `set_state` is wrapped in one that has a roster.

        Raises:
            ConfigurationError: the backend cannot be observed from outside, or the secret file cannot be used.
        """
        from elastic_core.clock import SystemClock
        from elastic_core.rendezvous.seal import seal_of
        from elastic_core.rendezvous.store_backend import with_roster

        settings, backend = self.settings, self.backend
        with self.naming_origins():
            if backend.record.open_backend is None:
                able = self._backends(lambda other: other.open_backend is not None)
                reason = f"jobs on the backend {settings.rdzv_backend!r} cannot be observed; supported backends: {able}"
                raise ConfigurationError(Problem("--rdzv-backend", reason))
            params = RendezvousParameters(settings.rdzv_backend, settings.rdzv_endpoint, settings.rdzv_id or "", 1, 1)
            params = params.having({**backend.options, "join_timeout": patience})
            seal, context = seal_of(params), self.contexts.of(backend.source, params.config)
            made = with_roster(backend.record.open_backend(context, params), SystemClock(), observes=True, seal=seal)
            with contextlib.closing(made):
                yield made, seal, params

    def store_server(self, endpoint: str, nodes: int) -> StoreServer:
        """Create the backend's store server without starting it. Raises ConfigurationError if the backend has no store
        to serve."""
        serve = self.backend.record.serve
        if serve is None:
            able = self._backends(lambda other: other.serve is not None)
            name = self.settings.rdzv_backend
            reason = f"the backend {name!r} has no store to serve; backends that have one: {able}"
            raise ConfigurationError(Problem("--rdzv-backend", reason))
        made = serve(self._context(self.backend), endpoint, nodes)
        return cast("StoreServer", AttributedProxy(made, ("start",), self.backend, HELPED))

    def _backends(self, is_able: Callable[[RendezvousBackendRecord], bool]) -> str:
        """Return the names of the installed backends that satisfy `is_able`, for use in messages."""
        records = (item.record for item in self.manager.records(RendezvousBackendRecord))
        return ", ".join(record.name for record in records if is_able(record)) or "none"

    def start_with(self, work: Work) -> Starter:
        """Create the selected worker starter or, if none is selected, the default starter for this kind of work.

        Raises:
            ConfigurationError: the starter does not exist, cannot run this kind of work, or would fork the agent
                although the backend's client does not survive a fork.
        """
        asked = self._starter_for(work)
        made = asked.record.factory(self._context(asked), work)
        return cast("Starter", AttributedProxy(made, ("start", "result"), asked, HELPED))

    def explained_starter(self, work: Work) -> Mapping[str, Any]:
        """Return the worker starter's facts for `elastic explain`. They are empty if it has no `explain`. Raises
        ConfigurationError if the starter does not exist or must not fork the agent."""
        asked = self._starter_for(work)
        return {} if asked.record.explain is None else asked.record.explain(self._context(asked), work)

    def _starter_for(self, work: Work) -> Chosen[WorkerStarterRecord]:
        asked = self.chosen.get(WorkerStarterRecord)
        if asked is None:
            name = self.settings.start_method if work.function else "subprocess"
            asked = Selection(WorkerStarterRecord, name, {}, "").choose(self.manager)
        record = asked.record
        if record.forks and not self.backend.record.forkable:
            flag = SPECS["worker_starter" if WorkerStarterRecord in self.chosen else "start_method"].flag
            why = f"the client of the rendezvous backend {self.settings.rdzv_backend!r} does not survive a fork"
            raise ConfigurationError(
                Problem(flag, f"{record.name} forks the agent, but {why}; use spawn or forkserver")
            )
        return asked

    def made_watchdog(self) -> Watchdog | None:
        """Create the watchdog without starting it. Returns None if no watchdog is selected."""
        if (chosen := self.chosen.get(WatchdogRecord)) is None:
            return None
        made = chosen.record.factory(self._context(chosen))
        return cast("Watchdog", AttributedProxy(made, ("start", "worker_environment", "scratch"), chosen))

    def made_health_endpoint(self, view: AgentView) -> HealthCheckServer | None:
        """Create the health endpoint without starting it. Returns None if no endpoint is selected."""
        if (chosen := self.chosen.get(HealthEndpointRecord)) is None:
            return None
        made = chosen.record.factory(self._context(chosen), view, self.settings.health_port or 0, _HEALTH_TIMEOUT)
        return cast("HealthCheckServer", AttributedProxy(made, ("start",), chosen, HELPED))

    def health_checks(
        self, moment: CheckMoment, options: Mapping[str, Mapping[str, object]] = MappingProxyType({})
    ) -> list[HealthCheck]:
        """Return the plugins' health checks that run at the given moment. `options` maps distributions to values for
        their checks' `context.options`."""
        from elastic_core.interfaces.health import HealthCheck

        found = []
        for check in self.manager.records(HealthCheckRecord):
            record, plugin = check.record, check.source.distribution
            if not record.when or moment in record.when:
                context = replace(self.contexts.of(check.source, options.get(plugin, {})), plan=self)
                run = functools.partial(_run_check, check, context)
                found.append(HealthCheck(record.name, record.summary, record.timeout, run, plugin))
        return found

    def made_rank_policy(self) -> RankPolicy:
        """Create the selected rank policy."""
        chosen = self.chosen[RankPolicyRecord]
        return cast("RankPolicy", chosen.record.factory(self._context(chosen)))


def _run_check(check: Provided[HealthCheckRecord], context: Context) -> object:
    found: object = check.record.factory(context)
    with attributing(check):
        return tuple(found) if isinstance(found, (Iterator, list)) else found


def plan_of(reading: Reading, manager: PluginManager) -> Plan:
    """Return the plan for these settings. Everything that they select is looked up before anything is built.

    If one of torchrun's variables selects a watchdog or health endpoint that is not installed, the plan leaves it out,
    as torchrun does, and a warning names the package to install."""
    settings, origins = reading.settings, reading.origins
    asked: dict[str, type[Record]] = {"watchdog": WatchdogRecord, "health": HealthEndpointRecord}
    for setting, kind in asked.items():
        name, variable = getattr(settings, setting), origins.get(setting)
        if name is not None and variable in SPECS[setting].also_reads and (home := manager.to_install(kind, name)):
            get_logger().warning("plugin missing", variable=variable, advice=f"pip install {home}")
            left_out: dict[str, Any] = {setting: None}
            settings = replace(settings, **left_out)
    chosen: dict[type[Record], Chosen[Any]] = {}
    errors = [ConfigurationError(*reading.problems)] if reading.problems else []
    for selection in _selections(settings):
        try:
            chosen[selection.kind] = selection.choose(manager)
        except ConfigurationError as error:
            errors.append(error)
    problems = [*_unsigned(settings, chosen), *_unknown_event_handler(settings), *_misspelt(reading.tables, manager)]
    errors += [ConfigurationError(problem) for problem in problems]
    every = [problem for error in errors for problem in error.problems]
    whole = errors[0] if len(errors) == 1 else ConfigurationError(*every) if errors else None
    if whole is not None:
        whole.problems = with_origins(every, origins)
    return Plan(replace(reading, settings=settings), manager, chosen, whole)


def _unsigned(settings: Settings, found: Mapping[type[Record], Chosen[Any]]) -> Iterator[Problem]:
    """Yield a problem if a secret is set but the backend does not support signing."""
    backend = found.get(RendezvousBackendRecord)
    if backend is not None and settings.rdzv_secret_file and settings.rdzv_backend != _ALONE:
        options = backend.record.options
        if options is not None and all(option.name != SECRET for option in options):
            yield _not_signing(settings.rdzv_backend)


def _not_signing(backend: str) -> Problem:
    return Problem("--rdzv-secret-file", f"the rendezvous backend {backend!r} does not support signing with a secret")


def _unknown_event_handler(settings: Settings) -> Iterator[Problem]:
    """Yield a problem if the event handler is not registered."""
    name = settings.event_log_handler
    if name == SPECS["event_log_handler"].default:
        return
    from elastic_core import events

    if not events.is_known(name):
        known = events.handler_names()
        advice = did_you_mean(name, known) or f"; available: {', '.join(known)} and file:PATH"
        yield Problem("--event-log-handler", f"unknown event handler {name!r}{advice}")


def _misspelt(tables: Mapping[str, str], manager: PluginManager) -> Iterator[Problem]:
    """Yield a problem for each table whose name resembles that of a known backend. Other unknown names may belong to
    backends that are not installed here."""
    homes = RendezvousBackendRecord.homes
    known = {name for item in manager.records(RendezvousBackendRecord) for name in names_of(item.record)}
    for name, origin in tables.items():
        if name not in known and name not in homes and (advice := did_you_mean(name, known | set(homes))):
            yield Problem(origin, f"expected the name of a rendezvous backend, found {name!r}{advice}")
