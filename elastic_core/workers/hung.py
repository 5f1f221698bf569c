"""The end of a worker that hangs: its stacks first, then SIGKILL, only to it and what it started."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.clock import later
from elastic_core.workers import sessions, stacks
from elastic_core.workers.sentinels import wait_readable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_core.clock import Clock, Duration
    from elastic_core.workers.patience import HangPatience
    from elastic_core.workers.process import WorkerProcess
    from elastic_core.workers.round_output import RoundOutput

_MOST_BELOW = 3  # processes that are asked in place of the one that started them
_NOT_PYTHON = "the worker has no handler for SIGABRT: it is not Python, or runs without faulthandler"
NOT_ASKED = stacks.explained(["it was one of many that hung, and others took long to be asked"])


@dataclass(frozen=True)
class Killed:
    """Why a worker was killed, and what stands in the report if no stack of it has come through its stderr."""

    reason: str
    otherwise: str


@dataclass(frozen=True)
class End:
    """Of one worker. `environ`: where py-spy is looked for."""

    worker: WorkerProcess
    output: RoundOutput
    environ: Mapping[str, str]
    clock: Clock
    patience: HangPatience

    def stacks(self, pid: int) -> str:
        """Let `pid`, a process of the worker's session, and the worker itself write their stacks and die of that.
        Returns what to say if no stack has come: the output of py-spy, or why there is no stack."""
        self.output.expect_dump(self.worker.ranks.local)
        asked = self._who_can_tell(pid)
        self._ask(asked)
        if self.output.dump(self.worker.ranks.local):
            return ""
        silent = asked[0] if asked else pid
        why = stacks.why_silent(silent, self.patience.answer) if asked else _NOT_PYTHON
        text, no_spy = self._spied(silent) if _runs(silent) else ("", "")
        return text or stacks.explained([why, no_spy])

    def kill(self, wait: bool) -> None:
        """Kill what is left of it. `wait` for its end only if that cannot hold up the agent: many may hang in the
        kernel."""
        sessions.send_all({self.worker.pid: self.worker.start}, signal.SIGKILL)
        if wait:
            wait_readable(self.worker.sentinel, self.patience.end)

    def _who_can_tell(self, pid: int) -> list[int]:
        """The process that hangs, if it is another one, and the worker's. If the worker is not Python but a program
        that started it (a shell), what that program started."""
        leader = self.worker.pid
        first = [pid] if pid != leader and stacks.catches_abort(pid) else []
        if stacks.catches_abort(leader):
            return [*first, leader]
        members = sorted(sessions.members({leader: self.worker.start}), key=lambda stat: (stat.start, stat.pid))
        below = [stat.pid for stat in members if stat.pid not in (pid, leader) and stacks.catches_abort(stat.pid)]
        return [*first, *below[:_MOST_BELOW]]

    def _ask(self, pids: Sequence[int]) -> None:
        """Each of them, and wait for their ends."""
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

    def _spied(self, pid: int) -> tuple[str, str]:
        return stacks.spied(pid, self.environ, self.patience.spy, self.clock)


def _runs(pid: int) -> bool:
    """Whether a program that looks at the process could see anything."""
    stat = sessions.best_table().stat(pid)
    return stat is not None and not stat.ended and stat.state not in "Dt"


def _wait_for_end(pid: int, patience: Duration) -> None:
    """Of a process that is not our child, where the platform can tell."""
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        return
    try:
        wait_readable(fd, patience)
    finally:
        os.close(fd)
