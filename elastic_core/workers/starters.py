"""Starters: how a worker is started. `subprocess` for scripts and commands; for functions see `functions`."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.workers.environment import substitute_local_rank
from elastic_core.workers.numa import NO_CPUS, Cpus, bound_to
from elastic_core.workers.process import reap, remedy

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_core.workers.process import Child


@dataclass(frozen=True)
class Launch:
    """One worker about to start. `stdout` and `stderr` are the write ends of pipes, None to inherit the agent's.
    `result` is where a function's return value goes, `mark` a descriptor that the worker has to hold from its first
    moment, see `Guardian.expecting`, and `cpus` the processors to run on (empty: any)."""

    local_rank: int
    environment: dict[str, str]
    stdout: int | None
    stderr: int | None
    result: Path
    mark: int
    cpus: Cpus = NO_CPUS


_REMEDY = "check the path, its permissions and its first line (#!)"


class Starter(Protocol):
    """Starts one worker in a session of its own."""

    def start(self, launch: Launch) -> Child:
        """Raises ConfigurationError when the command cannot be run at all."""
        ...

    def result(self, launch: Launch) -> object:
        """What the worker returned; None where that has no meaning."""
        ...


class CommandStarter:
    """Runs a command line; `${local_rank}` in it is substituted."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command

    def start(self, launch: Launch) -> Child:
        command = substitute_local_rank(self._command, launch.local_rank)
        try:
            with bound_to(launch.cpus):
                process = subprocess.Popen(
                    command,
                    env=launch.environment,
                    stdout=launch.stdout,
                    stderr=launch.stderr,
                    start_new_session=True,
                    pass_fds=(launch.mark,),
                )
        except OSError as error:
            raise ConfigurationError(
                Problem(
                    "entry point",
                    f"expected a program that can be run, found that {command[0]!r} cannot: {error.strerror}; "
                    f"{remedy(error) or _REMEDY}",
                )
            ) from error
        return _CommandChild(process)

    def result(self, launch: Launch) -> object:
        return None


class _CommandChild:
    """A subprocess with the face of `Child`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def poll(self) -> int | None:
        if self._process.returncode is None:
            self._process.returncode = reap(self.pid)
        return self._process.returncode

    def own_sentinel(self) -> int | None:
        return None
