"""The agent's side of the guardian, a process that kills workers and removes temporary files if the agent dies."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock, later
from elastic_core.log import get_logger
from elastic_core.support.processes import HelperProcess, interrupts_held
from elastic_core.workers import sessions
from elastic_core.workers.process import wait_readable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_core.clock import Clock, Duration, Instant

_FOR_THE_LOADER = ("LD_", "DYLD_")  # the interpreter may need these variables to find its libraries

_MOST, _WITHIN = 4, 1.0
"""`look` starts at most `_MOST` guardians within `_WITHIN` seconds, even if every guardian dies immediately."""


class Guardian:
    """Starts the guardian process, which runs until `close`. A guardian that is killed is replaced, and the new one
    receives all orders that still apply. Without a guardian, the job continues, though less safely.

    The process gets only the environment variables that the dynamic loader reads. Unless `lifeline` is -1, the process
    keeps a copy of this descriptor open until no workers are left.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self, lifeline: int = -1, clock: Clock | None = None) -> None:
        self._held = [lifeline] if lifeline >= 0 else []
        self._clock = clock or SystemClock()
        self._closed = False
        self._lost = False
        self._expected = ""
        self._watched: dict[int, int] = {}
        self._scratch: list[str] = []
        self._begun: deque[Instant] = deque(maxlen=_MOST)
        self._process = self._started()

    def _started(self) -> HelperProcess:
        self._begun.append(self._clock.now())
        environment = {name: value for name, value in os.environ.items() if name.startswith(_FOR_THE_LOADER)}
        return HelperProcess(sessions.__file__, [str(fd) for fd in self._held], environment, keeps=self._held)

    @property
    def pid(self) -> int:
        """The guardian's process id."""
        return self._process.pid

    def sentinels(self) -> list[int]:
        """Return the descriptor, if any, that becomes readable when the guardian ends. The caller must then call
        `look`."""
        sentinel = self._process.sentinel
        return [] if sentinel is None or self._lost else [sentinel]

    def look(self) -> None:
        """Replace the guardian if it has ended, unless too many guardians were started within the last second."""
        ended = any(wait_readable(sentinel, 0) for sentinel in self.sentinels())
        if self._closed or not (ended or self._lost):
            return
        if len(self._begun) < _MOST or self._clock.now() >= later(self._begun[0], _WITHIN):
            self._replace()
        elif not self._lost:
            self._report_lost(self.pid, f"{_MOST} guardians have ended within {_WITHIN:g} s")

    @contextlib.contextmanager
    def expecting(self) -> Iterator[int]:
        """Yield a descriptor to pass to the worker that is started inside this context. If the agent dies before it
        calls `watch`, the guardian finds the worker by it. Raises OSError if no descriptors are left."""
        reader, mark = os.pipe()
        os.close(reader)
        try:
            self._expected = sessions.link_of(mark)
            self._order(f"expect {self._expected}")
            yield mark
        finally:
            os.close(mark)

    def watch(self, pid: int, start: int) -> None:
        """Notify the guardian that the expected worker has started, so that the guardian kills its session."""
        self._expected = ""
        self._watched[pid] = start
        self._order(f"watch {pid} {start}")

    def forget(self, pid: int) -> None:
        """Stop watching a session that has no processes left, because the kernel may reuse its id."""
        self._watched.pop(pid, None)
        self._order(f"forget {pid}")

    def scratch(self, path: str) -> None:
        """Make the guardian remove this folder when the guardian ends. For safety, relative paths, links, and paths
        that contain a newline are ignored."""
        if "\n" not in path and Path(path).is_absolute():
            self._scratch.append(path)
            self._order(f"scratch {path}")

    def close(self, timeout: Duration = 15.0) -> None:
        """Wait until the guardian has killed the sessions that it still watches and has ended. Idempotent. After
        `timeout` seconds, the guardian is killed, which may leave processes and folders behind."""
        self._closed = True
        self._process.close(timeout)

    def _order(self, line: str) -> None:
        """Send an order. The caller must record the order first, so that a guardian started by this call also receives
        it."""
        if not self._closed and (self._lost or not self._process.order(line)):
            self._replace()

    def _replace(self) -> None:
        with interrupts_held():
            lost, reported = self._process, self._lost
            self._lost = True
            lost.close(0)
            try:
                self._process = self._started()
            except OSError as error:
                if not reported:
                    self._report_lost(lost.pid, str(error))
                return
            orders = [
                *(f"scratch {path}" for path in self._scratch),
                *(f"watch {pid} {start}" for pid, start in self._watched.items()),
                *([f"expect {self._expected}"] if self._expected else []),
            ]
            self._lost = not all(self._process.order(line) for line in orders)
        if self._lost:
            self._report_lost(self.pid, "the new guardian has also ended")
        else:
            kept = "another guardian has replaced it"
            get_logger().warning("guardian lost", pid=lost.pid, consequence=kept, next=self.pid)

    def _report_lost(self, pid: int, reason: str) -> None:
        self._lost = True
        consequence = "if the agent is killed now, its workers and temporary files are left behind"
        get_logger().warning("guardian lost", pid=pid, consequence=consequence, reason=reason)
