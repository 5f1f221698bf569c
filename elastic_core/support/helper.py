"""Runs helper processes. A helper notices when this process ends, for any reason, because the helper's standard input
then closes. A parent-death signal would not reach the helper's own children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

from elastic_core.support.processes import drop_in_forks, no_forks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_core.clock import Duration


class HelperProcess:
    """Runs a Python file that needs only the standard library, as a process in a separate session.

    Args:
        program: the Python file.
        arguments: the command-line arguments.
        environment: the complete environment.
        folder: the working folder. With the default, `/`, the process does not keep a file system from being unmounted.
        output, errors: as in `subprocess`.
        keeps: the descriptors that the process inherits, under the same numbers.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(
        self,
        program: str | Path,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        folder: str = "/",
        output: int = subprocess.DEVNULL,
        errors: int | IO[bytes] | IO[str] | None = None,
        keeps: Sequence[int] = (),
    ) -> None:
        # The command line contains no path of this package, because `pkill -f elastic` must not kill the process that
        # cleans up after the agent. `-X NAME` only labels the process: Python accepts any name there.
        code = os.memfd_create(Path(program).stem)
        file = f"/proc/self/fd/{code}"
        if not os.path.exists(file):  # a PID namespace without its own /proc
            file = str(Path(program).absolute())
        try:
            os.write(code, Path(program).read_bytes())
            with no_forks:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-X", Path(program).stem, file, *arguments],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=errors,
                    cwd=folder,
                    start_new_session=True,
                    pass_fds=[*keeps, code],
                    env=dict(environment or {}),
                )
        finally:
            os.close(code)
        drop_in_forks(self)

    @property
    def pid(self) -> int:
        """The helper's process id, which is also its session's id."""
        return self._process.pid

    @property
    def output(self) -> IO[bytes]:
        """The helper's standard output, for reading. Raises ValueError if the output is not a pipe."""
        if self._process.stdout is None:
            raise ValueError("the helper's output is not a pipe")
        return self._process.stdout

    @property
    def sentinel(self) -> int | None:
        """A descriptor that becomes readable when the helper ends, or None if this process has closed its end of the
        pipe."""
        pipe = self._process.stdin
        return None if pipe is None or pipe.closed else pipe.fileno()

    def order(self, line: str) -> bool:
        """Write a line to the helper. Returns false the first time that the helper is found to have ended. After that,
        calls do nothing and return true."""
        pipe = self._process.stdin
        if pipe is None or pipe.closed:
            return True
        try:
            os.write(pipe.fileno(), os.fsencode(f"{line}\n"))
        except BrokenPipeError:
            self.drop()
            return False
        return True

    def drop(self) -> None:
        """Close this process's end of the pipe. A forked child must do so, or the helper would not notice the end of
        the parent."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def close(self, timeout: Duration) -> None:
        """Close the pipe, and wait for the helper to end. After `timeout` seconds, kill its session. Idempotent."""
        self.drop()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the process is sleeping in the kernel
                self._process.wait(timeout)

    def kill(self) -> None:
        """Kill the helper's session, or the rest of the session if the helper itself has died. Until the helper is
        waited for, no other process can get its id, so this method must not poll for the helper's exit."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
