"""Failures: what one worker's end means, decided from its exit code, its error file, its last lines and the kernel."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import signal
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.errors import ProcessFailure
from elastic_core.workers.process import REAPED_BY_OTHERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from elastic_core.clock import Duration
    from elastic_core.interfaces.workers import RoundPlan, WorkerExit, WorkerRanks

_ERROR_FILE_LIMIT = 1024 * 1024
_NOTICED_AFTER: Duration = 1.0  # seconds at most between the end of a worker and its exit being noticed, if all is well
_LONGEST_TIME = 12  # digits
_WHOLE: Duration = 1.0  # error files have whole seconds
_DEEPEST = 50  # levels of an error file; what handles it later walks down by recursion
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFDIR: "a folder", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_SYNTAX = re.compile(r"(SyntaxError|IndentationError|TabError): ")
_FRAME = re.compile(r'\s*File "(.*)", line \d+, in ')
_OF_PYTHON = re.compile(r"<frozen .*>|.*[/\\]runpy\.py")  # what runs a module by its name; no file before Python 3.11
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"(?!KeyboardInterrupt)[A-Za-z_][\w.]*(: |$)")
_NO_SCRIPT = re.compile(r".*(can't open file .*\[Errno 2\]|can't find '__main__' module in|No module named) ")
_BAD_FLAG = re.compile(r"[^:]+: error: ")  # argparse; compilers put line numbers between colons
_BAD_OPTION = re.compile(r"Error: ")  # click
_USAGE = ("usage: ", "Usage: ")  # argparse and click print it before the error


@dataclass(frozen=True)
class Evidence:
    """All that is known of one worker's end.

    Args:
        timestamp: when its exit was noticed, in seconds since the epoch.
        stopped: whether a signal of the agent asked for the exit.
        out_of_memory: how it is known that the kernel killed for memory; empty if it did not.
        killed_for: why the agent killed the worker, if it hung; else empty.
        stack: what it was doing at the end, if that is known.
    """

    exit: WorkerExit
    ranks: WorkerRanks
    tail: tuple[str, ...]
    error_file: str
    error_data: dict[str, Any]
    timestamp: float
    stopped: bool = False
    out_of_memory: str = ""
    killed_for: str = ""
    stack: str = ""

    @property
    def error_at(self) -> float:
        """When the error happened, in whole seconds since the epoch by the worker's clock, if its error file says so as
        torch's `@record` does; else 0. Not when the file was written, which may be the time of a file server."""
        message = self.error_data.get("message")
        extra = message.get("extraInfo") if isinstance(message, dict) else None
        said = str(extra.get("timestamp")) if isinstance(extra, dict) else ""
        return float(said) if said.isdecimal() and len(said) < _LONGEST_TIME else 0.0

    @property
    def failed(self) -> bool:
        """Whether the worker failed rather than obeyed our stop. An error file counts, even if the stop ended it."""
        return bool(self.killed_for) or (self.exit.exitcode != 0 and (bool(self.error_data) or not self.stopped))

    @property
    def shows_traceback(self) -> bool:
        """Whether the last thing that the worker wrote, before it obeyed our stop, was a traceback. It may have been
        exiting because of it; or it had caught the exception, and was about to continue."""
        lines = list(self.tail)
        if self.failed or self.exit.exitcode == 0 or _TRACEBACK not in lines or not _EXCEPTION.match(lines[-1]):
            return False
        begin = len(lines) - lines[::-1].index(_TRACEBACK)
        return all(line.startswith("  ") for line in lines[begin:-1])


def decode_exit(exitcode: int, out_of_memory: str = "") -> str:
    """The exit code in words: `exit code 3`, `killed by SIGSEGV (Segmentation fault)`."""
    if exitcode == REAPED_BY_OTHERS:
        return "ended, and other code in the agent's process, which waits for all children, took its exit code"
    if exitcode >= 0:
        return f"exit code {exitcode}"
    number = -exitcode
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number == signal.SIGKILL and out_of_memory:
        return f"killed by {name}: out of memory ({out_of_memory})"
    meaning = signal.strsignal(number)
    return f"killed by {name} ({meaning})" if meaning else f"killed by {name}"


