"""elastic-core: gathers the machines of a training job, starts the workers, and brings the job back when one is lost.

Importing this package loads no other module of it; the names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_core.errors import ChildFailedError, ElasticError, ExitCode, ProcessFailure, SignalException
    from elastic_core.launch import LaunchConfig, elastic_launch, launch_agent

__all__ = [
    "ChildFailedError",
    "ElasticError",
    "ExitCode",
    "LaunchConfig",
    "ProcessFailure",
    "SignalException",
    "elastic_launch",
    "launch_agent",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'elastic_core' has no attribute {name!r}")
    room = "launch" if name in ("LaunchConfig", "elastic_launch", "launch_agent") else "errors"
    return getattr(importlib.import_module(f"elastic_core.{room}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
