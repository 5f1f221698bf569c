"""The agent: an event loop around `supervise`. All changes of the group's state happen in this file."""

from __future__ import annotations

import abc
import signal
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from elastic_core.agent.barrier import await_others
from elastic_core.agent.blame import first_in_words, together
from elastic_core.agent.budget import RestartBudget
from elastic_core.agent.interface import ElasticAgent
from elastic_core.agent.joining import next_round
from elastic_core.agent.link import link_to
from elastic_core.agent.news import News
from elastic_core.agent.progress import Progress
from elastic_core.agent.ranks import check_place, ranked_workers
from elastic_core.agent.roll_call import Own
from elastic_core.agent.spec import DEFAULT_ROLE, Worker, WorkerGroup
from elastic_core.agent.state import RunResult, WorkerState
from elastic_core.agent.supervise import Action, Cause, Decision, Observation, closed, supervise
from elastic_core.agent.telling import Teller
from elastic_core.agent.turn import Turn, ended_by, in_words
from elastic_core.clock import Duration, Instant, SystemClock, later
from elastic_core.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    SignalException,
    failures_of,
)
from elastic_core.interfaces.handler import Outcome
from elastic_core.interfaces.health import AgentPhase
from elastic_core.interfaces.node import Round
from elastic_core.interfaces.observer import SilentObserver
from elastic_core.log import get_logger
from elastic_core.metrics import prof

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from elastic_core.agent.spec import WorkerSpec
    from elastic_core.agent.turn import Ended
    from elastic_core.clock import Clock
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.handler import RendezvousInfo
    from elastic_core.interfaces.observer import Observer
    from elastic_core.interfaces.store import Store
    from elastic_core.interfaces.watchdog import Expiry

