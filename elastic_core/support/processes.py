"""Identifies processes, starts them without leaks, and runs helper processes.

- A process is identified by its id and its start time, because the kernel reuses ids.
- Forked children close file descriptors on whose end other processes wait.
- `interrupts_held` delays exceptions from signal handlers, such as KeyboardInterrupt, while a process is being started.
- A helper process notices when this process ends, for any reason, because the helper's standard input then closes. A
  parent-death signal would not reach the helper's own children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from elastic_core.clock import Duration

    Handler = Callable[[int, FrameType | None], object]


_STATE = 0
_STARTED = 19  # the 22nd field of /proc/PID/stat, counted from after the program's name, which may contain anything


def process_start_time(pid: int) -> int | None:
    """Return the process's start time in clock ticks since boot, or None if the process is not running."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[_STATE] in (b"Z", b"X") else int(fields[_STARTED])
    except (OSError, IndexError, ValueError):
        return None


def process_runs(pid: int, started: int | None) -> bool:
    """Return whether the process with this id and start time is running. If `started` is None, return whether any
    process with this id is running."""
    found = process_start_time(pid)
    return found is not None and (started is None or found == started)


class Droppable(Protocol):
    """An object whose file descriptors must not stay open in a forked child."""

    def drop(self) -> None:
        """Close the file descriptors in the child."""


_owners: weakref.WeakSet[Droppable] = weakref.WeakSet()


no_forks = threading.RLock()
"""A lock to hold while `subprocess` or `multiprocessing` starts a process. A child that another thread forks at that
moment would keep open a pipe on whose end the parent waits."""


def _release_in_child() -> None:
    with contextlib.suppress(RuntimeError):  # until it is free, because the thread may have held it before it forked
        while True:
            no_forks.release()


os.register_at_fork(before=no_forks.acquire, after_in_parent=no_forks.release, after_in_child=_release_in_child)


def drop_in_forks(owner: Droppable) -> None:
    """Call `owner.drop()` in every child that is forked from now on, for as long as `owner` exists."""
    _owners.add(owner)


def stop_dropping(owner: Droppable) -> None:
    """Stop calling `owner.drop()`, because the owner has closed its descriptors itself. Idempotent."""
    _owners.discard(owner)


def _drop_all() -> None:
    for owner in list(_owners):
        with contextlib.suppress(OSError):  # one owner's failure must not keep others from closing theirs
            owner.drop()


os.register_at_fork(after_in_child=_drop_all)


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


# Python runs signal handlers in the main thread, between any two bytecode steps. An exception between the fork and the
# line that records the process id would leave a process that the program cannot end. During that time, a gate replaces
# the handlers and only records signals. `elastic run` does not need the gate, because its handlers raise nothing.
#
# Two other solutions have gaps. If the main thread blocks a signal, another thread receives the signal, and Python
# still runs the handler in the main thread. If a separate thread forks the worker, that thread becomes the worker's
# parent. A worker that has asked the kernel to end it with its parent (PR_SET_PDEATHSIG) then ends with that thread.
_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Delay Python's handlers for SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGALRM until the end of the block.

    Delaying more signals would remove handlers that C code has installed over Python's (`faulthandler.register`), and
    reset flags set with `signal.siginterrupt`.

    Hold interrupts only briefly, because the program does not react to Ctrl-C in the meantime. In other threads than
    the main thread, this function does nothing, because Python runs no handlers there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hold = object()
    try:
        try:
            _gate.close(hold)
            yield
        finally:
            _gate.open(hold)
    finally:  # an exception may have interrupted the first `open`; otherwise this does nothing
        _gate.open(hold)


@contextlib.contextmanager
def interrupts_allowed() -> Iterator[None]:
    """Suspend an enclosing `interrupts_held` during a long step that starts no process."""
    holds = _gate.holds
    if not holds or _gate.thread != threading.get_ident():
        yield
        return
    try:
        _gate.holds = []
        _gate.pass_on()
        yield
    finally:
        _gate.holds = holds


def raise_noted() -> None:
    """Raise the signals that a child recorded before it set its own handlers. Call this in a child that was forked
    inside `interrupts_held`."""
    _gate.holds, noted, _gate.noted = [], _gate.noted, {}
    for signum in noted:
        signal.raise_signal(signum)


class _Gate:
    """Replaces the program's handlers. While interrupts are held, the gate records signals. Otherwise, the gate passes
    signals on to the program's handlers, so a gate that an exception has left installed does no harm.

    No signal is lost, whenever it arrives:
    - The gate is closed before it replaces the first handler. It keeps the handlers that `signal.signal` returns,
      because a handler that runs in between may install another one.
    - The gate handles the recorded signals before it restores the handlers, because a handler may be waiting for
      another handler's exception, such as that of a time limit. Handlers that have been replaced are not restored.
    - If an exception interrupts the opening, the exception propagates, and the gate is opened again."""

    def __init__(self) -> None:
        self.holds: list[object] = []
        self.noted: dict[int, FrameType | None] = {}  # at most one per signal, as in the kernel
        self.thread = 0
        self._handlers: dict[int, Handler] = {}

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.holds:
            self.noted[signum] = frame
        else:
            self._handlers[signum](signum, frame)

    def close(self, hold: object) -> None:
        self.thread = threading.get_ident()
        self.holds.append(hold)
        for signum in _HELD:
            if callable(handler := signal.getsignal(signum)) and handler is not self:
                self._handlers[signum] = handler  # in case another signal's handler raises during the next line
                replaced = signal.signal(signum, self)
                if callable(replaced):
                    self._handlers[signum] = replaced
                else:  # the handler has just run and uninstalled itself
                    signal.signal(signum, replaced)

    def open(self, hold: object) -> None:
        self.holds = [other for other in self.holds if other is not hold]
        if not self.holds:
            try:
                self.pass_on()
            finally:
                self._put_back()

    def pass_on(self) -> None:
        """Handle all recorded signals in order, even if a handler raises."""
        try:
            for signum in list(self.noted):
                self._handlers[signum](signum, self.noted.pop(signum))
        except BaseException:
            self.pass_on()
            raise

    def _put_back(self) -> None:
        mine: object = self
        for signum, handler in self._handlers.items():
            if signal.getsignal(signum) is mine and (replaced := signal.signal(signum, handler)) is not mine:
                signal.signal(signum, replaced)  # a handler has just run and installed this one

    def forked(self) -> None:
        """Adjust the gate in a forked child. If the thread that holds interrupts has forked, the child keeps holding
        them until `raise_noted`, because the child must not run the program's handlers."""
        self.noted.clear()  # the parent received these
        if self.thread != threading.get_ident():
            self.holds = []
            self._put_back()


_gate = _Gate()
os.register_at_fork(after_in_child=_gate.forked)
