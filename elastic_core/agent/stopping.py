"""Stops workers: sends each worker a signal, waits for the grace period, sends SIGKILL, waits for a limited time, and
finally gives up. All workers are stopped in this way.

Before the signal, workers may get time to save a checkpoint, all after the same step (see `common_step`).

A worker's child processes (a DataLoader, a Manager, a pool) get no signal while the worker is running, because the
worker may need them to save a checkpoint."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

from elastic_core.agent.reporter import Progress
from elastic_core.clock import earliest, later
from elastic_core.errors import UnkillableWorkersError
from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from elastic_core.agent.common_step import CommonStep
    from elastic_core.agent.event_queue import EventQueue
    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.interfaces.workers import Leftover, WorkerExit, WorkerProcesses

# Seconds that helpers of ended workers (such as multiprocessing's resource tracker) get to exit on their own. After a
# failure, they delay the restart; at the end of the job, they may take longer.
AFTERGLOW: Duration = 0.3
LAST_AFTERGLOW: Duration = 2.0
_HELPERS_GRACE: Duration = 2.0  # seconds for helpers to clean up after the workers that they served were killed
_CONSOLE_PATIENCE: Duration = 30.0  # seconds for which the console may stall before the rest of the output is dropped
_HURRIED_PATIENCE: Duration = 2.0  # the same limit after a signal has asked the agent to leave
_LOOK_AT_STORE: Duration = 0.5  # `stop_by` depends on the store's last response, and no event reports a change
# Between checks for what no event reports: a worker that calls `stopped`, a process that forks before SIGKILL, and on
# some platforms the end of a process that is not a child.
_LOOK_AGAIN: Duration = 0.05


class GroupStop:
    """Ends all processes of a round. All waiting is done in the agent's event queue, so that a signal can end a wait
    early.

    Args:
        kill_timeout: see `ProcessAgent`.
        stop_by: called repeatedly; returns when the other nodes may continue without this one, or None for no limit.
        deadline: called repeatedly; returns when the user or a notice ends the grace period, or None for no limit.
        exited: called for each worker that has ended.
    """

    def __init__(
        self,
        processes: WorkerProcesses,
        events: EventQueue,
        clock: Clock,
        kill_timeout: Duration,
        stop_by: Callable[[], Instant | None] = lambda: None,
        deadline: Callable[[], Instant | None] = lambda: None,
        exited: Callable[[WorkerExit], None] = lambda ended: None,
    ) -> None:
        self._processes = processes
        self._exited = exited
        self._stop_by = stop_by
        self._deadline = deadline
        self._events = events
        self._clock = clock
        self._kill_timeout = kill_timeout

    def stop(
        self,
        signum: signal.Signals,
        grace: Duration,
        afterglow: Duration = AFTERGLOW,
        saving: CommonStep | None = None,
    ) -> None:
        """End the processes, and then read the rest of their output.

        If no workers are running, only the processes that they left behind must be ended. These get `afterglow` seconds
        to exit on their own. If `saving` is given, workers that call `should_stop` get up to half of the grace period
        to save before the first signal.

        Raises:
            UnkillableWorkersError: a process has survived SIGKILL.
        """
        try:
            left = self._left_behind(afterglow)
            if left or self._processes.running():
                self._announce(left, signum, grace)
                begun = self._clock.now()
                self._end_processes(signum, grace, saving)
                get_logger().info("workers stopped", seconds=round(self._clock.now() - begun, 3))
            self._deliver_output()
        finally:
            self.reap()
            self._processes.finish()

    def _left_behind(self, afterglow: Duration) -> list[Leftover]:
        """Return the processes that must be ended. While workers are running, these are all processes. Otherwise, the
        remaining processes first get time to exit on their own, which a signal ends early."""
        signals = len(self._events.signals)
        until = later(self._clock.now(), afterglow)
        while (left := self._processes.leftovers()) and not self._processes.running():
            if self._clock.now() >= until or len(self._events.signals) != signals:
                break
            self._wait_for_ends(until)
        return left

    def _announce(self, left: list[Leftover], signum: signal.Signals, grace: Duration) -> None:
        log = get_logger()
        running = self._processes.running()
        if running:
            log.info("stopping workers", local_ranks=running, signal=signum.name, grace=round(grace, 3))
        else:
            commands = [f"{process.pid} {process.command}" for process in left]
            log.warning("leftover processes", reason="the workers ended and left these behind", processes=commands)

    def _end_processes(self, signum: signal.Signals, grace: Duration, saving: CommonStep | None) -> None:
        begun = self._clock.now()
        until = later(begun, grace)
        if saving and not self._processes.failures() and saving.begin(until):
            self._save(saving, later(begun, grace / 2))
            if not self._unfinished():
                return
        progress = Progress(
            self._clock.now(),
            "workers to stop",
            lambda seconds: {"local_ranks": self._processes.running(), "seconds": seconds, "grace": grace},
        )
        for_helpers = min(_HELPERS_GRACE, self._kill_timeout / 2)
        kill_all = partial(self._processes.send_signal, signal.SIGKILL)
        ended = (
            self._ask(signum, until, progress)
            or self._kill(self._processes.kill_workers, for_helpers, progress, again=_LOOK_AGAIN)
            or self._kill(kill_all, self._kill_timeout - for_helpers, progress)
        )
        if not ended:
            self._give_up()

    def _save(self, saving: CommonStep, until: Instant) -> None:
        """Wait until all workers have saved or exited, `until` is reached, or the grace period is cut short."""
        while True:
            now, due = self._clock.now(), earliest(self._stop_by(), self._deadline())
            cut_short = self._events.urged or (due is not None and now >= due)
            if saving.is_over(due) or cut_short or now >= until:
                saving.end()
                return
            self._wait_for_ends(until, later(now, _LOOK_AGAIN))

    def _ask(self, signum: signal.Signals, until: Instant, progress: Progress) -> bool:
        """Ask the processes to end. Returns whether all have ended by `until` or when the grace period is cut short."""
        self._processes.ask(signum)
        self._processes.send_signal(signal.SIGCONT)  # a suspended process cannot react to the request to end
        while self._unfinished():
            now, due, deadline = self._clock.now(), self._stop_by(), self._deadline()
            if now >= until or (deadline is not None and now >= deadline) or self._events.urged:
                return False
            if due is not None and now >= due:
                get_logger().warning("grace cut short", reason="the other nodes may continue without this one")
                return False
            # SIGTERM may have arrived since, and workers may have left processes behind.
            self._processes.ask(signal.SIGTERM if self._events.request is signal.SIGTERM else signum)
            look = earliest(deadline, None if due is None else min(due, later(now, _LOOK_AT_STORE)))
            self._wait_for_ends(until, progress.look(now), look)
        return True

    def _kill(
        self, kill: Callable[[], None], patience: Duration, progress: Progress, again: Duration | None = None
    ) -> bool:
        """Call `kill`, and repeat it after each event and every `again` seconds. Returns whether all processes have
        ended before `patience` seconds have passed."""
        now = self._clock.now()
        until = later(now, patience)
        while self._unfinished():
            kill()
            self._wait_for_ends(until, progress.look(now), None if again is None else later(now, again))
            now = self._clock.now()
            if now >= until:
                return False
        return True

    def reap(self) -> None:
        """Record the workers that have ended."""
        for ended in self._processes.reap():
            self._exited(ended)

    def _unfinished(self) -> bool:
        # With many workers, the process table is long, so it is read only after all workers have ended.
        return bool(self._processes.running() or self._processes.leftovers())

    def _wait_for_ends(self, *until: Instant | None) -> None:
        fds = self._processes.sentinels() or self._processes.leftover_sentinels()
        self._events.wait(fds, *until, None if fds else later(self._clock.now(), _LOOK_AGAIN))
        self._events.pop_expired()  # ignore timers, so that a stopping worker gets its whole grace period
        self.reap()

    def _give_up(self) -> None:
        """Raise UnkillableWorkersError, unless the last process has just ended."""
        left = self._processes.leftovers()
        for p in left:
            where = p.waits_in or "unknown"
            get_logger().error("process would not die", pid=p.pid, state=p.state, waits_in=where, command=p.command)
        if left:
            names = "; ".join(f"{p.pid} ({p.command}) in state {p.state}, in {p.waits_in or 'unknown'}" for p in left)
            raise UnkillableWorkersError(
                f"{len(left)} process(es) still exist {self._kill_timeout:g} s after SIGKILL: {names}. State D means "
                "that the kernel is waiting for a device or a file system: look at the kernel's log (dmesg); the "
                "process ends when that wait ends, or when the machine reboots"
            )

    def _deliver_output(self) -> None:
        """Wait until all output has been delivered, the console has stalled for too long, or a signal arrives."""
        done = self._processes.drain()
        signals = len(self._events.signals)
        patience = _HURRIED_PATIENCE if signals else _CONSOLE_PATIENCE
        delivered, deadline = -1, self._clock.now()
        readable: Collection[int] = ()
        progress = Progress(deadline, "the console to accept the workers' output")
        while done is not None and done not in readable and len(self._events.signals) == signals:
            now = self._clock.now()
            if delivered != self._processes.delivered():
                delivered, deadline = self._processes.delivered(), later(now, patience)
            elif now >= deadline:
                return
            readable = self._events.wait([done], deadline, progress.look(now))
