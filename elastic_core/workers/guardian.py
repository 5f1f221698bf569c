"""The agent's side of the guardian: the process that ends our workers and temporary files if the agent is killed."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock, later
from elastic_core.log import get_logger
from elastic_core.support.helper import HelperProcess
from elastic_core.workers import sessions
from elastic_core.workers.interrupts import interrupts_held
from elastic_core.workers.process import wait_readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from elastic_core.clock import Clock, Duration, Instant

_FOR_THE_LOADER = ("LD_", "DYLD_")  # an interpreter may need them to find its libraries


_AT_ONCE, _SELDOM = 4, 1.0
"""So many guardians are started within so many seconds; after that it is left to the next order, so that one which
always ends at once is not started all the time."""


class Guardian:
    """Starts the guardian process; `close` ends it. One that was killed is replaced by another, which is told all that
    holds. Losing the guardian costs safety but never ends the job.

    The process gets those variables of `environment` that the dynamic loader reads, and no others. It holds a copy of
    the descriptor `lifeline`, if that is one, until no worker is left. Raises OSError when the process cannot be
    started.
    """

    def __init__(
        self, environment: Mapping[str, str] = os.environ, lifeline: int = -1, clock: Clock | None = None
    ) -> None:
        self._environment = {name: value for name, value in environment.items() if name.startswith(_FOR_THE_LOADER)}
        self._held = [lifeline] if lifeline >= 0 else []
        self._clock = clock or SystemClock()
        self._closed = False
        self._lost = False
        self._expected = ""
        self._watched: dict[int, int] = {}
        self._scratch: list[str] = []
        self._begun: deque[Instant] = deque(maxlen=_AT_ONCE)
        self._process = self._started()

    def _started(self) -> HelperProcess:
        self._begun.append(self._clock.now())
        arguments = [str(fd) for fd in self._held]
        return HelperProcess(sessions.__file__, arguments, environment=self._environment, keeps=self._held)

    @property
    def pid(self) -> int:
        """The guardian's process id."""
        return self._process.pid

    def sentinels(self) -> list[int]:
        """A descriptor that polls as ready when the guardian has ended and `look` is to be called; or none."""
        sentinel = self._process.sentinel
        return [] if sentinel is None or self._lost else [sentinel]

    def look(self) -> None:
        """Replace the guardian if it has ended; not at once, if that has happened too often of late."""
        ended = any(wait_readable(sentinel, 0) for sentinel in self.sentinels())
        if self._closed or not (ended or self._lost):
            return
        if len(self._begun) < _AT_ONCE or self._clock.now() >= later(self._begun[0], _SELDOM):
            self._replace()
        elif not self._lost:
            self._tell_lost(self.pid, f"{_AT_ONCE} have ended within {_SELDOM:g} s")

    @contextlib.contextmanager
    def expecting(self) -> Iterator[int]:
        """A descriptor for the worker that is started inside. The guardian finds the worker by it, if the agent dies
        between the start and `watch`: no process id is known then. Raises OSError when none is left."""
        reader, mark = os.pipe()
        os.close(reader)
        try:
            self._expected = sessions.link_of(mark)
            self._order(f"expect {self._expected}")
            yield mark
        finally:
            os.close(mark)

    def watch(self, pid: int, start: int) -> None:
        """End the session of this worker if the agent dies. It is the one that was expected."""
        self._expected = ""
        self._watched[pid] = start
        self._order(f"watch {pid} {start}")

    def forget(self, pid: int) -> None:
        """Stop watching a session: it is empty, and the kernel may use its number again."""
        self._watched.pop(pid, None)
        self._order(f"forget {pid}")

    def scratch(self, path: str) -> None:
        """Remove this folder at the end. A path that is relative, or would read as two orders, is left alone, and so
        are links and their targets, so that no other folder is ever removed."""
        if "\n" not in path and Path(path).is_absolute():
            self._scratch.append(path)
            self._order(f"scratch {path}")

    def close(self, timeout: Duration = 15.0) -> None:
        """Let the guardian end what it still watches, and wait for it. Idempotent. One that takes longer than `timeout`
        seconds is killed, and processes and folders may be left. On a machine that stalls, it may have just begun."""
        self._closed = True
        self._process.close(timeout)

    def _order(self, line: str) -> None:
        """What holds is known here already, so a guardian that is started now is told this as well."""
        if not self._closed and (self._lost or not self._process.order(line)):
            self._replace()

    def _replace(self) -> None:
        with interrupts_held():
            lost, told = self._process, self._lost
            self._lost = True
            lost.close(0)
            try:
                self._process = self._started()
            except OSError as error:
                if not told:
                    self._tell_lost(lost.pid, str(error))
                return
            holds = [
                *(f"scratch {path}" for path in self._scratch),
                *(f"watch {pid} {start}" for pid, start in self._watched.items()),
                *([f"expect {self._expected}"] if self._expected else []),
            ]
            self._lost = not all(self._process.order(line) for line in holds)
        if self._lost:
            self._tell_lost(self.pid, "it has ended, too")
        else:
            kept = "another one takes its place"
            get_logger().warning("guardian lost", pid=lost.pid, consequence=kept, next=self.pid)

    def _tell_lost(self, pid: int, reason: str) -> None:
        self._lost = True
        consequence = "if the agent is killed now, nobody ends its workers and temporary files for it"
        get_logger().warning("guardian lost", pid=pid, consequence=consequence, reason=reason)
