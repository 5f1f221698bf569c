"""The agent: runs the workers of one node, restarts them within the budget, and stops them."""

from elastic_core.agent.agent import SimpleElasticAgent
from elastic_core.agent.budget import RestartBudget
from elastic_core.agent.interface import ElasticAgent
from elastic_core.agent.local import LocalElasticAgent
from elastic_core.agent.spec import DEFAULT_ROLE, Worker, WorkerGroup, WorkerSpec
from elastic_core.agent.state import RunResult, WorkerState

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
