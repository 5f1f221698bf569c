"""What the agent knows of a watchdog, which notices workers that hang."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Expiry:
    """A worker hangs.

    Args:
        worker_pid: the worker's process, or a process that it started in its own session.
        scope: what the worker was about to do: the scope of the timer.
        reason: how the hang shows, in words that follow "hang: "; empty for a timer that was not released in time.
        late: seconds since the worker should have made progress, as far as that is known.
    """

    worker_pid: int
    scope: str
    reason: str = ""
    late: float = 0.0


@dataclass(frozen=True)
class WatchedWorker:
    """A worker of this node.

    Args:
        local_rank: among the workers of this node.
        global_rank: in the job; it names the log files.
        pid: its process. Processes that it starts are in its session, which has this id.
        logs: the files that its output is written to, stdout before stderr. None where the output goes to the console
            only: see the flags `-r` and `-t`.
    """

    local_rank: int
    global_rank: int
    pid: int
    logs: tuple[Path, ...] = ()


class Watchdog(abc.ABC):
    """Made once per agent, before the first worker starts. `stop` is called once, when no worker runs.

    What it tells of a worker that does not run any more has no effect, so it need not learn of ends.
    """

    @abc.abstractmethod
    def start(self, on_expiry: Callable[[Expiry], None]) -> None:
        """Start to watch. `on_expiry` may be called from any thread, and returns at once."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop watching, and release everything. Idempotent; ends within a bound."""

    @abc.abstractmethod
    def worker_environment(self) -> Mapping[str, str]:
        """Variables by which the workers' clients find this watchdog. Called before every round."""

    def round_started(self, workers: Sequence[WatchedWorker]) -> None:  # noqa: B027 - timers need not know
        """The workers of a round have just started; by now, none of an earlier round runs. Called once per round, after
        `start`, in the agent's thread, so it returns at once. An error is logged (`plugin failed`), and changes nothing
        else. Here nothing is done: watchdogs with timers learn of workers by their requests.

        Args:
            workers: those of this node, by local rank.
        """

    def fault(self) -> str:
        """Why it does not watch although `start` was called; empty if it does. Called from any thread; returns at
        once."""
        return ""

    def scratch(self) -> Sequence[str]:
        """Absolute paths of the folders that it made for itself alone, and that `stop` removes. If the agent is killed,
        the guardian removes them with their content. Called once, after `start`."""
        return ()
