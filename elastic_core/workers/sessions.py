"""Finds and signals all of a worker's processes. As a program, this file is the guardian, which kills these processes
when the agent dies.

Every worker leads its own session. A process belongs to a worker if it is in the worker's session and did not start
before the worker, whatever its parent is now. Other processes are never signaled: one that created its own session (a
daemon) has detached on purpose, and an unrelated one may have received the process id of an ended worker. A worker that
runs a function starts an interpreter before it creates its session. Until then, only its process id and start time
identify it.

Processes are read from /proc. If /proc is missing or belongs to another PID namespace, only the leaders and the process
groups that they created can be found. psutil is not used, because the guardian runs without installed packages, and
psutil's start times change when the clock is set.

`HelperProcess` runs this file as the guardian, in a session that signals to the agent's session do not reach."""

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
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_PROC = "/proc"
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
UNKNOWN = -1  # replaces a start that cannot be read
_ENDED = "ZX"
_PASSES = 100  # SIGKILL passes in `end`: enough for a fork storm, and limited because some process may not die
_HELPERS_GRACE_S = 2.0
_PAUSE_MS = 10  # between passes: the kernel needs time to remove a large process


class ProcessStat(NamedTuple):
    """A line of the process table. `pid` and `start` (clock ticks since boot in /proc) together are unique, unless
    `start` is UNKNOWN."""

    pid: int
    state: str
    group: int
    session: int
    threads: int
    start: int

    @property
    def ended(self) -> bool:
        return self.state in _ENDED and self.threads <= 1  # the first thread may end long before the rest


class ProcTable:
    """The kernel's process table, read from /proc.

    The object keeps a spare descriptor open, and closes it to read the table when no other descriptors are left.
    The agent could not see or kill the workers without it. If another thread has taken the spare descriptor, only
    processes whose ids are known are found, see `ProcessIds`."""

    def __init__(self) -> None:
        self._spare: list[int] = []  # the thread that pops the descriptor closes it, so it is closed only once
        self._hold()

    def pids(self) -> Iterable[int]:
        try:
            return [int(name) for name in self._read(lambda: os.listdir(_PROC)) if name.isdigit()]
        except OSError:
            return ()

    def stat(self, pid: int) -> ProcessStat | None:
        """Return the table's line for the process, or None if there is no such process."""
        try:
            text = self._read(lambda: _content(f"{_PROC}/{pid}/stat"))
        except OSError as error:
            return ProcessIds().stat(pid) if error.errno in _NO_DESCRIPTOR else None
        fields = text[text.rindex(b")") + 2 :].split()  # the name before the `)` may contain spaces and parentheses
        group, session, threads, start = (int(fields[index]) for index in (2, 3, 17, 19))
        return ProcessStat(pid, fields[0].decode(), group, session, threads, start)

    def _read(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
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


def _content(path: str, most: int = -1) -> bytes:
    with open(path, "rb") as file:
        return file.read(most)


class ProcessIds:
    """A substitute for /proc that looks up a process or, if the process has ended, the process group that it
    created. Processes can be looked up only by their ids."""

    def pids(self) -> Iterable[int]:
        return ()

    def stat(self, pid: int) -> ProcessStat | None:
        group = pid
        try:
            os.kill(pid, 0)
            group = os.getpgid(pid)
        except PermissionError:
            pass  # it now runs as another user
        except ProcessLookupError:
            if not group_exists(pid):
                return None
        return ProcessStat(pid, "?", group, group, 1, UNKNOWN)


@functools.cache
def best_table() -> ProcTable | ProcessIds:
    try:
        ours = os.readlink(f"{_PROC}/self") == str(os.getpid())  # noqa: PTH115
    except OSError:
        ours = False
    return ProcTable() if ours else ProcessIds()


def start_of(pid: int) -> int:
    """Return the process's start in the table's units, or 0 if there is no such process."""
    stat = best_table().stat(pid)
    return stat.start if stat else 0


def members(leaders: dict[int, int]) -> list[ProcessStat]:
    """Return the live processes in the sessions of `leaders`, including the leaders. `leaders` maps process ids to
    starts."""
    table = best_table()
    found = [table.stat(pid) for pid in {*leaders, *table.pids()}]
    stats = [stat for stat in found if stat]
    own = dict(leaders)
    for stat in stats:
        if stat.pid in leaders and not _is(stat, leaders[stat.pid]):
            del own[stat.pid]  # the kernel has reused the id, so the session with this id is not the worker's
    return [stat for stat in stats if not stat.ended and _belongs(stat, own)]


def leader_of(pid: int, leaders: dict[int, int]) -> int | None:
    """Return the leader, among `leaders`, of the session of this live process. The process may itself be the leader.
    Returns None if there is no such leader."""
    table = best_table()
    stat = table.stat(pid)
    if stat is None or stat.ended:
        return None
    leader = stat if pid in leaders else table.stat(stat.session)
    if leader is None or leader.pid not in leaders or not _is(leader, leaders[leader.pid]):
        return None
    return leader.pid if _belongs(stat, leaders) else None


def _is(stat: ProcessStat, start: int) -> bool:
    return start == stat.start or UNKNOWN in (start, stat.start)


def _belongs(stat: ProcessStat, leaders: dict[int, int]) -> bool:
    return stat.pid in leaders or stat.start >= leaders.get(stat.session, sys.maxsize)


def command_of(pid: int) -> str:
    """Return the beginning of the process's command line. The result is empty if the process has ended."""
    return _shown(pid, "cmdline").replace("\0", " ").strip()


def waits_in(pid: int) -> str:
    """Return the kernel function in which the process is waiting, or an empty string if the kernel does not show it."""
    return _shown(pid, "wchan").strip("0")


def _shown(pid: int, name: str) -> str:
    with contextlib.suppress(OSError):
        return _content(f"{_PROC}/{pid}/{name}", 200).decode(errors="replace")
    return ""


def send(pid: int, signum: int) -> None:
    """Send the signal to the process, if it exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def send_group(leader: int, signum: int) -> None:
    """Send the signal to the process group that `leader` created, if it exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signum)


