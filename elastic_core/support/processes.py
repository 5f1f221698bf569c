"""Identifies processes by their ids and start times, because the kernel reuses ids, and closes file descriptors in
forked children, because other processes wait until the last copy has been closed."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from pathlib import Path
from typing import Protocol

_STATE = 0
_STARTED = 19  # the 22nd field of /proc/PID/stat, counted from after the program's name, which may contain anything


def process_start_time(pid: int) -> int | None:
    """Return the process's start time in clock ticks since boot, or None if the process is not running."""
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


class Droppable(Protocol):
    """An object whose file descriptors must not stay open in a forked child."""

    def drop(self) -> None:
        """Close the file descriptors in the child."""
        ...


_owners: weakref.WeakSet[Droppable] = weakref.WeakSet()


no_forks = threading.RLock()
"""A lock to hold while `subprocess` or `multiprocessing` starts a process. A child that another thread forks at that
moment would keep open a pipe on whose end the parent waits."""


def _release_in_child() -> None:
    with contextlib.suppress(RuntimeError):  # until it is free, because the thread may have held it before it forked
        while True:
            no_forks.release()


os.register_at_fork(before=no_forks.acquire, after_in_parent=no_forks.release, after_in_child=_release_in_child)


def drop_in_forks(owner: Droppable) -> None:
    """Call `owner.drop()` in every child that is forked from now on, for as long as `owner` exists."""
    _owners.add(owner)


def stop_dropping(owner: Droppable) -> None:
    """Stop calling `owner.drop()`, because the owner has closed its descriptors itself. Idempotent."""
    _owners.discard(owner)


def _drop_all() -> None:
    for owner in list(_owners):
        with contextlib.suppress(OSError):  # one owner's failure must not keep others from closing theirs
            owner.drop()


os.register_at_fork(after_in_child=_drop_all)
