"""Determines why a worker exited, from its exit code, its error file, its last lines of output, and the kernel's
counters."""

from __future__ import annotations

import contextlib
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
    from collections.abc import Iterable, Mapping, Sequence

    from elastic_core.clock import Duration
    from elastic_core.interfaces.workers import RoundPlan, WorkerExit, WorkerRanks

_ERROR_FILE_LIMIT = 1024 * 1024
_NOTICED_AFTER: Duration = 1.0  # seconds; the agent usually notices a worker's exit sooner
_LONGEST_TIME = 12  # digits
_WHOLE: Duration = 1.0  # error files record times in whole seconds
_DEEPEST = 50  # nesting levels in an error file; it is bounded, because later code processes the content recursively
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFDIR: "a folder", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_UNREAD = "the error file "  # begins the message in place of the content of an error file
_UNKNOWN = re.compile(rf"{_UNREAD}(is a |is not a |cannot be read)")  # the worker may not have written it
_SYNTAX = re.compile(r"(SyntaxError|IndentationError|TabError): ")
_REJECTED = re.compile(r'\s*File ".*", line \d+$|SyntaxError: .* in file .* on line \d+, ')
_FRAME = re.compile(r'\s*File "(.*)", line \d+, in ')
_OF_PYTHON = re.compile(r"<frozen .*>|.*[/\\]runpy\.py")  # runs modules by name; frozen since Python 3.11
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"(?!KeyboardInterrupt)[A-Za-z_][\w.]*(: |$)")
_NO_SCRIPT = re.compile(r".*(can't open file .*\[Errno 2\]|can't find '__main__' module in|No module named) ")
_BAD_FLAG = re.compile(r"[^:]+: error: ")  # argparse; compilers put line numbers between colons
_BAD_OPTION = re.compile(r"Error: ")  # click
_USAGE = ("usage: ", "Usage: ")  # argparse and click print it before the error


@dataclass(frozen=True)
class Evidence:
    """The evidence about how one worker ended.

    Args:
        timestamp: when the agent noticed the exit, in seconds since the epoch.
        out_of_memory: evidence that the kernel killed the worker for lack of memory; empty if there is none.
        fault: why the worker failed, apart from its exit code: it hung, or its return value cannot be read.
        stack: the worker's stacks when it ended, if known.
    """

    exit: WorkerExit
    ranks: WorkerRanks
    tail: tuple[str, ...]
    error_file: str
    error_data: dict[str, Any]
    timestamp: float
    out_of_memory: str = ""
    fault: str = ""
    stack: str = ""

    @property
    def error_at(self) -> float:
        """When the error occurred, in whole seconds since the epoch on the worker's clock, or 0 if the error file does
        not contain the time as torch's `@record` does. The file's modification time may be a file server's."""
        message = self.error_data.get("message")
        extra = message.get("extraInfo") if isinstance(message, dict) else None
        text = str(extra.get("timestamp")) if isinstance(extra, dict) else ""
        return float(text) if text.isdecimal() and len(text) < _LONGEST_TIME else 0.0

    @property
    def failed(self) -> bool:
        """Whether the worker failed, as opposed to exiting on the agent's signal. A worker that hung has failed, as has
        one that wrote an error file and exited with an error code."""
        wrote = bool(self.error_data) and not _UNKNOWN.match(error_message(self.error_data))
        return bool(self.fault) or (self.exit.exitcode != 0 and (wrote or not self.exit.obeyed))

    @property
    def shows_traceback(self) -> bool:
        """Whether a worker that exited on the agent's signal had just printed a traceback. It may have caught the
        error."""
        lines = list(self.tail)
        if self.failed or self.exit.exitcode == 0 or _TRACEBACK not in lines or not _EXCEPTION.match(lines[-1]):
            return False
        begin = len(lines) - lines[::-1].index(_TRACEBACK)
        return all(line.startswith("  ") for line in lines[begin:-1])


