"""The report of a run that did not end well: why, who failed first, with which last words. Pure text."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from elastic_core.errors import (
    ChildFailedError,
    ConfigurationError,
    DrainedError,
    ElasticError,
    ExitCode,
    SignalException,
    UnkillableWorkersError,
    failures_of,
)
from elastic_core.text import in_one_line, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from elastic_core.errors import ProcessFailure

_MESSAGE_LINES = 40
_OTHERS = 16  # of a thousand workers that lost the same peer, a few are enough


def exit_code_of(error: BaseException) -> int:
    """The documented exit code: the error's own, 128 + n for signal n, INTERNAL_ERROR for what is nobody's."""
    if isinstance(error, SignalException):
        return 128 + int(error.sigval)
    if isinstance(error, KeyboardInterrupt):
        return 128 + int(signal.SIGINT)
    return int(error.exit_code if isinstance(error, ElasticError) else ExitCode.INTERNAL_ERROR)


def as_text(error: BaseException, run_id: str = "", reason: str = "") -> str:
    """The paragraph for the terminal. `reason` is why the agent ended it (budget used up, ...)."""
    return "\n".join([_headline(error, f" {run_id}" if run_id else "", reason), *failure_lines(failures_of(error))])


def _headline(error: BaseException, name: str, reason: str) -> str:
    if isinstance(error, ConfigurationError):
        return _configuration(error)
    if isinstance(error, ChildFailedError):
        return in_one_line(f"elastic: the job{name} failed" + (f": {reason}" if reason else ""))
    if isinstance(error, UnkillableWorkersError):
        return f"elastic: the job{name} ended, but not all of it: {told(error)}"
    if isinstance(error, KeyboardInterrupt):
        return f"elastic: the job{name} ended: interrupted from the keyboard"
    if isinstance(error, DrainedError):
        return f"elastic: this node left the job{name}: {told(error)}"
    if isinstance(error, ElasticError):
        return f"elastic: the job{name} ended: {told(error)}"
    return f"elastic: internal error: {type(error).__name__}: {error}; please report it with the traceback above"


def told(error: ElasticError) -> str:
    """The message of an error. Its further lines are indented, since the words of other nodes are in some, and could
    else pass for the lines of a report."""
    return printable(str(error)).replace("\n", "\n  ")


def _configuration(error: ConfigurationError) -> str:
    if len(error.problems) == 1:
        return f"elastic: {error.problems[0]}"
    lines = [f"elastic: {len(error.problems)} problems with the configuration"]
    return "\n".join([*lines, *(f"  - {problem}" for problem in error.problems)])


def failure_lines(failures: Mapping[int, ProcessFailure]) -> Iterable[str]:
    """The first failure with its last words, and those that followed from it; nothing where there is none."""
    return map(in_one_line, _failure_lines(failures)) if failures else ()


def _failure_lines(failures: Mapping[int, ProcessFailure]) -> Iterable[str]:
    rank, first = ChildFailedError("", dict(failures)).get_first_failure()
    yield ""
    yield f"First failure: {_who(first)}: {first.reason}"
    yield from _last_words(first)
    others = [failure for other, failure in sorted(failures.items()) if other != rank]
    if others:
        yield "Failed after it, most likely because of it:"
        yield from (f"  {_who(failure)}: {failure.reason}{_last_line(failure)}" for failure in others[:_OTHERS])
    if len(others) > _OTHERS:
        yield f"  and {len(others) - _OTHERS} more"


def _who(failure: ProcessFailure) -> str:
    node = f" on {failure.node}" if failure.node else ""
    return (
        f"rank {failure.global_rank} (local rank {failure.local_rank}, pid {failure.pid}){node}, round {failure.round}"
    )


def _last_words(failure: ProcessFailure) -> Iterable[str]:
    yield from _stack(failure)
    lines = failure.message.splitlines()
    if not lines:
        yield "  It wrote no error file and nothing to stderr."
        return
    source = f"error file {failure.error_file}" if failure.error_file != "<N/A>" else "last lines of its stderr"
    yield f"  {source}:"
    yield from (f"    {line}" for line in lines[-_MESSAGE_LINES:])


def _stack(failure: ProcessFailure) -> Iterable[str]:
    """What a worker that hung or crashed was doing, whole: it is bounded where it is taken."""
    lines = failure.stack.splitlines()
    if len(lines) == 1:
        yield f"  {lines[0]}"
    elif lines:
        yield "  what its threads were doing at the end:"
        yield from (f"    {line}".rstrip() for line in lines)


def _last_line(failure: ProcessFailure) -> str:
    lines = failure.message.splitlines()
    return f" | {lines[-1]}" if lines else ""
