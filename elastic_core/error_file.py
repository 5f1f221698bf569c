"""The error file: how a worker tells its agent of the exception that ends it, in the format of torch's `@record`.

The agent names the file in TORCHELASTIC_ERROR_FILE. `record` around the main function of a program writes it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import os
import traceback
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from elastic_core.clock import SystemClock
from elastic_core.errors import ChildFailedError, ProcessFailure
from elastic_core.support.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

P = ParamSpec("P")
T = TypeVar("T")

VARIABLE = "TORCHELASTIC_ERROR_FILE"


class ErrorHandler:
    """What `record` does with an exception. Programs may derive from it, and give theirs to `record`."""

    def initialize(self) -> None:
        """Called before the function: a crash of the interpreter shows its stacks on stderr."""
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # stderr is no file, or closed
            faulthandler.enable()

    def record_exception(self, e: BaseException) -> None:
        """Write the exception, with its traceback, into the error file, if the environment names one."""
        if path := os.environ.get(VARIABLE):
            write(path, content_of(e))

    def override_error_code_in_rootcause_data(
        self, rootcause_error_file: str, rootcause_error: dict[str, Any], error_code: int = 0
    ) -> None:
        """Note the exit code of the worker that failed first in the content of its error file."""
        if isinstance(rootcause_error.get("message"), dict):
            rootcause_error["message"]["errorCode"] = error_code

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Write the error file of the worker that failed first as that of this process: for a worker that itself
        launches workers. Raises OSError or ValueError if that file cannot be read."""
        with open(rootcause_error_file) as file:
            content = json.load(file)
        if error_code and isinstance(content, dict):
            self.override_error_code_in_rootcause_data(rootcause_error_file, content, error_code)
        if path := os.environ.get(VARIABLE):
            write(path, content)


def get_error_handler() -> ErrorHandler:
    """The error handler that `record` uses by default."""
    return ErrorHandler()


def record(fn: Callable[P, T], error_handler: ErrorHandler | None = None) -> Callable[P, T | None]:
    """Decorator for the main function of a program: an exception that leaves it is written to the error file, and so
    gets into the agent's report. Exit code 0 by `sys.exit` counts as return; other exits and interrupts pass.

        @record
        def main(): ...
    """
    handler = error_handler or get_error_handler()

    @functools.wraps(fn)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> T | None:
        handler.initialize()
        try:
            return fn(*args, **kwargs)
        except SystemExit as exit_:
            if exit_.code == 0:
                return None
            raise
        except ChildFailedError as error:
            first = error.get_first_failure()[1] if error.failures else None
            if first is not None and first.error_file != ProcessFailure.error_file:
                with contextlib.suppress(OSError, ValueError):  # removed with its round: `launch` has handed it up
                    handler.dump_error_file(first.error_file, first.exitcode)
            raise
        except Exception as error:
            handler.record_exception(error)
            raise

    return recorded


def content_of(error: BaseException) -> dict[str, Any]:
    """The content of an error file for an exception."""
    callstack = "".join(traceback.format_exception(error))
    extra = {"py_callstack": callstack, "timestamp": str(int(SystemClock().timestamp()))}
    return {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}


def write(path: str, content: Mapping[str, Any]) -> None:
    """Write an error file. Only into a regular file: a pipe might have no reader, and the job is over. An error of
    writing hides no failure."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        text = json.dumps(content)
        with open(path, "w", opener=open_regular) as file:
            file.write(text)