def decode_exit(exitcode: int, out_of_memory: str = "") -> str:
    """Return a description of the exit code, such as `exit code 3` or `killed by SIGSEGV (Segmentation fault)`."""
    if exitcode == REAPED_BY_OTHERS:
        return "exit code lost: other code in the agent's process waited for this child"
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
    """Return whether a restart might help. A restart cannot help if Python rejected the script or the script rejected
    its arguments."""
    last = tail[-1] if tail else ""
    if exitcode == 1 and (_refused(tail) or (len(tail) == 1 and _NO_SCRIPT.match(last))):
        return False
    return not (exitcode == 2 and (_NO_SCRIPT.match(last) or _bad_arguments(tail)))


def _refused(tail: Sequence[str]) -> bool:
    """Return whether Python could not read the script or module to run. A syntax error in a module that the user's
    code imports, whose frames the traceback contains, may be temporary."""
    frames = [found[1] for found in map(_FRAME.match, tail) if found]
    is_python = any(map(_REJECTED.match, tail))  # other programs print SyntaxError, too
    return is_python and bool(_SYNTAX.match(tail[-1])) and all(_OF_PYTHON.fullmatch(name) for name in frames)


def _bad_arguments(tail: Sequence[str]) -> bool:
    """Return whether the last line is an error that follows a usage message, of which the tail may contain only the
    indented lines. An error without a usage message may come from another program, such as srun."""
    *before, last = tail or ("",)
    if _BAD_FLAG.match(last):
        return bool(before) and before[-1].startswith((*_USAGE, " "))
    return bool(_BAD_OPTION.match(last)) and any(line.startswith(_USAGE) for line in before)


def read_error_file(path: Path) -> dict[str, Any]:
    """Return the JSON object that torch's `@record` or the script wrote, or an empty dictionary if there is no file.

    Content other than a JSON object is returned as `message`. If the file is unreadable, huge, deeply nested or not a
    regular file, `message` describes the problem. The result contains only values that JSON can express."""
    try:
        # A named pipe would block the agent forever, and a link may lead to a file that is not the worker's.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return _read(fd)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return {}
    except OSError as error:
        if error.errno == errno.ELOOP:
            return {"message": f"{_UNREAD}is a link and was not read"}
        return {"message": f"{_UNREAD}cannot be read: {error.strerror}"}


def _read(fd: int) -> dict[str, Any]:
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    if kind != stat.S_IFREG:
        return {"message": f"{_UNREAD}is {_KINDS.get(kind, 'not a regular file')} and was not read"}
    with open(fd, "rb", closefd=False) as file:
        raw = file.read(_ERROR_FILE_LIMIT + 1)
    if len(raw) > _ERROR_FILE_LIMIT:
        return {"message": f"{_UNREAD}is longer than {_ERROR_FILE_LIMIT} bytes and was not read"}
    return _parsed(raw)


def _parsed(raw: bytes) -> dict[str, Any]:
    if not raw.strip():
        return {"message": f"{_UNREAD}is empty; perhaps the disk is full"}
    try:
        data = json.loads(raw, parse_constant=str, parse_float=_number)
    except (ValueError, RecursionError):
        data = raw.decode(errors="replace")
    if _is_deep(data):
        return {"message": f"{_UNREAD}is nested deeper than {_DEEPEST} levels and was not read"}
    return data if isinstance(data, dict) else {"message": str(data)}


def _number(text: str) -> float | str:
    """Return the number, or the text if the number is infinite or NaN, which JSON cannot express."""
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
    """Return the traceback from the error file or, if the file has none, its message."""
    message = data.get("message") or ""
    if not isinstance(message, dict):
        return str(message)
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    return str(stack or message.get("message") or "").strip()


def _message(evidence: Evidence) -> str:
    found = error_message(evidence.error_data)
    return "\n".join(filter(None, (found, *evidence.tail))) if not found or found.startswith(_UNREAD) else found


