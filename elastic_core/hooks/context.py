"""The context that a plugin's factories and runtime hooks receive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastic_core.log import Logger, get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Context:
    """The information about a run that a plugin receives.

    Args:
        run_id: the job's id.
        options: the values of the options that this plugin added. For a factory, it also contains the values of its
            record's options.
        settings: the run's settings by name, without the options of backends and other plugins; read-only.
        log: a logger that writes to the agent's log and adds the plugin's name to every line.
    """

    run_id: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may contain secrets
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    log: Logger = field(default_factory=get_logger, repr=False)
