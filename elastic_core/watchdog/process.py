"""Identifies a process by its id and start time, because the kernel reuses process ids."""

from __future__ import annotations

from pathlib import Path

_STATE = 0
_STARTED = 19  # the 22nd field of /proc/PID/stat, counted from after the program's name, which may contain anything


def process_start_time(pid: int) -> int | None:
    """Return the process's start time in clock ticks since boot, or None if it is not running."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[_STATE] in (b"Z", b"X") else int(fields[_STARTED])
    except (OSError, IndexError, ValueError):
        return None


def process_runs(pid: int, started: int | None) -> bool:
    """Return whether the process with this id and start time is running. If `started` is None, return whether any
    process with this id is running."""
    found = process_start_time(pid)
    return found is not None and (started is None or found == started)