def describe(evidence: Evidence, plan: RoundPlan) -> ProcessFailure:
    """Return one worker's failure record."""
    ended = evidence.exit
    reason = evidence.fault or decode_exit(ended.exitcode, evidence.out_of_memory)
    if ended.obeyed and not evidence.fault:
        reason = "had already failed when the agent stopped it"
        if not evidence.failed:
            reason = "wrote a traceback and was still running when the agent stopped it"
    return ProcessFailure(
        local_rank=ended.local_rank,
        pid=ended.pid,
        exitcode=ended.exitcode,
        error_file=evidence.error_file if evidence.error_data else "<N/A>",
        message=_message(evidence),
        timestamp=evidence.timestamp,
        global_rank=evidence.ranks.world,
        role=plan.role,
        node=plan.node,
        round=plan.round,
        reason=reason,
        stderr_tail=evidence.tail,
        error_file_data=evidence.error_data,
        curable=bool(evidence.fault) or curable(ended.exitcode, evidence.tail),
        stack=evidence.stack,
    )


def explain(evidences: Sequence[Evidence], plan: RoundPlan) -> dict[int, ProcessFailure]:
    """Return a round's failures by global rank, starting with the root cause. `evidences` are in order of exit."""
    failed = [evidence for evidence in evidences if evidence.failed]
    if not failed:
        return {}
    first = _cause(failed)
    cause = describe(first, plan)
    others = [e for e in failed if e is not first] + [e for e in evidences if e.shows_traceback]
    rest = (replace(describe(e, plan), caused_by=cause.global_rank) for e in others)
    return {failure.global_rank: failure for failure in [cause, *rest]}


def _cause(failed: Sequence[Evidence]) -> Evidence:
    """Return the failure of the worker that exited first, unless another one had written its error file by then."""
    first = failed[0]
    if first.fault:  # it hung before the other workers gave up
        return first
    # If exits were noticed together, one worker may have been killed and the others may have reacted; see
    # `in_causal_order`.
    others = [e for e in failed if e.error_at and (first.error_at or e.timestamp > first.timestamp)]
    began = first.error_at or first.timestamp - _NOTICED_AFTER - _WHOLE
    return min((e for e in others if e.error_at < began), key=lambda e: e.error_at, default=first)


def in_causal_order(exits: Sequence[WorkerExit]) -> list[WorkerExit]:
    """Return exits that were noticed at the same time, in their presumed order. Workers killed by signals come first,
    because a worker that exited with an error may have reacted to another worker's death."""
    return sorted(exits, key=lambda ended: (ended.exitcode >= 0, ended.local_rank))


class OomWatch:
    """Counts out-of-memory kills from the start of a round. `counters` maps each counter file to the scope that it
    covers, starting with the narrowest scope."""

    def __init__(self, counters: Mapping[Path, str]) -> None:
        self._scopes = counters
        self._before = {path: oom_kills(path) for path in counters}

    def explanation(self) -> str:
        """Return a clause that names the scope of an out-of-memory kill in this round, or an empty string."""
        for path, before in self._before.items():
            if oom_kills(path) > before:
                return f"the kernel counted such a kill {self._scopes[path]}"
        return ""


def oom_kills(path: Path) -> int:
    """Return the number of out-of-memory kills in a file of `name value` lines, or 0 if there is none."""
    with contextlib.suppress(OSError):
        for name, _, value in (line.partition(" ") for line in path.read_text().splitlines()):
            if name == "oom_kill" and value.strip().isdigit():
                return int(value)
    return 0


def oom_counters(
    own_cgroups: Path = Path("/proc/self/cgroup"), cgroup_root: Path = Path("/sys/fs/cgroup")
) -> dict[Path, str]:
    """Return the file that counts the out-of-memory kills in this process's memory cgroup. If there is none, return the
    file that counts all kills on the machine."""
    found = {}
    with contextlib.suppress(OSError):
        for line in own_cgroups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            file = cgroup_root / path.lstrip("/") / "memory.events"
            if "memory" in controllers.split(","):
                file = cgroup_root / "memory" / path.lstrip("/") / "memory.oom_control"
            elif controllers:
                continue
            if file.exists():
                found[file] = f"in the control group {path}"
    return found or {Path("/proc/vmstat"): "on this machine"}
