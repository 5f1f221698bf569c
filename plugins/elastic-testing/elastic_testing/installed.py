"""Functions that create installed components in the same way as the agent: they look up the entry point, parse the
options, and fill in defaults. Contracts therefore test the components that users get. Each function raises PluginError
if no installed plugin provides the name, and ConfigurationError if an option is invalid."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from elastic_core.plugin import (
    ConfigurationError,
    Context,
    HealthEndpointRecord,
    Record,
    RendezvousBackendRecord,
    RendezvousParameters,
    StoreRecord,
    WatchdogRecord,
    type_options,
)

if TYPE_CHECKING:
    from elastic_core.plugin import AgentView, HealthCheckServer, RendezvousBackend, Store, Watchdog

R = TypeVar("R", bound=Record)


def installed_store(name: str, **options: Any) -> Store:
    """Create the key-value store of this name."""
    record, config = _chosen(StoreRecord, name, options)
    return record.factory(Context(options=config))


def installed_watchdog(name: str, run_id: str, **options: Any) -> Watchdog:
    """Create the watchdog that `--watchdog` selects by this name, without starting it."""
    record, config = _chosen(WatchdogRecord, name, options)
    return record.factory(Context(run_id, config))


def installed_health_endpoint(
    name: str, view: AgentView, port: int, timeout: float, **options: Any
) -> HealthCheckServer:
    """Create the health endpoint that `--health` selects by this name, without starting it. `timeout` is the
    number of seconds after which a stuck agent is reported as not alive."""
    record, config = _chosen(HealthEndpointRecord, name, options)
    return record.factory(Context(options=config), view, port, timeout)


def installed_backend(name: str, endpoint: str, run_id: str, **options: Any) -> RendezvousBackend:
    """Open the backend of this name with its record's `open_backend`, in the same way as `elastic status` and `elastic
    drain`. Raises TypeError if the record has no `open_backend`."""
    record, _ = _chosen(RendezvousBackendRecord, name, options)
    if record.open_backend is None:
        raise TypeError(f"the record of {name!r} has no open_backend")
    params = rendezvous_parameters(name, endpoint, run_id, **options)
    return record.open_backend(Context(run_id, params.config), params)


def rendezvous_parameters(
    name: str, endpoint: str, run_id: str, min_nodes: int = 1, max_nodes: int = 1, **options: Any
) -> RendezvousParameters:
    """Return the parameters for the factory of the rendezvous backend of this name."""
    _, config = _chosen(RendezvousBackendRecord, name, options)
    return RendezvousParameters(name, endpoint, run_id, min_nodes, max_nodes).having(config)


def _chosen(kind: type[R], name: str, options: dict[str, object]) -> tuple[R, dict[str, Any]]:
    from elastic_core.diagnostics import PluginManager

    record = PluginManager.load(os.environ).select(kind, name)
    config, problems = type_options(record.options, options, name)
    if problems:
        raise ConfigurationError(*problems)
    return record, config
