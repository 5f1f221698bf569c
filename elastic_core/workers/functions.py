"""Runs Python functions as workers, in processes that `multiprocessing` starts."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import set_spawning_popen
from multiprocessing.popen_forkserver import _DupFd
from multiprocessing.reduction import ForkingPickler
from multiprocessing.spawn import get_preparation_data
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from elastic_core import error_file
from elastic_core.errors import ConfigurationError, ElasticError, Problem, described_error
from elastic_core.support.processes import interrupts_allowed, no_forks, raise_noted
from elastic_core.workers.process import bind, reap_child, substitute_local_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.process import BaseProcess

    from elastic_core.interfaces.workers import Child, Launch
    from elastic_core.workers.process import Cpus

_ERRORS = "backslashreplace"  # a worker must not fail because it prints a character that the locale lacks
_UNPICKLABLE = (pickle.PicklingError, AttributeError, TypeError)
_STREAM_NAMES = {1: "stdout", 2: "stderr"}
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class FunctionStarter:
    """Runs `function(*args)` in a child process. With spawn and forkserver, the function and its arguments must be
    picklable.

    The child writes the return value to a file in the agent's private folder, to which no other user can write. A pipe
    would block the child if the value is large, and would block the agent if the child died while writing.

    Signals are delayed (`interrupts_held`) while a fork server boots, but not while the function and its arguments are
    pickled."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], method: str) -> None:
        self._function = function
        self._args = args
        self._method = method
        self._context = multiprocessing.get_context(method)

    def start(self, launch: Launch) -> Child:
        call = _Parcel(_call(self._function, self._args, launch.local_rank))  # may raise, so it comes first
        environment = _Parcel(launch.environment)
        streams = tuple(_as_connection(fd) for fd in (launch.stdout, launch.stderr))
        mark = _as_connection(launch.mark)
        everything = (call, environment, streams, mark, str(launch.result), launch.cpus, self._method)
        process = self._context.Process(target=_run, args=everything)  # type: ignore[attr-defined]
        try:
            if self._method == "forkserver":
                _start_fork_server()
            # Another thread's child would keep the pipe that shows this child's end. With other methods, starting may
            # take long, and may run the user's code.
            with no_forks if self._method == "fork" else contextlib.nullcontext():
                process.start()
            # The program's own calls of multiprocessing, in any thread, would reap the child and lose its exit code.
            multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
        except _UNPICKLABLE as error:
            raise _not_pickled(error) from error
        finally:
            for stream in filter(None, (*streams, mark)):
                stream.close()  # immediately, because a stream ends only when its last write end is closed
            call.close()
            environment.close()
        return _FunctionChild(process, reaped_elsewhere=self._method == "forkserver")

    def result(self, launch: Launch) -> object:
        return read_function_result(launch)


def _start_fork_server() -> None:
    """Start multiprocessing's fork server, unless it runs, so that signals to the agent's process group do not end it
    and thereby seem to end all workers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # again, because the call above unblocks some signals
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _call(function: Callable[..., Any], args: tuple[Any, ...], local_rank: int) -> tuple[Any, ...]:
    """Return the function and its arguments. `${local_rank}` is replaced in string arguments, as it is in commands."""
    return function, *(substitute_local_rank((arg,), local_rank)[0] if isinstance(arg, str) else arg for arg in args)


def read_function_result(launch: Launch) -> object:
    """Return the function's return value. Raises ElasticError if it cannot be unpickled."""
    with launch.result.open("rb") as file:
        try:
            return pickle.load(file)
        except (Exception, SystemExit) as error:  # unpickling runs the user's code
            raise ElasticError(described_error(error)) from error


def _not_pickled(error: Exception) -> ConfigurationError:
    return ConfigurationError(
        Problem(
            "entry point",
            f"the function or its arguments cannot be pickled: {error}; define the function at "
            "the top level of a module, or use the 'fork' start method",
        )
    )


