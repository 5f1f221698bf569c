"""Our side of the keeper: one run of an etcd, from its start to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from typing import IO, TYPE_CHECKING

from elastic_core.support.helper import HelperProcess
from elastic_etcd import server_keeper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from elastic_core.clock import Duration

_FOR_ETCD = "ETCD_"  # variables that would change what our flags do not say
_PATIENCE = 15.0  # seconds; the keeper itself gives up on a server that does not end after 5
_TOLD = 2.0


class ServerProcess:
    """Runs `command` until `close`, or until this process ends.

    Args:
        command: the program and its arguments.
        folder: it runs there.
        scratch: a folder to remove at the end; empty for none.
        stderr: where its output goes.
        on_exit: called from another thread, once, when it has ended by itself, with how.

    Raises:
        OSError: not even the keeper can be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: str,
        scratch: str,
        stderr: int | IO[bytes] | IO[str],
        on_exit: Callable[[str], None],
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.pid = 0
        self.end = ""
        self._on_exit = on_exit
        self._closing = False
        self._ended = threading.Event()
        self._known = threading.Event()
        variables = {name: value for name, value in environment.items() if not name.startswith(_FOR_ETCD)}
        self._keeper = HelperProcess(
            server_keeper.__file__, [scratch, *command], variables, folder, subprocess.PIPE, stderr
        )
        self._listener = threading.Thread(target=self._listen, name="etcd server", daemon=True)
        self._listener.start()

    def ended(self, timeout: Duration) -> bool:
        """Wait until the server has ended, for `timeout` seconds at most. Whether it has; `end` then says how."""
        return self._ended.wait(timeout)

    def known(self, timeout: Duration) -> bool:
        """Wait for its `pid`, for `timeout` seconds at most. Whether that is known: a server may serve before its
        keeper has said that it runs."""
        return self._known.wait(timeout) and self.pid != 0

    def close(self) -> None:
        """End it, SIGKILL being the last means. Idempotent."""
        self._closing = True
        self._keeper.close(_PATIENCE)
        self._listener.join(_TOLD)

    def _listen(self) -> None:
        with self._keeper.output as lines:
            for line in lines:
                self._hear(*line.decode().rstrip("\n").split(" ", 1))
        if not self.end:  # somebody has ended the keeper, and what it kept is an orphan
            self._keeper.kill()
            self._finish("its keeper was ended")

    def _hear(self, verb: str, rest: str) -> None:
        if verb == "started":
            self.pid = int(rest)
            self._known.set()
        elif verb == "failed":
            self._finish(f"it could not be started: {rest}")
        else:
            self._finish(_decoded(int(rest)))

    def _finish(self, end: str) -> None:
        self.end = end
        self._ended.set()
        self._known.set()
        if not self._closing:
            self._on_exit(end)


def _decoded(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
