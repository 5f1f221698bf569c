"""A table of running timers that finds the next timer to expire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from elastic_core.clock import Instant


T = TypeVar("T")


@dataclass(frozen=True)
class Timer(Generic[T]):
    """A timer, which expires unless the process `pid` releases `scope` before `deadline`. `about` contains extra data
    for the table's owner."""

    pid: int
    scope: str
    deadline: Instant
    about: T


class Deadlines(Generic[T]):
    """A table of running timers. A node has few of them, so a search looks at every timer."""

    def __init__(self) -> None:
        self._running: dict[tuple[int, str], Timer[T]] = {}

    def __len__(self) -> int:
        return len(self._running)

    def pids(self) -> set[int]:
        """Return the ids of the processes that have timers."""
        return {pid for pid, _ in self._running}

    def acquire(self, timer: Timer[T]) -> None:
        """Start the timer, in place of any running timer with the same process and scope."""
        self._running[timer.pid, timer.scope] = timer

    def release(self, pid: int, scope: str) -> None:
        """Stop a timer, if it is running."""
        self._running.pop((pid, scope), None)

    def forget(self, unwanted: set[int]) -> None:
        """Stop all timers of these processes."""
        self._running = {key: timer for key, timer in self._running.items() if key[0] not in unwanted}

    def expired(self, now: Instant) -> list[Timer[T]]:
        """Remove and return the timers whose deadlines have passed, earliest first."""
        due = [timer for timer in self._running.values() if timer.deadline <= now]
        for timer in due:
            self.release(timer.pid, timer.scope)
        return sorted(due, key=lambda timer: timer.deadline)

    def next_deadline(self) -> Instant | None:
        """Return when the next timer expires, or None if no timer is running."""
        return min((timer.deadline for timer in self._running.values()), default=None)
