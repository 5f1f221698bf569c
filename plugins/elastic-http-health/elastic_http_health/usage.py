"""CPU time and memory of the workers and their descendants. psutil measures them on request, at a limited rate."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from elastic_core.plugin import later

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from elastic_core.plugin import Clock

_AT_MOST_EVERY = 1.0  # seconds
_SHARE = 50  # after a measurement, pause for this multiple of its duration, so that at most 2 % of a CPU is used


class Usage(NamedTuple):
    """The CPU time and memory of a worker and its descendants. Shared memory is counted once per process.

    Args:
        cpu_seconds: CPU time since the processes started, including descendants that have exited and were waited for.
        memory_bytes: resident memory.
    """

    cpu_seconds: float
    memory_bytes: int


class UsageLog:
    """Caches the latest measurement of the workers' usage. Not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: Mapping[int, Usage] = {}
        self._asked: frozenset[int] = frozenset()
        self._next = clock.now()

    def of(self, pids: Iterable[int]) -> Mapping[int, Usage]:
        """Return the usage of these processes, including their descendants, without processes that have exited. The
        result is at most a second old, unless a measurement takes a long time. A process id that the last call did not
        contain triggers a new measurement."""
        now = self._clock.now()
        wanted = frozenset(pids)
        if now >= self._next or not wanted <= self._asked:
            self._seen, self._asked = look(wanted), wanted
            took = self._clock.now() - now
            self._next = later(now, max(_AT_MOST_EVERY, took * _SHARE))
        return self._seen


def look(roots: frozenset[int]) -> Mapping[int, Usage]:
    """Measure the usage of these processes, including their descendants. The processes must be descendants of this
    one."""
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
