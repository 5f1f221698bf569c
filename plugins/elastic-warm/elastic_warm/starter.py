"""The `warm` starter, which forks workers from a template process. The template has imported the modules that earlier
workers imported."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import CommandStarter, bound_to_cpus, cannot_run, get_logger, reap_child, substitute_local_rank
from elastic_warm.learned_imports import cache_name
from elastic_warm.program import command_line, document_of
from elastic_warm.template import Conditions, TemplateKeeper, can_be_warm, read_cache
from elastic_warm.unsafe_imports import working_folder

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from elastic_core.plugin import Child, Launch, Starter, Work

_PYTHON = re.compile(r"python[0-9.]*t?")
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_ALONE = re.compile(r"-(?:[bBdEIOPqRsSuv]+|[XW].+)")


def warm_starter(work: Work, options: Mapping[str, Any]) -> Starter:
    """Return the starter for this work. If a warm start is not possible, log the reason and return a starter that
    starts workers cold."""
    from elastic_core.plugin import FunctionStarter

    why = can_be_warm()
    program = None if why else (_Function(work) if work.function else _Command.of(work.command))
    if program is None:
        why = why or "only Python scripts, modules and functions can be started warm"
        get_logger().warning("warm start unavailable", reason=why, consequence="workers start cold")
        return FunctionStarter(work.function, work.args, "spawn") if work.function else CommandStarter(work.command)
    return WarmStarter(program, tuple(options["exclude"].split()), options["cache"] or "", options["memory"])


def cached_imports(work: Work, options: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the cached imports for this work. `file` is the cache file, `modules` is the number of modules, and
    `left` maps each module that is left to the workers to the reason. The result is empty if no cache is used."""
    if not options["cache"] or (file := cache_file(work, options["cache"])) is None:
        return {}
    cached = read_cache(file)
    modules, left = (len(cached.learned.modules), cached.learned.left) if cached else (0, {})
    return {"file": str(file), "modules": modules, "left": left}


def cache_file(work: Work, folder: str) -> Path | None:
    """Return the path of the cache file in this folder, or None for work that cannot be started warm."""
    program = _Function(work) if work.function else _Command.of(work.command)
    return None if program is None else _file(program, folder)


def _file(program: _Command | _Function, folder: str) -> Path:
    return Path(folder) / cache_name(program.python, f"{sys.version} {sys.prefix}", program.key)


class _Command:
    """A parsed Python command line. `code` is the module after `-m` or the code after `-c`. It is empty for a
    script."""

    def __init__(self, python: tuple[str, ...], code: str, arguments: tuple[str, ...]) -> None:
        self.python = python
        self.code = code
        self.arguments = arguments
        self.name = code or str(Path(arguments[0]).absolute())
        self.key = f"{working_folder()}\0{arguments[0]}\0{code}" if code else self.name

    @staticmethod
    def of(command: tuple[str, ...]) -> _Command | None:
        """Parse a command line. Returns None if it does not run Python, or if Python does not read the code from a
        script, `-m` or `-c`."""
        if not _PYTHON.fullmatch(Path(command[0]).name):
            return None
        at = 1
        while at < len(command) and (command[at] in _WITH_VALUE or _ALONE.fullmatch(command[at])):
            at += 2 if command[at] in _WITH_VALUE else 1
        python, rest = command[:at], command[at:]
        is_code = rest[:1] in (("-m",), ("-c",))
        if not rest or (len(rest) == 1 if is_code else rest[0].startswith("-")):
            return None
        return _Command(python, rest[1], (rest[0], *rest[2:])) if is_code else _Command(python, "", rest)

    def order(self, local_rank: int) -> dict[str, object]:
        code = substitute_local_rank((self.code,), local_rank)
        arguments = substitute_local_rank(self.arguments, local_rank)
        line = [*self.python, *([arguments[0], *code, *arguments[1:]] if self.code else arguments)]
        return {"command": line, "arguments": arguments, "code": code[0]}

    def pickled(self, launch: Launch) -> tuple[int, ...]:
        return ()


class _Function:
    """A function that runs as in a spawned `multiprocessing` process."""

    def __init__(self, work: Work) -> None:
        from multiprocessing import util

        from elastic_core.plugin import run_script

        self._work = work
        flags: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
        self.python = (sys.executable, *flags)
        self.arguments = tuple(sys.argv) or ("",)
        self.name = f"{work.function.__module__}.{getattr(work.function, '__qualname__', '')}"
        script = work.args[0] if work.function is run_script else ""
        self.key = "\0".join(map(os.path.abspath, (self.arguments[0], script))) + f"\0{self.name}"

    def order(self, local_rank: int) -> dict[str, object]:
        return {"command": [*self.python, "elastic:", self.name], "arguments": self.arguments, "code": ""}

    def pickled(self, launch: Launch) -> tuple[int, ...]:
        """Return the descriptors of the pickled process and the resource tracker, followed by those that the pickle
        uses."""
        from multiprocessing import resource_tracker

        from elastic_core.plugin import pickled_process

        content, shared = pickled_process(self._work.function, self._work.args, launch)  # type: ignore[arg-type]
        fd = os.memfd_create("elastic-function")
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        tracker: Any = resource_tracker
        return fd, os.dup(tracker.getfd()), *map(os.dup, shared)


