"""Sentinels: file descriptors that become readable when a process has ended, so that no polling is needed."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.clock import Duration

OpenSentinel = Callable[[int], int]
"""Process id of a child -> a file descriptor to wait on and to close."""


def pidfd_sentinel(pid: int) -> int:
    """The kernel's own handle (Linux 5.3). Raises OSError or AttributeError where there is none."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return thread_sentinel(pid)  # ended, and reaped by others: readable at once


def thread_sentinel(pid: int) -> int:
    """The same by a thread that waits for the child without reaping it; works for children only. Raises RuntimeError
    when no thread is left."""
    readable, writable = os.pipe()

    def wait() -> None:
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass  # reaped already, so it has ended
        try:
            os.write(writable, b"!")  # closing alone would not do: a forked sibling may hold the pipe open
        except BrokenPipeError:
            pass
        finally:
            os.close(writable)

    try:
        threading.Thread(target=wait, name=f"wait-{pid}", daemon=True).start()
    except RuntimeError:
        os.close(readable)
        os.close(writable)
        raise
    return readable


def wait_readable(fd: int, timeout: Duration) -> bool:
    """Wait at most `timeout` seconds for one sentinel; whether it became readable."""
    waiter = select.poll()
    waiter.register(fd, select.POLLIN)
    return bool(waiter.poll(timeout * 1000))


def has_pidfd() -> bool:
    """Whether this kernel and this Python have pidfd."""
    try:
        os.close(pidfd_sentinel(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def best_sentinel() -> OpenSentinel:
    """`pidfd_sentinel` where it works, else `thread_sentinel`."""
    return pidfd_sentinel if has_pidfd() else thread_sentinel
