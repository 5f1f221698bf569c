"""Sessions: all processes of a worker, and the guardian that ends them when the agent is gone.

Every worker leads a session of its own. A process belongs to a worker when its session is the worker's and it did not
start before the worker, regardless of its present parent; nothing is ever found by name. A process that made a session
of its own (a daemon) has left on purpose and is not touched, and neither is a stranger with the process id of a worker
that has gone. A worker that has not made its session yet (the interpreter of a function boots first) is known by its
process id and start alone.

What runs is read from /proc. Where that is missing, or is that of another PID namespace, only the leaders and the
process groups that they made can be found. psutil cannot help: it reads the same files, the guardian has no packages,
and the start that it computes changes with the clock.

This file is also a program, which `HelperProcess` starts: the guardian. It needs the standard library only, so
that it costs milliseconds, and it lives in a session of its own, so that what ends the agent does not end it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import select
import shutil
import signal
import sys
import time
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_PROC = "/proc"
UNKNOWN = -1  # in place of a start that cannot be read
_ENDED = "ZX"
_PASSES = 100  # SIGKILL passes of `end`: a fork storm is caught, an unkillable process does not hold it
_HELPERS_GRACE_S = 2.0
_PAUSE_MS = 10  # between them: the kernel needs time to take a large process down


class ProcessStat(NamedTuple):
    """A line of the process table. `start` (clock ticks since boot in /proc) makes `pid` unique, unless UNKNOWN."""

    pid: int
    state: str
    group: int
    session: int
    threads: int
    start: int

    @property
    def ended(self) -> bool:
        return self.state in _ENDED and self.threads <= 1  # the first thread may end long before the others


class Table(Protocol):
    """Where to learn of processes."""

    def pids(self) -> Iterable[int]:
        """All processes; empty where only those that are asked for by their id can be seen."""
        ...

    def stat(self, pid: int) -> ProcessStat | None:
        """The process's line; None when there is no such process."""
        ...