_SHORTEST_INTERVAL: Duration = 0.001  # an interval of 0 must not make the loop spin


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
        self._tell = Teller(spec.rdzv_handler.get_run_id(), observer or SilentObserver(), self._clock)
        self._group = WorkerGroup(spec)
        self._news = News(self._clock)
        self._link = link_to(spec.rdzv_handler, self._clock, spec.monitor_interval, self._news.round_changed)
        self._budget = RestartBudget(spec.max_restarts, shared=self._link.shared_budget)
        self._formed = Round(0, ())
        self._unjudged: Decision | None = None
        self._barrier_ends = Instant(0.0)
        self._actions = {
            Action.RESTART: self._restart,
            Action.SUCCEED: self._succeed,
            Action.FAIL: self._fail,
            Action.LEAVE: self._leave_turn,
            Action.DEPART: self._depart,
            Action.RETIRE: self._retire,
            Action.YIELD: self._yield,
            Action.FENCE: self._fence,
        }

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        return self._group

    @property
    def restart_count(self) -> int:
        """Failures of the job that were forgiven so far; what the workers see as TORCHELASTIC_RESTART_COUNT."""
        return self._budget.failures

    def receive_signal(self, signum: int) -> None:
        """Ask the agent to stop its workers and leave. A second one ends their grace period, unless it is the same
        within half a second. Any thread, and from signal handlers. Raises ValueError for a number that is no
        signal's."""
        self._news.signalled(signal.Signals(signum))

    def timer_expired(self, expiry: Expiry) -> None:
        """Tell the agent of a worker that hangs. Any thread."""
        self._news.expired(expiry)

    def alive_at(self) -> float:
        """When the loop last turned, seconds since the epoch; a loop that waits for news is alive now."""
        return self._news.alive_at()

    @prof
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        try:
            result, reason = self._run_and_shut_down()
        except RendezvousGracefulExitError as spared:
            result, reason = RunResult(WorkerState.SUCCEEDED), str(spared)
        except BaseException as error:
            self._finish(*ended_by(error))
            raise
        self._finish(result.state, reason)
        return result

    def close(self) -> None:
        """Release what the agent holds, as `run` does at its end: for an agent that is never run. Idempotent."""
        self._news.close()

    def _run_and_shut_down(self) -> Ended:
        try:
            return self._run_group(self._group)
        except (RendezvousClosedError, RendezvousGracefulExitError):
            raise  # the others know more than this node
        except BaseException as error:
            # Before the workers are stopped: those of others fail when these go, and that must not count.
            self._link.leave(f"its agent ends: {in_words(error)}")
            if WorkerState.is_running(self._group.state):
                self._tell.phase(AgentPhase.STOPPING, in_words(error))
            raise
        finally:
            self._shutdown(signal.SIGTERM, self._spec.shutdown_timeout)

    def _run_group(self, group: WorkerGroup) -> Ended:
        self._initialize_workers(group)
        while True:
            self._wait_for_news()
            result = self._monitor_workers(group)
            group.state = result.state
            if result.state is WorkerState.FAILED:
                self._report_failures(result.failures)
            seen = self._observe(result)
            ended = self._act(Turn(seen, supervise(self._budget, seen)))
            if ended is not None:
                return ended

    def _observe(self, result: RunResult) -> Observation:
        verdict = self._link.verdict(WorkerState.is_running(result.state))
        return Observation(result, self._news.signals[0] if self._news.signals else None, verdict)

    def _act(self, turn: Turn) -> Ended | None:
        """Do it; None to go on."""
        if turn.decision.action is Action.CONTINUE:
            return None
        self._tell.failures(turn.seen.result.failures)
        return self._actions[turn.decision.action](turn)

    def _report_failures(self, failures: Mapping[int, ProcessFailure]) -> None:
        """As soon as they are seen, before any worker is stopped. Not when a signal has come: it may have gone to the
        workers too, and then they only obeyed."""
        if self._news.signals:
            self._begin_draining(f"received {self._news.signals[0].name}")
        elif failures:
            self._tell.phase(AgentPhase.STOPPING, first_in_words(failures), self._news.first_sign())
            self._link.report_failure(failures)

    # -- actions

    def _restart(self, turn: Turn) -> Ended | None:
        """What goes wrong while restarting must not hide the failure that made the restart necessary."""
        self._begin_stopping(turn)
        self._tell.hangs_elsewhere(turn.told, turn.seen.result.failures)
        self._begin_restart(turn.decision)
        try:
            self._restart_workers(self._group)
        except RendezvousClosedError as error:
            return self._end_closed(error, turn)
        except Exception as error:
            error.failures = failures_of(error) or turn.failures  # type: ignore[attr-defined]
            raise
        return None

    def _begin_restart(self, decision: Decision) -> None:
        self._budget = decision.budget
        if not decision.certain:
            self._unjudged = decision
            return
        # The budget of this node has paid already; a shared one will when the next round forms.
        unpaid = self._budget.shared and decision.cause is not Cause.MEMBERSHIP
        self._tell.restart(self._group.round, decision, self._budget, self._budget.failures + unpaid)

    def _end_closed(self, error: RendezvousClosedError, turn: Turn) -> Ended:
        """No round will form any more. Who had a failure of its own has failed; raises `error` for who had none."""
        verdict = self._link.verdict(running=False)
        if verdict and verdict.outcome is Outcome.CLOSED and verdict.succeeded:
            return RunResult(WorkerState.SUCCEEDED, turn.seen.result.return_values), closed(verdict)
        error.failures = together(turn.seen.result.failures, failures_of(error) or turn.told)
        if not turn.seen.result.failures:
            raise error
        get_logger().error("no restart", reason=str(error))
        return RunResult(WorkerState.FAILED, failures=dict(error.failures)), str(error)

    def _succeed(self, turn: Turn) -> Ended | None:
        """Tell the others, and wait for them; they may need this node once more."""
        self._tell.phase(AgentPhase.FINISHING, turn.decision.reason)
        self._barrier_ends = later(self._clock.now(), self._spec.exit_barrier_timeout)
        if turn.seen.verdict is None:
            self._link.report_success()
        self._exit_barrier()
        seen, decision = self._look_at_others(turn.seen.result)
        if not self._link.waits_for_others or decision.action is Action.CONTINUE:  # a subclass waits in its own way
            return turn.seen.result, turn.decision.reason + self._link.close()
        if seen.told(Outcome.FENCED) or decision.action is Action.DEPART:
            get_logger().warning("exit barrier left", reason=decision.reason)
        return self._act(Turn(seen, decision))

    def _look_at_others(self, result: RunResult) -> tuple[Observation, Decision]:
        seen = self._observe(result)
        return seen, await_others(self._budget, seen, self._clock.now(), self._barrier_ends)

    def _fail(self, turn: Turn) -> Ended:
        get_logger().error("no restart", reason=turn.decision.reason)
        self._begin_stopping(turn)
        self._stop_workers(self._group)
        result = replace(turn.seen.result, state=WorkerState.FAILED, failures=turn.failures)
        return result, turn.decision.reason + self._link.close()

    def _leave_turn(self, turn: Turn) -> NoReturn:
        self._leave(self._group)

    def _leave(self, group: WorkerGroup) -> NoReturn:
        """Leave the rendezvous open: the others go on without this node. They are told before the workers go, because
        theirs will fail then, and that is no failure of the job."""
        signum = self._news.signals[0]
        self._begin_draining(f"received {signum.name}")
        self._link.leave(f"received {signum.name}")
        self._shutdown(signum, self._spec.shutdown_timeout)
        group.state = WorkerState.STOPPED
        raise SignalException(f"the agent received {signum.name} and stopped its workers", signum)

    def _depart(self, turn: Turn) -> Ended:
        if turn.seen.told(Outcome.DRAINED):
            self._begin_draining(turn.decision.reason)
        self._link.leave(turn.decision.reason)
        return self._retire(turn)

    def _retire(self, turn: Turn) -> Ended:
        self._end_round(turn)
        return RunResult(WorkerState.SUCCEEDED, turn.seen.result.return_values), turn.decision.reason

    def _yield(self, turn: Turn) -> NoReturn:
        self._end_round(turn)
        error = RendezvousClosedError(turn.decision.reason)
        error.failures = turn.failures
        raise error

    def _fence(self, turn: Turn) -> NoReturn:
        self._end_round(turn)
        error = RendezvousConnectionError(
            f"expected the rendezvous store to answer while workers run, found: {turn.decision.reason}; the others "
            "hold this node to be gone by now, so its workers were stopped"
        )
        error.failures = turn.failures
        raise error

    def _end_round(self, turn: Turn) -> None:
        if WorkerState.is_running(self._group.state):
            get_logger().warning("round over", reason=turn.decision.reason)
            if turn.decision.action is not Action.DEPART:
                self._begin_stopping(turn)
            self._stop_workers(self._group)
            self._group.state = WorkerState.STOPPED

    def _begin_stopping(self, turn: Turn) -> None:
        self._tell.phase(AgentPhase.STOPPING, turn.decision.reason, self._news.first_sign())

    def _begin_draining(self, reason: str) -> None:
        self._tell.phase(AgentPhase.DRAINING, reason)

    def _finish(self, state: WorkerState, reason: str) -> None:
        try:
            self._tell.finished(state, reason, self._budget.failures)
        finally:
            self.close()

    @property
    def _run_id(self) -> str:
        return self._spec.rdzv_handler.get_run_id()

    # -- waiting

    def _wait_for_news(self) -> None:
        """Return when `_monitor_workers` or the handler may have something to say. Here: after the monitor interval."""
        self._wait((), later(self._clock.now(), max(self._spec.monitor_interval, _SHORTEST_INTERVAL)))

    def _wait(self, fds: Collection[int], until: Instant | None) -> None:
        """Wait for news, for one of `fds`, or until then."""
        self._news.wait(fds, until)

    # -- rounds

    @prof
    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        """Take part in the next round and start the workers."""
        worker_group.state = WorkerState.INIT
        self._tell.phase(AgentPhase.JOINING, "waits for the round to form")
        self._rendezvous(worker_group)
        self._tell.phase(AgentPhase.STARTING, self._formed.reason)
        pids = self._start_workers(worker_group)
        for worker in worker_group.workers:
            worker.id = pids[worker.local_rank]
        worker_group.state = WorkerState.HEALTHY
        self._tell.workers_started(worker_group, pids)
        self._tell.phase(AgentPhase.RUNNING)

    @prof
    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        """Stop what runs and start again in a new round."""
        self._stop_workers(worker_group)
        worker_group.state = WorkerState.STOPPED
        self._initialize_workers(worker_group)

    @prof
    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Wait for the next round and put its ranks into the group."""
        begun = self._clock.now()
        info = self._join(begun)
        formed = self._take_round(info)
        worker_group.round = formed.number
        worker_group.store = info.store
        worker_group.group_rank = info.rank
        worker_group.group_world_size = info.world_size
        worker_group.master_addr = info.bootstrap_store_info.master_addr
        worker_group.master_port = info.bootstrap_store_info.master_port
        worker_group.workers = self._assign_worker_ranks(info.store, info.rank, info.world_size, self._spec)
        self._tell.round_formed(worker_group, formed, self._clock.now() - begun)

    def _take_round(self, info: RendezvousInfo) -> Round:
        """What the members agreed on holds from now on; a failure that was to be judged has been forgiven."""
        formed = self._formed = info.formed or self._formed
        self._budget = self._budget.in_round(formed.restart_count)
        self._link.joined()
        self._news.forget_hangs()
        unjudged, self._unjudged = self._unjudged, None
        if unjudged is not None:
            self._tell.restart(self._group.round, unjudged, self._budget, formed.restart_count)
        return formed

    def _join(self, begun: Instant) -> RendezvousInfo:
        """Wait for the next round; a signal ends the wait."""
        if self._news.signals:  # one that came while the workers of the last round were being stopped
            self._leave(self._group)
        own = Own(self._spec.role, self._spec.local_world_size, self._budget.failures, self._group.round + 1)
        progress = Progress.starting(begun, partial(self._say_waiting, AgentPhase.JOINING, "other nodes to join"))
        outcome = next_round(self._spec.rdzv_handler, own, self._news, self._clock, progress)
        if outcome is None:
            self._leave(self._group)
        if isinstance(outcome, RendezvousClosedError):
            outcome.failures = failures_of(outcome) or self._told_by_handler()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _told_by_handler(self) -> Mapping[int, ProcessFailure]:
        verdict = self._link.verdict(running=False)
        return verdict.failures if verdict else {}

    @prof
    def _assign_worker_ranks(
        self, store: Store, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """The workers of this node with their ranks, as they follow from the members of the round."""
        check_place(self._formed.members, group_rank, group_world_size, spec)
        return ranked_workers(self._formed.members, group_rank)

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
        """After success: wait until the other nodes have succeeded, one of them needs this one again, a signal comes,
        or `spec.exit_barrier_timeout` is over. With a handler that cannot tell there is nothing to wait for."""
        if not self._link.waits_for_others:
            return
        result = RunResult(WorkerState.SUCCEEDED)
        progress = Progress.starting(
            self._clock.now(), partial(self._say_waiting, AgentPhase.FINISHING, "the workers of other nodes to succeed")
        )
        while self._look_at_others(result)[1].action is Action.CONTINUE:
            now = self._clock.now()
            self._wait((), _earliest(progress.look(now), self._barrier_ends, self._link.ask_again()))

    def _say_waiting(self, phase: AgentPhase, what: str, seconds: Duration) -> None:
        progress = self._link.progress()
        get_logger().info("still waiting", waiting_for=what, seconds=round(seconds), **progress)
        self._tell.phase(phase, f"waits for {what}" + "".join(f": {text}" for text in progress.values()))


def _earliest(*instants: Instant | None) -> Instant | None:
    return min((instant for instant in instants if instant is not None), default=None)
