"""Reads workers' signs of progress, and reads the stacks of a hung worker before killing it. `agent.hang` decides which
worker is hung.

The agent turns on Python's faulthandler in the workers that it watches. On SIGABRT, faulthandler writes the stacks of
all threads to stderr, even in C code that never releases the interpreter's lock, and the process dies. If a process
does not catch SIGABRT or handles it differently, the agent runs py-spy, provided that py-spy is installed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock, later
from elastic_core.interfaces.workers import WorkerSample
from elastic_core.support.processes import interrupts_held
from elastic_core.watchdog.beat import BEAT_FILE, HeartbeatFile
from elastic_core.workers import sessions
from elastic_core.workers.channel import LONGEST_LINE, bounded
from elastic_core.workers.process import process_sentinel, wait_readable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from elastic_core.clock import Duration
    from elastic_core.workers.output import RoundOutput
    from elastic_core.workers.process import WorkerProcess

_CLOCK = SystemClock()

LOG, CPU, BEAT = "log", "cpu", "beat"
NO_STACK = "no stack: "  # begins the text that is shown instead of a stack
NOT_ASKED = NO_STACK + "many workers hung, and there was no time left to ask this worker"
_NOT_PYTHON = "the worker has no handler for SIGABRT: it is not Python, or runs without faulthandler"

_MOST_OF_SPY = 256 * 1024  # bytes
_MOST_BELOW = 3  # processes that are asked instead of the program that started them
_ENDING: Duration = 0.5  # seconds for a killed py-spy to exit

# How long the agent waits for each step, in seconds, before it kills a hung worker without having its stacks.
ANSWER: Duration = 0.5  # for a worker to write its stacks and die, which usually takes milliseconds
SPY: Duration = 2.0  # for py-spy, which has to read the symbols of large libraries
CONSOLE: Duration = 0.25  # for the stacks to pass through the pipe, which a stalled console blocks
END: Duration = 1.0  # for a killed worker to exit


class Activity:
    """Reads one round's signs of progress in `sources`, a subset of `log`, `cpu` and `beat`."""

    def __init__(self, sources: Collection[str], output: RoundOutput) -> None:
        self._sources = frozenset(sources)
        self._output = output
        self._delivered = -1
        self._files: dict[int, HeartbeatFile] = {}

    def environment(self, local_rank: int, scratch: Path) -> dict[str, str]:
        """Create a worker's heartbeat file in `scratch`, if heartbeats are read. Returns the environment variables that
        the worker needs. Raises OSError if the file cannot be created."""
        if BEAT not in self._sources:
            return {}
        path = scratch / f"beat-{local_rank}"
        path.unlink(missing_ok=True)
        self._files[local_rank] = HeartbeatFile(path)
        return {BEAT_FILE: str(path)}

    def samples(self, workers: Sequence[WorkerProcess]) -> list[WorkerSample]:
        """Return a sample of each of these running workers."""
        held_up = self._held_up()
        cpu = _cpu_seconds(workers) if CPU in self._sources else {}
        return [
            WorkerSample(
                local_rank=worker.ranks.local,
                pid=worker.pid,
                written=self._output.written(worker.ranks.local) if LOG in self._sources else 0,
                cpu=cpu.get(worker.pid, 0.0),
                beats=self._files[worker.ranks.local].latest() if BEAT in self._sources else 0,
                held_up=held_up,
            )
            for worker in workers
        ]

    def close(self) -> None:
        """Remove the heartbeat files. Idempotent."""
        for file in self._files.values():
            file.close()

    def _held_up(self) -> bool:
        """Return whether output is waiting for a console that has accepted none since the last check."""
        before, self._delivered = self._delivered, self._output.delivered()
        return self._output.pump.busy and self._delivered == before


def _cpu_seconds(workers: Sequence[WorkerProcess]) -> dict[int, float]:
    """Return the CPU time of each worker's session by the worker's process id. The time includes that of reaped
    children."""
    import psutil

    seconds = dict.fromkeys((worker.pid for worker in workers), 0.0)
    for process in sessions.members({worker.pid: worker.start for worker in workers}):
        leader = process.pid if process.pid in seconds else process.session
        try:
            times = psutil.Process(process.pid).cpu_times()
        except psutil.Error:
            continue  # it has ended
        seconds[leader] += times.user + times.system + times.children_user + times.children_system
    return seconds


def stacks(worker: WorkerProcess, pid: int, output: RoundOutput, environ: Mapping[str, str]) -> str:
    """Make the worker, and the process `pid` in its session, write their stacks and die. Returns an empty string if a
    stack has arrived. Otherwise, returns py-spy's output or the reason why there is no stack. The PATH in `environ` is
    searched for py-spy."""
    stderr = output.stderr(worker.ranks.local)
    stderr.expect_dump()
    asked = _processes_to_ask(worker, pid)
    _ask(worker, asked)
    output.pump.catch_up(CONSOLE)
    if stderr.dump():
        return ""
    silent = asked[0] if asked else pid
    why = silence_reason(silent) if asked else _NOT_PYTHON
    text, no_spy = pyspy_dump(silent, environ, SPY) if _runs(silent) else ("", "")
    return text or NO_STACK + "; ".join(filter(None, (why, no_spy)))


