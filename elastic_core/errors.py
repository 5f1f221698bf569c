"""The exception family, the exit code of each member, and the record of a failed worker.

Every error says what was expected, what was found and what to do. The command line turns an error into a
paragraph on stderr and leaves with the error's `exit_code`.
"""

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
    """Exit codes of all commands. A signal that ended the agent leaves 128 + its number, as in a shell."""

    SUCCESS = 0
    WORKER_FAILED = 1
    BAD_CONFIGURATION = 2
    RENDEZVOUS_TIMEOUT = 3
    STORE_UNREACHABLE = 4
    CLOSED_BY_ANOTHER_NODE = 5
    WORKER_WOULD_NOT_DIE = 6
    RENDEZVOUS_FAILED = 7
    NOT_FOUND = 8
    INTERNAL_ERROR = 70


EXIT_CODE_MEANING: dict[ExitCode, str] = {
    ExitCode.SUCCESS: "every worker succeeded; other commands: what was asked for is done",
    ExitCode.WORKER_FAILED: "user code failed and the restart budget did not bring it back",
    ExitCode.BAD_CONFIGURATION: (
        "a flag, variable, file or plugin asks for something that cannot be had here; doctor: or would fail"
    ),
    ExitCode.RENDEZVOUS_TIMEOUT: (
        "too few nodes joined before the join timeout; drain: the node has not left in time; doctor: too few met"
    ),
    ExitCode.STORE_UNREACHABLE: (
        "the rendezvous store could not be reached; doctor: nor one that was expected or seems to be there"
    ),
    ExitCode.CLOSED_BY_ANOTHER_NODE: "the job was closed by another node",
    ExitCode.WORKER_WOULD_NOT_DIE: "a process survived SIGKILL (uninterruptible state) and was left behind",
    ExitCode.RENDEZVOUS_FAILED: "the rendezvous broke in another way; the message says how",
    ExitCode.NOT_FOUND: "status, drain: no job of this id has met here; drain: it has no such node",
    ExitCode.INTERNAL_ERROR: "a fault of elastic-core or of a plugin; the traceback is printed",
}


class ElasticError(Exception):
    """Root of everything that elastic-core raises on purpose. `failures` are those of workers that came before it, by
    global rank: what made the agent stop or restart them."""

    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL_ERROR
    failures: Mapping[int, ProcessFailure] = MappingProxyType({})


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with the configuration.

    `origin` is the place the value came from ("--nnodes", "ELASTIC_NNODES", "elastic.toml: nnodes").
    """

    origin: str
    message: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.message}"


class ConfigurationError(ElasticError):
    """Something asked for cannot be had. Carries every problem that one reading found, not only the first."""

    exit_code = ExitCode.BAD_CONFIGURATION

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*problems)  # the arguments stay whole, so that the error can be pickled
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class PluginError(ConfigurationError):
    """A plugin that was selected is missing, broken, blocked or provided twice."""


class RendezvousError(ElasticError):
    """The nodes of the job could not agree."""

    exit_code = ExitCode.RENDEZVOUS_FAILED


class RendezvousClosedError(RendezvousError):
    """The rendezvous was closed; no further round will form."""

    exit_code = ExitCode.CLOSED_BY_ANOTHER_NODE


class RendezvousTimeoutError(RendezvousError):
    """The join deadline passed before enough nodes were there."""

    exit_code = ExitCode.RENDEZVOUS_TIMEOUT


class RendezvousConnectionError(RendezvousError):
    """The store could not be reached."""

    exit_code = ExitCode.STORE_UNREACHABLE


class RendezvousStateError(RendezvousError):
    """The state in the store is not what this version can read or use."""


class NotFoundError(ElasticError):
    """The job or the node that somebody asked for is not there."""

    exit_code = ExitCode.NOT_FOUND


class RendezvousGracefulExitError(RendezvousError):
    """This node was not needed and the job ended well; the agent leaves with success."""

    exit_code = ExitCode.SUCCESS


class UnkillableWorkersError(ElasticError):
    """Processes survived SIGKILL and the bounded wait after it; they are named and left behind."""

    exit_code = ExitCode.WORKER_WOULD_NOT_DIE


class SignalException(ElasticError):
    """The agent received `sigval` and has stopped its workers."""

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        super().__init__(msg, sigval)
        self.sigval = sigval

    def __str__(self) -> str:
        return str(self.args[0])


HANG = "hang: "
"""What the reason of a failure begins with when the agent killed the worker because it hung; no exit reads so."""


@dataclass(frozen=True)
class ProcessFailure:
    """How one worker failed.

    `exitcode` is as in `subprocess`: negative for a signal. `reason` is the decoded exit ("exit code 3",
    "killed by SIGKILL", "killed by the kernel: out of memory"). `message` is the best explanation there is:
    the error file that the script wrote, else the last lines of stderr. `caused_by` names the global rank
    whose failure came first when this one followed from it. `curable` is false when a restart would only
    fail again the same way. `timestamp` is seconds since the epoch, of the agent's clock. `stack` is what
    the threads of the worker were doing at its end, the main thread first, bounded: where the agent killed it
    because it hung (`hung`; or `no stack:` and why there is none), and where it crashed and faulthandler was on.
    The first four fields are those of torch's class of that name.
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
        """Whether the agent killed the worker because it hung; `reason` says how that showed."""
        return self.reason.startswith(HANG)

    def signal_name(self) -> str:
        """The name of the signal that ended the worker, or `<N/A>`."""
        if self.exitcode >= 0:
            return "<N/A>"
        try:
            return signal.Signals(-self.exitcode).name
        except ValueError:
            return f"signal {-self.exitcode}"

    def timestamp_isoformat(self) -> str:
        """The timestamp for people: `YYYY-MM-DD_HH:MM:SS`, in the time zone of this machine."""
        return datetime.fromtimestamp(int(self.timestamp)).isoformat(sep="_")

    def as_dict(self) -> dict[str, Any]:
        """The failure for JSON reports."""
        shown = {item.name: getattr(self, item.name) for item in fields(self)}  # what a script wrote may be deep
        shown["stderr_tail"] = list(self.stderr_tail)
        shown["signal"] = self.signal_name() if self.exitcode < 0 else None
        return shown


