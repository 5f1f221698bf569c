"""Workers without processes: they end when and how the test says, and some will not die."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elastic_core.errors import ProcessFailure
from elastic_core.interfaces.workers import Leftover, WorkerExit, WorkerSample

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from elastic_core.interfaces.workers import RoundPlan

_FIRST_PID = 1000


class FakeWorkers:
    """See `interfaces.workers.WorkerProcesses`.

    Args:
        on_start: called with each round's plan and this object once its workers run; the place to script ends.
        deaf: local ranks that ignore every signal but SIGKILL.
        immortal: local ranks that ignore SIGKILL too, like a process in uninterruptible sleep.

    Attributes:
        plans: the plans of all rounds, in order.
        signals: every signal sent, in order.
        closed: whether `close` was called.
        killed: the reasons of all kills, in order.
        done: what `samples` tells, by local rank; the test writes it. Who is not in it has done nothing.
    """

    def __init__(
        self,
        on_start: Callable[[RoundPlan, FakeWorkers], None] | None = None,
        deaf: Collection[int] = (),
        immortal: Collection[int] = (),
    ) -> None:
        self._on_start = on_start
        self._deaf = {*deaf, *immortal}
        self._immortal = set(immortal)
        self._lock = threading.RLock()
        self._bell_reader, self._bell_writer = os.pipe()
        self._running: dict[int, int] = {}
        self._fresh: list[WorkerExit] = []
        self._ended: list[tuple[WorkerExit, bool]] = []
        self._failures: dict[int, ProcessFailure] = {}
        self._values: dict[int, Any] = {}
        self._reasons: dict[int, str] = {}
        self.plans: list[RoundPlan] = []
        self.signals: list[int] = []
        self.closed = False
        self.killed: list[str] = []
        self.done: dict[int, WorkerSample] = {}

    def end(self, local_rank: int, exitcode: int) -> None:
        """Let a worker end by itself. Any thread. Raises ValueError when it does not run (any more)."""
        with self._lock:
            if local_rank not in self._running:
                raise ValueError(f"expected one of the running workers {self.running()}, found {local_rank}")
            self._end(local_rank, exitcode, obeyed=False)

    def start(self, plan: RoundPlan) -> dict[int, int]:
        with self._lock:
            base = _FIRST_PID * (len(self.plans) + 1)
            self.plans.append(plan)
            self._ended.clear()
            self._reasons.clear()
            self._running = {ranks.local: base + ranks.local for ranks in plan.ranks}
            pids = dict(self._running)
        if self._on_start:
            self._on_start(plan, self)
        return pids

    def sentinels(self) -> Collection[int]:
        with self._lock:
            return [self._bell_reader] if self._running or self._fresh else []

    def reap(self) -> list[WorkerExit]:
        with self._lock:
            if self._fresh:
                os.read(self._bell_reader, 4096)
            fresh, self._fresh = self._fresh, []
            return fresh

    def running(self) -> list[int]:
        with self._lock:
            return sorted(self._running)

    def send_signal(self, signum: int) -> None:
        with self._lock:
            self.signals.append(signum)
            if signum == signal.SIGCONT:
                return
            spared = self._immortal if signum == signal.SIGKILL else self._deaf
            for rank in [rank for rank in self._running if rank not in spared]:
                self._end(rank, -signum, obeyed=True)

    def samples(self) -> list[WorkerSample]:
        with self._lock:
            return [
                replace(self.done.get(rank, WorkerSample(rank, pid)), pid=pid) for rank, pid in self._running.items()
            ]

    def kill(self, pid: int, reason: str, ask: bool = True) -> int | None:
        with self._lock:
            rank = next((rank for rank, own in self._running.items() if own == pid), None)
            if rank is None or rank in self._reasons:
                return None
            self.killed.append(reason)
            self._reasons[rank] = reason
            if rank in self._immortal:
                self._ended.append((WorkerExit(rank, pid, -signal.SIGKILL), False))
            else:
                self._end(rank, -signal.SIGKILL, obeyed=False)
            return rank

    def leftovers(self) -> list[Leftover]:
        with self._lock:
            return [
                Leftover(pid, "D" if rank in self._immortal else "S", f"fake worker {rank}", "fake_wait")
                for rank, pid in self._running.items()
            ]

    def leftover_sentinels(self) -> Collection[int]:
        return []

    def drain(self) -> int | None:
        return None

    def delivered(self) -> int:
        return 0

    def finish(self) -> None:
        with self._lock:
            if not self._running and not self._ended:
                return  # finished already, or never started: what the last round came to stands
            world = {ranks.local: ranks.world for ranks in self.plans[-1].ranks}
            self._failures = self._explain(world)
            self._values = {world[ended.local_rank]: None for ended, _ in self._ended if ended.exitcode == 0}
            self.reap()
            self._running = {}
            self._ended = []

    def failures_so_far(self) -> dict[int, ProcessFailure]:
        with self._lock:
            return self._explain({ranks.local: ranks.world for ranks in self.plans[-1].ranks}) if self._ended else {}

    def failures(self) -> dict[int, ProcessFailure]:
        return self._failures

    def return_values(self) -> dict[int, Any]:
        return self._values

    def close(self) -> None:
        with self._lock:
            if not self.closed:
                self.closed = True
                os.close(self._bell_reader)
                os.close(self._bell_writer)

    def _explain(self, world: dict[int, int]) -> dict[int, ProcessFailure]:
        bad = [ended for ended, obeyed in self._ended if ended.exitcode != 0 and not obeyed]
        plan = self.plans[-1]
        return {
            world[ended.local_rank]: ProcessFailure(
                local_rank=ended.local_rank,
                pid=ended.pid,
                exitcode=ended.exitcode,
                global_rank=world[ended.local_rank],
                role=plan.role,
                node=plan.node,
                round=plan.round,
                reason=self._reasons.get(ended.local_rank, f"exit code {ended.exitcode}"),
                stack="no stack: a fake worker has none" if ended.local_rank in self._reasons else "",
                caused_by=None if ended is bad[0] else world[bad[0].local_rank],
            )
            for ended in bad
        }

    def _end(self, local_rank: int, exitcode: int, obeyed: bool) -> None:
        ended = WorkerExit(local_rank, self._running.pop(local_rank), exitcode)
        self._fresh.append(ended)
        self._ended.append((ended, obeyed))
        os.write(self._bell_writer, b"!")
