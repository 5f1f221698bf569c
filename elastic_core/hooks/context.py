"""The context that a plugin's factories receive, and its hooks while a job runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastic_core.log import Logger, get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Context:
    """Information about the run, for a plugin.

    Args:
        run_id: the job's id.
        options: values of the options that this plugin added, by option name; for a factory, those of its record, too.
        settings: the settings of the run, by name, without the options of backends and other plugins; read-only.
        log: writes to the agent's log; every line names the plugin.
    """

    run_id: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # there may be secrets among them
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    log: Logger = field(default_factory=get_logger, repr=False)
