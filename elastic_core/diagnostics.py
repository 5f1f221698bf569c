"""Names for commands that examine what a run would do, as `elastic doctor` does.

Names are loaded on first use. They may change in any minor release, so a plugin that imports this module should require
the same minor version of elastic-core. Everything that other plugins need is in `elastic_core.plugin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.support.imports import lazy_names

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from elastic_core.cli import (
        configure_log as configure_log, read_like_run as read_like_run, show as show, to_json as to_json
    )
    from elastic_core.compose.plan import (
        plan_of as plan_of, selections as selections, without_missing as without_missing
    )
    from elastic_core.compose.policy import script_entry as script_entry
    from elastic_core.config.explain import command_help as command_help
    from elastic_core.config.spec import Spec as Spec
    from elastic_core.devices import ASKING as ASKING, count_workers as count_workers
    from elastic_core.health.board import StatusBoard as StatusBoard
    from elastic_core.health.checks import result_of as result_of
    from elastic_core.hooks.calls import (
        Contexts as Contexts, health_checks as health_checks, notice_sources as notice_sources
    )
    from elastic_core.hooks.discovery import CORE as CORE, own_version as own_version
    from elastic_core.hooks.manager import PluginManager as PluginManager
    from elastic_core.hooks.records import OURS as OURS
    from elastic_core.hooks.selection import backend_selection as backend_selection
    from elastic_core.operate.commands import own_flag as own_flag
    from elastic_core.operate.observation import GRACE as GRACE
    from elastic_core.operate.target import Target as Target
    from elastic_core.parsing import integer as integer, parse_boolean as parse_boolean, seconds as seconds
    from elastic_core.rendezvous.codec import decoded_state as decoded_state
    from elastic_core.rendezvous.model import State as State
    from elastic_core.rendezvous.seal import HmacSeal as HmacSeal
    from elastic_core.rendezvous.settings import LOOPBACK as LOOPBACK
    from elastic_core.support.bounded import within as within
    # isort: on
    # fmt: on

_HOMES = {
    "elastic_core.cli": "configure_log read_like_run show to_json",
    "elastic_core.compose.plan": "plan_of selections without_missing",
    "elastic_core.compose.policy": "script_entry",
    "elastic_core.config.explain": "command_help",
    "elastic_core.config.spec": "Spec",
    "elastic_core.devices": "ASKING count_workers",
    "elastic_core.health.board": "StatusBoard",
    "elastic_core.health.checks": "result_of",
    "elastic_core.hooks.calls": "Contexts health_checks notice_sources",
    "elastic_core.hooks.discovery": "CORE own_version",
    "elastic_core.hooks.manager": "PluginManager",
    "elastic_core.hooks.records": "OURS",
    "elastic_core.hooks.selection": "backend_selection",
    "elastic_core.operate.commands": "own_flag",
    "elastic_core.operate.observation": "GRACE",
    "elastic_core.operate.target": "Target",
    "elastic_core.parsing": "integer parse_boolean seconds",
    "elastic_core.rendezvous.codec": "decoded_state",
    "elastic_core.rendezvous.model": "State",
    "elastic_core.rendezvous.seal": "HmacSeal",
    "elastic_core.rendezvous.settings": "LOOPBACK",
    "elastic_core.support.bounded": "within",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
    __all__ = __dir__()
