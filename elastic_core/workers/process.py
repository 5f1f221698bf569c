"""One worker's process, however it was started: how its end is noticed, and which limit kept it from starting.

A sentinel is a file descriptor that becomes readable when a process has ended, so that nothing is polled."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.workers.sessions import start_of

if TYPE_CHECKING:
    from elastic_core.clock import Duration
    from elastic_core.interfaces.workers import Child, WorkerRanks

FileLimit = tuple[int, int]
"""How many files a process may open: soft and hard."""

_MOST_FILES = 1 << 16  # more than any job here needs; programs that go through all numbers would take long

REAPED_BY_OTHERS = 256
"""Stands for the exit code of a child that another part of the program waited for; no process can exit with it."""


@dataclass
class WorkerProcess:
    """A worker that has just been started. `start` (clock ticks since boot) and the process id are unique together.
    `sentinel` becomes readable when the worker has ended; it is -1 before `watch` and after `reap` or `release`."""

    ranks: WorkerRanks
    child: Child
    start: int = field(init=False)
    sentinel: int = field(default=-1, init=False)
    exitcode: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.start = start_of(self.pid)

    @property
    def pid(self) -> int:
        return self.child.pid

    def watch(self, open_sentinel: OpenSentinel) -> None:
        """Open the sentinel. Raises OSError when no file descriptor is left."""
        own = self.child.own_sentinel()
        self.sentinel = open_sentinel(self.pid) if own is None else own

    def reap(self) -> bool:
        """True once: when the process is found to have ended. Releases the sentinel then."""
        if self.exitcode is not None:
            return False
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
    """The exit code of a child that has ended, None while it runs. Where the host program waits for all children
    (`waitpid(-1)`) the code may be lost; `subprocess` would call that a success and `multiprocessing` never answer."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return REAPED_BY_OTHERS
    return os.waitstatus_to_exitcode(status) if ended else None


def make_exits_visible() -> None:
    """Where the agent was started with SIGCHLD ignored, the kernel forgets how children ended, and every failure would
    look like a success. Undo that; the workers inherit it too. Raises ConfigurationError outside the main thread."""
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        return
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    except ValueError as error:
        raise ConfigurationError(
            Problem(
                "SIGCHLD",
                "expected a process that learns how its children end, found that it ignores SIGCHLD; set "
                "signal.signal(signal.SIGCHLD, signal.SIG_DFL) in the main thread before launching",
            )
        ) from error


OpenSentinel = Callable[[int], int]
"""Process id of a child -> a file descriptor to wait on and to close."""


def pidfd_sentinel(pid: int) -> int:
    """The kernel's own handle (Linux 5.3). Raises OSError or AttributeError where there is none."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return thread_sentinel(pid)  # ended, and reaped by others: readable at once


def thread_sentinel(pid: int) -> int:
    """The same, made by a thread that waits for the child without reaping it. Works for children only. Raises
    RuntimeError when no thread is left."""
    readable, writable = os.pipe()

    def wait() -> None:
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass  # reaped already, so it has ended
        try:
            os.write(writable, b"!")  # closing alone would not do: a forked sibling may hold the pipe open
        except BrokenPipeError:
            pass
        finally:
            os.close(writable)

    try:
        threading.Thread(target=wait, name=f"wait-{pid}", daemon=True).start()
    except RuntimeError:
        os.close(readable)
        os.close(writable)
        raise
    return readable


def wait_readable(fd: int, timeout: Duration) -> bool:
    """Wait at most `timeout` seconds for one sentinel; whether it became readable."""
    waiter = select.poll()
    waiter.register(fd, select.POLLIN)
    return bool(waiter.poll(timeout * 1000))


def has_pidfd() -> bool:
    """Whether this kernel and this Python have pidfd."""
    try:
        os.close(pidfd_sentinel(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def best_sentinel() -> OpenSentinel:
    """`pidfd_sentinel` where it works, else `thread_sentinel`."""
    return pidfd_sentinel if has_pidfd() else thread_sentinel


@contextlib.contextmanager
def more_files() -> Iterator[FileLimit]:
    """Inside, this process may open as many files as its hard limit allows: each worker takes some. Yields the limit
    that there was before, which is what workers get."""
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= enough:
        yield before
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
    try:
        yield before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def limit_files(pid: int, limit: FileLimit) -> None:
    """Let a child that has just been started open so many files."""
    with contextlib.suppress(OSError):  # it has ended
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)


_REMEDIES = {
    errno.EMFILE: "this process has too many files open: raise `ulimit -n` or start fewer workers",
    errno.ENFILE: "the machine has too many files open: raise the sysctl fs.file-max",
    errno.EAGAIN: "too many processes: raise `ulimit -u` or the limit of the control group",
    errno.ENOMEM: "the machine is short of memory: start fewer workers",
    errno.E2BIG: "its arguments and environment are too long together",
}


def remedy(error: OSError) -> str | None:
    """What to do about the error; None when no limit explains it."""
    return _REMEDIES.get(error.errno or 0)


def cannot_start(error: OSError, workers: int) -> ConfigurationError:
    """The error for an OSError that came while `workers` workers were being started."""
    if error.errno is None and "path too long" in str(error):  # the fork server of multiprocessing cannot listen
        found = f"expected a temporary folder with a path short enough for a Unix socket, found {tempfile.gettempdir()}"
        advice = "set TMPDIR to a shorter path, or use the start method spawn"
        return ConfigurationError(Problem("TMPDIR", f"{found}; {advice}"))
    return _cannot(error, "--nproc-per-node", f"start {workers} workers")


def cannot_look(error: OSError) -> ConfigurationError:
    """The error for an OSError that came when it was looked which processes of the workers still run."""
    return _cannot(error, "/proc", "see which processes of the workers run")


def _cannot(error: OSError, what: str, expected: str) -> ConfigurationError:
    found = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
    advice = remedy(error) or "the log of the kernel (`dmesg`) may say more"
    return ConfigurationError(Problem(what, f"expected to {expected}, found: {found}; {advice}"))