def kill(worker: WorkerProcess, pid: int, wait: bool) -> None:
    """Kill the hung process and the rest of the worker's session except helpers, and wait until the worker has ended if
    `wait` is True. Waiting for many workers that hang in the kernel would delay the agent."""
    leaders = {worker.pid: worker.start}
    if sessions.leader_of(pid, leaders):  # the process may have died of SIGABRT already
        sessions.send(pid, signal.SIGKILL)
    sessions.kill_all_but_helpers(leaders)
    if wait:
        wait_readable(worker.sentinel, END)


def _processes_to_ask(worker: WorkerProcess, pid: int) -> list[int]:
    """Return the hung process and the worker. If the worker is a program that started Python, such as a shell, return
    the processes that it started instead of the worker."""
    leader = worker.pid
    first = [pid] if pid != leader and _catches_abort(pid) else []
    if _catches_abort(leader):
        return [*first, leader]
    members = sorted(sessions.members({leader: worker.start}), key=lambda stat: (stat.start, stat.pid))
    below = [stat.pid for stat in members if stat.pid not in (pid, leader) and _catches_abort(stat.pid)]
    return [*first, *below[:_MOST_BELOW]]


def _ask(worker: WorkerProcess, pids: Sequence[int]) -> None:
    """Ask each process for its stacks, and wait briefly for the process to end."""
    until = later(_CLOCK.now(), ANSWER)
    if pids and worker.pid not in pids:
        sessions.send(worker.pid, signal.SIGSTOP)  # otherwise, a shell would execute its next line
    for pid in pids:
        abort(pid)
        left = max(until - _CLOCK.now(), 0.0)
        if pid == worker.pid:
            wait_readable(worker.sentinel, left)
        else:
            _wait_for_end(pid, left)


def _runs(pid: int) -> bool:
    """Return whether the process is running and in a state in which py-spy can read it."""
    stat = sessions.best_table().stat(pid)
    return stat is not None and not stat.ended and stat.state not in "Dt"


def _wait_for_end(pid: int, patience: Duration) -> None:
    """Wait for a process that is not a child of this one to end. Without pidfds, return immediately."""
    if (sentinel := process_sentinel(pid)) is not None:
        try:
            wait_readable(sentinel, patience)
        finally:
            os.close(sentinel)


def _catches_abort(pid: int) -> bool:
    return sessions.catches(pid, signal.SIGABRT)


def abort(pid: int) -> None:
    """Make the process die of SIGABRT, even if it is suspended, without a core dump, which would take time."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it has ended, is not ours, or there is no prlimit
        _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
        # Unlike a limit of 0, a limit of one byte also applies to core dumps that are piped to a program.
        resource.prlimit(pid, resource.RLIMIT_CORE, (0 if hard == 0 else 1, hard))
    sessions.send(pid, signal.SIGABRT)
    sessions.send(pid, signal.SIGCONT)


def silence_reason(pid: int) -> str:
    """Return the likely reason why a process that catches SIGABRT has not written a stack."""
    stat = sessions.best_table().stat(pid)
    if stat is None or stat.ended:
        return "the process died of SIGABRT, but no stack reached its stderr, perhaps because stderr was redirected"
    if stat.state == "D":
        return f"the process sleeps in the kernel (state D, in {sessions.waits_in(pid) or 'unknown'}), ignoring signals"
    if stat.state == "t":
        return "a debugger has stopped the process"
    return f"the process did not react to SIGABRT for {ANSWER:g} s: it blocks or handles the signal"


def pyspy_dump(pid: int, environ: Mapping[str, str], patience: Duration) -> tuple[str, str]:
    """Return py-spy's output about the process and an empty string. If py-spy produces no output within `patience`
    seconds, return an empty string and the reason."""
    program = shutil.which("py-spy", path=environ.get("PATH"))
    if program is None:
        return "", "py-spy, which could read the stacks from outside, is not installed"
    try:
        code, output = _run([program, "dump", "--pid", str(pid)], environ, patience)
    except OSError as error:
        return "", f"py-spy cannot be run: {error.strerror}"
    text = output.decode(errors="replace")
    if code == 0 and text.strip():
        return bounded(text), ""
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "nothing")
    took = f"did not answer within {patience:g} s" if code is None else f"exited with {code}"
    return "", f"py-spy {took} and printed: {last.strip()[:LONGEST_LINE]}"


def _run(command: Sequence[str], environ: Mapping[str, str], patience: Duration) -> tuple[int | None, bytes]:
    """Run a program. Returns its exit code (None if it timed out) and at most `_MOST_OF_SPY` bytes of its output."""
    memory = os.memfd_create("py-spy", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(memory, "rb") as output, contextlib.ExitStack() as stack:
        os.truncate(memory, _MOST_OF_SPY)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        with interrupts_held():
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environ),
                start_new_session=True,
            )
            stack.callback(_end, process)
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(patience)
        return code, os.pread(memory, _MOST_OF_SPY, 0).rstrip(b"\0")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a program that has not exited on its own, and all processes in its group."""
    if process.poll() is None:
        sessions.send_group(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING)