def pickled_process(function: Callable[..., Any], args: tuple[Any, ...], launch: Launch) -> tuple[bytes, list[int]]:
    """Return a pickled `multiprocessing` process for the function, as a spawned child reads it, and the descriptors to
    which the pickle refers by index (see `multiprocessing.forkserver`).

    Before the child unpickles the process, it must have the worker's streams and environment variables."""
    spawn = multiprocessing.get_context("spawn")
    own = [fd for fd, given in zip(_STREAM_NAMES, (launch.stdout, launch.stderr), strict=True) if given is not None]
    shared = _Shared()
    content = io.BytesIO()
    set_spawning_popen(cast("Any", shared))
    try:
        call = partial(pickle.loads, bytes(_pickled(_call(function, args, launch.local_rank))))
        process = spawn.Process(target=_finish_and_leave, args=(call, str(launch.result), own))
        preparation = get_preparation_data(process.name)
        preparation["authkey"] = bytes(preparation["authkey"])
        for what in (preparation, process):
            ForkingPickler(content, pickle.HIGHEST_PROTOCOL).dump(what)
    except _UNPICKLABLE as error:
        raise _not_pickled(error) from error
    finally:
        set_spawning_popen(None)
    return content.getvalue(), shared.fds


class _Shared:
    """Assigns an index to each descriptor that `multiprocessing` duplicates while pickling a process."""

    DupFd = _DupFd

    def __init__(self) -> None:
        self.fds: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        self.fds.append(fd)
        return len(self.fds) - 1


class _Parcel:
    """A value for the child, which calls the parcel when it has the worker's environment and streams.

    A forked child has the value. Other children unpickle the value from a memory file, not from multiprocessing's pipe.
    A spawned child reads this pipe only after it has imported its main module. If the child died before that, a full
    pipe would block the agent forever, because the agent itself holds the pipe's read end."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self._memory: Connection | None = None

    def __call__(self) -> Any:
        return self._value

    def __reduce__(self) -> tuple[type[partial[Any]], tuple[Callable[[Connection], Any], Connection]]:
        pickled = _pickled(self._value)
        self._memory = Connection(os.memfd_create("elastic-worker"), writable=False)
        with open(self._memory.fileno(), "wb", closefd=False) as file:
            file.write(pickled)
        return partial, (_unpickled, self._memory)

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()


def _pickled(value: Any) -> memoryview:
    with interrupts_allowed():  # multiprocessing pickles arguments, which may be large, before it starts a process
        return ForkingPickler.dumps(value)


def _unpickled(memory: Connection) -> Any:
    with memory, open(memory.fileno(), "rb", closefd=False) as file:
        file.seek(0)
        return pickle.load(file)


class _FunctionChild:
    """A `multiprocessing` process with the interface of `Child`."""

    def __init__(self, process: BaseProcess, reaped_elsewhere: bool) -> None:
        self._process = process
        self._reaped_elsewhere = reaped_elsewhere
        self.pid = process.pid or 0

    def poll(self) -> int | None:
        exitcode = self._process.exitcode
        return reap_child(self.pid) if exitcode is None and not self._reaped_elsewhere else exitcode

    def own_sentinel(self) -> int | None:
        # The fork server reaps its children and then reports the exit code; only its pipe shows when the code is
        # available.
        return os.dup(self._process.sentinel) if self._reaped_elsewhere else None


def _as_connection(fd: int | None) -> Connection | None:
    """Return a wrapper for `fd` that multiprocessing can pass to a child. The wrapper owns a duplicate of `fd`."""
    return None if fd is None else Connection(os.dup(fd), readable=False)


def _run(
    call: Callable[[], Any],
    environment: Callable[[], dict[str, str]],
    streams: tuple[Connection | None, Connection | None],
    mark: Connection | None,
    result: str,
    cpus: Cpus,
    method: str,
) -> None:
    """Set up the worker's environment in the child process, which only keeps `mark` open, and make the call."""
    os.setsid()  # the agent finds this process's children by their session
    _forget_handlers()
    if method == "forkserver":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    for target, stream in zip(_STREAM_NAMES, streams, strict=True):
        if stream is not None:
            os.dup2(stream.fileno(), target)
            stream.close()
            _attach(_STREAM_NAMES[target], target)
    os.environ.clear()
    os.environ.update(environment())
    bind(cpus)
    (_finish_and_leave if method == "spawn" else _finish)(call, result)


