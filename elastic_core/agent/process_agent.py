"""The agent whose workers are processes on this machine."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from elastic_core.agent.agent import SimpleElasticAgent
from elastic_core.agent.interface import RunResult, WorkerState
from elastic_core.agent.stopping import LAST_AFTERGLOW, CommonStep, GroupStop, agree
from elastic_core.clock import later
from elastic_core.errors import HANG
from elastic_core.interfaces.health import StopStatus
from elastic_core.interfaces.workers import RoundPlan, WorkerRanks
from elastic_core.log import get_logger
from elastic_core.metrics import prof_as

if TYPE_CHECKING:
    from elastic_core.agent.hang import HangPolicy, HangTable
    from elastic_core.agent.interface import WorkerGroup, WorkerSpec
    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.interfaces.observer import EnvironmentContributor, Observer
    from elastic_core.interfaces.workers import Expiry, WorkerExit, WorkerProcesses

_AGREEING: Duration = 5.0  # how long workers that are being stopped wait for the other nodes' steps
_ASKING: Duration = 2.0  # how long the agent keeps asking workers that hang at the same time for their stacks


class ProcessAgent(SimpleElasticAgent):
    """An agent that controls `processes` (see `interfaces.workers`) and reacts to events without polling. Its metrics
    have the same names as torch's.

    Args:
        spec: the workers to run.
        processes: the node's workers. The agent closes this object when it ends.
        node, host: the names of this node and of its machine, for reports.
        kill_timeout: seconds after SIGKILL until a process is reported as unkillable.
        contribute: returns additional environment variables for each round's workers.
        hangs: the policy for detecting hangs without a watchdog, or None to disable such detection.
        stop_at_multiple: workers that call `should_stop` stop at a step that is a multiple of this number.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        processes: WorkerProcesses,
        exit_barrier_timeout: Duration = 300,
        shutdown_timeout: Duration = 30,
        *,
        kill_timeout: Duration = 10,
        node: str = "",
        host: str = "",
        clock: Clock | None = None,
        observer: Observer | None = None,
        contribute: EnvironmentContributor | None = None,
        hangs: HangPolicy | None = None,
        stop_at_multiple: int = 1,
    ) -> None:
        super().__init__(spec, exit_barrier_timeout, shutdown_timeout, clock=clock, observer=observer)
        self._hangs = hangs
        self._stop_at_multiple = stop_at_multiple
        self._table: HangTable | None = None
        self._processes = processes
        self._kill_timeout = kill_timeout
        self._group_stop = GroupStop(
            processes, self._events, self._clock, kill_timeout, self._stop_by, lambda: self._stop_until, self._exited
        )
        self._node, self._host = node, host
        self._contribute = contribute

    def _wait_for_events(self) -> None:
        next_look = self._table.next_look if self._table else None
        self._events.wait(self._processes.sentinels(), self._link.ask_again(), next_look)

    @prof_as("LocalElasticAgent._start_workers")
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        plan = self._plan(worker_group)
        if (prepare := self._processes.preparation(plan)) is not None:
            self._unless_signaled(prepare)
            if self._events.signals:
                self._leave()
        self._events.pop_expired()  # timers that expired while no workers were running belong to the last round
        pids = self._processes.start(plan)
        self._table = self._hangs.table(self._clock.now()) if self._hangs else None
        return pids

    @prof_as("LocalElasticAgent._monitor_workers")
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._group_stop.reap()
        # A killed worker that hangs in the kernel is still running, but has failed; the stop will report it.
        if failures := self._processes.failures():
            return RunResult(WorkerState.FAILED, failures=failures)
        return RunResult(WorkerState.HEALTHY if self._processes.running() else WorkerState.SUCCEEDED)

    def _exited(self, ended: WorkerExit) -> None:
        self._reporter.worker_exited(self._worker_group.round, ended)

    @prof_as("LocalElasticAgent._stop_workers")
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._group_stop.stop(signal.SIGTERM, self._grace(), saving=self._saving())

    def _completed(self, result: RunResult) -> RunResult:
        if result.state is WorkerState.SUCCEEDED:
            self._group_stop.stop(signal.SIGTERM, self._shutdown_timeout, LAST_AFTERGLOW)
            if failures := self._processes.failures():  # a return value cannot be read
                return RunResult(WorkerState.FAILED, failures=failures)
            return replace(result, return_values={**self._processes.return_values(), **result.return_values})
        if result.state is WorkerState.FAILED:
            return replace(result, failures={**result.failures, **self._processes.failures()})
        return result

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: Duration = 30.0) -> None:
        self._group_stop.stop(death_sig, timeout, saving=self._saving())

    def _saving(self) -> CommonStep | None:
        group, rounds = self._worker_group, self._link.rounds
        if not self._orderly_stop or group.store is None:
            return None
        patience = min(_AGREEING, self._grace() / 4)
        ranks = (rounds.unfinished() if rounds else None) or range(group.group_world_size)
        multiple = self._stop_at_multiple
        settle = partial(agree, group.store, group.group_rank, ranks, multiple=multiple, patience=patience)
        return CommonStep(self._processes, self._events, self._clock, settle, self._orderly_stop, self._report_saving)

    def _report_saving(self, step: int, since: Instant, until: Instant, saved: list[int], unsaved: list[int]) -> None:
        group, now = self._worker_group, self._clock.now()
        ranks = {worker.local_rank: worker.global_rank for worker in group.workers}
        began, deadline = (self._clock.timestamp() + (at - now) for at in (since, until))
        global_ranks = (tuple(ranks[rank] for rank in local_ranks) for local_ranks in (saved, unsaved))
        stop = StopStatus(group.round, step, began, deadline, *global_ranks)
        self._reporter.saving(stop)
        if self._link.rounds:
            self._link.rounds.report_stop(stop)

    def _stop_by(self) -> Instant | None:
        """Return when the other nodes may continue without this one. If a notice takes effect during a stop, first
        notify the other nodes, because this node may not outlive the stop."""
        if self._events.departure:
            self._announce_leave(self._events.why)
        return self._link.stop_by()

    def _stop_timeout(self) -> Duration:
        return self._shutdown_timeout + self._kill_timeout

    def _end_hung_workers(self) -> None:
        """Kill the hung workers, beginning with the one that hung first, so that it becomes the root cause."""
        now = self._clock.now()
        until = later(now, _ASKING)
        hung = [*self._events.pop_expired(), *self._look_for_hangs()]
        for expiry in sorted(hung, key=lambda expiry: -expiry.late):
            reason = HANG + (expiry.reason or f"the watchdog timer {expiry.scope!r} was not released in time")
            local_rank = self._processes.kill(expiry.worker_pid, reason, ask=self._clock.now() < until)
            if local_rank is not None:
                self._first_sign = min(self._first_sign, later(now, -expiry.late))
                get_logger().error("worker hangs", local_rank=local_rank, pid=expiry.worker_pid, reason=reason)

    def _look_for_hangs(self) -> list[Expiry]:
        if self._table is None or self._clock.now() < self._table.next_look:
            return []
        samples = self._processes.samples()
        # Read the clock after sampling. Sampling takes a while, and progress must not be dated before it happened.
        self._table, found = self._table.look(samples, self._clock.now())
        return [found] if found else []

    def _plan(self, group: WorkerGroup) -> RoundPlan:
        workers = group.workers
        plan = RoundPlan(
            round=group.round,
            run_id=self._spec.rdzv_handler.get_run_id(),
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
        return replace(plan, contributed=self._contribute(plan)) if self._contribute else plan
