"""Describes the outcome of a run, as text for failed runs and as JSON for the result file. The text states why the run
ended, and shows the root cause with the tail of its stderr. docs/reference describes version 1 of the JSON schema."""

from __future__ import annotations

import json
import os
import signal
import stat
from typing import TYPE_CHECKING, Any

from elastic_core.errors import (
    ChildFailedError,
    ConfigurationError,
    DrainedError,
    ElasticError,
    ExitCode,
    Problem,
    SignalException,
    UnkillableWorkersError,
    failures_of,
)
from elastic_core.support import files
from elastic_core.text import in_one_line, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from elastic_core.errors import ProcessFailure
    from elastic_core.observers import History

_ROOT_CAUSE = "Root cause"
_MESSAGE_LINES = 40
_OTHERS = 16  # one worker's failure may cause a thousand others; showing a few is enough


def exit_code_of(error: BaseException) -> int:
    """Return an error's exit code: 128 + n for signal n, and INTERNAL_ERROR for errors that are not elastic-core's."""
    if isinstance(error, SignalException):
        return 128 + int(error.sigval)
    if isinstance(error, KeyboardInterrupt):
        return 128 + int(signal.SIGINT)
    return int(error.exit_code if isinstance(error, ElasticError) else ExitCode.INTERNAL_ERROR)


def as_text(error: BaseException, run_id: str = "", reason: str = "", restarts: Mapping[int, int] = {}) -> str:
    """Return the report on a failed run, for the terminal.

    Args:
        reason: why the agent ended the job, for example because no restarts are left.
        restarts: the number of restarts before each round, by round number.
    """
    failures = failures_of(error)
    return "\n".join([_headline(error, f" {run_id}" if run_id else "", reason), *failure_lines(failures, restarts)])


def in_color(report: str) -> str:
    """Return the report with its headline and root cause highlighted for a terminal."""
    lines = report.split("\n")
    return "\n".join(
        f"\x1b[1;31m{line}\x1b[0m" if number == 0 or line.startswith(_ROOT_CAUSE) else line
        for number, line in enumerate(lines)
    )


def _headline(error: BaseException, name: str, reason: str) -> str:
    if isinstance(error, ConfigurationError):
        return _configuration(error)
    if isinstance(error, ChildFailedError):
        if error.failures:  # the root cause is shown further down
            reason = reason.rpartition(f": {error.get_first_failure()[1].reason}; ")[2]
        return in_one_line(f"elastic: job{name} failed" + (f": {reason}" if reason else ""))
    if isinstance(error, UnkillableWorkersError):
        return f"elastic: job{name} ended, but processes remain: {message_of(error)}"
    if isinstance(error, KeyboardInterrupt):
        return f"elastic: job{name} interrupted from the keyboard"
    if isinstance(error, SignalException):
        return f"elastic: job{name} stopped by {signal.Signals(error.sigval).name}"
    if isinstance(error, DrainedError):
        return f"elastic: this node left job{name}: {message_of(error)}"
    if isinstance(error, ElasticError):
        return f"elastic: job{name} ended: {message_of(error)}"
    return f"elastic: internal error: {type(error).__name__}: {error}; please report it with the traceback above"


def message_of(error: ElasticError) -> str:
    """Return an error's message, with all lines but the first indented. Otherwise, text from other nodes in the message
    could look like a line of the report."""
    return printable(str(error)).replace("\n", "\n  ")


def _configuration(error: ConfigurationError) -> str:
    if len(error.problems) == 1:
        return f"elastic: {error.problems[0]}"
    lines = [f"elastic: {len(error.problems)} problems with the configuration"]
    return "\n".join([*lines, *(f"  - {problem}" for problem in error.problems)])


def failure_lines(failures: Mapping[int, ProcessFailure], restarts: Mapping[int, int] = {}) -> Iterable[str]:
    """Return the report's lines about the root cause, with its stderr tail, and about the failures that it most likely
    caused. Returns no lines if there are no failures."""
    return map(in_one_line, _failure_lines(failures, restarts)) if failures else ()


