"""Launches distributed PyTorch jobs, restarts failed workers, and re-forms the job when a machine fails or joins.

Importing this package loads none of its modules. The names below are loaded when they are first used.
"""

import sys

if sys.argv[:1] == ["-m"] and not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):  # python -m MODULE
    _top = sys.orig_argv[-len(sys.argv)].partition(".")[0]
    if _top == "elastic_core" or (_top.startswith("-") and _top.endswith("melastic_core")):
        del sys.path[0]  # the current directory, in which other users may have placed files named like modules

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_core.errors import ChildFailedError, ElasticError, ExitCode, ProcessFailure, SignalException
    from elastic_core.launch import LaunchConfig, elastic_launch, launch_agent
    from elastic_core.stop import should_stop, stop_deadline, stop_reason, stopped

__all__ = [
    "ChildFailedError",
    "ElasticError",
    "ExitCode",
    "LaunchConfig",
    "ProcessFailure",
    "SignalException",
    "elastic_launch",
    "launch_agent",
    "should_stop",
    "stop_deadline",
    "stop_reason",
    "stopped",
]
_HOMES = {
    **dict.fromkeys(("LaunchConfig", "elastic_launch", "launch_agent"), "launch"),
    **dict.fromkeys(("should_stop", "stop_deadline", "stop_reason", "stopped"), "stop"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'elastic_core' has no attribute {name!r}")
    module = importlib.import_module(f"elastic_core.{_HOMES.get(name, 'errors')}")
    found = globals()[name] = getattr(module, name)  # a training loop calls `should_stop` in every step
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
