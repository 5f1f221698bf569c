"""Functions that create installed components in the same way as the agent: they look up the entry point, parse the
options, and fill in defaults. Contracts therefore test the components that users get. Each function raises PluginError
if no installed plugin provides the name, and ConfigurationError if an option is invalid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_core.plugin import (
    HealthEndpointRecord,
    RendezvousBackendRecord,
    RendezvousParameters,
    StoreRecord,
    WatchdogRecord,
    installed_record,
)

if TYPE_CHECKING:
    from elastic_core.plugin import AgentView, HealthCheckServer, RendezvousBackend, Store, Watchdog


def installed_store(name: str, **options: Any) -> Store:
    """Create the key-value store of this name."""
    chosen, context = installed_record(StoreRecord, name, options, name)
    return chosen.record.factory(context)


def installed_watchdog(name: str, run_id: str, **options: Any) -> Watchdog:
    """Create the watchdog that `--watchdog` selects by this name, without starting it."""
    chosen, context = installed_record(WatchdogRecord, name, options, name, run_id)
    return chosen.record.factory(context)


def installed_health_endpoint(
    name: str, view: AgentView, port: int, timeout: float, **options: Any
) -> HealthCheckServer:
    """Create the health endpoint that `--health` selects by this name, without starting it. `timeout` is the
    number of seconds after which a stuck agent is reported as not alive."""
    chosen, context = installed_record(HealthEndpointRecord, name, options, name)
    return chosen.record.factory(context, view, port, timeout)


def installed_backend(name: str, endpoint: str, run_id: str, **options: Any) -> RendezvousBackend:
    """Open the backend of this name with its record's `open_backend`, in the same way as `elastic status` and `elastic
    drain`. Raises TypeError if the record has no `open_backend`."""
    chosen, context = installed_record(RendezvousBackendRecord, name, options, name, run_id)
    if chosen.record.open_backend is None:
        raise TypeError(f"the record of {name!r} has no open_backend")
    return chosen.record.open_backend(context, rendezvous_parameters(name, endpoint, run_id, **options))


def rendezvous_parameters(
    name: str, endpoint: str, run_id: str, min_nodes: int = 1, max_nodes: int = 1, **options: Any
) -> RendezvousParameters:
    """Return the parameters for the factory of the rendezvous backend of this name."""
    chosen, _ = installed_record(RendezvousBackendRecord, name, options, name)
    return RendezvousParameters(name, endpoint, run_id, min_nodes, max_nodes).having(chosen.options)