def _finish_and_leave(call: Callable[[], Any], result: str, own: Iterable[int] = ()) -> None:
    """Call `_finish`, and exit without finalizing the interpreter if torch.distributed has been imported."""
    try:
        _finish(call, result, own)
    except SystemExit as left:
        if left.code is not None and (left.code != 0 or not isinstance(left.code, int)):  # "" is printed, and is 1
            raise
    if "torch.distributed" in sys.modules:
        _leave()


def _leave() -> NoReturn:
    """Exit without finalizing the interpreter, as multiprocessing does in forked children. During finalization, a gloo
    thread that releases its last tensor could abort the process."""
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):  # they may be the program's own objects
        with contextlib.suppress(Exception):
            stream.flush()
    files = [thing for thing in gc.get_objects() if io.IOBase in type(thing).__mro__]  # finalization would close them
    files.sort(key=lambda file: type(file).__module__ == "_io")  # close files that use other files (GzipFile) first
    for file in files:
        with contextlib.suppress(Exception):
            file.flush() if type(file).__module__ == "_io" else file.close()
    os._exit(0)


def _finish(call: Callable[[], Any], result: str, own: Iterable[int] = ()) -> None:
    """Make the call and save its outcome. `own` lists the streams that belong to the worker, not to the agent."""
    for fd in own:
        _attach(_STREAM_NAMES[fd], fd)
    errors = error_file.ErrorHandler()
    errors.initialize()
    try:
        function, *args = call()
        _store(function(*args), result)
    except SystemExit as left:
        if isinstance(left.code, int) and not -(2**31) <= left.code < 2**31:
            # os._exit would raise OverflowError, and a forked child would continue as a second agent.
            raise SystemExit(255) from None
        raise
    except Exception as error:
        if not os.path.exists(os.environ.get(error_file.VARIABLE, "")):  # the function has not written one itself
            errors.record_exception(error)
        raise


def _forget_handlers() -> None:
    """Remove the agent's signal handlers in a forked child. Ignored signals stay ignored, as after exec."""
    for signum in signal.valid_signals():
        if callable(signal.getsignal(signum)):
            signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    raise_noted()


def _attach(name: str, fd: int) -> None:
    """Make `sys.stdout` or `sys.stderr` write to the worker's stream, line by line, so that no complete line is lost if
    the worker is killed. In a forked child, the object may still be the agent's, such as a notebook's stream."""
    stream = getattr(sys, name)
    with contextlib.suppress(ValueError):  # the agent's stream was closed or detached
        if isinstance(stream, io.TextIOWrapper) and stream.fileno() == fd:
            stream.reconfigure(line_buffering=True)
            return
    setattr(sys, name, io.TextIOWrapper(io.FileIO(fd, "w", closefd=False), errors=_ERRORS, line_buffering=True))


def _store(value: Any, result: str) -> None:
    try:
        pickled = pickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"the return value, a {type(value).__qualname__}, cannot be pickled: {error}; return plain "
            "data, or write it to a file and return its path"
        ) from error
    with open(result, "wb") as file:
        file.write(pickled)


def run_script(path: str, *args: str) -> None:
    """Run a script for `--run-path` in the child's interpreter. The script can import the modules in its folder."""
    import runpy

    sys.argv = [path, *args]
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        runpy.run_path(path, run_name="__main__")
    except SyntaxError as error:
        if any(frame.filename.startswith(path) for frame in traceback.extract_tb(error.__traceback__)):
            raise
        # The error is in the script itself, so show it without this module's frames, as Python does.
        sys.stderr.write("".join(traceback.format_exception_only(error)))
        sys.exit(1)
