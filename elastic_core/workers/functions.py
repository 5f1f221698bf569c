"""Python functions as workers, through `multiprocessing`: standard streams, environment, return value, error file."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any

from elastic_core.clock import SystemClock
from elastic_core.errors import ConfigurationError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from elastic_core.workers.process import Child
    from elastic_core.workers.starters import Launch

START_METHODS = ("spawn", "fork", "forkserver")
_HANDLED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class FunctionStarter:
    """Runs `function(*args)` in a child process. With spawn and forkserver both must be picklable.

    The return value comes back through a file in the agent's private folder: a pipe would stall the child on a
    large value, or the agent on a child that dies while it writes. Only our own child can write there.
    """

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], method: str) -> None:
        self._function = function
        self._args = args
        self._context = multiprocessing.get_context(method)

    def start(self, launch: Launch) -> Child:
        streams = tuple(_as_connection(fd) for fd in (launch.stdout, launch.stderr))
        call = (self._function, self._args, launch.environment, streams, str(launch.result))
        process = self._context.Process(target=_call, args=call)  # type: ignore[attr-defined]
        try:
            process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigurationError(
                Problem(
                    "entry point",
                    f"expected a function and arguments that can be pickled, found: {error}; define the function at "
                    "the top level of a module, or use the start method fork",
                )
            ) from error
        return _FunctionChild(process, reaped_elsewhere=self._context.get_start_method() == "forkserver")

    def result(self, launch: Launch) -> object:
        """Raises EOFError when the child ended before its value was written."""
        with launch.result.open("rb") as file:
            return pickle.load(file)


class _FunctionChild:
    """A multiprocessing process with the face of `Child`."""

    def __init__(self, process: BaseProcess, reaped_elsewhere: bool) -> None:
        self._process = process
        self._reaped_elsewhere = reaped_elsewhere
        self.pid = process.pid or 0

    def poll(self) -> int | None:
        return self._process.exitcode

    def own_sentinel(self) -> int | None:
        # The fork server reaps its children and passes the exit code on afterwards: only its pipe tells when.
        return os.dup(self._process.sentinel) if self._reaped_elsewhere else None


def _as_connection(fd: int | None) -> Connection | None:
    """A wrapper that multiprocessing knows how to hand to a child; it owns a duplicate of `fd`."""
    if fd is None:
        return None
    from multiprocessing.connection import Connection

    return Connection(os.dup(fd), readable=False)


def _call(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    environment: dict[str, str],
    streams: tuple[Connection | None, Connection | None],
    result: str,
) -> None:
    """The child's main: a session of its own first, so that everything after it can be found and ended."""
    os.setsid()
    for signum in _HANDLED:  # a forked child would run the agent's handlers
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, stream in zip((1, 2), streams, strict=True):
        if stream is not None:
            os.dup2(stream.fileno(), target)
            stream.close()
    os.environ.clear()
    os.environ.update(environment)
    try:
        value = function(*args)
    except Exception as error:
        _write_error_file(error)
        raise
    sys.stdout.flush()
    with open(result, "wb") as file:
        pickle.dump(value, file)


def _write_error_file(error: Exception) -> None:
    """In the format of torch's `@record`, unless the function has written one itself."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if not path or os.path.exists(path):
        return
    extra = {"py_callstack": traceback.format_exc(), "timestamp": str(int(SystemClock().timestamp()))}
    with open(path, "w") as file:
        json.dump({"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}, file)


def run_script(path: str, *args: str) -> None:
    """The function behind `--run-path`: the script runs by `runpy` inside the child's interpreter."""
    import runpy

    sys.argv = [path, *args]
    runpy.run_path(path, run_name="__main__")
