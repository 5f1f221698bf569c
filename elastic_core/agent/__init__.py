"""The agent, which starts the workers of one node, restarts them within the restart budget, and stops them."""

from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    """Import `LocalElasticAgent` on first use. Its module loads plugins, which importing this package must not do."""
    if name == "LocalElasticAgent":
        from elastic_core.launch import LocalElasticAgent

        return LocalElasticAgent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