_FRAME_WIDTH = 80


class ChildFailedError(ElasticError):
    """Workers failed and the job did not come back. `failures` maps global rank to what happened there."""

    exit_code = ExitCode.WORKER_FAILED

    def __init__(self, name: str, failures: Mapping[int, ProcessFailure]) -> None:
        super().__init__(name, failures)
        self.name = name
        self.failures = failures

    def __str__(self) -> str:
        if not self.failures:
            return f"{self.name} failed"
        rank, first = self.get_first_failure()
        where = f" on {first.node}" if first.node else ""
        return f"{self.name} failed: rank {rank}{where}: {first.reason or f'exit code {first.exitcode}'}"

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Global rank and failure of the worker that failed first; the others usually follow from it. Raises
        ValueError when there is no failure."""
        own = {rank: failure for rank, failure in self.failures.items() if failure.caused_by is None}
        candidates = own or self.failures
        rank = min(candidates, key=lambda r: (candidates[r].timestamp, r))
        return rank, candidates[rank]

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """All failures with their messages, the first one first, for programs that print the error themselves. The
        delimiters make the lines around the whole and before each failure."""
        if not self.failures:
            return str(self)
        first, _ = self.get_first_failure()
        ranks = [first, *sorted(self.failures.keys() - {first})]
        sections = [self._section(rank, "first failure: " if rank == first else "") for rank in ranks]
        title = str(self)
        width = min(max(len(line) for text in (title, *sections) for line in text.splitlines()), _FRAME_WIDTH)
        border, line = boarder_delim * width, section_delim * width
        return f"\n{line}\n".join([f"{border}\n{title}", *sections]) + f"\n{border}"

    def _section(self, rank: int, what: str) -> str:
        failure = self.failures[rank]
        where = f" on {failure.node}" if failure.node else ""
        reason = failure.reason or f"exit code {failure.exitcode}"
        head = f"{what}rank {rank} (local rank {failure.local_rank}, pid {failure.pid}){where}"
        lines = (f"  {line}" for line in failure.message.splitlines())
        return "\n".join([f"{head}, at {failure.timestamp_isoformat()}: {reason}", *lines])


def failures_of(error: BaseException | None) -> Mapping[int, ProcessFailure]:
    """The workers' failures that an error carries, by global rank; empty for one that carries none."""
    failures: Mapping[int, ProcessFailure] = getattr(error, "failures", {})
    return failures
