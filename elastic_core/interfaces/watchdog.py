"""The agent's interface to a watchdog, which detects hung workers."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Expiry:
    """A hung worker, as a watchdog reports it.

    Args:
        worker_pid: the id of the worker's process or of another process in its session.
        scope: the timer's scope, which names the operation that the worker was about to perform.
        reason: how the hang was detected, as text that follows "hang: " in messages; empty for an expired timer.
        late: how many seconds have passed since the worker should have made progress, if known.
    """

    worker_pid: int
    scope: str
    reason: str = ""
    late: float = 0.0


@dataclass(frozen=True)
class WatchedWorker:
    """A worker of this node.

    Args:
        local_rank: its rank on this node.
        global_rank: its rank in the job, which is part of the log files' names.
        pid: its process id, which is also the id of its session. Processes that it starts share the session.
        logs: the files that contain its output, stdout before stderr; empty unless `-r` or `-t` is set.
    """

    local_rank: int
    global_rank: int
    pid: int
    logs: tuple[Path, ...] = ()


class Watchdog(abc.ABC):
    """Detects hung workers. The agent creates a watchdog before the first worker starts, and stops it after all workers
    have ended.

    A watchdog need not track which workers are still running, because the agent ignores reports about workers that have
    ended.
    """

    @abc.abstractmethod
    def start(self, on_expiry: Callable[[Expiry], None]) -> None:
        """Start watching. Any thread may call `on_expiry`, which does not block."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop watching and release all resources. Idempotent. Must return within bounded time."""

    @abc.abstractmethod
    def worker_environment(self) -> Mapping[str, str]:
        """Return the environment variables through which workers find this watchdog. Called before every round."""

    def round_started(self, workers: Sequence[WatchedWorker]) -> None:  # noqa: B027 - timers need not know
        """Handle a new round, whose workers have started. The workers of earlier rounds have ended. Called once per
        round, after `start`. The agent's thread makes the call, so the method must not block. An exception is only
        logged (`plugin failed`). This method is optional: a watchdog based on timers learns about workers from their
        requests.

        Args:
            workers: this node's workers, in the order of their local ranks.
        """

    def fault(self) -> str:
        """Return why a watchdog that has been started is not working, or an empty string if it is working. Any thread
        may call this method, which must not block."""
        return ""

    def scratch(self) -> Sequence[str]:
        """Return the absolute paths of private folders that `stop` removes. If the agent is killed, the guardian
        removes these folders with their contents. Called once, after `start`."""
        return ()
