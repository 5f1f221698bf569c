"""How a worker that hangs is ended: it is asked for its stacks, and then gets SIGKILL, as does what it started, but no
other worker. `agent.hang` decides which worker hangs."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.clock import later
from elastic_core.workers import sessions, stacks
from elastic_core.workers.process import wait_readable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_core.clock import Clock, Duration
    from elastic_core.workers.output import RoundOutput
    from elastic_core.workers.process import WorkerProcess

_MOST_BELOW = 3  # processes that are asked in place of the one that started them
_NOT_PYTHON = "the worker has no handler for SIGABRT: it is not Python, or runs without faulthandler"
NOT_ASKED = stacks.explained(["it was one of many that hung, and others took long to be asked"])


@dataclass(frozen=True)
class HangPatience:
    """How long the agent waits for a worker that hangs, in seconds. Each wait ends early when what it waits for has
    come.

    Attributes:
        answer: for a worker that was asked to write its stacks and die; it takes milliseconds.
        spy: for py-spy, which has to read the symbols of large libraries.
        console: for the stacks to come through the pipe; it takes them if the console stalls.
        end: for a killed worker to be gone.
    """

    answer: Duration = 0.5
    spy: Duration = 2.0
    console: Duration = 0.25
    end: Duration = 1.0


@dataclass(frozen=True)
class Killed:
    """Why a worker was killed, and what stands in the report if no stack of it has come through its stderr."""

    reason: str
    otherwise: str


@dataclass(frozen=True)
class HangingWorker:
    """A worker that is about to be killed. py-spy is looked for on the PATH of `environ`."""

    worker: WorkerProcess
    output: RoundOutput
    environ: Mapping[str, str]
    clock: Clock
    patience: HangPatience

    def stacks(self, pid: int) -> str:
        """Let `pid`, a process of the worker's session, and the worker itself write their stacks and die of that.
        Returns what to say if no stack has come: the output of py-spy, or why there is no stack."""
        self.output.expect_dump(self.worker.ranks.local)
        asked = self._processes_to_ask(pid)
        self._ask(asked)
        if self.output.dump(self.worker.ranks.local):
            return ""
        silent = asked[0] if asked else pid
        why = stacks.why_silent(silent, self.patience.answer) if asked else _NOT_PYTHON
        text, no_spy = stacks.spied(silent, self.environ, self.patience.spy, self.clock) if _runs(silent) else ("", "")
        return text or stacks.explained([why, no_spy])

    def kill(self, pid: int, wait: bool) -> None:
        """Kill the process that hangs and what is left of the worker's session, but no helper. `wait` for the worker's
        end only if that cannot hold up the agent: many workers may hang in the kernel."""
        leaders = {self.worker.pid: self.worker.start}
        if sessions.leader_of(pid, leaders):  # it may have died of SIGABRT
            sessions.send(pid, signal.SIGKILL)
        sessions.kill_all_but_helpers(leaders)
        if wait:
            wait_readable(self.worker.sentinel, self.patience.end)

    def _processes_to_ask(self, pid: int) -> list[int]:
        """The process that hangs, if it is not the worker's own, and then the worker's. Where the worker is a program
        that started Python (a shell), the processes that this program started."""
        leader = self.worker.pid
        first = [pid] if pid != leader and stacks.catches_abort(pid) else []
        if stacks.catches_abort(leader):
            return [*first, leader]
        members = sorted(sessions.members({leader: self.worker.start}), key=lambda stat: (stat.start, stat.pid))
        below = [stat.pid for stat in members if stat.pid not in (pid, leader) and stacks.catches_abort(stat.pid)]
        return [*first, *below[:_MOST_BELOW]]

    def _ask(self, pids: Sequence[int]) -> None:
        """Ask each process, and wait for their ends."""
        until = later(self.clock.now(), self.patience.answer)
        if pids and self.worker.pid not in pids:
            sessions.send(self.worker.pid, signal.SIGSTOP)  # a shell would go on with its next line
        for pid in pids:
            stacks.abort(pid)
            left = max(until - self.clock.now(), 0.0)
            if pid == self.worker.pid:
                wait_readable(self.worker.sentinel, left)
            else:
                _wait_for_end(pid, left)
        self.output.catch_up(self.patience.console)


def _runs(pid: int) -> bool:
    """Whether a program that looks at the process could see anything."""
    stat = sessions.best_table().stat(pid)
    return stat is not None and not stat.ended and stat.state not in "Dt"


def _wait_for_end(pid: int, patience: Duration) -> None:
    """Wait for the end of a process that is not our child, where the platform can tell."""
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        return
    try:
        wait_readable(fd, patience)
    finally:
        os.close(fd)
