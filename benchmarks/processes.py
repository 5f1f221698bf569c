"""A look at processes from outside, and how to end them.

All times come from one clock, the kernel's time since boot, because that is the clock in which it keeps the start of
a process. So "kill to start of the new worker" is read from the kernel and does not depend on how often we look.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

STOP_LIMIT_S = 15.0


def now() -> float:
    """Seconds since boot, the clock of `start_time`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def start_time(pid: int) -> float:
    """When the process was forked, in seconds since boot.

    The kernel tells it in steps of 10 ms, rounded down. The end of the step is returned, so that a figure made from it
    is never better than the truth.
    """
    # The name in the second field may contain anything, so count from the bracket that closes it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[19]) + 1) / os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Processor time of the process itself, all its threads, ended ones too; its children are not in it."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def peak_memory(pid: int) -> float | None:
    """Peak resident memory of this one process in MiB (VmHWM), or None when it has none any more.

    VmHWM belongs to the address space of one program: it starts anew at exec and no other process counts into it. The
    `ru_maxrss` that wait4 gives would be wrong here twice: it is the maximum over the process *and* all descendants it
    waited for, which are the workers; and it starts with the size of the process that forked it, which is this one.
    """
    with suppress(OSError):
        if found := re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()):
            return int(found[1]) / 1024
    return None


def has_torch(pid: int) -> bool:
    """Whether any library of torch is mapped into the process now."""
    with suppress(OSError):
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    return False


def workers_of(pid: int) -> dict[int, int]:
    """The workers that run below the launcher `pid`: process id by global rank.

    A worker is known by the RANK in its environment, which a process has from its exec on.
    """
    workers = {}
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                if (rank := process.environ().get("RANK")) is not None and process.status() != psutil.STATUS_ZOMBIE:
                    workers[int(rank)] = process.pid
    return workers


def wait_gone(pids: Sequence[int], limit_s: float) -> float | None:
    """Wait until none of these processes runs; returns when the last one ended, or None if one still does."""
    deadline = now() + limit_s
    handles = []
    for pid in pids:
        with suppress(ProcessLookupError):
            handles.append(os.pidfd_open(pid))
    try:
        for handle in handles:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            if not poll.poll(max(0.0, deadline - now()) * 1000):
                return None
        return now()
    finally:
        for handle in handles:
            os.close(handle)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parent dies, so that `end_descendants` finds every one."""
    pr_set_child_subreaper = 36
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def end_descendants() -> None:
    """Kill what this benchmark started and what that started. Nothing else descends from this process."""
    deadline = now() + STOP_LIMIT_S
    while (descendants := psutil.Process().children(recursive=True)) and now() < deadline:
        for process in descendants:
            with suppress(psutil.NoSuchProcess):
                process.kill()  # psutil compares start times first, so a pid that was used again is left alone.
        psutil.wait_procs(descendants, timeout=1.0)
