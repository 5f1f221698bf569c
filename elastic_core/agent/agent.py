"""The agent: an event loop around `supervise`. All changes of the group's state happen in this file."""

from __future__ import annotations

import abc
import signal
import threading
from typing import TYPE_CHECKING, NoReturn

from elastic_core.agent.budget import RestartBudget
from elastic_core.agent.inbox import Inbox, Item, Joined, Signalled, TimerExpired
from elastic_core.agent.progress import Progress
from elastic_core.agent.spec import DEFAULT_ROLE, Worker, WorkerGroup
from elastic_core.agent.state import RunResult, WorkerState
from elastic_core.agent.supervise import Action, Decision, Observation, supervise
from elastic_core.clock import Duration, Instant, SystemClock, later
from elastic_core.errors import (
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    SignalException,
    failures_of,
)
from elastic_core.interfaces.observer import (
    AgentFinished,
    RestartDecided,
    RoundFormed,
    SilentObserver,
    WorkerFailed,
    WorkersStarted,
)
from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from elastic_core.agent.spec import WorkerSpec
    from elastic_core.clock import Clock
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.handler import RendezvousInfo
    from elastic_core.interfaces.observer import Observer
    from elastic_core.interfaces.store import Store
    from elastic_core.interfaces.watchdog import Expiry

_PIDS_IN_A_LINE = 8
_SHORTEST_INTERVAL: Duration = 0.001  # an interval of 0 must not make the loop spin
_SAME_REQUEST: Duration = 0.5  # seconds; a terminal and a wrapper (tox, timeout) both pass on what was asked once


