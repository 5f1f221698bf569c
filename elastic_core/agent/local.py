"""The agent whose workers are processes of this machine."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from elastic_core.agent.agent import SimpleElasticAgent
from elastic_core.agent.hang import HangTable
from elastic_core.agent.inbox import is_readable
from elastic_core.agent.progress import Progress
from elastic_core.agent.state import RunResult, WorkerState
from elastic_core.agent.stopping import Step, StopPlan
from elastic_core.clock import later
from elastic_core.errors import HANG, UnkillableWorkersError
from elastic_core.interfaces.workers import RoundPlan, WorkerRanks
from elastic_core.log import get_logger
from elastic_core.metrics import prof

if TYPE_CHECKING:
    from elastic_core.agent.hang import HangPolicy
    from elastic_core.agent.spec import WorkerGroup, WorkerSpec
    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.interfaces.observer import EnvironmentContributor, Observer
    from elastic_core.interfaces.watchdog import Expiry
    from elastic_core.interfaces.workers import Leftover, WorkerProcesses

_CONSOLE_PATIENCE: Duration = 30.0  # seconds that a console may take nothing before the rest of the output is given up
_HURRIED_PATIENCE: Duration = 2.0  # the same when a signal has asked the agent to leave
# Seconds for helpers of ended workers (multiprocessing's tracker) to notice, and to end. After a failure they hold up
# the restart; at the end of the job nothing waits, and they may have stalled.
_AFTERGLOW: Duration = 0.3
_LAST_AFTERGLOW: Duration = 2.0
_ASKING: Duration = 2.0  # seconds in which workers that hang together are asked for their stacks
_LOOK_AGAIN: Duration = 0.05  # only where the platform cannot tell of the end of a process that is not our child


class LocalElasticAgent(SimpleElasticAgent):
    """Drives `processes` (see `interfaces.workers`) by events alone.

    Args:
        spec: what to run.
        processes: how it runs; closed by the agent at its end.
        node: the name of this machine, for reports.
        contribute: more variables for the workers of each round.
        hangs: when a worker that nobody else watches is held to hang; None to let it.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        processes: WorkerProcesses,
        node: str = "",
        clock: Clock | None = None,
        observer: Observer | None = None,
        contribute: EnvironmentContributor | None = None,
        hangs: HangPolicy | None = None,
    ) -> None:
        super().__init__(spec, clock, observer)
        self._hangs = hangs
        self._table: HangTable | None = None
        self._processes = processes
        self._node = node
        self._contribute = contribute

    def _wait_for_news(self) -> None:
        wanted = (self._link.ask_again(), self._table.next_look if self._table else None)
        self._wait(self._processes.sentinels(), min((it for it in wanted if it is not None), default=None))

    @prof
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        self._news.take_expired()  # what was told while no worker ran is about those of the last round
        pids = self._processes.start(self._plan(worker_group))
        self._table = HangTable.starting(self._hangs, self._clock.now()) if self._hangs else None
        return pids

    @prof
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        hung = self._end_hung([*self._news.take_expired(), *self._look_for_hangs()])
        exits = self._processes.reap()
        for ended in exits:
            self._tell.worker_exited(worker_group.round, ended)
        # One that hangs in the kernel lives on: it has failed all the same, and the stop will find out.
        if any(ended.exitcode != 0 for ended in exits) or (hung and self._processes.failures_so_far()):
            # At once: the peers of a lost worker hang until somebody tells them, and to stop the others takes time.
            self._report_failures(self._processes.failures_so_far())
            self._stop_after_failure()
            return RunResult(WorkerState.FAILED, failures=self._processes.failures())
        if self._processes.running():
            return RunResult(WorkerState.HEALTHY)
        self._stop(signal.SIGTERM, self._spec.shutdown_timeout, _LAST_AFTERGLOW)
        return RunResult(WorkerState.SUCCEEDED, return_values=self._processes.return_values())

    def _stop_after_failure(self) -> None:
        """What would not die must not hide what failed first."""
        try:
            self._stop(signal.SIGTERM, self._spec.shutdown_timeout)
        except UnkillableWorkersError as error:
            error.failures = self._processes.failures()
            self._report_failures(error.failures)
            self._tell.failures(error.failures)
            raise

    @prof
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._stop(signal.SIGTERM, self._spec.shutdown_timeout)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: Duration = 30.0) -> None:
        try:
            self._stop(death_sig, timeout)
        finally:
            self._processes.close()

    def _plan(self, group: WorkerGroup) -> RoundPlan:
        workers = group.workers
        plan = RoundPlan(
            round=group.round,
            run_id=self._run_id,
            node=self._node,
            role=self._spec.role,
            group_rank=group.group_rank,
            group_world_size=group.group_world_size,
            world_size=workers[0].world_size,
            role_world_size=workers[0].role_world_size,
            master_addr=group.master_addr,
            master_port=group.master_port,
            use_agent_store=self._spec.rdzv_handler.use_agent_store,
            restart_count=self.restart_count,
            max_restarts=self._spec.max_restarts,
            ranks=tuple(WorkerRanks(w.local_rank, w.global_rank, w.role_rank) for w in workers),
        )
        return plan.with_contributed(self._contribute(plan)) if self._contribute else plan

    def _look_for_hangs(self) -> list[Expiry]:
        if self._table is None or self._clock.now() < self._table.next_look:
            return []
        samples = self._processes.samples()
        # Read after them, for they take a while, and what a worker did meanwhile must not seem to have been earlier.
        self._table, found = self._table.look(samples, self._clock.now())
        return [found] if found else []

    def _end_hung(self, expired: list[Expiry]) -> bool:
        """Each of them and nobody else, the one that is late most first: it is held to be the cause. Whether there was
        one."""
        found = False
        until = later(self._clock.now(), _ASKING)
        for expiry in sorted(expired, key=lambda expiry: -expiry.late):
            reason = HANG + (expiry.reason or f"the watchdog timer {expiry.scope!r} was not released in time")
            local_rank = self._processes.kill(expiry.worker_pid, reason, ask=self._clock.now() < until)
            if local_rank is not None:
                found = True
                self._news.hung(expiry.late)
                get_logger().error("worker hangs", local_rank=local_rank, pid=expiry.worker_pid, reason=reason)
        return found

    # -- the one stop path

    def _stop(self, signum: signal.Signals, grace: Duration, afterglow: Duration = _AFTERGLOW) -> None:
        """End everything the round consists of, then read its output to the end. A finished round leaves nothing
        to do but to end what its workers left behind, which has `afterglow` seconds to go by itself."""
        try:
            left = self._left_behind(afterglow)
            if left or self._processes.running():
                self._announce_stop(left, signum, grace)
                begun = self._clock.now()
                self._end_processes(signum, grace)
                get_logger().info("workers stopped", seconds=round(self._clock.now() - begun, 3))
            self._deliver_output()
        finally:
            self._processes.finish()

    def _deliver_output(self) -> None:
        """Wait for the console as long as it takes any, within reason; a signal that comes meanwhile ends the wait."""
        done = self._processes.drain()
        signals = len(self._news.signals)
        patience = _HURRIED_PATIENCE if signals else _CONSOLE_PATIENCE
        delivered, deadline = -1, self._clock.now()
        progress = Progress.starting(self._clock.now(), _say_waiting_for_console)
        while done is not None and not is_readable(done) and len(self._news.signals) == signals:
            now = self._clock.now()
            if delivered != self._processes.delivered():
                delivered, deadline = self._processes.delivered(), later(now, patience)
            elif now >= deadline:
                return
            self._wait([done], min(deadline, progress.look(now)))

    def _left_behind(self, afterglow: Duration) -> list[Leftover]:
        """What has to be ended: everything while workers run; after them only what does not follow them by itself. A
        signal that comes meanwhile ends the wait."""
        signals = len(self._news.signals)
        until = later(self._clock.now(), afterglow)
        while (left := self._processes.leftovers()) and not self._processes.running():
            if self._clock.now() >= until or len(self._news.signals) != signals:
                break
            self._wait_for_ends(until)
        return left

    def _announce_stop(self, left: list[Leftover], signum: signal.Signals, grace: Duration) -> None:
        log = get_logger()
        running = self._processes.running()
        if running:
            log.info("stopping workers", local_ranks=running, signal=signum.name, grace=grace)
        else:
            commands = [f"{process.pid} {process.command}" for process in left]
            log.warning("leftover processes", reason="the workers ended and left these behind", processes=commands)

    def _end_processes(self, signum: signal.Signals, grace: Duration) -> None:
        plan = StopPlan(self._clock.now(), grace, self._spec.kill_timeout)
        progress = Progress.starting(plan.begun, lambda seconds: self._say_still_stopping(seconds, grace))
        self._processes.send_signal(signum)
        self._processes.send_signal(signal.SIGCONT)  # a stopped process cannot answer the request to end
        while self._unfinished():
            now = self._clock.now()
            step = plan.step(now, urged=self._news.urged)
            if step is Step.GIVE_UP:
                self._give_up()
                return
            if step is Step.KILL:
                plan = plan if plan.killed is not None else plan.after_kill(now)
                self._processes.send_signal(signal.SIGKILL)
            self._wait_for_ends(min(plan.until, progress.look(now)))
            self._news.take_expired()  # dropped: who was asked to end has its grace, whatever it does in it
            self._processes.reap()

    def _unfinished(self) -> bool:
        # The process table is searched only when all workers have gone: with many of them it is long.
        return bool(self._processes.running() or self._processes.leftovers())

    def _wait_for_ends(self, until: Instant) -> None:
        fds = self._processes.sentinels() or self._processes.leftover_sentinels()
        self._wait(fds, until if fds else min(until, later(self._clock.now(), _LOOK_AGAIN)))

    def _say_still_stopping(self, seconds: Duration, grace: Duration) -> None:
        get_logger().info(
            "still waiting",
            waiting_for="workers to stop",
            local_ranks=self._processes.running(),
            seconds=round(seconds),
            grace=grace,
        )

    def _give_up(self) -> None:
        """Raises UnkillableWorkersError, unless the last one has just gone."""
        left = self._processes.leftovers()
        for process in left:
            get_logger().error(
                "process would not die",
                pid=process.pid,
                state=process.state,
                waits_in=process.waits_in or "unknown",
                command=process.command,
            )
        if left:
            raise UnkillableWorkersError(
                f"expected every worker to be gone {self._spec.kill_timeout:g} s after SIGKILL, found {len(left)} "
                f"still there: {_names(left)}. State D means that the kernel waits for a device or a file system: "
                "look at its log (dmesg); the process ends when that wait does, or with the machine"
            )


def _names(left: list[Leftover]) -> str:
    return "; ".join(f"{p.pid} ({p.command}) in state {p.state}, in {p.waits_in or 'unknown'}" for p in left)


def _say_waiting_for_console(seconds: Duration) -> None:
    get_logger().info("still waiting", waiting_for="the console to take the workers' output", seconds=round(seconds))
