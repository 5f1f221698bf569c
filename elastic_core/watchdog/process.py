"""Which process is meant: a process id is given again and again, the moment of its start is not."""

from __future__ import annotations

from pathlib import Path

_STATE = 0
_STARTED = 19  # the 22nd field of /proc/PID/stat; the name of the program, the second, may hold anything and is skipped


def process_start_time(pid: int) -> int | None:
    """When the process was started, in ticks since the machine was; None if no such process runs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[_STATE] in (b"Z", b"X") else int(fields[_STARTED])
    except (OSError, IndexError, ValueError):
        return None


def process_runs(pid: int, started: int | None) -> bool:
    """Whether the process runs that was started then; at any time if that is not known."""
    found = process_start_time(pid)
    return found is not None and (started is None or found == started)
