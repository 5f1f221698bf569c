"""The agent, which starts the workers of one node, restarts them within the restart budget, and stops them."""

from typing import TYPE_CHECKING

from elastic_core.agent.agent import SimpleElasticAgent
from elastic_core.agent.interface import (
    DEFAULT_ROLE,
    ElasticAgent,
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from elastic_core.agent.process_agent import ProcessAgent
from elastic_core.support.imports import lazy_names

if TYPE_CHECKING:
    from elastic_core.launch import LocalElasticAgent

__all__ = [
    "DEFAULT_ROLE",
    "ElasticAgent",
    "LocalElasticAgent",
    "ProcessAgent",
    "RunResult",
    "SimpleElasticAgent",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
]
if not TYPE_CHECKING:  # the module of `LocalElasticAgent` loads plugins, which importing this package must not do
    __getattr__, _ = lazy_names(__name__)
