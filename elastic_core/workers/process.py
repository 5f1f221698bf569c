"""One worker's process: its environment, its command, its processors, the detection of its end, and errors for limits
that prevent workers from starting. For functions, see `functions`.

A sentinel is a file descriptor that becomes readable when a process has ended, so that the agent need not poll."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.support.processes import no_forks

if TYPE_CHECKING:
    from elastic_core.clock import Duration
    from elastic_core.interfaces.workers import Child, Launch, RoundPlan, WorkerRanks

Cpus = frozenset[int]
NO_CPUS: Cpus = frozenset()  # no binding

FileLimit = tuple[int, int]
"""The soft and hard limits on the number of files that a process may open."""

_raising = threading.Lock()
_before: list[FileLimit] = []  # the limit before the first job in this process raised it, once for each running job
os.register_at_fork(after_in_child=_before.clear)  # a worker may run jobs of its own
_MOST_FILES = 1 << 16  # more than any job needs; a higher limit slows programs that iterate over all descriptors

REAPED_BY_OTHERS = 256
"""The exit code that is reported for a child if another part of the program has waited for the child. No process can
exit with this code."""


EnvironmentMaker = Callable[["RoundPlan", "WorkerRanks", Mapping[str, str], str], dict[str, str]]
"""Creates one worker's environment from the round's plan, the worker's ranks, the inherited variables and the path of
the error file."""


@dataclass(frozen=True)
class EnvironmentPolicy:
    """The user's choices for the workers' environment. `faulthandler` is true if the agent must be able to ask workers
    for their stacks."""

    virtual_local_rank: bool = False
    faulthandler: bool = False

    def __call__(
        self, plan: RoundPlan, ranks: WorkerRanks, parent: Mapping[str, str], error_file: str
    ) -> dict[str, str]:
        """Return all variables for one worker. Plugins' variables override the parent's, and the agent's variables
        override both.

        The agent's defaults (OMP_NUM_THREADS, TORCH_NCCL_ASYNC_ERROR_HANDLING, PYTHONFAULTHANDLER) override nothing."""
        given = {**parent, **plan.contributed}
        variables = {**given, **_ours(plan, ranks, given, error_file)}
        if self.faulthandler:
            variables.setdefault("PYTHONFAULTHANDLER", "1")
        if self.virtual_local_rank:
            device = _own_device(ranks.local, given.get("CUDA_VISIBLE_DEVICES"))
            variables |= {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": device}
        return variables


def _ours(plan: RoundPlan, ranks: WorkerRanks, given: Mapping[str, str], error_file: str) -> dict[str, str]:
    variables = {
        "RANK": str(ranks.world),
        "LOCAL_RANK": str(ranks.local),
        "GROUP_RANK": str(plan.group_rank),
        "ROLE_RANK": str(ranks.role),
        "ROLE_NAME": plan.role,
        "LOCAL_WORLD_SIZE": str(len(plan.ranks)),
        "WORLD_SIZE": str(plan.world_size),
        "GROUP_WORLD_SIZE": str(plan.group_world_size),
        "ROLE_WORLD_SIZE": str(plan.role_world_size),
        "MASTER_ADDR": plan.master_addr,
        "MASTER_PORT": str(plan.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(plan.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(plan.max_restarts),
        "TORCHELASTIC_RUN_ID": plan.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(plan.use_agent_store),
        "TORCHELASTIC_ERROR_FILE": error_file,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": given.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    if len(plan.ranks) > 1 and "OMP_NUM_THREADS" not in given:
        variables["OMP_NUM_THREADS"] = "1"  # several workers with one thread per core each would compete for the cores
    return variables


def _own_device(local_rank: int, visible: str | None) -> str:
    if visible is None:
        return str(local_rank)
    devices = [device.strip() for device in visible.split(",") if device.strip()]
    if local_rank >= len(devices):
        raise ConfigurationError(
            Problem(
                "CUDA_VISIBLE_DEVICES",
                f"{visible!r} lists {len(devices)} device(s), and none for local rank {local_rank}; list more devices "
                "or lower --nproc-per-node",
            )
        )
    return devices[local_rank]


def substitute_local_rank(arguments: tuple[str, ...], local_rank: int) -> list[str]:
    """Return the arguments with `${local_rank}` replaced, as torchrun does."""
    return [argument.replace("${local_rank}", str(local_rank)) for argument in arguments]


def bind(cpus: Cpus | set[int]) -> None:
    """Restrict this thread, and its future threads and children, to these processors. An empty set changes nothing.
    Errors are ignored, because the system may remove processors at any time."""
    if cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cpus)


@contextlib.contextmanager
def bound_to_cpus(cpus: Cpus) -> Iterator[None]:
    """Restrict child processes to these processors, if this thread starts them inside the context (see `bind`)."""
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    bind(cpus)
    try:
        yield
    finally:
        bind(before)


class CommandStarter:
    """The starter `subprocess`, which runs a command with `${local_rank}` replaced."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command

    def start(self, launch: Launch) -> Child:
        command = substitute_local_rank(self._command, launch.local_rank)
        try:
            with bound_to_cpus(launch.cpus), no_forks:
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


class _CommandChild:
    """A subprocess with the interface of `Child`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def poll(self) -> int | None:
        if self._process.returncode is None:
            self._process.returncode = reap_child(self.pid)
        return self._process.returncode

    def own_sentinel(self) -> int | None:
        return None


@dataclass
class WorkerProcess:
    """A worker that has been started. The process id and `start` (clock ticks since boot) together identify the worker.

    `sentinel` becomes readable when the worker has ended. It is -1 before `watch` and after `reap` or `release`.
    For `fault` and `stack`, see `failure.Evidence`."""

    ranks: WorkerRanks
    launch: Launch
    child: Child
    start: int
    sentinel: int = -1
    exitcode: int | None = None
    fault: str = ""
    stack: str = ""

    @property
    def pid(self) -> int:
        return self.child.pid

    def watch(self) -> None:
        """Open the sentinel. Raises the same errors as `open_sentinel`."""
        own = self.child.own_sentinel()
        self.sentinel = open_sentinel(self.pid) if own is None else own

    def reap(self) -> bool:
        """Return whether the process has ended, and close the sentinel if so. Must not be called again after that."""
        self.exitcode = self.child.poll()
        if self.exitcode is None:
            return False
        self.release()
        return True

    def release(self) -> None:
        """Close the sentinel. Idempotent."""
        if self.sentinel >= 0:
            os.close(self.sentinel)
            self.sentinel = -1


def reap_child(pid: int) -> int | None:
    """Return the exit code of a child, or None while the child is running.

    Returns REAPED_BY_OTHERS if the host program has waited for the child, because the code is then lost. `subprocess`
    would report success, and `multiprocessing` would report nothing."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return REAPED_BY_OTHERS
    return os.waitstatus_to_exitcode(status) if ended else None


def make_exits_visible() -> None:
    """Undo an inherited SIG_IGN for SIGCHLD, which makes the kernel discard exit codes, so that every failure would
    look like a success. Raises ConfigurationError if that is necessary, but this is not the main thread."""
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        return
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    except ValueError as error:
        raise ConfigurationError(
            Problem(
                "SIGCHLD",
                "this process ignores SIGCHLD, so it cannot find out how its children exited; call "
                "signal.signal(signal.SIGCHLD, signal.SIG_DFL) in the main thread before launching",
            )
        ) from error


def open_sentinel(pid: int) -> int:
    """Return a sentinel for a child, to be closed by the caller. Raises OSError if no descriptors or threads are
    left."""
    sentinel = process_sentinel(pid)  # there is none if other code has already reaped the child
    return thread_sentinel(pid) if sentinel is None else sentinel


def process_sentinel(pid: int) -> int | None:
    """Return a sentinel for any process, or None if it has been reaped, no descriptors are left, or the kernel is older
    than Linux 5.3."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def thread_sentinel(pid: int) -> int:
    """Return a sentinel that is backed by a thread, which waits for the child without reaping it."""
    readable, writable = os.pipe()

    def wait() -> None:
        with contextlib.suppress(ChildProcessError):  # already reaped, so it has ended
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(BrokenPipeError):
            os.write(writable, b"!")  # closing is not enough: a worker forked later may keep the pipe open
        os.close(writable)

    try:
        start_thread(threading.Thread(target=wait, name=f"wait-{pid}", daemon=True))
    except OSError:
        os.close(readable)
        os.close(writable)
        raise
    return readable


def start_thread(thread: threading.Thread) -> None:
    """Start the thread. Raises OSError, as other limits do, if the system allows no more threads."""
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"{error}") from error


def wait_readable(fd: int, timeout: Duration) -> bool:
    """Wait until the descriptor is readable, for at most `timeout` seconds. Returns whether it is."""
    waiter = select.poll()
    waiter.register(fd, select.POLLIN)
    return bool(waiter.poll(timeout * 1000))


@contextlib.contextmanager
def more_files() -> Iterator[FileLimit]:
    """Raise this process's limit on open files inside the context, because each worker needs some. Yields the previous
    limit, which workers get."""
    with _raising:
        before = soft, hard = _before[0] if _before else resource.getrlimit(resource.RLIMIT_NOFILE)
        _before.append(before)
        enough = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
        raises = soft != resource.RLIM_INFINITY and soft < enough
        if raises:
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
    try:
        yield before
    finally:
        with _raising:
            _before.pop()
            if raises and not _before:  # no other job in this process needs the files
                resource.setrlimit(resource.RLIMIT_NOFILE, before)


def limit_files(pid: int, limit: FileLimit) -> None:
    """Set the limit on open files for a child that has just been started."""
    with contextlib.suppress(OSError):  # it has ended
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)


_REMEDIES = {
    errno.EMFILE: "this process has too many open files: raise `ulimit -n` or start fewer workers",
    errno.ENFILE: "the machine has too many open files: raise the sysctl fs.file-max",
    errno.EAGAIN: "too many processes: raise `ulimit -u` or the limit of the control group",
    errno.ENOMEM: "the machine is short of memory: start fewer workers",
    errno.E2BIG: "its arguments and environment together are too long",
}


def remedy(error: OSError) -> str | None:
    """Return advice for the error, or None if no limit caused the error."""
    return _REMEDIES.get(error.errno or 0)


def cannot_run(program: str, error: OSError) -> ConfigurationError:
    """Return the error for a program that the system refuses to run."""
    advice = remedy(error) or "check the path, its permissions and its first line (#!)"
    return ConfigurationError(Problem("entry point", f"{program!r} cannot be run: {error.strerror}; {advice}"))


def cannot_start(error: OSError, workers: int) -> ConfigurationError:
    """Return the error to raise if an OSError prevents `workers` workers from starting."""
    if error.errno is None and "path too long" in str(error):  # multiprocessing's fork server cannot listen
        why = f"the path of the temporary folder {tempfile.gettempdir()} is too long for a Unix socket"
        return ConfigurationError(Problem("TMPDIR", f"{why}; choose a shorter one, or use the 'spawn' start method"))
    why = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
    advice = remedy(error) or "the kernel's log (`dmesg`) may show why"
    return ConfigurationError(Problem("--nproc-per-node", f"cannot start {workers} workers: {why}; {advice}"))
