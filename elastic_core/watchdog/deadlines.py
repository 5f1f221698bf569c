"""A table of running timers that finds the next timer to expire."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from elastic_core.clock import Instant


T = TypeVar("T")
_SLACK = 64


@dataclass(frozen=True)
class Timer(Generic[T]):
    """A timer, which expires unless the process `pid` releases `scope` before `deadline`. `about` contains extra data
    for the table's owner."""

    pid: int
    scope: str
    deadline: Instant
    about: T


class Deadlines(Generic[T]):
    """A table of running timers. All operations take logarithmic time, except `forget`, which takes linear time."""

    def __init__(self) -> None:
        self._running: dict[tuple[int, str], Timer[T]] = {}
        self._heap: list[tuple[Instant, int, Timer[T]]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._running)

    def pids(self) -> set[int]:
        """Return the ids of the processes that have timers."""
        return {pid for pid, _ in self._running}

    def acquire(self, timer: Timer[T]) -> None:
        """Start the timer, in place of any running timer with the same process and scope."""
        self._count += 1
        self._running[timer.pid, timer.scope] = timer
        heapq.heappush(self._heap, (timer.deadline, self._count, timer))
        self._tidy()

    def release(self, pid: int, scope: str) -> None:
        """Stop a timer, if it is running."""
        self._running.pop((pid, scope), None)
        self._tidy()

    def forget(self, unwanted: set[int]) -> None:
        """Stop all timers of these processes."""
        self._running = {key: timer for key, timer in self._running.items() if key[0] not in unwanted}
        self._tidy()

    def expired(self, now: Instant) -> list[Timer[T]]:
        """Remove and return the timers whose deadlines have passed, earliest first."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            timer = heapq.heappop(self._heap)[2]
            if self._runs(timer):
                del self._running[timer.pid, timer.scope]
                due.append(timer)
        return due

    def next_deadline(self) -> Instant | None:
        """Return when the next timer expires, or None if no timer is running."""
        while self._heap and not self._runs(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _runs(self, timer: Timer[T]) -> bool:
        return self._running.get((timer.pid, timer.scope)) is timer

    def _tidy(self) -> None:
        """Rebuild the heap if it consists mostly of released timers, which would otherwise stay until their
        deadlines."""
        if len(self._heap) > 2 * len(self._running) + _SLACK:
            self._heap = [entry for entry in self._heap if self._runs(entry[2])]
            heapq.heapify(self._heap)