def curable(exitcode: int, tail: Sequence[str]) -> bool:
    """Whether a restart might help. It cannot when Python refused the script, or the script its arguments."""
    last = tail[-1] if tail else ""
    if exitcode == 1 and (_refused(tail) or (len(tail) == 1 and _NO_SCRIPT.match(last))):
        return False
    return not (exitcode == 2 and (_NO_SCRIPT.match(last) or _bad_arguments(tail)))


def _refused(tail: Sequence[str]) -> bool:
    """Whether Python could not read the script or module that it was told to run. A syntax error that the user's code
    runs into (a file that is being replaced, a bad reply that is evaluated) has frames of that code, and may pass."""
    frames = [found[1] for found in map(_FRAME.match, tail) if found]
    return bool(tail and _SYNTAX.match(tail[-1])) and all(_OF_PYTHON.fullmatch(name) for name in frames)


def _bad_arguments(tail: Sequence[str]) -> bool:
    """Whether the last line is an error after the usage, of which a long one leaves only indented lines. Without it the
    error may be another program's, such as srun's."""
    *before, last = tail or ("",)
    if _BAD_FLAG.match(last):
        return bool(before) and before[-1].startswith((*_USAGE, " "))
    return bool(_BAD_OPTION.match(last)) and any(line.startswith(_USAGE) for line in before)


def read_error_file(path: Path) -> dict[str, Any]:
    """The JSON that torch's `@record` (or the script) wrote; empty when there is none. A file that is broken, huge,
    deeply nested or no regular file is described and never trusted, because the worker wrote it while it was dying. The
    result holds only values that JSON can express."""
    try:
        # A named pipe would block us for ever, and a link lead to a file that is none of the worker's.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return _read(fd)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return {}
    except OSError as error:
        if error.errno == errno.ELOOP:
            return {"message": "the error file is a link and was not read"}
        return {"message": f"the error file cannot be read: {error.strerror}"}


def _read(fd: int) -> dict[str, Any]:
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    if kind != stat.S_IFREG:
        return {"message": f"the error file is {_KINDS.get(kind, 'no regular file')} and was not read"}
    with open(fd, "rb", closefd=False) as file:
        raw = file.read(_ERROR_FILE_LIMIT + 1)
    if len(raw) > _ERROR_FILE_LIMIT:
        return {"message": f"the error file is longer than {_ERROR_FILE_LIMIT} bytes and was not read"}
    return _parsed(raw)


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        data = json.loads(raw, parse_constant=str, parse_float=_number)
    except (ValueError, RecursionError):
        data = raw.decode(errors="replace")
    if _is_deep(data):
        return {"message": f"the error file is nested deeper than {_DEEPEST} levels and was not read"}
    return data if isinstance(data, dict) else {"message": str(data)}


def _number(text: str) -> float | str:
    """A number, or its text if it is infinite or not a number: JSON has neither."""
    return number if math.isfinite(number := float(text)) else text


def _is_deep(data: Any) -> bool:
    level = [data]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in _children(node)]
        if not level:
            return False
    return True


def _children(node: Any) -> Iterable[Any]:
    return node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def error_message(data: dict[str, Any]) -> str:
    """What the error file says: the traceback if it holds one, else its message."""
    message = data.get("message") or ""
    if not isinstance(message, dict):
        return str(message)
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    return str(stack or message.get("message") or "").strip()


def describe(evidence: Evidence, plan: RoundPlan) -> ProcessFailure:
    """The failure record of one worker."""
    ended = evidence.exit
    reason = evidence.killed_for or decode_exit(ended.exitcode, evidence.out_of_memory)
    if evidence.stopped and not evidence.killed_for:
        reason = "failed, and was still exiting when the agent stopped it"
        if not evidence.failed:
            reason = "wrote a traceback and was still running when the agent stopped it"
    return ProcessFailure(
        local_rank=ended.local_rank,
        pid=ended.pid,
        exitcode=ended.exitcode,
        error_file=evidence.error_file if evidence.error_data else "<N/A>",
        message=error_message(evidence.error_data) or "\n".join(evidence.tail),
        timestamp=evidence.timestamp,
        global_rank=evidence.ranks.world,
        role=plan.role,
        node=plan.node,
        round=plan.round,
        reason=reason,
        stderr_tail=evidence.tail,
        error_file_data=evidence.error_data,
        curable=bool(evidence.killed_for) or curable(ended.exitcode, evidence.tail),
        stack=evidence.stack,
    )


