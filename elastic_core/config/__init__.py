"""The configuration: a table of settings, read from flags, the environment, the config file and the scheduler.

Start with `settings` (the table), then `reading` (how the sources are combined).
"""

from elastic_core.config.reading import (
    RESERVED,
    Command,
    CommandReading,
    Reading,
    Sources,
    command_of,
    read,
    read_command,
    settings_from,
)
from elastic_core.config.settings import SPECS, Settings
from elastic_core.config.sources import from_environment, from_torchrun
from elastic_core.config.spec import Spec, specs_of_options
from elastic_core.config.values import NodeRange, Std

__all__ = [
    "Command",
    "CommandReading",
    "NodeRange",
    "RESERVED",
    "Reading",
    "SPECS",
    "Settings",
    "Sources",
    "Spec",
    "Std",
    "command_of",
    "from_environment",
    "from_torchrun",
    "read",
    "read_command",
    "settings_from",
    "specs_of_options",
]
