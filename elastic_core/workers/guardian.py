"""The agent's side of the guardian: the process that ends our workers and temporary files if the agent is killed.

A death signal set by each worker on itself would not reach what the worker forked, would be lost across set-uid
programs, and would need Python code between fork and exec. A pipe whose other end closes when the agent
dies has none of these faults.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.log import get_logger
from elastic_core.workers import forks, sessions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.clock import Duration

_FOR_THE_LOADER = ("LD_", "DYLD_")  # an interpreter may need them to find its libraries


class Guardian:
    """Starts the guardian process; `close` ends it. Losing the guardian costs safety, never the job.

    Of `environment` it gets what the dynamic loader reads, and nothing else. Raises OSError when it cannot be started.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", Path(sessions.__file__).absolute()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",  # so as not to hold the agent's folder busy
            env={name: value for name, value in environment.items() if name.startswith(_FOR_THE_LOADER)},
        )
        forks.drop_in_forks(self)

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
        """Remove this folder at the end. Never the wrong one: what would read as two orders, or does not begin at the
        root, is left alone; and so are links and where they lead to."""
        if "\n" not in path and Path(path).is_absolute():
            self._order(f"scratch {path}")

    def close(self, timeout: Duration = 15.0) -> None:
        """Let the guardian end what it still watches, and wait for it. Idempotent. One that takes longer than `timeout`
        seconds is killed, and processes and folders may be left. On a machine that stalls, it may have just begun."""
        self.drop()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def drop(self) -> None:
        """Close our end of the pipe; a forked child must not hold it, or the agent's death would go unnoticed."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _order(self, line: str) -> None:
        pipe = self._process.stdin
        if pipe is None or pipe.closed:
            return
        try:
            os.write(pipe.fileno(), os.fsencode(f"{line}\n"))
        except BrokenPipeError:
            self.drop()  # nothing is left to write to, and one line about it is enough
            get_logger().warning(
                "guardian lost",
                pid=self.pid,
                consequence="if the agent is killed now, nobody ends its workers and temporary files for it",
            )
