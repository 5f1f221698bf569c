"""The agent's side of the guardian: the process that ends our workers and temporary files if the agent is killed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.log import get_logger
from elastic_core.support.helper import HelperProcess
from elastic_core.workers import sessions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from elastic_core.clock import Duration

_FOR_THE_LOADER = ("LD_", "DYLD_")  # an interpreter may need them to find its libraries


class Guardian:
    """Starts the guardian process; `close` ends it. Losing the guardian costs safety but never ends the job.

    The process gets those variables of `environment` that the dynamic loader reads, and no others. It holds a copy of
    the descriptor `lifeline`, if that is one, until no worker is left. Raises OSError when the process cannot be
    started.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ, lifeline: int = -1) -> None:
        found = {name: value for name, value in environment.items() if name.startswith(_FOR_THE_LOADER)}
        held = [lifeline] if lifeline >= 0 else []
        self._process = HelperProcess(sessions.__file__, [str(fd) for fd in held], environment=found, keeps=held)

    @property
    def pid(self) -> int:
        """The guardian's process id."""
        return self._process.pid

    @contextlib.contextmanager
    def expecting(self) -> Iterator[int]:
        """A descriptor for the worker that is started inside. The guardian finds the worker by it, if the agent dies
        between the start and `watch`: no process id is known then. Raises OSError when none is left."""
        reader, mark = os.pipe()
        os.close(reader)
        try:
            self._order(f"expect {sessions.link_of(mark)}")
            yield mark
        finally:
            os.close(mark)

    def watch(self, pid: int, start: int) -> None:
        """End the session of this worker if the agent dies. It is the one that was expected."""
        self._order(f"watch {pid} {start}")

    def forget(self, pid: int) -> None:
        """Stop watching a session: it is empty, and the kernel may use its number again."""
        self._order(f"forget {pid}")

    def scratch(self, path: str) -> None:
        """Remove this folder at the end. A path that is relative, or would read as two orders, is left alone, and so
        are links and their targets, so that no other folder is ever removed."""
        if "\n" not in path and Path(path).is_absolute():
            self._order(f"scratch {path}")

    def close(self, timeout: Duration = 15.0) -> None:
        """Let the guardian end what it still watches, and wait for it. Idempotent. One that takes longer than `timeout`
        seconds is killed, and processes and folders may be left. On a machine that stalls, it may have just begun."""
        self._process.close(timeout)

    def _order(self, line: str) -> None:
        if not self._process.order(line):  # one line of the log is enough
            get_logger().warning(
                "guardian lost",
                pid=self.pid,
                consequence="if the agent is killed now, nobody ends its workers and temporary files for it",
            )
