"""One worker's process, however it was started."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.workers.sessions import start_of

if TYPE_CHECKING:
    from elastic_core.interfaces.workers import WorkerRanks
    from elastic_core.workers.sentinels import OpenSentinel


REAPED_BY_OTHERS = 256
"""Stands for the exit code of a child that another part of the program waited for; no process can exit with it."""


class Child(Protocol):
    """What both `subprocess` and `multiprocessing` can say about a child."""

    pid: int

    def poll(self) -> int | None:
        """Reap the child if it has ended: its exit code, negative for a signal; None while it runs."""
        ...

    def own_sentinel(self) -> int | None:
        """A new file descriptor that becomes readable when `poll` has an answer; None if its process id will do."""
        ...


@dataclass
class WorkerProcess:
    """A started worker. `start` (clock ticks since boot) and the process id are unique together. `sentinel` becomes
    readable when it has ended; -1 before `watch` and after `reap` or `release`."""

    ranks: WorkerRanks
    child: Child
    start: int
    sentinel: int = -1
    exitcode: int | None = field(default=None)

    @property
    def pid(self) -> int:
        return self.child.pid

    def watch(self, open_sentinel: OpenSentinel) -> None:
        """Open the sentinel. Raises OSError when no file descriptor is left."""
        own = self.child.own_sentinel()
        self.sentinel = open_sentinel(self.pid) if own is None else own

    def reap(self) -> bool:
        """True once: when the process is found to have ended. Releases the sentinel then."""
        if self.exitcode is not None:
            return False
        self.exitcode = self.child.poll()
        if self.exitcode is None:
            return False
        self.release()
        return True

    def release(self) -> None:
        """Close the sentinel. Idempotent."""
        if self.sentinel >= 0:
            os.close(self.sentinel)
            self.sentinel = -1


def reap(pid: int) -> int | None:
    """The exit code of a child that has ended, None while it runs. Where the host program waits for all children
    (`waitpid(-1)`) the code may be lost; `subprocess` would call that a success and `multiprocessing` never answer."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return REAPED_BY_OTHERS
    return os.waitstatus_to_exitcode(status) if ended else None


def adopt(ranks: WorkerRanks, child: Child) -> WorkerProcess:
    """Wrap a child that has just been started."""
    return WorkerProcess(ranks, child, start_of(child.pid))


def make_exits_visible() -> None:
    """Where the agent was started with SIGCHLD ignored, the kernel forgets how children ended, and every failure would
    look like a success. Undo that; the workers inherit it too. Raises ConfigurationError outside the main thread."""
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        return
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    except ValueError as error:
        raise ConfigurationError(
            Problem(
                "SIGCHLD",
                "expected a process that learns how its children end, found that it ignores SIGCHLD; set "
                "signal.signal(signal.SIGCHLD, signal.SIG_DFL) in the main thread before launching",
            )
        ) from error
