"""What an agent is to those who run one."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

from elastic_core.agent.spec import DEFAULT_ROLE

if TYPE_CHECKING:
    from elastic_core.agent.spec import WorkerGroup
    from elastic_core.agent.state import RunResult


class ElasticAgent(abc.ABC):
    """Runs the workers of one node to their end."""

    @abc.abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run until the workers succeeded or failed for good. A node that was not needed has succeeded too.

        Raises:
            SignalException: the agent was asked to leave and has stopped its workers.
            RendezvousClosedError: another node closed the job, because it failed there; `failures` are the job's.
            RendezvousConnectionError: the store was out of reach for so long that the others hold this node to be gone.
            RendezvousError: no round formed.
            UnkillableWorkersError: a worker survived SIGKILL.
        """

    @abc.abstractmethod
    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """The group; for reading only."""
