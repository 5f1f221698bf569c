"""What the workers and all that they started use, as psutil sees it: looked up when somebody asks, and seldom."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from elastic_core.plugin import later

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from elastic_core.plugin import Clock

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

    root_of: dict[int, int] = {}
    sums: dict[int, Usage] = {}
    for process in psutil.Process(os.getpid()).children(recursive=True) if roots else ():  # parents come first
        try:
            with process.oneshot():
                root = process.pid if process.pid in roots else root_of.get(process.ppid())
                if root is None:
                    continue
                times = process.cpu_times()
                own = times.user + times.system + times.children_user + times.children_system
                resident = process.memory_info().rss
        except psutil.Error:
            continue
        root_of[process.pid] = root
        before = sums.get(root, Usage(0.0, 0))
        sums[root] = Usage(before.cpu_seconds + own, before.memory_bytes + resident)
    return sums
