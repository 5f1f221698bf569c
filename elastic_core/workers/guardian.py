"""The agent's side of the guardian: the process that ends our workers and temporary files if the agent is killed.

A death signal set by each worker on itself would not reach what the worker forked, would be lost across set-uid
programs, and would need Python code between fork and exec. A pipe whose other end closes when the agent
dies has none of these faults.
"""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING

from elastic_core.workers import sessions

if TYPE_CHECKING:
    from elastic_core.clock import Duration


class Guardian:
    """Starts the guardian process; `close` ends it. Losing the guardian costs safety, never the job."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", sessions.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env={},
        )
        _close_in_forks(self)

    @property
    def pid(self) -> int:
        """The guardian's process id."""
        return self._process.pid

    def watch(self, pid: int, start: int) -> None:
        """End the session of this worker if the agent dies."""
        self._order(f"watch {pid} {start}")

    def forget(self, pid: int) -> None:
        """The session is empty; its number may be used again by somebody else."""
        self._order(f"forget {pid}")

    def scratch(self, path: str) -> None:
        """Remove this folder at the end."""
        self._order(f"scratch {path}")

    def close(self, timeout: Duration = 5.0) -> None:
        """Let the guardian end what it still watches, and wait for it. Idempotent."""
        self._drop_pipe()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _order(self, line: str) -> None:
        pipe = self._process.stdin
        if pipe is None or pipe.closed:
            return
        try:
            os.write(pipe.fileno(), f"{line}\n".encode())
        except BrokenPipeError:
            pass

    def _drop_pipe(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()


def _close_in_forks(guardian: Guardian) -> None:
    """A forked child (start method fork) must not hold the pipe open, or the agent's death would go unnoticed."""
    reference = weakref.ref(guardian)

    def close() -> None:
        if (alive := reference()) is not None:
            alive._drop_pipe()

    os.register_at_fork(after_in_child=close)
