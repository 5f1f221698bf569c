"""The agent's loop: wait, observe, decide, act. All changes to the group's state are made in this file.

An event wakes the loop. The loop checks the workers (`_monitor_workers`) and asks the handler for its verdict on the
round. `supervise` decides what to do and returns orders, and the agent has one method for each order. The loop observes
and acts until there are no more orders, and then waits for the next event. After success, the agent waits in the exit
barrier in the same way."""

from __future__ import annotations

import abc
import signal
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

from elastic_core.agent.event_queue import SAME_REQUEST, Departure, EventQueue
from elastic_core.agent.interface import DEFAULT_ROLE, ElasticAgent, RunResult, Worker, WorkerGroup, WorkerState
from elastic_core.agent.link import SHORTEST_INTERVAL, Link, check_place, ranked_workers
from elastic_core.agent.reporter import Progress, Reporter, error_in_words, state_after
from elastic_core.agent.supervise import (
    Observation,
    Order,
    RestartBudget,
    await_others,
    cause_of_end,
    judged,
    supervise,
    together,
)
from elastic_core.clock import Duration, Instant, SystemClock, earliest, later
from elastic_core.errors import (
    DrainedError,
    PreemptedError,
    ProcessFailure,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    SignalException,
    failures_of,
)
from elastic_core.interfaces.handler import Outcome
from elastic_core.interfaces.health import AgentPhase
from elastic_core.interfaces.node import Member, Round
from elastic_core.log import get_logger
from elastic_core.metrics import prof
from elastic_core.support.bounded import BackgroundCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.agent.interface import WorkerSpec
    from elastic_core.agent.supervise import Decision
    from elastic_core.clock import Clock
    from elastic_core.interfaces.backend import Store
    from elastic_core.interfaces.node import Notice
    from elastic_core.interfaces.observer import Observer
    from elastic_core.interfaces.workers import Expiry

T = TypeVar("T")
Ended = tuple[RunResult, str]
"""The result of the run and the reason for it."""