class ProcTable:
    """The kernel's own, as files. It holds a descriptor that it gives up where none is left to read them with: else
    nobody could tell which workers still run, or end them."""

    def __init__(self) -> None:
        self._spare: list[int] = []  # whoever takes it out may close it; no other thread does, too
        self._hold()

    def pids(self) -> Iterable[int]:
        return [int(name) for name in self._read(lambda: os.listdir(_PROC)) if name.isdigit()]

    def stat(self, pid: int) -> ProcessStat | None:
        try:
            text = self._read(lambda: _content(f"{_PROC}/{pid}/stat"))
        except OSError:
            return None
        fields = text[text.rindex(b")") + 2 :].split()  # the name before it may hold spaces and parentheses
        group, session, threads, start = (int(fields[index]) for index in (2, 3, 17, 19))
        return ProcessStat(pid, fields[0].decode(), group, session, threads, start)

    def _read(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            try:
                os.close(self._spare.pop())
            except IndexError:
                raise error from None
        try:
            return read()
        finally:
            self._hold()

    def _hold(self) -> None:
        with contextlib.suppress(OSError):
            self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


class NoTable:
    """Without /proc: a process is known by its id, and one that has gone by the process group that it made."""

    def pids(self) -> Iterable[int]:
        return ()

    def stat(self, pid: int) -> ProcessStat | None:
        group = _group_left_of(pid)
        return None if group is None else ProcessStat(pid, "?", group, group, 1, UNKNOWN)


def _group_left_of(pid: int) -> int | None:
    """The process group of a process, or the one that it made and left behind; None when there is neither."""
    try:
        os.kill(pid, 0)
        return os.getpgid(pid)
    except PermissionError:
        return pid  # it runs under another user by now
    except ProcessLookupError:
        pass
    try:
        os.killpg(pid, 0)
    except PermissionError:
        return pid
    except ProcessLookupError:
        return None
    return pid


@functools.cache
def best_table() -> Table:
    """The first of them that works here."""
    try:
        ours = os.readlink(f"{_PROC}/self") == str(os.getpid())  # noqa: PTH115
    except OSError:
        ours = False
    return ProcTable() if ours else NoTable()


def start_of(pid: int, table: Table | None = None) -> int:
    """When the process started, in the units of the table; 0 when there is no such process."""
    stat = (table or best_table()).stat(pid)
    return stat.start if stat else 0


def members(leaders: dict[int, int], table: Table | None = None) -> list[ProcessStat]:
    """The living processes of the sessions led by `leaders` (process id -> start), and the leaders themselves."""
    table = table or best_table()
    found = [table.stat(pid) for pid in {*leaders, *table.pids()}]
    stats = [stat for stat in found if stat]
    own = dict(leaders)
    for stat in stats:
        if stat.pid in leaders and not _is(stat, leaders[stat.pid]):
            del own[stat.pid]  # the id was used again, so the session of that number is a stranger's
    return [stat for stat in stats if not stat.ended and _belongs(stat, own)]


def leader_of(pid: int, leaders: dict[int, int], table: Table | None = None) -> int | None:
    """The leader among `leaders` in whose session this living process is, or that it is itself; else None."""
    table = table or best_table()
    stat = table.stat(pid)
    if stat is None or stat.ended:
        return None
    if pid in leaders:
        return pid if _is(stat, leaders[pid]) else None
    leader = table.stat(stat.session)
    if leader is None or leader.pid not in leaders or not _is(leader, leaders[leader.pid]):
        return None
    return leader.pid if _belongs(stat, leaders) else None


def _is(stat: ProcessStat, start: int) -> bool:
    return start == stat.start or UNKNOWN in (start, stat.start)


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
    """Signal one process; it is not an error if it is gone."""
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        pass


def send_group(leader: int, signum: int) -> None:
    """Signal the process group that `leader` made; it is not an error if the group is gone."""
    try:
        os.killpg(leader, signum)
    except (ProcessLookupError, PermissionError):
        pass


def group_exists(leader: int) -> bool:
    """Whether there is a process in the group of this number."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def send_all(leaders: dict[int, int], signum: int, table: Table | None = None) -> None:
    """Signal the sessions of `leaders`: whole process groups, so that no process escapes by forking, then the processes
    in none of the leaders' groups, or in none yet. To look for these takes long where many processes run."""
    table = table or best_table()
    groups = {leader for leader, start in leaders.items() if _leads_group(table.stat(leader), start)}
    for group in groups:
        send_group(group, signum)
    living = members(leaders, table)
    left = {stat.group for stat in living if stat.group in leaders} - groups
    for group in left:
        send_group(group, signum)
    for stat in living:
        if stat.group not in groups | left:
            send(stat.pid, signum)


def kill_all_but_helpers(leaders: dict[int, int], table: Table | None = None) -> bool:
    """SIGKILL the sessions of `leaders` but the helpers in them, see `interfaces.workers.WorkerProcesses.kill_workers`.
    Returns whether there are helpers; without /proc there are none."""
    living = members(leaders, table)
    helpers = {stat.pid for stat in living if stat.pid not in leaders and _is_deaf(stat.pid)}
    served = {stat.session for stat in living if stat.pid in helpers}
    if others := {leader: start for leader, start in leaders.items() if leader not in served}:
        send_all(others, signal.SIGKILL, table)
    for stat in living:
        if stat.session in served and stat.pid not in helpers:
            send(stat.pid, signal.SIGKILL)
    return bool(helpers)


def _is_deaf(pid: int) -> bool:
    """Whether the process ignores or blocks SIGINT and SIGTERM."""
    return all(_has(pid, (b"SigIgn:", b"SigBlk:"), signum) for signum in (signal.SIGINT, signal.SIGTERM))


def catches(pid: int, signum: int) -> bool:
    """Whether the process has a handler for the signal. If that is unknown: yes."""
    return _has(pid, (b"SigCgt:",), signum) or not os.path.exists(f"{_PROC}/self/status")


def _has(pid: int, masks: tuple[bytes, ...], signum: int) -> bool:
    with contextlib.suppress(OSError), open(f"{_PROC}/{pid}/status", "rb") as file:
        return any(int(line.split()[1], 16) >> (signum - 1) & 1 for line in file if line.startswith(masks))
    return False


def _leads_group(stat: ProcessStat | None, start: int) -> bool:
    """Whether the group of the leader's number is our leader's."""
    return stat is not None and _is(stat, start) and stat.group == stat.pid


def end(leaders: dict[int, int], table: Table | None = None) -> None:
    """SIGKILL the sessions until nothing of them is left, or a process clearly will not die. Helpers come last: they
    have some time to end by themselves."""
    until = time.monotonic() + _HELPERS_GRACE_S
    while kill_all_but_helpers(leaders, table) and time.monotonic() < until:
        select.poll().poll(_PAUSE_MS)
    for _ in range(_PASSES):
        send_all(leaders, signal.SIGKILL, table)
        if not members(leaders, table):
            return
        select.poll().poll(_PAUSE_MS)


def link_of(fd: int) -> str:
    """What /proc shows for this descriptor of a pipe, and for each copy of it in other processes."""
    return f"pipe:[{os.fstat(fd).st_ino}]"


def holders(link: str, table: Table | None = None) -> dict[int, int]:
    """The processes that hold a descriptor with this link, with their starts; none on a system without /proc."""
    table = table or best_table()
    return {pid: start_of(pid, table) for pid in table.pids() if link in _links_of(pid)}


def _links_of(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):  # it is gone meanwhile, or another user's
        for fd in os.listdir(f"{_PROC}/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                yield os.readlink(f"{_PROC}/{pid}/fd/{fd}")  # noqa: PTH115 - pathlib would cost the guardian more than all else


def _end_holders(link: str, table: Table | None) -> None:
    """Until two looks in a row find nobody: a fork server may have been about to fork the worker, or to be given the
    link."""
    unseen = 0
    for _ in range(_PASSES):
        found = holders(link, table)
        unseen = 0 if found else unseen + 1
        if unseen == 2:
            return
        end(found, table)
        select.poll().poll(_PAUSE_MS)


def guard(orders: IO[str], table: Table | None = None, held: Iterable[int] = ()) -> None:
    """Follow the lines of `orders` to their end, then end what is watched and what is expected:
    `expect LINK`, a worker that is about to start and will hold this link, `watch PID START`, which is that worker,
    `forget PID`, and `scratch PATH`, a folder to remove.

    The end comes when the agent closes the pipe or dies, however it dies. Then a worker that is just being started
    holds no copy of the pipe any more, and has its mark. Once no worker is left, the descriptors that are `held` are
    closed: other nodes then learn that the agent has ended.
    """
    leaders: dict[int, int] = {}
    scratch: list[str] = []
    expected = ""
    for line in orders:
        verb, _, rest = line.rstrip("\n").partition(" ")
        if verb == "expect":
            expected = rest
        elif verb == "watch":
            pid, start = rest.split()
            leaders[int(pid)] = int(start)
            expected = ""
        elif verb == "forget":
            leaders.pop(int(rest), None)
        elif verb == "scratch":
            scratch.append(rest)
    end(leaders, table)
    if expected:
        _end_holders(expected, table)
    for descriptor in held:
        os.close(descriptor)
    for path in scratch:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(ignored, signal.SIG_IGN)
    guard(sys.stdin, held=[int(text) for text in sys.argv[1:]])
