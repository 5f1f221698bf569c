"""elastic-core's exceptions with their exit codes, and the record that describes a failed worker.

Messages state what is wrong and how to fix it. The command line prints an exception's message to stderr and exits with
its `exit_code`."""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass, field, fields
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping


class ExitCode(enum.IntEnum):
    """The exit codes of all commands, with their meanings. If a signal ended the agent, the exit code is 128 plus the
    signal's number, as in a shell."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    SUCCESS = 0, "all workers succeeded; other commands: the command succeeded"
    WORKER_FAILED = 1, "user code failed, and no restarts were left or a restart would not have helped"
    BAD_CONFIGURATION = (
        2,
        "a flag, variable, file or plugin is invalid or not available on this machine; doctor: a run would fail",
    )
    RENDEZVOUS_TIMEOUT = (
        3,
        "too few nodes joined before the join timeout; drain, stop: a node did not leave in time;"
        " doctor: too few nodes joined",
    )
    STORE_UNREACHABLE = (
        4,
        "the rendezvous store is unreachable; doctor: only if a store was expected or appears to run at the endpoint",
    )
    CLOSED_BY_ANOTHER_NODE = 5, "another node has closed the job"
    WORKER_WOULD_NOT_DIE = 6, "a process in uninterruptible sleep survived SIGKILL and was left behind"
    RENDEZVOUS_FAILED = 7, "the rendezvous failed for another reason; see the error message"
    NOT_FOUND = 8, "status, drain, stop: the store has no job with this id; drain, stop: the job has no such node"
    DRAINED = 9, "this node was asked to leave (drain, stop): its workers were stopped or had failed"
    PREEMPTED = 10, "a notice announced that this node must leave, and its workers were stopped"
    INTERNAL_ERROR = 70, "a bug in elastic-core or a plugin; the traceback is printed"


class InvalidPlugin(Exception):
    """A plugin was imported but violates a rule for plugins."""


def described_error(error: BaseException) -> str:
    """Return an exception's type and message on one line. An `InvalidPlugin` is described by its message alone."""
    if isinstance(error, InvalidPlugin):
        return str(error)
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - raised by the exception's own code
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class ElasticError(Exception):
    """The base class for all errors that elastic-core raises intentionally. `failures` maps global ranks to the worker
    failures that made the agent stop or restart its workers before the error."""

    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL_ERROR
    failures: Mapping[int, ProcessFailure] = MappingProxyType({})


@dataclass(frozen=True)
class Problem:
    """A configuration problem. `origin`, such as "--nnodes" or "elastic.toml: nnodes", is the source of the value."""

    origin: str
    message: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.message}"


class ConfigurationError(ElasticError, ValueError):
    """The configuration is invalid. `problems` contains all problems found. The error is also a ValueError, because
    torch raises ValueError in such cases."""

    exit_code = ExitCode.BAD_CONFIGURATION

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*problems)  # unchanged, so that the error can be pickled
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class PluginError(ConfigurationError):
    """A selected plugin is missing, broken, blocked or provided twice."""


class RendezvousError(ElasticError):
    """The nodes of the job could not agree on a round."""

    exit_code = ExitCode.RENDEZVOUS_FAILED


class RendezvousClosedError(RendezvousError):
    """The rendezvous was closed, so no further rounds will form. `succeeded` is true if the closing node reported
    success."""

    exit_code = ExitCode.CLOSED_BY_ANOTHER_NODE
    succeeded = False


class RendezvousTimeoutError(RendezvousError):
    """Too few nodes joined before the join timeout."""

    exit_code = ExitCode.RENDEZVOUS_TIMEOUT


class RendezvousConnectionError(RendezvousError):
    """The store is unreachable."""

    exit_code = ExitCode.STORE_UNREACHABLE


class RendezvousStateError(RendezvousError):
    """This version of elastic-core cannot use the state in the store."""


class NotFoundError(ElasticError):
    """The store has no job with this id, or the job has no such node."""

    exit_code = ExitCode.NOT_FOUND


class RendezvousGracefulExitError(RendezvousError):
    """The job succeeded or this node was drained before the node's workers had run. The agent exits successfully."""

    exit_code = ExitCode.SUCCESS


class DrainedError(RendezvousError):
    """This node was drained after its workers had started. The workers were stopped or had already failed."""

    exit_code = ExitCode.DRAINED


class PreemptedError(DrainedError):
    """A notice made this node leave the job, for example because its machine will be reclaimed."""

    exit_code = ExitCode.PREEMPTED


class UnkillableWorkersError(ElasticError):
    """Some processes did not exit soon enough after SIGKILL and were left behind. The message names them."""

    exit_code = ExitCode.WORKER_WOULD_NOT_DIE


class SignalException(ElasticError):
    """The agent received `sigval` and has stopped its workers."""

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        super().__init__(msg, sigval)
        self.sigval = sigval

    def __str__(self) -> str:
        return str(self.args[0])


HANG = "hang: "
"""The prefix of a failure's `reason` if, and only if, the agent killed the worker because it hung."""


