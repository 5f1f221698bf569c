"""A helper process beside this one, which learns by a pipe that this one has ended, however it does: its standard input
closes then. A death signal would not reach what the helper has forked, and is lost across set-uid programs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

from elastic_core.support.forks import drop_in_forks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_core.clock import Duration


class HelperProcess:
    """Runs a Python file that needs the standard library alone, in a session of its own.

    Args:
        program: the file.
        arguments: of it.
        environment: all of its variables.
        folder: it runs there; by default where it holds nobody's folder busy.
        output, errors: as in `subprocess`.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        program: str | Path,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        folder: str = "/",
        output: int = subprocess.DEVNULL,
        errors: int | IO[bytes] | IO[str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", Path(program).absolute(), *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            cwd=folder,
            start_new_session=True,
            env=dict(environment or {}),
        )
        drop_in_forks(self)

    @property
    def pid(self) -> int:
        """Its process id, which is that of its session, too."""
        return self._process.pid

    @property
    def output(self) -> IO[bytes]:
        """What it writes to its standard output. Raises ValueError where that is no pipe."""
        if self._process.stdout is None:
            raise ValueError("expected a helper whose output is read, found one without")
        return self._process.stdout

    def order(self, line: str) -> bool:
        """Write it a line. Whether it can be there to read it; after the first time that it is not, nothing happens."""
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
        """Close our end of the pipe; a forked child must not hold it, or our death would go unnoticed."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def close(self, timeout: Duration) -> None:
        """Let it end, and wait for that; after `timeout` seconds it is killed, with all of its session. Idempotent."""
        self.drop()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def kill(self) -> None:
        """Kill its session, or what is left of it where the helper has died: nobody has waited for that (nor may that
        be asked here), so that the number is still its."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
