"""What the workers and all that they started use, as psutil sees it: looked up when somebody asks, and seldom."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from elastic_core.clock import later

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from elastic_core.clock import Clock

_AT_MOST_EVERY = 1.0  # seconds
_SHARE = 50  # a look is followed by so many times its own length without one: 2 % of a processor at most


class Usage(NamedTuple):
    """Of a worker and its descendants together: sums over processes, so memory that they share counts for each.

    Args:
        cpu_seconds: since they started, ended descendants included as far as they were waited for.
        memory_bytes: resident.
    """

    cpu_seconds: float
    memory_bytes: int


class UsageLog:
    """The last look. One thread at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: Mapping[int, Usage] = {}
        self._asked: frozenset[int] = frozenset()
        self._next = clock.now()

    def of(self, pids: Iterable[int]) -> Mapping[int, Usage]:
        """What the trees of these processes use, not older than a second unless looking takes long; without those that
        are gone. Workers that were not asked for before are new, and looked at now."""
        now = self._clock.now()
        wanted = frozenset(pids)
        if now >= self._next or not wanted <= self._asked:
            self._seen, self._asked = look(wanted), wanted
            took = self._clock.now() - now
            self._next = later(now, max(_AT_MOST_EVERY, took * _SHARE))
        return self._seen


def look(roots: frozenset[int]) -> Mapping[int, Usage]:
    """What the trees of those of our descendants use now."""
    import psutil

    if not roots:
        return {}
    parents, used = {}, {}
    for process in psutil.Process(os.getpid()).children(recursive=True):
        try:
            with process.oneshot():
                parents[process.pid] = process.ppid()
                times = process.cpu_times()
                own = times.user + times.system + times.children_user + times.children_system
                used[process.pid] = Usage(own, process.memory_info().rss)
        except psutil.Error:
            continue
    return _sums(roots, parents, used)


def _sums(roots: frozenset[int], parents: Mapping[int, int], used: Mapping[int, Usage]) -> dict[int, Usage]:
    sums: dict[int, Usage] = {}
    for pid, usage in used.items():
        root = _root(pid, roots, parents)
        if root is not None:
            before = sums.get(root, Usage(0.0, 0))
            sums[root] = Usage(before.cpu_seconds + usage.cpu_seconds, before.memory_bytes + usage.memory_bytes)
    return sums


def _root(pid: int, roots: frozenset[int], parents: Mapping[int, int]) -> int | None:
    """Whose tree a process is in; processes that change while one looks make no circle endless."""
    for _ in range(len(parents) + 1):
        if pid in roots:
            return pid
        if pid not in parents:
            return None
        pid = parents[pid]
    return None
