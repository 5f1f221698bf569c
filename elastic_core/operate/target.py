"""The job that a command is about, and its backend, opened."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock
from elastic_core.compat.over_state import with_roster
from elastic_core.config import SPECS, Settings
from elastic_core.config.resolve import resolve
from elastic_core.config.spec import DEFAULT
from elastic_core.errors import ConfigurationError, Problem
from elastic_core.hooks.context import Context
from elastic_core.hooks.options import needed, type_options
from elastic_core.hooks.records import RendezvousBackendRecord
from elastic_core.interfaces.handler import RendezvousParameters
from elastic_core.rendezvous.seal import seal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from elastic_core.clock import Duration
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.interfaces.backend import RosterBackend
    from elastic_core.rendezvous.seal import HmacSeal


@dataclass(frozen=True)
class Target:
    """The job that a command is about. `conf` holds options of the backend as text."""

    backend: str
    endpoint: str
    run_id: str
    conf: Mapping[str, str]


def target_of(values: Mapping[str, Any], manager: PluginManager) -> Target:
    """From the values of a command line, as a run would resolve them. Raises ConfigurationError if they do not name a
    job."""
    given = Settings(**{name: value for name, value in values.items() if name in SPECS})
    origins = {name: DEFAULT if getattr(given, name) == spec.default else spec.flag for name, spec in SPECS.items()}
    settings, _ = resolve(given, origins, lambda: "", {}, manager.backend_named)
    problems = []
    if not settings.rdzv_endpoint:
        expected = "expected where the nodes of the job meet, found nothing; give --rdzv-endpoint=HOST:PORT"
        problems.append(Problem("--rdzv-endpoint", expected))
    run_id = settings.rdzv_id or ""
    if not run_id:
        problems.append(Problem("--rdzv-id", "expected the name of the job, found none; give --rdzv-id"))
    if problems:
        raise ConfigurationError(*problems)
    conf = with_secret(settings.rdzv_conf, settings.rdzv_secret_file)
    return Target(settings.rdzv_backend, settings.rdzv_endpoint, run_id, conf)


def with_secret(conf: Mapping[str, str], path: str | None) -> Mapping[str, str]:
    """The options of the backend, with the file of the secret among them."""
    return {**conf, "secret_file": path} if path else conf


def parameters(target: Target, manager: PluginManager, patience: Duration) -> RendezvousParameters:
    """The parameters with which the job's backend is opened. `patience`: seconds that connecting may take.

    Raises:
        ConfigurationError: no plugin brings the backend, it cannot be looked at, or an option is wrong.
    """
    record = manager.select(RendezvousBackendRecord, target.backend)
    if record.open_backend is None:
        able = named_backends(manager, lambda other: other.open_backend is not None)
        raise ConfigurationError(
            Problem("--rdzv-backend", f"expected a backend that can be looked at ({able}), found {target.backend!r}")
        )
    config, problems = type_options(record.options, needed(record.options, target.conf), "--rdzv-conf")
    if problems:
        raise ConfigurationError(*problems)
    config["join_timeout"] = patience
    return RendezvousParameters(target.backend, target.endpoint, target.run_id, 1, 1).having(config)


@contextlib.contextmanager
def opened(
    params: RendezvousParameters, manager: PluginManager, seal: HmacSeal | None = None
) -> Iterator[RosterBackend]:
    """The job's backend, closed at the end. One with only `get_state` and `set_state` gets a roster, as for nodes.
    `seal`: the job's; unset: that of `params`."""
    record = manager.select(RendezvousBackendRecord, params.backend)
    assert record.open_backend is not None  # `parameters` saw to it
    backend = with_roster(
        record.open_backend(Context(params.run_id, params.config), params),
        SystemClock(),
        observes=True,
        seal=seal or seal_of(params),
    )
    try:
        yield backend
    finally:
        backend.close()


def named_backends(manager: PluginManager, is_able: Callable[[RendezvousBackendRecord], bool]) -> str:
    """For messages: the installed backends that can do what is asked."""
    names = [item.record.name for item in manager.records(RendezvousBackendRecord) if is_able(item.record)]
    return ", ".join(names) or "none of those installed can"
