"""One worker's process, however it was started."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from elastic_core.workers.sessions import start_of

if TYPE_CHECKING:
    from elastic_core.interfaces.workers import WorkerRanks
    from elastic_core.workers.sentinels import OpenSentinel


class Child(Protocol):
    """What both `subprocess` and `multiprocessing` can tell of a child."""

    pid: int

    def poll(self) -> int | None:
        """Reap the child if it has ended: its exit code, negative for a signal; None while it runs."""
        ...

    def own_sentinel(self) -> int | None:
        """A new file descriptor that becomes readable when `poll` has an answer; None if its process id will do."""
        ...


@dataclass
class WorkerProcess:
    """A started worker. `start` (clock ticks since boot) and the process id are unique together."""

    ranks: WorkerRanks
    child: Child
    start: int
    sentinel: int
    exitcode: int | None = field(default=None)

    @property
    def pid(self) -> int:
        return self.child.pid

    def reap(self) -> bool:
        """True once: when the process is found to have ended. Releases the sentinel then."""
        if self.exitcode is not None:
            return False
        self.exitcode = self.child.poll()
        if self.exitcode is None:
            return False
        os.close(self.sentinel)
        return True


def adopt(ranks: WorkerRanks, child: Child, open_sentinel: OpenSentinel) -> WorkerProcess:
    """Wrap a child that has just been started."""
    own = child.own_sentinel()
    return WorkerProcess(ranks, child, start_of(child.pid), open_sentinel(child.pid) if own is None else own)