class SimpleElasticAgent(ElasticAgent):
    """The agent's loop, independent of how workers run.

    A subclass defines `_start_workers`, `_stop_workers`, `_monitor_workers` and `_shutdown`. It may extend
    `_rendezvous`, `_assign_worker_ranks`, `_initialize_workers`, `_restart_workers` and `_exit_barrier`. The agent
    checks the workers every `spec.monitor_interval` seconds, unless the subclass overrides `_wait_for_events` because
    it is notified when a worker ends.

    Args:
        spec: the workers to run.
        exit_barrier_timeout: seconds (0 or more) for which a node whose workers have succeeded waits for other nodes'
            workers to finish. Applies only if the handler reports the other nodes' success. A node that hosts the other
            nodes' store waits longer.
        shutdown_timeout: seconds between SIGTERM and SIGKILL, no matter why the workers are stopped.
    """

    _node = _host = ""  # the names of this node and of its machine, if a subclass sets them

    def __init__(
        self,
        spec: WorkerSpec,
        exit_barrier_timeout: Duration = 300,
        shutdown_timeout: Duration = 30,
        *,
        clock: Clock | None = None,
        observer: Observer | None = None,
    ) -> None:
        if exit_barrier_timeout < 0:
            raise ValueError(f"expected an exit_barrier_timeout of 0 s or more, found {exit_barrier_timeout}")
        self._spec = spec
        self._exit_barrier_timeout = exit_barrier_timeout
        self._shutdown_timeout = shutdown_timeout
        self._clock = clock or SystemClock()
        self._reporter = Reporter(spec.rdzv_handler.get_run_id(), observer or (lambda fact: None), self._clock)
        self._worker_group = WorkerGroup(spec)
        self._result = RunResult(WorkerState.INIT)
        self._result_complete = False
        self._events = EventQueue(self._clock)
        self._link = Link(spec.rdzv_handler, self._clock, spec.monitor_interval, self._events.wake)
        self._budget = RestartBudget(spec.max_restarts, shared=self._link.rounds is not None)
        self._formed = Round(0, ())
        self._unjudged: Decision | None = None
        self._orderly_stop = ""  # why the workers must stop, if they may save first
        self._drained_until: Instant | None = None  # when the workers are killed, if the drain has a deadline
        self._first_sign = Instant(0.0)  # when the first sign of the next decision's cause appeared
        self._barrier_ends = Instant(0.0)
        self._ended_at: Instant | None = None
        self._performers: dict[Order, Callable[[Observation, Decision], Ended | None]] = {
            Order.REPORT: self._report_failures,
            Order.DEPART: self._depart,
            Order.STOP: self._stop_group,
            Order.COLLECT: self._complete,
            Order.SUCCEED: self._succeed,
            Order.RETIRE: self._retire,
            Order.FAIL: self._fail,
            Order.YIELD: self._yield,
            Order.LEAVE: self._leave,
        }

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        return self._worker_group

    @property
    def restart_count(self) -> int:
        """The number of the job's forgiven failures, which workers see as TORCHELASTIC_RESTART_COUNT."""
        return self._budget.failures

    def receive_signal(self, signum: int) -> None:
        """Make the agent stop its workers and leave. A second signal, at least half a second after the first, ends the
        workers' grace period. If the run has ended for at least half a second, the agent only stops waiting for other
        nodes. Any thread or signal handler may call this method.

        Raises:
            ValueError: the signal number is invalid.
        """
        self._events.signalled(signal.Signals(signum))
        ended = self._ended_at
        if ended is not None and self._clock.now() - ended >= SAME_REQUEST and self._link.rounds:
            self._link.rounds.hurry()

    def receive_notice(self, source: str, notice: Notice | None) -> None:
        """Record a notice, which replaces the source's previous notice. None withdraws the previous notice.

        The agent leaves when the remaining time is only just enough to stop the workers. Any thread may call this
        method."""
        departure = None
        if notice is not None:
            now, left = self._clock.now(), None if notice.at is None else notice.at - self._clock.timestamp()
            until = None if left is None or left <= 0 else later(now, left)
            due = now if until is None else later(until, -self._stop_timeout())
            departure = Departure(due, until, notice.reason)
        self._events.noticed(source, departure)

    def timer_expired(self, expiry: Expiry) -> None:
        """Report a hung worker. Any thread may call this method."""
        self._events.expired(expiry)

    def alive_at(self) -> float:
        """Return when the loop last ran, in seconds since the epoch (while it waits for events: the current time)."""
        return self._events.alive_at()

    @prof
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        try:
            result, reason = self._run_and_shut_down()
        except RendezvousGracefulExitError as spared:
            result, reason = RunResult(WorkerState.SUCCEEDED), str(spared)
        except BaseException as error:
            self._finish(state_after(error), error_in_words(error))
            raise
        self._finish(result.state, reason)
        return result

    def close(self) -> None:
        """Release the resources of an agent that is never run. `run` releases them itself when it ends. Idempotent."""
        self._events.close()

    def _run_and_shut_down(self) -> Ended:
        try:
            return self._run_group(self._worker_group)
        except (RendezvousGracefulExitError, DrainedError):
            raise
        except RendezvousClosedError as error:  # the other nodes know the reason better
            verdict = self._link.verdict(running=False)
            error.failures = failures_of(error) or (verdict.failures if verdict else {})
            raise
        except BaseException as error:
            self._orderly_stop = ""
            # Announce the departure before the workers stop. Stopping them makes other nodes' workers fail, and these
            # failures must not use up a restart.
            if not isinstance(error, RendezvousConnectionError):  # without a store, no node could be notified
                self._announce_leave(f"its agent is exiting: {error_in_words(error)}")
            if WorkerState.is_running(self._worker_group.state):
                self._reporter.phase(AgentPhase.STOPPING, error_in_words(error))
            raise
        finally:
            self._shutdown(signal.SIGTERM, self._shutdown_timeout)

    def _run_group(self, group: WorkerGroup) -> Ended:
        spec, rounds = self._spec, self._link.rounds
        if rounds:
            rounds.introduce(spec.role, spec.local_world_size, spec.max_restarts, self._stop_timeout())
        self._initialize_workers(group)
        while True:
            self._wait_for_events()
            self._first_sign = self._clock.now()
            self._end_hung_workers()
            self._result, self._result_complete = self._ranked(self._monitor_workers(group)), False
            group.state = self._result.state
            while (decision := supervise(self._budget, seen := self._observe())).orders:
                ended = self._act(seen, decision)
                if ended is not None:
                    return ended

    def _ranked(self, result: RunResult) -> RunResult:
        """Add the rank, time, role and round to failures that have no global rank, such as torch's."""
        now, role, number = self._clock.timestamp(), self._spec.role, self._worker_group.round
        failures = {
            rank: replace(failure, global_rank=rank, timestamp=failure.timestamp or now, role=role, round=number)
            for rank, failure in result.failures.items()
            if failure.global_rank < 0
        }
        return replace(result, failures={**result.failures, **failures}) if failures else result

    def _finish(self, state: WorkerState, reason: str) -> None:
        self._ended_at = self._clock.now()
        try:
            self._reporter.finished(state, reason, self._budget.failures)
        finally:
            self.close()

    # -- observing and deciding

    def _observe(self) -> Observation:
        seen = Observation(self._result, self._events.why, complete=self._result_complete)
        return replace(seen, verdict=self._link.verdict(seen.running))

    def _act(self, seen: Observation, decision: Decision) -> Ended | None:
        """Perform the decision. Returns the outcome if the run has ended, otherwise None."""
        self._announce(seen, decision)
        self._orderly_stop = decision.reason if decision.orderly else ""
        if self._drained_until is None and (verdict := seen.found(Outcome.DRAINED)) and verdict.within is not None:
            self._drained_until = later(self._clock.now(), verdict.within)
        if Order.JOIN in decision.orders:
            return self._restart(seen, decision)
        for order in decision.orders:
            ended = self._performers[order](seen, decision)
            if ended is not None:
                return ended
        return None

    def _announce(self, seen: Observation, decision: Decision) -> None:
        orders = set(decision.orders)
        if seen.found(Outcome.DRAINED) and Order.DEPART in orders:
            self._reporter.phase(AgentPhase.DRAINING, decision.reason)
        elif orders & {Order.STOP, Order.JOIN, Order.FAIL}:
            self._reporter.phase(AgentPhase.STOPPING, decision.reason, self._first_sign)
        if Order.STOP in orders and not orders & {Order.REPORT, Order.JOIN}:
            get_logger().warning("round over", reason=decision.reason)

    # -- acting: one method for each order

    def _report_failures(self, *_: object) -> None:
        if self._link.rounds and self._result.failures:
            self._link.rounds.report_failure(self._result.failures)

    def _depart(self, seen: Observation, decision: Decision) -> None:
        self._announce_leave(decision.reason)

    def _stop_group(self, *_: object) -> None:
        """Stop the workers. If this raises an error, attach the workers' failures, which the error would hide."""
        try:
            self._stop_workers(self._worker_group)
        except Exception as error:
            self._complete()
            self._report_failures()
            error.failures = failures_of(error) or self._result.failures  # type: ignore[attr-defined]
            raise
        self._worker_group.state = WorkerState.STOPPED
        self._complete()

    def _complete(self, *_: object) -> None:
        """Report the failures. By now, all their details are known, because no workers are running. If a success turns
        out to be a failure, the other nodes have to be notified first."""
        before, result = self._result.state, self._completed(self._result)
        if Observation(result).failed and not result.failures:
            result = replace(result, failures=self._failure_of_the_group(result))
        self._result, self._result_complete = result, result.state is before
        if self._result_complete:
            self._reporter.failures(result.failures)

    def _failure_of_the_group(self, result: RunResult) -> dict[int, ProcessFailure]:
        """Return a failure for a group that failed although no worker did. Nodes count only workers' failures."""
        rank, now = self._worker_group.workers[0].global_rank, self._clock.timestamp()
        why = f"the group is {result.state.value}"
        return {rank: ProcessFailure(0, 0, 1, timestamp=now, global_rank=rank, role=self._spec.role, reason=why)}

    def _restart(self, seen: Observation, decision: Decision) -> Ended | None:
        """Restart the workers. If this raises an error, attach to it the failures that led to the restart."""
        self._reporter.hangs_elsewhere(seen.reported, self._result.failures)
        charged = replace(self._budget, failures=self._budget.failures + decision.uses_budget)
        if not self._budget.shared:  # a shared one is charged when the next round forms
            self._budget = charged
        if decision.certain:
            self._reporter.restart(self._worker_group.round, decision, charged)
        else:
            self._unjudged = decision
        try:
            self._restart_workers(self._worker_group)
        except RendezvousClosedError as error:
            return self._end_closed(error, seen)
        except RendezvousGracefulExitError as spared:  # a torch-style handler also raises this for a former member
            if self._result.state is WorkerState.SUCCEEDED:
                raise
            return self._end_closed(RendezvousClosedError(str(spared)), seen)
        except Exception as error:
            error.failures = failures_of(error) or seen.failures  # type: ignore[attr-defined]
            raise
        self._result, self._result_complete = RunResult(WorkerState.HEALTHY), False
        return None

    def _end_closed(self, error: RendezvousClosedError, seen: Observation) -> Ended:
        """End the run, because no more rounds will form. The run succeeds if both the job and this node's workers have
        succeeded, and fails if this node's workers have failed. In all other cases, `error` is raised."""
        verdict = self._link.verdict(running=False)
        if error.succeeded and self._result.state is WorkerState.SUCCEEDED:
            return RunResult(WorkerState.SUCCEEDED, self._result.return_values), str(error)
        reported = failures_of(error) or (verdict.failures if verdict else {}) or seen.reported
        error.failures = together(self._result.failures, reported)
        if not self._result.failures:
            raise error
        self._worker_group.state = WorkerState.FAILED
        return RunResult(WorkerState.FAILED, failures=dict(error.failures)), str(error)

    def _succeed(self, seen: Observation, decision: Decision) -> Ended | None:
        """Notify the other nodes of the success, and wait for them, because they may still need this node."""
        self._reporter.phase(AgentPhase.FINISHING, decision.reason)
        self._barrier_ends = later(self._clock.now(), self._exit_barrier_timeout)
        if self._link.rounds and seen.verdict is None:
            self._link.rounds.report_success()
        self._exit_barrier()
        self._first_sign = self._clock.now()
        seen, after = self._look_at_others(self._first_sign)
        if self._link.rounds is None or not after.orders:  # a subclass's barrier may end earlier
            return self._result, decision.reason + self._link.close()
        if Order.RETIRE in after.orders and not seen.found(Outcome.CLOSED):
            get_logger().warning("exit barrier left", reason=after.reason)
        return self._act(seen, after)

    def _look_at_others(self, now: Instant) -> tuple[Observation, Decision]:
        seen, rounds = self._observe(), self._link.rounds
        hosts_store = rounds is not None and rounds.hosts_store
        return seen, await_others(seen, now, self._barrier_ends, hosts_store)

    def _retire(self, seen: Observation, decision: Decision) -> Ended:
        return RunResult(WorkerState.SUCCEEDED, self._result.return_values), decision.reason

    def _fail(self, seen: Observation, decision: Decision) -> Ended:
        self._worker_group.state = WorkerState.FAILED
        result = replace(seen.result, state=WorkerState.FAILED, failures=seen.failures)
        return result, decision.reason + self._link.close()

    def _yield(self, seen: Observation, decision: Decision) -> NoReturn:
        error = (DrainedError if seen.found(Outcome.DRAINED) else RendezvousClosedError)(decision.reason)
        error.failures = seen.failures
        raise error

    def _leave(self, *_: object) -> NoReturn:
        """Leave without closing the rendezvous, so that the other nodes can continue.

        Notify them before the stop, which makes their workers fail. These failures would otherwise use up a restart."""
        signum = self._events.request or signal.SIGTERM
        failures = self._result.failures if self._result_complete else {}  # from before the request
        self._reporter.phase(AgentPhase.DRAINING, self._events.why)
        self._announce_leave(self._events.why)
        self._shutdown(signum, self._grace())
        if self._worker_group.state is WorkerState.FAILED:
            self._complete()
        self._worker_group.state = WorkerState.STOPPED
        signum = self._events.request or signum  # SIGTERM may have arrived as part of the same request
        preempted = PreemptedError(self._events.why) if self._events.departure else None
        error = preempted or SignalException(f"stopped by {signum.name}", signum)
        error.failures = failures
        raise error

    # -- waiting

    def _wait_for_events(self) -> None:
        """Wait until the workers or the round may have changed. By default, wait `spec.monitor_interval` seconds."""
        self._events.wait((), later(self._clock.now(), max(self._spec.monitor_interval, SHORTEST_INTERVAL)))

    def _announce_leave(self, reason: str) -> None:
        if not self._link.has_left:
            self._unless_signaled(partial(self._link.leave, reason))

    def _unless_signaled(self, action: Callable[[], T], progress: Progress | None = None) -> T | None:
        """Return the action's result, or None if a signal arrives first. The action then continues in its thread.

        After a second request to leave, the handler stops waiting for other nodes."""
        before = len(self._events.signals)
        try:
            call = BackgroundCall(action, "rendezvous", self._events.wake)
        except RuntimeError:  # no thread can be started
            if progress is not None:  # in this thread, waiting for other nodes would delay the handling of signals
                raise
            return action()
        while True:
            until = progress.look(self._clock.now()) if progress else None
            done = call.wait(0)
            if self._events.urged and not done:
                if self._link.rounds:
                    self._link.rounds.hurry()
                return None
            if self._events.signals and not before:
                return None
            if done:
                return call.result()
            self._events.wait((), until)

    # -- rounds

    @prof
    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        """Join the next round and start the workers."""
        worker_group.state = WorkerState.INIT
        self._reporter.phase(AgentPhase.JOINING, "waits for the round to form")
        self._rendezvous(worker_group)
        self._reporter.phase(AgentPhase.STARTING, self._formed.reason)
        pids = self._start_workers(worker_group)
        for worker in worker_group.workers:
            worker.id = pids[worker.local_rank]
        worker_group.state = WorkerState.HEALTHY
        self._reporter.workers_started(worker_group, pids)
        self._reporter.phase(AgentPhase.RUNNING)

    @prof
    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        """Stop the running workers and start new ones in a new round."""
        if WorkerState.is_running(worker_group.state):
            self._stop_workers(worker_group)
            worker_group.state = WorkerState.STOPPED
        self._initialize_workers(worker_group)

    @prof
    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Wait for the next round, and store the round and this node's ranks in the group."""
        begun = self._clock.now()
        member = Member(self._node, self._host, "", self._spec.role, self._spec.local_world_size)
        own = Round(worker_group.round + 1, (member,), self._budget.failures)
        progress = self._progress(AgentPhase.JOINING, "the round to form", begun)
        self._events.wait((), begun)  # handle signals that have already arrived, perhaps during the last stop
        joined = None
        if not self._events.signals:
            joined = self._unless_signaled(partial(self._link.join, own), progress)
        if joined is None:
            self._leave()
        info, formed = joined
        self._take_round(formed)
        worker_group.round = formed.number
        worker_group.store = info.store
        worker_group.group_rank = info.rank
        worker_group.group_world_size = info.world_size
        worker_group.master_addr = self._spec.master_addr or info.bootstrap_store_info.master_addr
        worker_group.master_port = self._spec.master_port or info.bootstrap_store_info.master_port
        worker_group.workers = self._assign_worker_ranks(info.store, info.rank, info.world_size, self._spec)
        self._reporter.round_formed(worker_group, formed, self._clock.now() - begun)

    def _take_round(self, formed: Round) -> None:
        """Adopt the round that its members have agreed on. If a failure was awaiting a verdict, report the restart,
        because the new round shows that the failure has been forgiven."""
        self._formed = formed
        before, self._budget = self._budget.failures, replace(self._budget, failures=formed.restart_count)
        self._link.joined()
        unjudged, self._unjudged = self._unjudged, None
        if unjudged is not None:
            ended = cause_of_end(self._worker_group.round, before, formed)
            self._reporter.restart(self._worker_group.round, judged(unjudged, ended), self._budget)

    @prof
    def _assign_worker_ranks(
        self, store: Store, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """Return this node's workers with their ranks, which are computed from the round's members."""
        check_place(self._formed.members, group_rank, group_world_size, spec)
        return ranked_workers(self._formed.members, group_rank)

    # -- extension points

    @abc.abstractmethod
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        """Start the group's workers. Returns the workers' ids by local rank."""

    @abc.abstractmethod
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """Stop all workers, and wait until they have ended. Does nothing if no workers are running."""

    @abc.abstractmethod
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Return the workers' state: HEALTHY while they run, FAILED once a worker has failed, SUCCEEDED when all
        workers have succeeded. This method must not block, and need not stop any workers."""

    @abc.abstractmethod
    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: Duration = 30.0) -> None:
        """Stop all workers with `death_sig`, and with SIGKILL after `timeout` seconds, and then release all resources.
        Idempotent."""

    def _stop_timeout(self) -> Duration:
        """Return the maximum number of seconds that stopping the workers may take."""
        return self._shutdown_timeout

    @property
    def _stop_until(self) -> Instant | None:
        """When the workers are killed, or None if neither a drain nor a notice sets a time."""
        departure = self._events.departure
        return earliest(self._drained_until, departure.until if departure else None)

    def _grace(self) -> Duration:
        """Return how many seconds the workers get before SIGKILL."""
        until, most = self._stop_until, self._shutdown_timeout
        return most if until is None else min(max(until - self._clock.now(), 0.0), most)

    def _end_hung_workers(self) -> None:
        """Kill hung workers, so that `_monitor_workers` reports them as failed. By default, no hangs are detected."""

    def _completed(self, result: RunResult) -> RunResult:
        """Return the result with details that are known only when no workers run. By default, there are none."""
        return result

    def _exit_barrier(self) -> None:
        """Wait for the other nodes after success. The wait ends when the other nodes have succeeded, another node needs
        this node again, a signal arrives, or `exit_barrier_timeout` has passed.

        If no other node takes over the store that this node hosts, the node waits longer. If the handler cannot report
        the other nodes' success, the node does not wait."""
        rounds = self._link.rounds
        if rounds is None:
            return
        now, prolonged = self._clock.now(), False
        progress = self._progress(AgentPhase.FINISHING, "the workers of other nodes to succeed", now)
        while not (decision := self._look_at_others(now)[1]).orders:
            if now >= self._barrier_ends and not prolonged:
                prolonged = self._unless_signaled(rounds.hand_over) is False
                if not prolonged:
                    continue
                get_logger().info("exit barrier prolonged", reason=decision.reason)
            ends = None if prolonged else self._barrier_ends
            self._events.wait((), progress.look(now), ends, self._link.ask_again())
            now = self._clock.now()

    def _progress(self, phase: AgentPhase, what: str, begun: Instant) -> Progress:
        """Return a `Progress` for this wait. Its log lines and the phase's reason name the missing nodes."""

        def fields(seconds: int) -> dict[str, object]:
            found = self._link.rounds.progress() if self._link.rounds else ""
            self._reporter.phase(phase, f"waits for {what}: {found}" if found else f"waits for {what}")
            return {"seconds": seconds, "progress": found} if found else {"seconds": seconds}

        return Progress(begun, what, fields)
