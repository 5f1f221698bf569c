"""The records that the settings name, with the values of their options. `origins` say where the options come from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elastic_core.config.settings import SPECS
from elastic_core.config.spec import DEFAULT
from elastic_core.errors import ConfigurationError, Problem
from elastic_core.events import check_destination
from elastic_core.hooks.options import given, needed, not_needed, type_options
from elastic_core.hooks.records import HealthEndpointRecord, RendezvousBackendRecord, WatchdogRecord
from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.compose.policy import Entry
    from elastic_core.config import Settings
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.hooks.records import Record

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


def check_available(settings: Settings, manager: PluginManager, origins: Origins = None) -> None:
    """Look up everything that the settings name, before anything is built.

    Raises:
        ConfigurationError: with all that is wrong.
    """
    errors = []
    for check in (backend, watchdog, health_endpoint, _event_destination):
        try:
            check(settings, manager, origins)
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


def backend(
    settings: Settings, manager: PluginManager, origins: Origins = None
) -> tuple[RendezvousBackendRecord, dict[str, Any]]:
    """The backend and its options."""
    record = manager.select(RendezvousBackendRecord, settings.rdzv_backend)
    declared = {option.name for option in record.options or ()}
    flags = {"master_addr": settings.master_addr, "master_port": settings.master_port, "rank": settings.node_rank}
    conf = needed(record.options, settings.rdzv_conf)
    raw = {
        name: value for name, value in flags.items() if name in declared and value is not None and not given(conf, name)
    }
    return record, _typed(record, {**raw, **conf}, "rdzv_conf", origins)


def unused_options(settings: Settings, manager: PluginManager) -> list[str]:
    """The options in `--rdzv-conf` that the chosen backend does not need; none if the backend is not there."""
    try:
        record = manager.select(RendezvousBackendRecord, settings.rdzv_backend)
    except ConfigurationError:
        return []
    return not_needed(record.options, settings.rdzv_conf)


def watchdog(
    settings: Settings, manager: PluginManager, origins: Origins = None
) -> tuple[WatchdogRecord, dict[str, Any]] | None:
    """The watchdog and its options; None without one."""
    if settings.watchdog is None:
        return None
    record = manager.select(WatchdogRecord, settings.watchdog)
    return record, _typed(record, settings.watchdog_conf, "watchdog_conf", origins)


def health_endpoint(
    settings: Settings, manager: PluginManager, origins: Origins = None
) -> tuple[HealthEndpointRecord, dict[str, Any]] | None:
    """The health endpoint and its options; None without one."""
    if settings.health is None:
        return None
    record = manager.select(HealthEndpointRecord, settings.health)
    return record, _typed(record, settings.health_conf, "health_conf", origins)


def _event_destination(settings: Settings, manager: PluginManager, origins: Origins) -> None:
    check_destination(settings.event_log_handler)


def _typed(
    record: RendezvousBackendRecord | WatchdogRecord | HealthEndpointRecord,
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
