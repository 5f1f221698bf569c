"""The records that the settings name, with the values of their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.events import check_destination
from elastic_core.hooks.options import type_options
from elastic_core.hooks.records import HealthEndpointRecord, RendezvousBackendRecord, WatchdogRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.compose.entry import Entry
    from elastic_core.config import Settings
    from elastic_core.hooks.manager import PluginManager


def check_available(settings: Settings, manager: PluginManager) -> None:
    """Whatever was asked for by name, before anything is built: raises ConfigurationError with all that is wrong."""
    errors = []
    for check in (backend, watchdog, health_endpoint, _event_destination):
        try:
            check(settings, manager)
        except ConfigurationError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ConfigurationError(*(problem for error in errors for problem in error.problems))


def check_forkable(settings: Settings, entry: Entry, manager: PluginManager) -> None:
    """Raises ConfigurationError for workers that would be forked from a process that must not be."""
    if entry.forks and not manager.select(RendezvousBackendRecord, settings.rdzv_backend).forkable:
        expected = f"expected spawn or forkserver with the rendezvous backend {settings.rdzv_backend!r}"
        why = "its client does not survive a fork of the agent's process"
        raise ConfigurationError(Problem("--start-method", f"{expected}, found fork: {why}"))


def _event_destination(settings: Settings, manager: PluginManager) -> None:
    check_destination(settings.event_log_handler)


def backend(settings: Settings, manager: PluginManager) -> tuple[RendezvousBackendRecord, dict[str, Any]]:
    """The backend and its options."""
    record = manager.select(RendezvousBackendRecord, settings.rdzv_backend)
    declared = {option.name for option in record.options or ()}
    flags = {"master_addr": settings.master_addr, "master_port": settings.master_port, "rank": settings.node_rank}
    raw = {name: value for name, value in flags.items() if name in declared and value is not None}
    return record, _typed(record, {**raw, **settings.rdzv_conf}, "--rdzv-conf")


def _typed(
    record: RendezvousBackendRecord | WatchdogRecord | HealthEndpointRecord, raw: Mapping[str, object], origin: str
) -> dict[str, Any]:
    values, problems = type_options(record.options, raw, origin)
    if problems:
        raise ConfigurationError(*problems)
    return values


def watchdog(settings: Settings, manager: PluginManager) -> tuple[WatchdogRecord, dict[str, Any]] | None:
    """The watchdog and its options; None without one."""
    if settings.watchdog is None:
        return None
    record = manager.select(WatchdogRecord, settings.watchdog)
    return record, _typed(record, settings.watchdog_conf, "--watchdog-conf")


def health_endpoint(settings: Settings, manager: PluginManager) -> tuple[HealthEndpointRecord, dict[str, Any]] | None:
    """The health endpoint and its options; None without one."""
    if settings.health is None:
        return None
    record = manager.select(HealthEndpointRecord, settings.health)
    return record, _typed(record, settings.health_conf, "--health-conf")
