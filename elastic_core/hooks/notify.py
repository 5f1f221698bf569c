"""Tells plugins the facts. An observer that raises is logged, never fatal, and the others are told all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.hooks.discovery import described_error
from elastic_core.interfaces.observer import AgentFinished, RestartDecided, RoundFormed, WorkerFailed, WorkersStarted
from elastic_core.log import get_logger

if TYPE_CHECKING:
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.interfaces.observer import Fact

_HOOKS: dict[type, str] = {
    RoundFormed: "elastic_round_formed",
    WorkersStarted: "elastic_workers_started",
    WorkerFailed: "elastic_worker_failed",
    RestartDecided: "elastic_restart_decided",
    AgentFinished: "elastic_agent_finished",
}
_log = get_logger()


class Notifier:
    """The `Observer` that passes each fact to every plugin with a hook for it, in the caller's thread. There is no hook
    for phases and exits."""

    def __init__(self, manager: PluginManager) -> None:
        self._manager = manager

    def __call__(self, fact: Fact) -> None:
        hook = _HOOKS.get(type(fact))
        for observer in self._manager.implementations(hook) if hook else ():
            try:
                observer(fact=fact)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's fault must not end the job
                _log.warning(
                    "observer failed",
                    hook=hook,
                    **observer.source.as_dict(),
                    error=described_error(error),
                    exc_info=error,
                )