def explain(evidences: Sequence[Evidence], plan: RoundPlan) -> dict[int, ProcessFailure]:
    """The failures of a round by global rank, the cause of the rest first. `evidences` come in order of exit. Workers
    that only obeyed our own stop are not failures, unless a traceback was the last thing that they wrote; one that was
    killed because it hung is a failure with any exit code."""
    failed = [evidence for evidence in evidences if evidence.failed]
    if not failed:
        return {}
    first = _cause(failed)
    cause = describe(first, plan)
    others = [e for e in failed if e is not first] + [e for e in evidences if e.shows_traceback]
    rest = (replace(describe(e, plan), caused_by=cause.global_rank) for e in others)
    return {failure.global_rank: failure for failure in [cause, *rest]}


def _cause(failed: Sequence[Evidence]) -> Evidence:
    """The first worker to exit, unless another wrote its error file earlier: it can take long to exit after that."""
    first = failed[0]
    if first.killed_for:  # it hung before others gave up
        return first
    # Exits that were noticed together may be a kill and its consequences, see `in_causal_order`.
    others = [e for e in failed if e.error_at and (first.error_at or e.timestamp > first.timestamp)]
    began = first.error_at or first.timestamp - _NOTICED_AFTER - _WHOLE
    return min((e for e in others if e.error_at < began), key=lambda e: e.error_at, default=first)


def in_causal_order(exits: Sequence[WorkerExit]) -> list[WorkerExit]:
    """The order in which exits that were noticed together count as having happened. A worker that was ended by a signal
    did not react to the end of another worker, while an exit code may be the answer to a lost peer. So signals come
    first, and then ranks in order."""
    return sorted(exits, key=lambda ended: (ended.exitcode >= 0, ended.local_rank))


@dataclass(frozen=True)
class OomCounter:
    """A file of `name value` lines that counts kills, and the scope in which it counts."""

    path: Path
    scope: str

    def read(self) -> int:
        """The count; 0 where the file is missing or does not say."""
        try:
            lines = self.path.read_text().splitlines()
        except OSError:
            return 0
        return next((int(value) for name, value in map(_pair, lines) if name == "oom_kill" and value.isdigit()), 0)


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition(" ")
    return name, value.strip()


class OomWatch:
    """Remembers the counters at the start of a round and compares them when a worker was killed."""

    def __init__(self, counters: tuple[OomCounter, ...]) -> None:
        self._before = {counter: counter.read() for counter in counters}

    def explanation(self) -> str:
        """Which counter has counted a kill since the start, the narrowest first; empty if none has."""
        for counter, before in self._before.items():
            if counter.read() > before:
                return f"the kernel counted such a kill {counter.scope}"
        return ""


def counters_of_this_machine(
    own_cgroups: Path = Path("/proc/self/cgroup"), cgroup_root: Path = Path("/sys/fs/cgroup")
) -> tuple[OomCounter, ...]:
    """The counters that exist here: of our memory cgroup, else of the whole machine, which counts all kills there."""
    try:
        lines = own_cgroups.read_text().splitlines()
    except OSError:
        lines = []
    own = tuple(counter for counter in _cgroup_counters(lines, cgroup_root) if counter.path.exists())
    return own or (OomCounter(Path("/proc/vmstat"), "on this machine"),)


def _cgroup_counters(lines: list[str], root: Path) -> list[OomCounter]:
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        scope = f"in the control group {path}"
        if controllers == "":
            found.append(OomCounter(root / path.lstrip("/") / "memory.events", scope))
        elif "memory" in controllers.split(","):
            found.append(OomCounter(root / "memory" / path.lstrip("/") / "memory.oom_control", scope))
    return found
