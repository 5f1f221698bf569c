"""Resolves the settings and opens the backend of the job on which a command operates."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock
from elastic_core.config import SPECS, Settings
from elastic_core.config.resolve import resolved, with_backend
from elastic_core.config.spec import DEFAULT
from elastic_core.errors import ConfigurationError, Problem
from elastic_core.hooks.calls import Contexts
from elastic_core.hooks.records import RendezvousBackendRecord
from elastic_core.hooks.selection import backend_selection
from elastic_core.interfaces.handler import RendezvousParameters
from elastic_core.rendezvous.seal import seal_of
from elastic_core.rendezvous.store_backend import with_roster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from elastic_core.clock import Duration
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.interfaces.backend import RosterBackend
    from elastic_core.rendezvous.seal import HmacSeal


@dataclass(frozen=True)
class Target:
    """The job on which a command operates. `added` contains the values of the options that plugins added. `place` names
    the origin of the backend's options in messages."""

    settings: Settings
    manager: PluginManager
    added: Mapping[str, object] = field(default_factory=dict)
    place: str = SPECS["rdzv_conf"].flag

    @classmethod
    def of(
        cls,
        values: Mapping[str, Any],
        manager: PluginManager,
        added: Mapping[str, object] | None = None,
        origins: Mapping[str, str] | None = None,
    ) -> Target:
        """Resolve the job's settings as `elastic run` does. Raises ConfigurationError if the endpoint or id is
        missing."""
        given = Settings(**{name: value for name, value in values.items() if name in SPECS})
        flags = {name: DEFAULT if getattr(given, name) == spec.default else spec.flag for name, spec in SPECS.items()}
        settings, chosen = with_backend(given, flags, {})
        settings, _ = resolved(settings, chosen, manager.backend_named(settings.rdzv_backend), lambda: "")
        problems = []
        if not settings.rdzv_endpoint:
            needed = "--rdzv-endpoint=HOST:PORT; a job that runs without an endpoint cannot be asked"
            problems.append(Problem("--rdzv-endpoint", f"this command requires {needed}"))
        if not settings.rdzv_id:
            problems.append(Problem("--rdzv-id", "this command requires --rdzv-id=ID"))
        if problems:
            raise ConfigurationError(*problems)
        return cls(settings, manager, added or {}, (origins or {}).get("rdzv_conf", cls.place))

    @contextlib.contextmanager
    def opened(self, patience: Duration) -> Iterator[tuple[RosterBackend, HmacSeal, RendezvousParameters]]:
        """Open the job's backend, and close it on exit. Yields the backend, the seal for its values, and its
        parameters. Connecting may take up to `patience` seconds. As on the nodes, a backend that has only `get_state`
        and `set_state` is wrapped in one that has a roster.

        Raises:
            ConfigurationError: the backend is not installed or cannot be observed from outside, an option is invalid,
                or the secret file cannot be used.
        """
        settings = self.settings
        chosen, name = backend_selection(settings, self.place).choose(self.manager), settings.rdzv_backend
        open_backend = chosen.record.open_backend
        if open_backend is None:
            able = named_backends(self.manager, lambda other: other.open_backend is not None)
            reason = f"jobs on the backend {name!r} cannot be observed; supported backends: {able}"
            raise ConfigurationError(Problem("--rdzv-backend", reason))
        config = {**chosen.options, "join_timeout": patience}
        params = RendezvousParameters(name, settings.rdzv_endpoint, settings.rdzv_id or "", 1, 1).having(config)
        seal = seal_of(params)
        context = Contexts(self.manager, settings, self.added).of_record(chosen.provided.source, params.config)
        backend = with_roster(open_backend(context, params), SystemClock(), observes=True, seal=seal)
        try:
            yield backend, seal, params
        finally:
            backend.close()


def named_backends(manager: PluginManager, is_able: Callable[[RendezvousBackendRecord], bool]) -> str:
    """Return the names of the installed backends that satisfy `is_able`, separated by commas, for use in messages."""
    names = [item.record.name for item in manager.records(RendezvousBackendRecord) if is_able(item.record)]
    return ", ".join(names) or "none"
