"""Reports a worker's exception to the agent through an error file, in the format of torch's `@record`.

The agent sets the file's path in TORCHELASTIC_ERROR_FILE. The decorator `record` writes the file.
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
_HALF = 16 * 1024  # characters, each of which takes up to 12 bytes in JSON


class ErrorHandler:
    """Handles the exceptions that `record` catches. Programs may pass an instance of a subclass to `record`."""

    def initialize(self) -> None:
        """Make the interpreter print its stacks to stderr if it crashes. `record` calls this before the function."""
        with contextlib.suppress(Exception):  # stderr is closed, or an object without a descriptor
            faulthandler.enable()

    def record_exception(self, e: BaseException) -> None:
        """Write the exception and its traceback to the error file, if the environment specifies one."""
        if path := os.environ.get(VARIABLE):
            write(path, content_of(e))

    def override_error_code_in_rootcause_data(
        self, rootcause_error_file: str, rootcause_error: dict[str, Any], error_code: int = 0
    ) -> None:
        """Add the first failed worker's exit code to `rootcause_error`, the content of that worker's error file."""
        if isinstance(rootcause_error.get("message"), dict):
            rootcause_error["message"]["errorCode"] = error_code

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Copy the error file of the worker that failed first to this process's own error file, if this process is
        itself a worker. Raises OSError or ValueError if the file cannot be read."""
        with open(rootcause_error_file) as file:
            content = json.load(file)
        if error_code and isinstance(content, dict):
            self.override_error_code_in_rootcause_data(rootcause_error_file, content, error_code)
        if path := os.environ.get(VARIABLE):
            write(path, content)


def get_error_handler() -> ErrorHandler:
    """Return the error handler that `record` uses by default."""
    return ErrorHandler()


def record(fn: Callable[P, T], error_handler: ErrorHandler | None = None) -> Callable[P, T | None]:
    """Decorate a program's main function so that the agent's report shows its exceptions. An exception is written to
    the error file and raised again. `sys.exit(0)` is treated as a return. Other exits and interrupts are passed on.

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
                with contextlib.suppress(OSError, ValueError):  # the round's files were removed; `launch` has copied it
                    handler.dump_error_file(first.error_file, first.exitcode)
            raise
        except Exception as error:
            handler.record_exception(error)
            raise

    return recorded


def content_of(error: BaseException) -> dict[str, Any]:
    """Return the content of an error file that describes the exception."""
    callstack = "".join(traceback.format_exception(error))
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - raised by the exception's own code
        text = "<str() of this exception failed>"
    extra = {"py_callstack": _bounded(callstack), "timestamp": str(int(SystemClock().timestamp()))}
    return {"message": {"message": _bounded(f"{type(error).__name__}: {text}"), "extraInfo": extra}}


def _bounded(text: str) -> str:
    """Return the text without its middle if it is long, because agents do not read error files beyond 1 MiB."""
    return text if len(text) <= 2 * _HALF else f"{text[:_HALF]}\n[...]\n{text[-_HALF:]}"


def write(path: str, content: Mapping[str, Any]) -> None:
    """Write an error file. Errors are ignored, so that they do not hide the failure that is being recorded. Only
    regular files are written to, because a pipe without a reader would block."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        text = json.dumps(content)
        with open(path, "w", opener=open_regular) as file:
            file.write(text)
