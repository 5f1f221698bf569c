"""Sessions: everything that a worker consists of, and the guardian that ends it when the agent is gone.

Every worker leads a session of its own. A process belongs to a worker when its session is the worker's and it
did not start before the worker, whoever its parent is by now; nothing is ever found by name. A process that
made a session of its own (a daemon) has left on purpose and is not touched.

This file is also a program, `python -I -S sessions.py`: the guardian. It needs the standard library only, so
that it costs milliseconds, and it lives in a session of its own, so that what ends the agent does not end it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import IO, NamedTuple

_PROC = "/proc"
_ENDED = "ZX"
_PASSES = 100  # SIGKILL passes of the guardian: a fork storm is caught, an unkillable process does not hold it


class ProcessStat(NamedTuple):
    """A line of the kernel's process table. `start` is in clock ticks since boot: with `pid` it is unique."""

    pid: int
    state: str
    session: int
    start: int

    @property
    def ended(self) -> bool:
        return self.state in _ENDED


def read_stat(pid: int) -> ProcessStat | None:
    """The process's line, or None when there is no such process (or no process table to read)."""
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # the name before it may hold spaces and parentheses
    return ProcessStat(pid, fields[0].decode(), int(fields[3]), int(fields[19]))


def start_of(pid: int) -> int:
    """When the process started, in clock ticks since boot; 0 where the kernel does not say."""
    stat = read_stat(pid)
    return stat.start if stat else 0


def members(leaders: dict[int, int]) -> list[ProcessStat]:
    """The living processes of the sessions led by `leaders` (process id -> start)."""
    try:
        names = os.listdir(_PROC)
    except OSError:
        names = []
    stats = (read_stat(int(name)) for name in names if name.isdigit())
    return [stat for stat in stats if stat and not stat.ended and stat.start >= leaders.get(stat.session, sys.maxsize)]


def command_of(pid: int) -> str:
    """The command line of the process, for people; empty when it is gone."""
    try:
        with open(f"{_PROC}/{pid}/cmdline", "rb") as file:
            return file.read(200).replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def waits_in(pid: int) -> str:
    """The kernel function in which the process waits; empty where the kernel does not say."""
    try:
        with open(f"{_PROC}/{pid}/wchan", "rb") as file:
            return file.read(100).decode(errors="replace").strip("0")
    except OSError:
        return ""


def send(pid: int, signum: int) -> None:
    """Signal one process; that it is gone is no error."""
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        pass


def send_group(leader: int, signum: int) -> None:
    """Signal the process group that `leader` made; that it is gone is no error."""
    try:
        os.killpg(leader, signum)
    except (ProcessLookupError, PermissionError):
        pass


def send_all(leaders: dict[int, int], signum: int) -> None:
    """Signal the sessions of `leaders`: their process groups first, then whoever changed group since."""
    for leader in leaders:
        send_group(leader, signum)
    for stat in members(leaders):
        if not _in_group_of(stat.pid, leaders):
            send(stat.pid, signum)


def _in_group_of(pid: int, leaders: dict[int, int]) -> bool:
    try:
        return os.getpgid(pid) in leaders
    except ProcessLookupError:
        return True


def end(leaders: dict[int, int]) -> None:
    """SIGKILL the sessions until nothing of them is left, or it is clear that something will not die."""
    for leader in leaders:
        send_group(leader, signal.SIGKILL)
    for _ in range(_PASSES):
        left = members(leaders)
        if not left:
            return
        for stat in left:
            send(stat.pid, signal.SIGKILL)


def guard(orders: IO[str]) -> None:
    """Follow `watch PID START`, `forget PID` and `scratch PATH` to the end of `orders`, then end what is watched.

    The end comes when the agent closes the pipe or dies, however it dies.
    """
    leaders: dict[int, int] = {}
    scratch: list[str] = []
    for line in orders:
        verb, _, rest = line.rstrip("\n").partition(" ")
        if verb == "watch":
            pid, start = rest.split()
            leaders[int(pid)] = int(start)
        elif verb == "forget":
            leaders.pop(int(rest), None)
        elif verb == "scratch":
            scratch.append(rest)
    end(leaders)
    for path in scratch:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ignored, signal.SIG_IGN)
    guard(sys.stdin)
