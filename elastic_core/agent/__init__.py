"""The agent: runs the workers of one node, restarts them within the budget, and stops them."""

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
from elastic_core.agent.local import LocalElasticAgent
from elastic_core.agent.supervise import RestartBudget

__all__ = [
    "DEFAULT_ROLE",
    "ElasticAgent",
    "LocalElasticAgent",
    "RestartBudget",
    "RunResult",
    "SimpleElasticAgent",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
]
