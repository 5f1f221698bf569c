"""The one way to stop: a signal to each worker, grace, SIGKILL, a bounded wait, and then giving up. `StopPlan` says
what comes when, as pure values; `GroupStop` applies it to the processes of a round.

What a worker has started (a DataLoader, a Manager or a pool) is not asked while it runs: it may need them to save."""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from elastic_core.agent.reporter import Progress
from elastic_core.clock import later
from elastic_core.errors import UnkillableWorkersError
from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from elastic_core.agent.event_queue import EventQueue
    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.interfaces.workers import Leftover, WorkerExit, WorkerProcesses

# Seconds for helpers of ended workers (multiprocessing's tracker) to notice, and to end. After a failure they hold up
# the restart; at the end of the job nothing waits, and they may have stalled.
AFTERGLOW: Duration = 0.3
LAST_AFTERGLOW: Duration = 2.0
_HELPERS_GRACE: Duration = 2.0  # seconds for them to clean up when those that they served were killed
_CONSOLE_PATIENCE: Duration = 30.0  # seconds of a stalled console after which the rest of the output is given up
_HURRIED_PATIENCE: Duration = 2.0  # the same when a signal has asked the agent to leave
_LOOK_AT_STORE: Duration = 0.5  # how much time there is depends on the last answer of the store: nothing reports that
_LOOK_AGAIN: Duration = 0.05  # after SIGKILL, and where the platform cannot report the end of a process not our child


class Step(enum.Enum):
    """What happens to processes that have not ended. The steps follow each other, and none is left out."""

    ASK = "ask the workers to end"
    KILL = "kill all but helpers"
    KILL_HELPERS = "kill all"
    GIVE_UP = "give up"


@dataclass(frozen=True)
class StopPlan:
    """One stop: the step that it has come to, at `since`.

    Args:
        grace: seconds between the asking signal and SIGKILL.
        patience: seconds after SIGKILL until a process that is still there is reported and left.
    """

    since: Instant
    grace: Duration
    patience: Duration
    step: Step = Step.ASK

    @property
    def until(self) -> Instant:
        """When the next step is due."""
        for_helpers = min(_HELPERS_GRACE, self.patience / 2)
        lasts = {Step.ASK: self.grace, Step.KILL: for_helpers, Step.KILL_HELPERS: self.patience - for_helpers}
        return later(self.since, lasts.get(self.step, 0.0))

    def at(self, now: Instant, urged: bool) -> StopPlan:
        """The plan at this moment, which may have come one step further. `urged`: do not wait for the grace period: a
        second signal has come, or the others go on."""
        if now < self.until and not (urged and self.step is Step.ASK):
            return self
        following = {Step.ASK: Step.KILL, Step.KILL: Step.KILL_HELPERS}.get(self.step, Step.GIVE_UP)
        return replace(self, since=now, step=following)


