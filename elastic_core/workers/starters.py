"""The starter `subprocess`, for scripts and commands; for functions see `functions`."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.workers.environment import substitute_local_rank
from elastic_core.workers.numa import bound_to_cpus
from elastic_core.workers.process import reap_child, remedy

if TYPE_CHECKING:
    from elastic_core.interfaces.workers import Child, Launch


_REMEDY = "check the path, its permissions and its first line (#!)"


class CommandStarter:
    """Runs a command line; `${local_rank}` in it is substituted."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command

    def start(self, launch: Launch) -> Child:
        command = substitute_local_rank(self._command, launch.local_rank)
        try:
            with bound_to_cpus(launch.cpus):
                process = subprocess.Popen(
                    command,
                    env=launch.environment,
                    stdout=launch.stdout,
                    stderr=launch.stderr,
                    start_new_session=True,
                    pass_fds=(launch.mark,),
                )
        except OSError as error:
            raise cannot_run(command[0], error) from error
        return _CommandChild(process)

    def result(self, launch: Launch) -> object:
        return None


def cannot_run(program: str, error: OSError) -> ConfigurationError:
    """The error for a program that the system refuses to run."""
    return ConfigurationError(
        Problem(
            "entry point",
            f"expected a program that can be run, found that {program!r} cannot: {error.strerror}; "
            f"{remedy(error) or _REMEDY}",
        )
    )


class _CommandChild:
    """A subprocess with the face of `Child`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def poll(self) -> int | None:
        if self._process.returncode is None:
            self._process.returncode = reap_child(self.pid)
        return self._process.returncode

    def own_sentinel(self) -> int | None:
        return None
