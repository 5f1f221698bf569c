"""Observe processes from outside, and end them.

All times come from the kernel's clock since boot, in which it records the start of a process. The time from a kill to
the start of a new worker therefore does not depend on how often we look.
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
    """Seconds since boot, by the same clock as `start_time`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def start_time(pid: int) -> float:
    """When the process was forked, in seconds since boot.

    The kernel reports it in steps of 10 ms, rounded down. Returns the end of the step, so that figures are never too
    good.
    """
    # The name in the second field may contain anything, so split after the bracket that closes it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[19]) + 1) / os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Processor time of the process, including finished threads, without its children."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def peak_memory(pid: int) -> float | None:
    """Peak resident memory of this process alone in MiB (VmHWM), or None if it has exited.

    VmHWM belongs to one address space and is reset by exec. The `ru_maxrss` of wait4 would be wrong in two ways: it
    includes all descendants that the process has waited for, which are the workers; and it starts with the size of the
    process that forked it, which is this one.
    """
    with suppress(OSError):
        if found := re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()):
            return int(found[1]) / 1024
    return None


def has_torch(pid: int) -> bool:
    """Whether the process has mapped a library of torch."""
    with suppress(OSError):
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    return False


def workers_of(pid: int) -> dict[int, int]:
    """The workers that run below the launcher `pid`: process id by global rank.

    A worker is a process with RANK in its environment, which is set from its exec on.
    """
    workers = {}
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                if (rank := process.environ().get("RANK")) is not None and process.status() != psutil.STATUS_ZOMBIE:
                    workers[int(rank)] = process.pid
    return workers


def wait_gone(pids: Sequence[int], limit_s: float) -> float | None:
    """Wait until these processes have exited. Returns the time of the last exit, or None if a process still runs."""
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
    """Make this process the parent of descendants whose parent dies, so that `end_descendants` finds all of them."""
    pr_set_child_subreaper = 36
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def end_descendants() -> None:
    """Kill all descendants of this process, which the benchmark has started."""
    deadline = now() + STOP_LIMIT_S
    while (descendants := psutil.Process().children(recursive=True)) and now() < deadline:
        for process in descendants:
            with suppress(psutil.NoSuchProcess):
                process.kill()  # psutil compares start times first, so a reused pid is safe
        psutil.wait_procs(descendants, timeout=1.0)