class GroupStop:
    """Ends all processes of a round. Waits at the agent's event queue, so that a signal cuts the wait short.

    Args:
        kill_timeout: see `ProcessAgent`.
        exited: called for each worker that has ended.
        stop_by: until when the processes may take their grace; None: for all of it. It is asked again and again.
    """

    def __init__(
        self,
        processes: WorkerProcesses,
        events: EventQueue,
        clock: Clock,
        kill_timeout: Duration,
        stop_by: Callable[[], Instant | None] = lambda: None,
        exited: Callable[[WorkerExit], None] = lambda ended: None,
    ) -> None:
        self._processes = processes
        self._exited = exited
        self._stop_by = stop_by
        self._events = events
        self._clock = clock
        self._kill_timeout = kill_timeout

    def stop(self, signum: signal.Signals, grace: Duration, afterglow: Duration = AFTERGLOW) -> None:
        """End the processes, then read their output to its end. In a finished round only what its workers left behind
        has to end; it has `afterglow` seconds to do so by itself.

        Raises:
            UnkillableWorkersError: a process has survived SIGKILL.
        """
        try:
            left = self._left_behind(afterglow)
            if left or self._processes.running():
                self._announce(left, signum, grace)
                begun = self._clock.now()
                self._end_processes(signum, grace)
                get_logger().info("workers stopped", seconds=round(self._clock.now() - begun, 3))
            self._deliver_output()
        finally:
            self._reap()
            self._processes.finish()

    def _left_behind(self, afterglow: Duration) -> list[Leftover]:
        """What has to be ended: everything while workers run; after them only what does not end by itself. A signal
        that comes meanwhile ends the wait."""
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
            log.info("stopping workers", local_ranks=running, signal=signum.name, grace=grace)
        else:
            commands = [f"{process.pid} {process.command}" for process in left]
            log.warning("leftover processes", reason="the workers ended and left these behind", processes=commands)

    def _end_processes(self, signum: signal.Signals, grace: Duration) -> None:
        plan = StopPlan(self._clock.now(), grace, self._kill_timeout)
        progress = Progress(plan.since, "workers to stop", partial(self._who_still_runs, grace))
        self._processes.ask(signum)
        self._processes.send_signal(signal.SIGCONT)  # a stopped process cannot answer the request to end
        while self._unfinished():
            now, due = self._clock.now(), self._stop_by()
            before, plan = plan, plan.at(now, urged=self._events.urged or (due is not None and now >= due))
            look = None if due is None else min(due, later(now, _LOOK_AT_STORE))
            if plan.step is Step.GIVE_UP:
                self._give_up()
                return
            if plan.step is Step.ASK:  # it may be SIGTERM by now, and workers may have left processes behind
                self._processes.ask(signal.SIGTERM if self._events.request is signal.SIGTERM else signum)
            else:
                if before.step is Step.ASK and now < before.until and not self._events.urged:
                    get_logger().warning("grace cut short", reason="the others may go on without this node")
                look = None
                if plan.step is Step.KILL:
                    self._processes.kill_workers()
                    look = later(now, _LOOK_AGAIN)  # the killed may have forked
                else:
                    self._processes.send_signal(signal.SIGKILL)
            self._wait_for_ends(plan.until, progress.look(now), look)
            self._events.take_expired()  # dropped: a worker that was asked to end has its whole grace
            self._reap()

    def _reap(self) -> None:
        for ended in self._processes.reap():
            self._exited(ended)

    def _unfinished(self) -> bool:
        # The process table, which is long with many workers, is searched only when all workers have gone.
        return bool(self._processes.running() or self._processes.leftovers())

    def _wait_for_ends(self, *until: Instant | None) -> None:
        fds = self._processes.sentinels() or self._processes.leftover_sentinels()
        self._events.wait(fds, *until, None if fds else later(self._clock.now(), _LOOK_AGAIN))

    def _who_still_runs(self, grace: Duration, seconds: int) -> dict[str, object]:
        return {"local_ranks": self._processes.running(), "seconds": seconds, "grace": grace}

    def _give_up(self) -> None:
        """Raises UnkillableWorkersError, unless the last one has just gone."""
        left = self._processes.leftovers()
        for process in left:
            waits_in = process.waits_in or "unknown"
            get_logger().error(
                "process would not die",
                pid=process.pid,
                state=process.state,
                waits_in=waits_in,
                command=process.command,
            )
        if left:
            names = "; ".join(f"{p.pid} ({p.command}) in state {p.state}, in {p.waits_in or 'unknown'}" for p in left)
            raise UnkillableWorkersError(
                f"expected every worker to be gone {self._kill_timeout:g} s after SIGKILL, found {len(left)} still "
                f"there: {names}. State D means that the kernel waits for a device or a file system: look at its log "
                "(dmesg); the process ends when that wait does, or with the machine"
            )

    def _deliver_output(self) -> None:
        """Wait for as long as the console takes output, within reason; a signal that comes meanwhile ends the wait."""
        done = self._processes.drain()
        signals = len(self._events.signals)
        patience = _HURRIED_PATIENCE if signals else _CONSOLE_PATIENCE
        delivered, deadline = -1, self._clock.now()
        readable: Collection[int] = ()
        progress = Progress(deadline, "the console to take the workers' output")
        while done is not None and done not in readable and len(self._events.signals) == signals:
            now = self._clock.now()
            if delivered != self._processes.delivered():
                delivered, deadline = self._processes.delivered(), later(now, patience)
            elif now >= deadline:
                return
            readable = self._events.wait([done], deadline, progress.look(now))