class ElasticAgent(abc.ABC):
    """Runs the workers of one node to their end."""

    @abc.abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run until the workers succeeded or failed for good. A node that was not needed has succeeded too.

        Raises:
            SignalException: the agent was asked to leave and has stopped its workers.
            RendezvousError: no round formed.
            UnkillableWorkersError: a worker survived SIGKILL.
        """

    @abc.abstractmethod
    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """The group; for reading only."""


class SimpleElasticAgent(ElasticAgent):
    """The loop, without knowledge of how workers run.

    A subclass gives `_start_workers`, `_stop_workers`, `_monitor_workers` and `_shutdown`, and may extend
    `_rendezvous`, `_assign_worker_ranks`, `_initialize_workers`, `_restart_workers` and `_exit_barrier`. One that
    learns of its workers' ends by events overrides `_wait_for_news`; else they are looked at every
    `spec.monitor_interval` seconds.
    """

    def __init__(self, spec: WorkerSpec, clock: Clock | None = None, observer: Observer | None = None) -> None:
        self._spec = spec
        self._clock = clock or SystemClock()
        self._observer = observer or SilentObserver()
        self._group = WorkerGroup(spec)
        self._budget = RestartBudget(spec.max_restarts)
        self._inbox = Inbox(self._clock)
        self._signals: list[signal.Signals] = []
        self._asked_at = Instant(0.0)
        self._urged = False
        self._joined: Joined | None = None
        self._expired: list[Expiry] = []
        self._last_turn = self._clock.timestamp()

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        return self._group

    @property
    def restart_count(self) -> int:
        """Failures of the group so far; what the workers see as TORCHELASTIC_RESTART_COUNT."""
        return self._budget.failures

    def receive_signal(self, signum: int) -> None:
        """Ask the agent to stop its workers and leave. A second one ends their grace period, unless it is the same
        within half a second. Any thread, and from signal handlers. Raises ValueError for a number that is no
        signal's."""
        self._inbox.post(Signalled(signal.Signals(signum)))

    def timer_expired(self, expiry: Expiry) -> None:
        """Tell the agent of a worker that hangs. Any thread."""
        self._inbox.post(TimerExpired(expiry))

    def alive_at(self) -> float:
        """When the loop last turned, seconds since the epoch; a loop that waits for news is alive now."""
        return self._clock.timestamp() if self._inbox.waiting else self._last_turn

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        try:
            result, reason = self._run_and_shut_down()
        except RendezvousGracefulExitError as spared:
            result, reason = RunResult(WorkerState.SUCCEEDED), str(spared)
        except BaseException as error:
            self._finish(*_end_by(error))
            raise
        self._finish(result.state, reason)
        return result

    def close(self) -> None:
        """Release what the agent holds, as `run` does at its end: for an agent that is never run. Idempotent."""
        self._inbox.close()

    def _run_and_shut_down(self) -> tuple[RunResult, str]:
        try:
            return self._run_group(self._group)
        finally:
            self._shutdown(signal.SIGTERM, self._spec.shutdown_timeout)

    def _run_group(self, group: WorkerGroup) -> tuple[RunResult, str]:
        self._initialize_workers(group)
        while True:
            self._wait_for_news()
            result = self._monitor_workers(group)
            group.state = result.state
            decision = supervise(self._budget, self._observe(group, result))
            self._tell_failures(result.failures)
            if decision.action is Action.RESTART:
                self._begin_restart(group, decision)
                self._restart_after(result, group)
            elif decision.action is Action.LEAVE:
                self._leave(group)
            elif decision.action is not Action.CONTINUE:
                return self._end(group, result, decision)

    def _restart_after(self, result: RunResult, group: WorkerGroup) -> None:
        """What goes wrong while restarting must not hide the failure that made the restart necessary."""
        try:
            self._restart_workers(group)
        except Exception as error:
            error.failures = failures_of(error) or result.failures  # type: ignore[attr-defined]
            raise

    def _observe(self, group: WorkerGroup, result: RunResult) -> Observation:
        waiting = self._spec.rdzv_handler.num_nodes_waiting() if WorkerState.is_running(group.state) else 0
        return Observation(result, self._signals[0] if self._signals else None, waiting)

    def _begin_restart(self, group: WorkerGroup, decision: Decision) -> None:
        self._budget = decision.budget
        cause = decision.cause.value if decision.cause else ""
        facts = RestartDecided(
            self._run_id, group.round, cause, decision.reason, self._budget.failures, self._budget.max_restarts
        )
        get_logger().warning("restart decided", cause=cause, reason=decision.reason)
        self._observer.restart_decided(facts)

    def _end(self, group: WorkerGroup, result: RunResult, decision: Decision) -> tuple[RunResult, str]:
        """The job is over, well or badly: tell the other nodes, and wait for them only if all is well."""
        if decision.action is Action.FAIL:
            get_logger().error("no restart", reason=decision.reason)
            self._stop_workers(group)
        else:
            self._exit_barrier()
        return result, decision.reason + self._close_rendezvous()

    def _close_rendezvous(self) -> str:
        """The job is done whether or not the others can be told of it: what went wrong is added to the reason."""
        try:
            self._spec.rdzv_handler.set_closed()
        except RendezvousError as error:
            return f"; the other nodes could not be told: {error}"
        return ""

    def _leave(self, group: WorkerGroup) -> NoReturn:
        """Stop, and leave the rendezvous open: the others go on without this node."""
        signum = self._signals[0]
        self._shutdown(signum, self._spec.shutdown_timeout)
        group.state = WorkerState.STOPPED
        raise SignalException(f"the agent received {signum.name} and stopped its workers", signum)

    def _finish(self, state: WorkerState, reason: str) -> None:
        get_logger().info("agent finished", state=state.value, reason=reason, restarts=self._budget.failures)
        try:
            self._observer.agent_finished(AgentFinished(self._run_id, state.value, reason, self._budget.failures))
        finally:
            self.close()

    def _tell_failures(self, failures: Mapping[int, ProcessFailure]) -> None:
        for failure in failures.values():
            get_logger().error(
                "worker failed", rank=failure.global_rank, pid=failure.pid, round=failure.round, reason=failure.reason
            )
            self._observer.worker_failed(WorkerFailed(self._run_id, failure))

    @property
    def _run_id(self) -> str:
        return self._spec.rdzv_handler.get_run_id()

    # -- waiting

    def _wait_for_news(self) -> None:
        """Return when `_monitor_workers` may have something to say. Here: after the monitor interval."""
        self._wait((), later(self._clock.now(), max(self._spec.monitor_interval, _SHORTEST_INTERVAL)))

    def _wait(self, fds: Collection[int], until: Instant | None) -> None:
        """Wait in the inbox and sort what came."""
        for item in self._inbox.wait(fds, until):
            self._take(item)
        self._last_turn = self._clock.timestamp()

    def _take(self, item: Item) -> None:
        if isinstance(item, Signalled):
            self._take_signal(item.signum)
        elif isinstance(item, Joined):
            self._joined = item
        else:
            self._expired.append(item.expiry)

    def _take_signal(self, signum: signal.Signals) -> None:
        get_logger().warning("signal received", signal=signum.name)
        now = self._clock.now()
        if not self._signals:
            self._asked_at = now
        elif signum != self._signals[0] or now - self._asked_at >= _SAME_REQUEST:
            self._urged = True
        self._signals.append(signum)

    # -- rounds

    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        """Take part in the next round and start the workers."""
        worker_group.state = WorkerState.INIT
        self._rendezvous(worker_group)
        pids = self._start_workers(worker_group)
        for worker in worker_group.workers:
            worker.id = pids[worker.local_rank]
        worker_group.state = WorkerState.HEALTHY
        get_logger().info(
            "workers started", round=worker_group.round, workers=len(pids), pids=_few(list(pids.values()))
        )
        self._observer.workers_started(WorkersStarted(self._run_id, worker_group.round, pids))

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        """Stop what runs and start again in a new round."""
        self._stop_workers(worker_group)
        worker_group.state = WorkerState.STOPPED
        self._initialize_workers(worker_group)

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Wait for the next round and put its ranks into the group."""
        begun = self._clock.now()
        info = self._join(begun)
        worker_group.round += 1
        worker_group.store = info.store
        worker_group.group_rank = info.rank
        worker_group.group_world_size = info.world_size
        worker_group.master_addr = info.bootstrap_store_info.master_addr
        worker_group.master_port = info.bootstrap_store_info.master_port
        worker_group.workers = self._assign_worker_ranks(info.store, info.rank, info.world_size, self._spec)
        seconds = self._clock.now() - begun
        self._observer.round_formed(RoundFormed(self._run_id, worker_group.round, info.rank, info.world_size, seconds))
        get_logger().info(
            "round formed",
            round=worker_group.round,
            nodes=info.world_size,
            node_rank=info.rank,
            store=f"{worker_group.master_addr}:{worker_group.master_port}",
        )

    def _join(self, begun: Instant) -> RendezvousInfo:
        """`next_rendezvous` in a thread of its own, so that a signal is answered while it blocks."""
        if self._signals:  # one that came while the workers of the last round were being stopped
            self._leave(self._group)
        threading.Thread(target=self._call_handler, name="rendezvous", daemon=True).start()
        progress = Progress.starting(begun, _say_waiting_for_nodes)
        while self._joined is None:
            self._wait((), progress.look(self._clock.now()))
            if self._signals:
                self._leave(self._group)
        outcome, self._joined = self._joined.outcome, None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _call_handler(self) -> None:
        outcome: RendezvousInfo | BaseException
        try:
            outcome = self._spec.rdzv_handler.next_rendezvous()
        except BaseException as error:  # noqa: BLE001 - carried over to the agent's thread and raised there
            outcome = error
        self._inbox.post(Joined(outcome))

    def _assign_worker_ranks(
        self, store: Store, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """The workers of this node with their ranks. With one node they follow from the node alone."""
        if group_world_size != 1:
            raise RendezvousStateError(
                f"expected a round of one node, found one of {group_world_size}; this version runs single-node jobs"
            )
        size = spec.local_world_size
        return [Worker(rank, rank, rank, size, size) for rank in range(size)]

    # -- extension points

    @abc.abstractmethod
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        """Start a worker for each of the group's; local rank -> id."""

    @abc.abstractmethod
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """Stop all workers and wait for their end; nothing to do when none runs."""

    @abc.abstractmethod
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """How the workers are; does not block while they run."""

    @abc.abstractmethod
    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: Duration = 30.0) -> None:
        """Stop all workers with `death_sig`, SIGKILL after `timeout` seconds, and release everything. Idempotent."""

    def _exit_barrier(self) -> None:
        """Wait for the other nodes after success. One node has none to wait for."""


def _end_by(error: BaseException) -> tuple[WorkerState, str]:
    """State and reason of a run that an error ended."""
    if isinstance(error, SignalException):
        return WorkerState.STOPPED, str(error)
    if isinstance(error, KeyboardInterrupt):
        return WorkerState.STOPPED, "interrupted from the keyboard"
    return WorkerState.FAILED, f"{type(error).__name__}: {error}"


def _say_waiting_for_nodes(seconds: Duration) -> None:
    get_logger().info("still waiting", waiting_for="other nodes to join", seconds=round(seconds))


def _few(pids: list[int]) -> list[int] | str:
    """All process ids while a line can hold them; with many workers the first and the last."""
    return pids if len(pids) <= _PIDS_IN_A_LINE else f"{pids[0]} to {pids[-1]}"