def group_exists(leader: int) -> bool:
    """Return whether the process group with this number has any processes."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def send_all(leaders: dict[int, int], signum: int) -> None:
    """Send the signal to the sessions of `leaders`.

    Whole process groups are signaled first, so that no process escapes by forking. Processes in other groups, or in a
    group whose leader has ended, come next. Finding them takes a long time if many processes are running."""
    table = best_table()
    # A leader that has not created its group yet is still in the agent's.
    found = [(table.stat(leader), start) for leader, start in leaders.items()]
    groups = {stat.pid for stat, start in found if stat and _is(stat, start) and stat.group == stat.pid}
    for group in groups:
        send_group(group, signum)
    living = members(leaders)
    left = {stat.group for stat in living if stat.group in leaders} - groups
    for group in left:
        send_group(group, signum)
    for stat in living:
        if stat.group not in groups | left:
            send(stat.pid, signum)


def kill_all_but_helpers(leaders: dict[int, int]) -> bool:
    """Send SIGKILL to the sessions of `leaders`, sparing helpers (see `WorkerProcesses.kill_workers`). Returns whether
    there are helpers. Without /proc, no helpers are found."""
    living = members(leaders)
    helpers = {stat.pid for stat in living if stat.pid not in leaders and _is_deaf(stat.pid)}
    served = {stat.session for stat in living if stat.pid in helpers}
    if others := {leader: start for leader, start in leaders.items() if leader not in served}:
        send_all(others, signal.SIGKILL)
    for stat in living:
        if stat.session in served and stat.pid not in helpers:
            send(stat.pid, signal.SIGKILL)
    return bool(helpers)


def _is_deaf(pid: int) -> bool:
    """Return whether the process ignores or blocks SIGINT and SIGTERM."""
    return all(_has(pid, (b"SigIgn:", b"SigBlk:"), signum) for signum in (signal.SIGINT, signal.SIGTERM))


def catches(pid: int, signum: int) -> bool:
    """Return whether the process has a handler for the signal. Without /proc, the result is always true."""
    return _has(pid, (b"SigCgt:",), signum) or not os.path.exists(f"{_PROC}/self/status")


def _has(pid: int, masks: tuple[bytes, ...], signum: int) -> bool:
    with contextlib.suppress(OSError):
        lines = _content(f"{_PROC}/{pid}/status").splitlines()
        return any(int(line.split()[1], 16) >> (signum - 1) & 1 for line in lines if line.startswith(masks))
    return False


def end(leaders: dict[int, int]) -> None:
    """Send SIGKILL to the sessions until no processes are left in them, or until it is clear that a process will not
    die. Helpers first get some time to exit on their own."""
    until = time.monotonic() + _HELPERS_GRACE_S
    while kill_all_but_helpers(leaders) and time.monotonic() < until:
        select.poll().poll(_PAUSE_MS)
    for _ in range(_PASSES):
        send_all(leaders, signal.SIGKILL)
        if not members(leaders):
            return
        select.poll().poll(_PAUSE_MS)


def link_of(fd: int) -> str:
    """Return the link that /proc shows for this pipe descriptor and for its copies in other processes."""
    return f"pipe:[{os.fstat(fd).st_ino}]"


def holders(link: str) -> dict[int, int]:
    """Return the starts of the processes that have a descriptor open for this link, by process id. Without /proc, the
    result is empty."""
    return {pid: start_of(pid) for pid in best_table().pids() if link in _links_of(pid)}


def _links_of(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):  # the process has ended or is another user's
        for fd in os.listdir(f"{_PROC}/{pid}/fd"):
            with contextlib.suppress(OSError):  # the process has closed it
                yield os.readlink(f"{_PROC}/{pid}/fd/{fd}")  # noqa: PTH115 - importing pathlib would dominate the guardian's start


def _end_holders(link: str) -> None:
    """Kill the processes that have a descriptor open for the link, until two searches in a row find none. A single
    search is not enough, because a fork server may be about to fork the worker or to receive the descriptor."""
    unseen = 0
    for _ in range(_PASSES):
        found = holders(link)
        unseen = 0 if found else unseen + 1
        if unseen == 2:
            return
        end(found)
        select.poll().poll(_PAUSE_MS)


def guard(orders: IO[str], held: Iterable[int] = ()) -> None:
    """Obey `orders`, one per line, until the agent closes the pipe or dies. Then kill the watched workers and the
    expected worker, and remove the scratch folders.

    The orders are `expect LINK` (a worker is about to start and will hold a descriptor with this link), `watch PID
    START` (that worker has started), `forget PID`, and `scratch PATH` (a folder to remove).

    The descriptors in `held` are closed when no workers are left. Other nodes then see that the agent has ended."""
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
    end(leaders)
    if expected:
        _end_holders(expected)
    for descriptor in held:
        os.close(descriptor)
    for path in scratch:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(ignored, signal.SIG_IGN)
    guard(sys.stdin, held=[int(text) for text in sys.argv[1:]])
