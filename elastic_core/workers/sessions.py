"""Sessions: everything that a worker consists of, and the guardian that ends it when the agent is gone.

Every worker leads a session of its own. A process belongs to a worker when its session is the worker's and it
did not start before the worker, whoever its parent is by now; nothing is ever found by name. A process that
made a session of its own (a daemon) has left on purpose and is not touched, and neither is a stranger who was
given the process id of a worker that has gone. A worker that is still on its way to its session (the interpreter
of a function boots first) is known by its process id and start alone.

This file is also a program, `python -I -S sessions.py`: the guardian. It needs the standard library only, so
that it costs milliseconds, and it lives in a session of its own, so that what ends the agent does not end it.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from typing import IO, NamedTuple

_PROC = "/proc"
_ENDED = "ZX"
_PASSES = 100  # SIGKILL passes of `end`: a fork storm is caught, an unkillable process does not hold it
_PAUSE_MS = 10  # between them: the kernel needs time to take a large process down


class ProcessStat(NamedTuple):
    """A line of the kernel's process table. `start` is in clock ticks since boot: with `pid` it is unique."""

    pid: int
    state: str
    group: int
    session: int
    threads: int
    start: int

    @property
    def ended(self) -> bool:
        return self.state in _ENDED and self.threads <= 1  # the first thread may end long before the others


def read_stat(pid: int) -> ProcessStat | None:
    """The process's line, or None when there is no such process (or no process table to read)."""
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # the name before it may hold spaces and parentheses
    group, session, threads, start = (int(fields[index]) for index in (2, 3, 17, 19))
    return ProcessStat(pid, fields[0].decode(), group, session, threads, start)


def start_of(pid: int) -> int:
    """When the process started, in clock ticks since boot; 0 where the kernel does not say."""
    stat = read_stat(pid)
    return stat.start if stat else 0


def members(leaders: dict[int, int]) -> list[ProcessStat]:
    """The living processes of the sessions led by `leaders` (process id -> start), and the leaders themselves."""
    table = _process_table()
    own = dict(leaders)
    for stat in table:
        if leaders.get(stat.pid, stat.start) != stat.start:
            del own[stat.pid]  # the id was used again, so the session of that number is a stranger's
    return [stat for stat in table if not stat.ended and _belongs(stat, own)]


def _process_table() -> list[ProcessStat]:
    try:
        names = os.listdir(_PROC)
    except OSError:
        return []
    stats = (read_stat(int(name)) for name in names if name.isdigit())
    return [stat for stat in stats if stat]


def _belongs(stat: ProcessStat, leaders: dict[int, int]) -> bool:
    return stat.pid in leaders or stat.start >= leaders.get(stat.session, sys.maxsize)


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
    """Signal the sessions of `leaders`: whole process groups, so that nobody forks out of it, then whoever is in
    none of the leaders' groups, or in none yet."""
    living = members(leaders)
    groups = {leader for leader, start in leaders.items() if _leads_group(leader, start)}
    groups |= {stat.group for stat in living if stat.group in leaders}
    for group in groups:
        send_group(group, signum)
    for stat in living:
        if stat.group not in groups:
            send(stat.pid, signum)


def _leads_group(leader: int, start: int) -> bool:
    """Whether the group of that number is our leader's; without a process table (start 0) we must believe so."""
    stat = read_stat(leader)
    return start == 0 if stat is None else stat.start == start and stat.group == leader


def end(leaders: dict[int, int]) -> None:
    """SIGKILL the sessions until nothing of them is left, or it is clear that something will not die."""
    for _ in range(_PASSES):
        send_all(leaders, signal.SIGKILL)
        if not members(leaders):
            return
        select.poll().poll(_PAUSE_MS)


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