class WarmStarter:
    """Starts workers from a template. While no template is ready, workers start cold."""

    def __init__(self, program: _Command | _Function, exclude: tuple[str, ...], cache: str, memory: int) -> None:
        self._program = program
        room = sum(len(os.fsencode(word)) + 1 for word in (*program.python, *program.arguments, program.name)) + 64
        file = _file(program, cache) if cache else None
        self._conditions = Conditions(
            program.python, program.arguments, room, exclude, file, memory or _part_of_memory()
        )
        self._keeper = TemplateKeeper(self._conditions)

    @property
    def template_pid(self) -> int | None:
        """The process id of the template, or None if there is no template."""
        return self._keeper.pid

    def prepare(self, environment: Mapping[str, str], cpus: frozenset[int]) -> None:
        """Wait for the first template, if a cache lists its modules."""
        if _fits(environment, cpus):
            self._keeper.note(environment, _workers(environment))
            self._keeper.wait()

    def start(self, launch: Launch) -> Child:
        pickled = self._program.pickled(launch)
        order = {
            **self._program.order(launch.local_rank),
            "environment": launch.environment,
            "folder": working_folder(),
            "cpus": sorted(launch.cpus),
            "local_rank": launch.local_rank,
            "mark": launch.mark,
        }
        names = ["mark", "report", "talk", *("function", "tracker")[: len(pickled)]]
        names += [f"shared{place}" for place in range(len(pickled) - 2)]
        fds = [launch.mark, self._keeper.report, -1, *pickled]
        try:
            self._keeper.note(launch.environment, _workers(launch.environment))
            return self._warm(launch, order, names, fds) or self._cold(launch, order, names, fds)
        finally:
            for fd in pickled:
                os.close(fd)

    def _warm(self, launch: Launch, order: dict[str, object], names: list[str], fds: list[int]) -> Child | None:
        if not _fits(launch.environment, launch.cpus):
            return None
        streams = [0, *(own if fd is None else fd for own, fd in ((1, launch.stdout), (2, launch.stderr)))]
        document = document_of({**order, "descriptors": ["stdin", "stdout", "stderr", *names]})
        try:
            started = self._keeper.fork([document, *streams, *fds])
        finally:
            os.close(document)
        return None if started is None else _WarmChild(*started)

    def _cold(self, launch: Launch, order: dict[str, object], names: list[str], fds: list[int]) -> Child:
        import socket

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        document = document_of({**order, "descriptors": names, "environment": {}})
        given = [document, *(theirs.fileno() if fd < 0 else fd for fd in fds)]
        try:
            with theirs, bound_to_cpus(launch.cpus):
                process = subprocess.Popen(
                    command_line(self._program.python, "worker", given, self._conditions.room),
                    env=launch.environment,
                    stdout=launch.stdout,
                    stderr=launch.stderr,
                    start_new_session=True,
                    pass_fds=given,
                )
        except OSError as error:
            ours.close()
            raise cannot_run(self._program.python[0], error) from error
        except BaseException:
            ours.close()
            raise
        finally:
            os.close(document)
        process.returncode = 0  # _WarmChild waits for the process, not subprocess
        return _WarmChild(process.pid, ours)

    def result(self, launch: Launch) -> object:
        from elastic_core.plugin import read_function_result

        return read_function_result(launch) if isinstance(self._program, _Function) else None

    def close(self) -> None:
        """Stop the template."""
        self._keeper.close()


class _WarmChild:
    """A worker's process. The socket stays open, because a worker that runs a function uses the socket to check that
    its parent is alive."""

    def __init__(self, pid: int, talk: socket.socket) -> None:
        self.pid = pid
        self._talk = talk
        self._exitcode: int | None = None

    def poll(self) -> int | None:
        if self._exitcode is None and (exitcode := reap_child(self.pid)) is not None:
            self._exitcode = exitcode
            self._talk.close()
        return self._exitcode

    def own_sentinel(self) -> int | None:
        return None


def _fits(environment: Mapping[str, str], cpus: frozenset[int]) -> bool:
    # A thread pool created in the template has a size that fits the template's CPUs.
    return not cpus or "OMP_NUM_THREADS" in environment


def _workers(environment: Mapping[str, str]) -> int:
    return int(environment.get("LOCAL_WORLD_SIZE", 1))


def _part_of_memory() -> int:
    """Return a quarter of the machine's memory, or of the control group's limit if that is lower."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            whole = min(whole, int(Path(limit).read_text()))
    return whole // 4
