"""The launchers to compare, and a job that one of them has started."""

from __future__ import annotations

import argparse
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from benchmarks.processes import STOP_LIMIT_S, end_descendants, now, wait_gone, workers_of

WORKERS = Path(__file__).with_name("workers")
LAUNCHERS = {"elastic": ("elastic", "run"), "torchrun": ("torchrun",)}
MODULES = {"elastic": ("elastic-core", "elastic_core", "run"), "torchrun": ("torch", "torch.distributed.run")}
"""For each launcher, its package, and the module and arguments that start it without a console script."""

# Long enough that looking does not slow down the job.
LOOK_EVERY_S = 0.1

# Processes of torch make reverse DNS lookups of their peers. If no name server answers, each lookup waits for seconds,
# and a benchmark would measure the resolver.
ENVIRONMENT = {"RES_OPTIONS": "timeout:1 attempts:1"}


class BenchmarkError(Exception):
    """The job did not behave as the measurement requires, so there is no figure to report."""


def launcher_command(name: str) -> list[str]:
    """The command with which a user starts this launcher: the console script next to this Python, or `python -m` if the
    package has no script (`benchmarks.gpu` makes a checkout importable)."""
    program = Path(sys.executable).with_name(LAUNCHERS[name][0])
    if program.exists():
        return [str(program), *LAUNCHERS[name][1:]]
    package, *module = MODULES[name]
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        raise BenchmarkError(f"no {name} next to {sys.executable}; install elastic-core and torch there") from None
    return [sys.executable, "-m", *module]


def launchers(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """The commands of the chosen launchers, by name. Each must be installed."""
    names = arguments.launchers.split(",")
    if unknown := set(names) - set(LAUNCHERS):
        raise BenchmarkError(f"unknown launchers: {', '.join(sorted(unknown))} (known: {', '.join(LAUNCHERS)})")
    return {name: launcher_command(name) for name in names}


@dataclass(frozen=True)
class Line:
    """A line of the job's output, and the time at which it was read."""

    at: float
    text: str


class Job:
    """A running launcher and its output so far. Made by `running` or by a cluster.

    `extra` is added to its environment, which its workers inherit.
    """

    def __init__(self, command: Sequence[str], folder: Path, extra: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.started = now()
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**ENVIRONMENT, **os.environ, **(extra or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output: list[str] = []
        self._lines: queue.Queue[Line] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id of the launcher, which is the agent."""
        return self.process.pid

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self.output.append(text)
            self._lines.put(Line(now(), text))

    def wait_output_end(self) -> None:
        """Wait until all output of the job, which has exited, is in `output`."""
        self._reader.join(STOP_LIMIT_S)

    def wait_line(self, accept: Callable[[str], bool], deadline: float) -> Line | None:
        """Wait for a line that `accept` accepts. None if the job exits or the deadline passes without one."""
        ended = False
        while True:
            with suppress(queue.Empty):
                line = self._lines.get(not ended, timeout=0.05)
                if accept(line.text):
                    return line
                continue
            if ended or now() > deadline:
                return None
            if self.process.poll() is not None:
                self.wait_output_end()  # its last lines may not have been read yet
                ended = True

    def wait_workers(self, count: int, deadline: float, other_than: Sequence[int] = ()) -> dict[int, int]:
        """Wait until `count` workers other than `other_than` run. Returns process ids by rank."""
        while True:
            workers = {rank: pid for rank, pid in workers_of(self.pid).items() if pid not in other_than}
            if len(workers) == count:
                return workers
            if self.process.poll() is not None or now() > deadline:
                raise BenchmarkError(f"{len(workers)} of {count} workers run.\n{''.join(self.output[-30:])}")
            time.sleep(LOOK_EVERY_S)

    def stop(self) -> None:
        """Terminate the launcher and wait, so that it can clean up its temporary folder and its helpers. The caller has
        to deal with a launcher that does not exit."""
        self.process.terminate()  # does nothing to a process that has been reaped
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_LIMIT_S)

    def wait_exit(self, deadline: float) -> int | None:
        """The launcher's exit code, or None if it still runs at the deadline."""
        # Popen.wait with a timeout polls every 50 ms, which would blur the measurement.
        if wait_gone([self.pid], max(0.0, deadline - now())) is None:
            return None
        return self.process.wait()


@contextmanager
def running(command: Sequence[str]) -> Iterator[Job]:
    """Start a job in a temporary folder. At the end of the block, all its processes are stopped."""
    with tempfile.TemporaryDirectory(prefix="elastic-benchmark-") as folder:
        job = Job(command, Path(folder))
        try:
            yield job
        finally:
            job.stop()
            end_descendants()
            job.process.wait(STOP_LIMIT_S)
            job.wait_output_end()
