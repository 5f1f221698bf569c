"""Tells plugins the facts. An observer that raises is logged, never fatal, and the others are told all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_core.hooks.discovery import described_error
from elastic_core.log import get_logger

if TYPE_CHECKING:
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.interfaces.observer import (
        AgentFinished,
        PhaseChanged,
        RestartDecided,
        RoundFormed,
        WorkerExited,
        WorkerFailed,
        WorkersStarted,
    )

_log = get_logger()


class Notifier:
    """The `Observer` that passes each fact to every plugin with a hook for it, in the caller's thread. There is no hook
    for phases and exits."""

    def __init__(self, manager: PluginManager) -> None:
        self._manager = manager

    def round_formed(self, fact: RoundFormed) -> None:
        self._tell("elastic_round_formed", fact)

    def workers_started(self, fact: WorkersStarted) -> None:
        self._tell("elastic_workers_started", fact)

    def worker_exited(self, fact: WorkerExited) -> None:
        pass

    def worker_failed(self, fact: WorkerFailed) -> None:
        self._tell("elastic_worker_failed", fact)

    def restart_decided(self, fact: RestartDecided) -> None:
        self._tell("elastic_restart_decided", fact)

    def agent_finished(self, fact: AgentFinished) -> None:
        self._tell("elastic_agent_finished", fact)

    def phase_changed(self, fact: PhaseChanged) -> None:
        pass

    def _tell(self, hook: str, fact: Any) -> None:
        for observer in self._manager.implementations(hook):
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
