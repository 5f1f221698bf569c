"""Names for commands that examine what a run would do, as `elastic doctor` does.

They may change in any minor release, so a plugin that imports this module should require the same minor version of
elastic-core. Everything that other plugins need is in `elastic_core.plugin`. Import this module only when the command
runs, because it loads much of the core.
"""

from elastic_core.cli import show as show
from elastic_core.cli import to_json as to_json
from elastic_core.compose.plan import Plan as Plan
from elastic_core.compose.policy import script_entry as script_entry
from elastic_core.devices import ASKING as ASKING
from elastic_core.devices import count_workers as count_workers
from elastic_core.health.board import StatusBoard as StatusBoard
from elastic_core.health.checks import results_of as results_of
from elastic_core.hooks.calls import notice_sources as notice_sources
from elastic_core.hooks.discovery import CORE as CORE
from elastic_core.hooks.discovery import own_version as own_version
from elastic_core.hooks.manager import PluginManager as PluginManager
from elastic_core.hooks.records import OURS as OURS
from elastic_core.operate.observation import GRACE as GRACE
from elastic_core.rendezvous.codec import decoded_state as decoded_state
from elastic_core.rendezvous.model import State as State
from elastic_core.rendezvous.seal import HmacSeal as HmacSeal
from elastic_core.rendezvous.settings import LOOPBACK as LOOPBACK
from elastic_core.support.bounded import within as within
