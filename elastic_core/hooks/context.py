"""What the hooks of a plugin are told while a job runs, besides a fact."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastic_core.log import Logger, get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Context:
    """What the hooks of one plugin know of the run, besides a fact.

    Args:
        run_id: the name of the job.
        options: the values of the options that this plugin added to `elastic run`, by name.
        settings: all settings of the run, by name; read-only.
        log: writes to the agent's log; every line names the plugin.
    """

    run_id: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    log: Logger = field(default_factory=get_logger)