@dataclass(frozen=True)
class ProcessFailure:
    """Describes how one worker failed.

    The first four fields are the same as in torch's `ProcessFailure`.

    Args:
        exitcode: the exit code, as in `subprocess`: negative if a signal ended the worker.
        message: the message from the script's error file or, without an error file, the last lines of stderr.
        timestamp: seconds since the epoch, on the agent's clock.
        reason: a description of the exit ("exit code 3", "killed by SIGKILL", "killed by the kernel: out of memory").
        caused_by: the global rank whose earlier failure caused this one, if any.
        curable: whether a restart may help; false if the worker would fail in the same way again.
        stack: the stacks of the worker's threads when it ended, main thread first, limited in length. Set if the worker
            crashed with faulthandler enabled, or if the agent killed the worker because it hung. If a hung worker's
            stacks are unknown, `stack` is `no stack:` followed by the reason.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str = "<N/A>"
    message: str = ""
    timestamp: float = 0.0
    global_rank: int = -1
    role: str = "default"
    node: str = ""
    round: int = 0
    reason: str = ""
    stderr_tail: tuple[str, ...] = ()
    error_file_data: dict[str, Any] = field(default_factory=dict)
    caused_by: int | None = None
    curable: bool = True
    stack: str = ""

    @property
    def hung(self) -> bool:
        """Whether the agent killed the worker because it hung."""
        return self.reason.startswith(HANG)

    @property
    def how(self) -> str:
        """The reason or, if that is empty, a description of the exit code."""
        exited = f"killed by {self.signal_name()}" if self.exitcode < 0 else f"exit code {self.exitcode}"
        return self.reason or exited

    def signal_name(self) -> str:
        """Return the name of the signal that ended the worker, or `<N/A>`."""
        if self.exitcode >= 0:
            return "<N/A>"
        try:
            return signal.Signals(-self.exitcode).name
        except ValueError:
            return f"signal {-self.exitcode}"

    def timestamp_isoformat(self) -> str:
        """Return the timestamp as `YYYY-MM-DD_HH:MM:SS` in this machine's time zone. If the timestamp is out of range
        (another node may have sent it), return it in seconds since the epoch."""
        try:
            return datetime.fromtimestamp(int(self.timestamp)).isoformat(sep="_")
        except (ValueError, OverflowError, OSError):
            return f"{self.timestamp:g}"

    def as_dict(self) -> dict[str, Any]:
        """Return the failure as a dictionary for JSON reports."""
        shown = {item.name: getattr(self, item.name) for item in fields(self)}  # `asdict` would recurse into deep data
        shown["stderr_tail"] = list(self.stderr_tail)
        shown["signal"] = self.signal_name() if self.exitcode < 0 else None
        return shown


_FRAME_WIDTH = 80


class ChildFailedError(ElasticError):
    """Workers failed for good. `failures` maps global ranks to failures. `str(error)` is a report."""

    exit_code = ExitCode.WORKER_FAILED

    def __init__(self, name: str, failures: Mapping[int, ProcessFailure]) -> None:
        super().__init__(name, failures)
        self.name = name
        self.failures = failures

    def __str__(self) -> str:
        return self.format_msg()

    @property
    def summary(self) -> str:
        """A one-line description of the first failure."""
        if not self.failures:
            return f"{self.name} failed"
        rank, first = self.get_first_failure()
        where = f" on {first.node}" if first.node else ""
        return f"{self.name} failed: rank {rank}{where}: {first.how}"

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Return the global rank and the failure of the worker that failed first, which is usually the root cause of
        the other failures. Raises ValueError if there are no failures."""
        own = {rank: failure for rank, failure in self.failures.items() if failure.caused_by is None}
        candidates = own or self.failures
        rank = min(candidates, key=lambda r: (candidates[r].timestamp, r))
        return rank, candidates[rank]

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """Format all failures with their messages, for programs that print the error themselves.

        Lines of `boarder_delim` surround the text, and lines of `section_delim` separate the failures. Control
        characters are escaped.
        """
        from elastic_core.text import in_one_line, printable  # needed only after a failure

        if not self.failures:
            return in_one_line(self.summary)
        first, _ = self.get_first_failure()
        ranks = [first, *sorted(self.failures.keys() - {first})]
        sections = [self._section(rank, "root cause: " if rank == first else "") for rank in ranks]
        title = in_one_line(self.summary)
        width = min(max(len(line) for text in (title, *sections) for line in text.splitlines()), _FRAME_WIDTH)
        border, line = boarder_delim * width, section_delim * width
        return f"\n{line}\n".join([f"{border}\n{title}", *map(printable, sections)]) + f"\n{border}"

    def _section(self, rank: int, what: str) -> str:
        failure = self.failures[rank]
        where = f" on {failure.node}" if failure.node else ""
        head = f"{what}rank {rank} (local rank {failure.local_rank}, pid {failure.pid}){where}"
        lines = (f"  {line}" for line in failure.message.splitlines())
        return "\n".join([f"{head}, at {failure.timestamp_isoformat()}: {failure.how}", *lines])


def failures_of(error: BaseException | None) -> Mapping[int, ProcessFailure]:
    """Return the worker failures that an error contains, by global rank."""
    failures: Mapping[int, ProcessFailure] = getattr(error, "failures", {})
    return failures