def _failure_lines(failures: Mapping[int, ProcessFailure], restarts: Mapping[int, int]) -> Iterable[str]:
    rank, first = ChildFailedError("", dict(failures)).get_first_failure()
    yield ""
    yield f"{_ROOT_CAUSE}{_when(first, restarts.get(first.round, 0))}: {_who(first)}: {first.reason}"
    yield from _tail(first)
    others = [failure for other, failure in sorted(failures.items()) if other != rank]
    if others:
        yield "Failed later, most likely as a consequence:"
        yield from (f"  {_who(failure)}: {failure.reason}{_last_line(failure)}" for failure in others[:_OTHERS])
    if len(others) > _OTHERS:
        yield f"  and {len(others) - _OTHERS} more"


def _when(failure: ProcessFailure, restarts: int) -> str:
    parts = [f"round {failure.round}"] if failure.round > 1 else []
    parts += [f"after {restarts} restart{'s' if restarts > 1 else ''}"] if restarts else []
    return f" ({', '.join(parts)})" if parts else ""


def _who(failure: ProcessFailure) -> str:
    node = f" on {failure.node}" if failure.node else ""
    return f"rank {failure.global_rank} (local rank {failure.local_rank}, pid {failure.pid}){node}"


def _tail(failure: ProcessFailure) -> Iterable[str]:
    stack, lines = failure.stack.splitlines(), failure.message.splitlines()
    if len(stack) == 1:
        yield f"  {stack[0]}"
    elif stack:
        yield "  what its threads were doing when it ended:"
        yield from (f"    {line}".rstrip() for line in stack)
    if not lines:
        if len(stack) < 2:  # otherwise, Python has written the stacks to stderr
            yield "  No error file and no output on stderr were found."
        return
    source = f"error file {failure.error_file}" if failure.error_file != "<N/A>" else "last lines of its stderr"
    yield f"  {source}:"
    yield from (f"    {line}" for line in lines[-_MESSAGE_LINES:])


def _last_line(failure: ProcessFailure) -> str:
    lines = failure.message.splitlines()
    return f" | {lines[-1]}" if lines else ""


SCHEMA_VERSION = 1


def check_writable(path: Path) -> None:
    """Check, before the job runs, that the result file can be written. Raises ConfigurationError if it cannot."""
    try:
        target = files.followed(path.absolute())
        files.check_existing(target)
        place = target if _is_special(target) else target.parent
        if os.access(place, os.W_OK) and not target.is_dir():
            return
        reason = "not a writable file" if place.exists() else "no such folder"
    except OSError as error:
        reason = f"{error.strerror}: {error.filename or path}"
    raise ConfigurationError(Problem("--result-file", f"cannot write to {path}: {reason}; choose another file"))


def outcome(run_id: str, exit_code: int, error: BaseException | None, history: History) -> dict[str, Any]:
    """Return the content of the result file."""
    finished = history.finished
    failures = failures_of(error)
    first = ChildFailedError("", failures).get_first_failure()[1].as_dict() if failures else None
    message = error.summary if isinstance(error, ChildFailedError) else str(error or "")
    return {
        "version": SCHEMA_VERSION,
        "run_id": run_id,
        "state": "SUCCEEDED" if exit_code == ExitCode.SUCCESS else finished.state if finished else "FAILED",
        "exit_code": int(exit_code),
        "reason": finished.reason if finished else message,
        "error": None if error is None else {"type": type(error).__name__, "message": message},
        "restart_count": finished.restart_count if finished else 0,
        "first_failure": first,
        **history.as_dict(),
    }


def write_result(path: Path, content: dict[str, Any]) -> None:
    """Write the result file. An existing file is replaced atomically, so that readers never see a partial file.
    Symbolic links are followed. Devices and pipes are written to, not replaced.

    Raises:
        OSError: the file cannot be written, or another user created the existing file.
        ValueError, TypeError, RecursionError: `content` cannot be represented in JSON.
    """
    text = _as_json(content) + "\n"
    target = files.followed(path.absolute())
    if not _is_special(target):
        files.replace(target, text)
        return
    with open(files.open_to_append(target), "w") as file:
        file.write(text)


def _as_json(content: dict[str, Any]) -> str:
    """Convert the content to standard JSON. Numbers that JSON does not support, such as NaN, become strings."""
    standard = json.loads(json.dumps(content, default=str), parse_constant=str)
    return json.dumps(standard, indent=2, allow_nan=False)


def _is_special(path: Path) -> bool:
    """Return whether the path is a device, a pipe or an open file (such as /dev/stdout), which must not be replaced."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return files.is_descriptor(path) or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
