"""The configuration: a table of settings, read from flags, the environment, the config file and the scheduler.

Start with `settings` (the table), then `reading` (how the sources are combined).
"""

from elastic_core.config.reading import RESERVED as RESERVED
from elastic_core.config.reading import Reading as Reading
from elastic_core.config.reading import Sources as Sources
from elastic_core.config.reading import command_specs as command_specs
from elastic_core.config.reading import own_specs as own_specs
from elastic_core.config.reading import read as read
from elastic_core.config.reading import read_command as read_command
from elastic_core.config.reading import settings_from as settings_from
from elastic_core.config.settings import SPECS as SPECS
from elastic_core.config.settings import Settings as Settings
from elastic_core.config.sources import from_environment as from_environment
from elastic_core.config.sources import from_torchrun as from_torchrun
from elastic_core.config.spec import Spec as Spec
from elastic_core.config.spec import specs_of_options as specs_of_options
from elastic_core.parsing import NodeRange as NodeRange
from elastic_core.parsing import Std as Std
